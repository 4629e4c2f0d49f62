//! Results as a picture: a row of charts for goodput and one for attempts, a chart per strategy.
//!
//! All charts of a row have one scale; the time of faults is shaded. No background, and colours of medium
//! lightness, for light and dark pages. Drawn by plotters with its SVG backend only.

use std::ops::Range;

use damper_sim::{Figures, Outcome, Second};
use plotters::coord::Shift;
use plotters::prelude::*;

const CHART: (u32, u32) = (320, 210);
const HEAD: u32 = 34;
const TEXT: RGBColor = RGBColor(120, 128, 138);
const GOODPUT: RGBColor = RGBColor(46, 148, 92);
const ATTEMPTS: RGBColor = RGBColor(206, 92, 44);
const REQUESTS: RGBColor = RGBColor(140, 148, 158);
const TROUBLE: RGBColor = RGBColor(200, 70, 70);
const FONT: &str = "sans-serif";

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// Returns the picture.
pub(super) fn draw(outcome: &Outcome) -> String {
    let mut picture = String::new();
    let columns = outcome.strategies.len().max(1);
    let size = (CHART.0 * columns as u32, HEAD + 2 * CHART.1);
    {
        let root = SVGBackend::with_string(&mut picture, size).into_drawing_area();
        all(outcome, columns, &root).expect("text can be written to");
    }
    picture
}

fn all(outcome: &Outcome, columns: usize, root: &Area<'_>) -> Drawn {
    let (head, body) = root.split_vertically(HEAD);
    let title = format!("{}, seed {}", outcome.scenario, outcome.seed);
    head.draw(&Text::new(title, (12, 10), (FONT, 15).into_font().color(&TEXT)))?;
    let charts = body.split_evenly((2, columns));
    let most = |of: fn(&Second) -> u64| {
        let seconds = outcome.strategies.iter().flat_map(|figures| &figures.timeline);
        seconds.map(of).max().unwrap_or(1).max(1)
    };
    let goodput: fn(&Second) -> u64 = |second| second.answered;
    let rows = [("goodput", GOODPUT, goodput), ("attempts on the last hop", ATTEMPTS, last)];
    for (row, (what, colour, of)) in rows.into_iter().enumerate() {
        let top = most(of).max(most(|second| second.requests));
        for (column, figures) in outcome.strategies.iter().enumerate() {
            let name = format!("{}: {what} per second", figures.strategy);
            chart(
                outcome,
                figures,
                &charts[row * columns + column],
                &name,
                0..top + top / 10 + 1,
                colour,
                of,
            )?;
        }
    }
    Ok(())
}

fn last(second: &Second) -> u64 {
    second.attempts.last().copied().unwrap_or(0)
}

fn chart(
    outcome: &Outcome,
    figures: &Figures,
    area: &Area<'_>,
    name: &str,
    heights: Range<u64>,
    colour: RGBColor,
    of: fn(&Second) -> u64,
) -> Drawn {
    let seconds = figures.timeline.len().max(1) as u64;
    let top = heights.end;
    let mut chart = ChartBuilder::on(area)
        .caption(name, (FONT, 13).into_font().color(&TEXT))
        .margin(8)
        .x_label_area_size(24)
        .y_label_area_size(46)
        .build_cartesian_2d(0..seconds, heights)?;
    chart
        .configure_mesh()
        .disable_mesh()
        .x_labels(5)
        .y_labels(4)
        .axis_style(TEXT.mix(0.6))
        .label_style((FONT, 11).into_font().color(&TEXT))
        .x_label_formatter(&|second| format!("{second} s"))
        .draw()?;
    if let Some([from, until]) = outcome.trouble_us {
        let (from, until) = (from / 1_000_000, until.div_ceil(1_000_000).min(seconds));
        chart.draw_series([Rectangle::new([(from, 0), (until, top)], TROUBLE.mix(0.12).filled())])?;
    }
    let line = |of: fn(&Second) -> u64| {
        (0_u64..).zip(&figures.timeline).map(move |(number, second)| (number, of(second)))
    };
    chart.draw_series(LineSeries::new(line(|second| second.requests), REQUESTS.mix(0.7).stroke_width(1)))?;
    chart.draw_series(LineSeries::new(line(of), colour.stroke_width(2)))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use damper_sim::scenario::{Arrivals, Load, RateFrom};
    use damper_sim::scenario::{Method, Peer, Retries, Scenario, Service, Strategy, Target};
    use damper_sim::{Spread, run};
    use std::time::Duration;

    use super::*;

    #[test]
    fn strategies_have_charts_and_names_are_escaped() {
        let method = Method {
            name: "a.B/C".to_owned(),
            time: Spread::Fixed(Duration::from_millis(1)),
            calls: Vec::new(),
        };
        let strategy = |name: &str| Strategy {
            name: name.to_owned(),
            retries: Retries::Peer(Peer::naive(1)),
            queues: Vec::new(),
        };
        let rates = vec![RateFrom { from: Duration::ZERO, milli_per_second: 10_000 }];
        let scenario = Scenario {
            name: "<script>&\"".to_owned(),
            duration: Duration::from_secs(3),
            seed: 1,
            network: Spread::Fixed(Duration::ZERO),
            services: vec![Service::new("a", vec![method])],
            load: vec![Load {
                caller: "b".to_owned(),
                processes: 1,
                call: Target::new("a", "a.B/C"),
                timeout: None,
                bare: false,
                restart: None,
                arrivals: Arrivals::Open { even: true, rates },
            }],
            faults: Vec::new(),
            strategies: vec![strategy("one"), strategy("two")],
        };
        let picture = draw(&run(&scenario).unwrap());
        assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"));
        for name in ["one: goodput", "two: goodput", "two: attempts on the last hop"] {
            assert!(picture.contains(name), "{name}");
        }
        assert!(!picture.contains("<script>"));
    }
}
