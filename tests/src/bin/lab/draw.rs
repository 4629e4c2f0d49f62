//! Pictures and tables from the figures: SVG files, and the parts of pages between `<!-- NAME: made by cargo xtask
//! lab -->` and `<!-- end -->`. What stands between those parts is written by people.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, anyhow};
use damper_tests::lab::figures::Part;
use damper_tests::lab::results::{Results, Row};
use damper_tests::lab::scenario::Trouble;
use damper_tests::lab::targets;
use plotters::prelude::*;

use crate::chart::{Area, Axis, Chart, Drawn, Line, drawn};
use crate::compare::{self, Pair};
use crate::matrix::{self, LAYERS, SHARES};
use crate::table;

const WIDTH: u32 = 900;

/// Writes all of them, but for those of fleets.
pub(crate) fn all(results: &Results, folder: &Path) -> anyhow::Result<()> {
    let pairs = compare::pairs(results);
    picture(&folder.join("lab-errors.svg"), 720, |area| errors(results, area))?;
    picture(&folder.join("lab-stall.svg"), 720, |area| stall(&pairs, area))?;
    fill(&folder.join("lab.md"), &table::parts(results))?;
    fill(&folder.join(compare::PAGE), &compare::parts(&pairs))
}

/// Puts tables into a page.
pub(crate) fn fill(path: &Path, parts: &[(&str, String)]) -> anyhow::Result<()> {
    let now = fs::read_to_string(path).with_context(|| format!("can not read {}", path.display()))?;
    Ok(fs::write(path, filled(&now, parts)?)?)
}

/// The text with its tables.
fn filled(now: &str, parts: &[(&str, String)]) -> anyhow::Result<String> {
    parts.iter().try_fold(now.to_owned(), |text, (name, part)| {
        let begin = format!("<!-- {name}: made by cargo xtask lab -->\n");
        let (head, rest) =
            text.split_once(&begin).with_context(|| format!("there is no place for {name}"))?;
        let (_, tail) = rest.split_once("<!-- end -->").with_context(|| format!("{name} has no end"))?;
        Ok(format!("{head}{begin}{part}<!-- end -->{tail}"))
    })
}

