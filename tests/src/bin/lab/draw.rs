//! Pictures and tables from the figures: two SVG files, and the parts of `lab.md` between
//! `<!-- NAME: made by cargo xtask lab -->` and `<!-- end -->`. What stands between those parts is written by people.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, anyhow};
use damper_tests::lab::results::{Results, Row};
use damper_tests::lab::scenario::Trouble;
use damper_tests::lab::strategy::Strategy;
use damper_tests::lab::targets;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::prelude::*;

use crate::matrix::{LAYERS, SHARES};
use crate::table;

const SIZE: (u32, u32) = (860, 460);
const TEXT: &str = "sans-serif";

/// Writes all of them.
pub(crate) fn all(results: &Results, folder: &Path) -> anyhow::Result<()> {
    errors(results, &folder.join("lab-errors.svg"))?;
    stall(results, &folder.join("lab-stall.svg"))?;
    let path = folder.join("lab.md");
    let now = fs::read_to_string(&path).with_context(|| format!("can not read {}", path.display()))?;
    Ok(fs::write(&path, filled(&now, results)?)?)
}

/// The text with its tables.
pub(crate) fn filled(now: &str, results: &Results) -> anyhow::Result<String> {
    table::PARTS.iter().try_fold(now.to_owned(), |text, (name, part)| {
        let begin = format!("<!-- {name}: made by cargo xtask lab -->\n");
        let (head, rest) =
            text.split_once(&begin).with_context(|| format!("there is no place for {name}"))?;
        let (_, tail) = rest.split_once("<!-- end -->").with_context(|| format!("{name} has no end"))?;
        Ok(format!("{head}{begin}{}<!-- end -->{tail}", part(results)))
    })
}

/// Attempts on the last hop per request by the share of errors; the axis is logarithmic, for 27 is beside 1.
fn errors(results: &Results, path: &Path) -> anyhow::Result<()> {
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    let most = f64::from(targets::naive(LAYERS)) * 1.2;
    (|| {
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption("Attempts on the last hop per request, chain of 4 layers", (TEXT, 18))
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(52)
            .build_cartesian_2d(Places, (0.9..most).log_scale())?;
        chart
            .configure_mesh()
            .x_desc("requests that the bottom refuses, %")
            .y_desc("attempts, logarithmic")
            .x_labels(SHARES.len())
            .x_label_formatter(&|place: &f64| {
                SHARES.get(place.round() as usize).map(u32::to_string).unwrap_or_default()
            })
            .y_label_formatter(&|attempts| format!("{attempts:.0}"))
            .label_style((TEXT, 13))
            .light_line_style(WHITE)
            .draw()?;
        for (strategy, color) in drawn() {
            let at = |(place, share): (usize, &u32)| {
                let row = results.row(LAYERS, Trouble::Errors(*share), strategy)?;
                Some((place as f64, row.steady(|part| part.faulty).median))
            };
            let points: Vec<_> = SHARES.iter().enumerate().filter_map(at).collect();
            if points.is_empty() {
                continue;
            }
            chart
                .draw_series(LineSeries::new(points, color.stroke_width(2)).point_size(3))?
                .label(strategy.name())
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
        }
        legend(&mut chart, SeriesLabelPosition::UpperLeft)?;
        area.present()
    })()
    .map_err(|error| anyhow!("can not draw {}: {error}", path.display()))
}

/// Goodput by the second, before, during and after the stall.
fn stall(results: &Results, path: &Path) -> anyhow::Result<()> {
    let rows = || results.rows.iter().filter(|row| row.trouble == Trouble::Stall);
    let seconds = rows().flat_map(|row| &row.runs).map(|run| run.goodput.len()).max().unwrap_or(1);
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    (|| {
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(
                "Requests answered in time, per second; the bottom stands still from 12 s to 22 s",
                (TEXT, 18),
            )
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(52)
            .build_cartesian_2d(0.0..seconds as f64, 0.0..110.0)?;
        chart
            .configure_mesh()
            .x_desc("second of the run")
            .y_desc("of 100 that are due")
            .x_label_formatter(&|second| format!("{second:.0}"))
            .y_label_formatter(&|goodput| format!("{goodput:.0}"))
            .label_style((TEXT, 13))
            .light_line_style(WHITE)
            .draw()?;
        for (strategy, color) in drawn() {
            let Some(row) = rows().find(|row| row.strategy == strategy) else { continue };
            chart
                .draw_series(LineSeries::new(goodput(row), color.stroke_width(2)))?
                .label(strategy.name())
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
        }
        legend(&mut chart, SeriesLabelPosition::MiddleRight)?;
        area.present()
    })()
    .map_err(|error| anyhow!("can not draw {}: {error}", path.display()))
}

/// The median over the runs of each second.
fn goodput(row: &Row) -> Vec<(f64, f64)> {
    let seconds = row.runs.iter().map(|run| run.goodput.len()).min().unwrap_or_default();
    let median = |second: usize| row.spread(|run| f64::from(run.goodput[second])).median;
    (0..seconds).map(|second| (second as f64 + 0.5, median(second))).collect()
}

type Error = DrawingAreaErrorKind<std::io::Error>;

fn legend<'a, 'b: 'a, C: CoordTranslate>(
    chart: &mut ChartContext<'a, SVGBackend<'b>, C>,
    position: SeriesLabelPosition,
) -> Result<(), Error> {
    chart
        .configure_series_labels()
        .position(position)
        .background_style(WHITE.mix(0.9))
        .border_style(BLACK.mix(0.3))
        .label_font((TEXT, 14))
        .draw()
}

fn drawn() -> impl Iterator<Item = (Strategy, RGBColor)> {
    let color = |strategy| match strategy {
        Strategy::None => RGBColor(120, 130, 140),
        Strategy::Naive => RGBColor(179, 38, 30),
        Strategy::TowerBudget => RGBColor(196, 127, 0),
        Strategy::Damper => RGBColor(31, 111, 139),
        _ => RGBColor(46, 125, 50),
    };
    Strategy::ALL.into_iter().filter(|&strategy| targets::is_drawn(strategy)).map(move |it| (it, color(it)))
}

/// The shares side by side at equal distances, for 1 % and 5 % would fall together otherwise.
struct Places;

impl plotters::coord::ranged1d::Ranged for Places {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, place: &f64, (from, to): (i32, i32)) -> i32 {
        let room = f64::from(to - from);
        from + ((place + 0.5) / SHARES.len() as f64 * room).round() as i32
    }

    fn key_points<H: KeyPointHint>(&self, _: H) -> Vec<f64> {
        (0..SHARES.len()).map(|place| place as f64).collect()
    }

    fn range(&self) -> std::ops::Range<f64> {
        -0.5..SHARES.len() as f64 - 0.5
    }
}