fn picture(path: &Path, height: u32, draw: impl FnOnce(&Area<'_>) -> Drawn) -> anyhow::Result<()> {
    let area = SVGBackend::new(path, (WIDTH, height)).into_drawing_area();
    let drawn = draw(&area).and_then(|()| area.present());
    drawn.map_err(|error| anyhow!("can not draw {}: {error}", path.display()))
}

/// What repeats cost and what they save, by the share of errors. The axis of attempts is logarithmic, for 27 is
/// beside 1; shares stand at equal distances, for 1 % and 5 % would fall together otherwise.
fn errors(results: &Results, area: &Area<'_>) -> Drawn {
    let (above, below) = area.split_vertically(370);
    let lines = |shares: &[u32], of: &dyn Fn(&Part) -> f64| -> Vec<Line> {
        let line = |(strategy, color): (_, _)| {
            let at = |(place, share): (usize, &u32)| {
                let row = results.row(LAYERS, Trouble::Errors(*share), strategy)?;
                Some((place as f64, row.steady(of).median))
            };
            let points: Vec<_> = shares.iter().enumerate().filter_map(at).collect();
            Line { name: strategy.to_string(), color, marked: true, points }
        };
        drawn().into_iter().map(line).collect()
    };
    let share = |place: &f64| SHARES.get(place.round() as usize).map(u32::to_string).unwrap_or_default();
    let x = || Axis { title: "requests that the bottom refuses, %", labels: SHARES.len(), shown: &share };
    let across = -0.3..SHARES.len() as f64 - 0.7;
    let most = 0.9..f64::from(targets::naive(LAYERS)) * 1.2;
    Chart {
        title: "Attempts on the last hop per request, chain of 4 layers, steady",
        x: x(),
        y: Axis { title: "attempts, logarithmic", labels: 5, shown: &|attempts| format!("{attempts:.0}") },
        trouble: None,
        lines: lines(&SHARES, &|part| part.faulty),
    }
    .draw(&above, across.clone(), most.clone(), most.log_scale().base(3.0))?;
    // Of an outage nothing succeeds; lines that all end there could not be told apart.
    let (_, shares) = SHARES.split_last().expect("there are shares");
    Chart {
        title: "Requests that succeed in the end",
        x: x(),
        y: Axis { title: "% of requests", labels: 5, shown: &|share| format!("{share:.0}") },
        trouble: None,
        lines: lines(shares, &|part| part.success * 100.0),
    }
    .draw(&below, across, 0.0..104.0, 0.0..104.0)
}

/// Goodput by the second, before, during and after the stall: in the lab above, in the simulator below.
fn stall(pairs: &[Pair<'_>], area: &Area<'_>) -> Drawn {
    let (above, below) = area.split_vertically(360);
    let panel = |title, of: &dyn for<'a> Fn(&'a Pair<'a>) -> &'a Row, area: &Area<'_>| -> Drawn {
        let line = |(strategy, color): (_, _)| {
            let is_it = |row: &&Row| row.trouble == Trouble::Stall && row.strategy == strategy;
            let points = pairs.iter().map(of).find(is_it).map(goodput).unwrap_or_default();
            Line { name: format!("{strategy}"), color, marked: false, points }
        };
        let parts = matrix::of(0, Trouble::Stall, drawn()[0].0).parts;
        let [from, until, end] = [parts.broken(), parts.healed(), parts.all()].map(|time| time.as_secs_f64());
        Chart {
            title,
            x: Axis { title: "second of the run", labels: 7, shown: &|second| format!("{second:.0}") },
            y: Axis { title: "of 100 that are due", labels: 6, shown: &|goodput| format!("{goodput:.0}") },
            trouble: Some((from..until, "bottom stands still")),
            lines: drawn().into_iter().map(line).collect(),
        }
        .draw(area, 0.0..end, 0.0..108.0, 0.0..108.0)
    };
    panel("Requests answered in time, per second: the lab", &|pair| pair.lab, &above)?;
    panel("The same in the simulator", &|pair| &pair.simulated, &below)
}

/// The median over the runs of each second.
fn goodput(row: &Row) -> Vec<(f64, f64)> {
    let seconds = row.runs.iter().map(|run| run.goodput.len()).min().unwrap_or_default();
    let median = |second: usize| row.spread(|run| f64::from(run.goodput[second])).median;
    (0..seconds).map(|second| (second as f64 + 0.5, median(second))).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::PathBuf;

    use super::*;

    pub(crate) fn folder() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/benchmarks")
    }

    /// The first line of a page that is not what its tables would be now.
    pub(crate) fn differs(page: &str, parts: &[(&str, String)]) -> Option<(String, String)> {
        let kept = fs::read_to_string(folder().join(page)).unwrap();
        let made = filled(&kept, parts).unwrap();
        let differs = kept.lines().zip(made.lines()).find(|(kept, made)| kept != made);
        let length = (kept.len() != made.len()).then_some(("its length", "another"));
        differs.or(length).map(|(kept, made)| (kept.to_owned(), made.to_owned()))
    }

    #[test]
    fn tables_of_the_lab_are_those_of_its_committed_figures() {
        let results = Results::read(&folder()).unwrap();
        assert_eq!(differs("lab.md", &table::parts(&results)), None, "kept, and what lab.json comes to");
    }

    #[test]
    fn the_comparison_is_what_the_present_engine_comes_to_beside_the_committed_figures() {
        let results = Results::read(&folder()).unwrap();
        let parts = compare::parts(&compare::pairs(&results));
        let hint = "kept, and now: `cargo xtask lab draw`, and look at the difference";
        assert_eq!(differs(compare::PAGE, &parts), None, "{hint}");
    }

    #[test]
    fn a_page_keeps_its_text_and_loses_no_table_unseen() {
        let page = "# T\n<!-- a: made by cargo xtask lab -->\nold\n<!-- end -->\ntext\n";
        let filled = |name| filled(page, &[(name, "new\n".to_owned())]);
        assert_eq!(filled("a").unwrap(), page.replace("old", "new"));
        assert_eq!(filled("b").unwrap_err().to_string(), "there is no place for b");
    }
}
