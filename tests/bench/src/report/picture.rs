//! Pictures of what numbers in a table do not show at a glance.
//!
//! Lines where the horizontal axis has numbers, else groups of bars. The range of the rounds is drawn as a thin line.

use std::path::Path;

use anyhow::Result;
use damper_tests::spread::Spread;
use plotters::coord::CoordTranslate;
use plotters::prelude::*;

use crate::figure::{Chart, Point, Row, Series};

const SIZE: (u32, u32) = (820, 380);
const FONT: &str = "sans-serif";
const COLOURS: [RGBColor; 4] =
    [RGBColor(31, 111, 139), RGBColor(179, 38, 30), RGBColor(107, 91, 149), RGBColor(90, 125, 60)];

/// A file with a picture.
#[derive(Debug)]
pub(super) struct Picture {
    pub(super) title: String,
    pub(super) file: String,
}

/// Draws what rows have to be drawn.
pub(super) fn draw(rows: &[Row], folder: &Path) -> Result<Vec<Picture>> {
    let mut pictures = Vec::new();
    for chart in rows.iter().flat_map(|row| &row.charts) {
        let file = format!("{}.svg", chart.name);
        let path = folder.join(&file);
        let area = SVGBackend::new(&path, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        match &chart.x {
            Some(x) => lines(chart, x, &area)?,
            None => bars(chart, &area)?,
        }
        area.present()?;
        pictures.push(Picture { title: chart.title.clone(), file });
    }
    Ok(pictures)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn lines(chart: &Chart, x: &str, area: &Area<'_>) -> Result<()> {
    let points = || chart.series.iter().flat_map(|series| &series.points);
    let from = points().map(|point| point.x).fold(f64::INFINITY, f64::min);
    let to = points().map(|point| point.x).fold(from, f64::max);
    let mut context = ChartBuilder::on(area)
        .caption(&chart.title, (FONT, 18))
        .margin(14)
        .x_label_area_size(44)
        .y_label_area_size(72)
        .build_cartesian_2d((from * 0.8..to * 1.25).log_scale(), 0.0..top(chart))?;
    context.configure_mesh().x_desc(x).y_desc(&chart.y).light_line_style(TRANSPARENT).draw()?;
    for (series, colour) in chart.series.iter().zip(COLOURS.iter().cycle()) {
        let line = series.points.iter().map(|point| (point.x, point.y.median));
        let drawn = context.draw_series(LineSeries::new(line.clone(), colour.stroke_width(2)))?;
        drawn
            .label(&series.name)
            .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        context.draw_series(line.map(|at| Circle::new(at, 3, colour.filled())))?;
        let range = |point: &Point| {
            PathElement::new([(point.x, point.y.min), (point.x, point.y.max)], colour.stroke_width(1))
        };
        context.draw_series(series.points.iter().map(range))?;
    }
    legend(&mut context)
}

/// Groups beside each other, the same colour for the same bar of each.
fn bars(chart: &Chart, area: &Area<'_>) -> Result<()> {
    let most = chart.series.iter().map(|group| group.points.len()).max().unwrap_or_default();
    let width = (most + 1) as f64;
    let mut context = ChartBuilder::on(area)
        .caption(&chart.title, (FONT, 18))
        .margin(14)
        .x_label_area_size(30)
        .y_label_area_size(72)
        .build_cartesian_2d(0.0..width * chart.series.len() as f64, 0.0..top(chart))?;
    let name_of = |x: &f64| middle_of(*x, width, &chart.series);
    context
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(2 * chart.series.len() + 1)
        .x_label_formatter(&name_of)
        .y_desc(&chart.y)
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (index, colour) in (0..most).zip(COLOURS.iter().cycle()) {
        let bar = |(group, series): (usize, &Series)| {
            let point = series.points.get(index)?;
            let left = group as f64 * width + index as f64 + 0.5;
            Some((left, point.y, point.name.clone()))
        };
        let bars: Vec<_> = chart.series.iter().enumerate().filter_map(bar).collect();
        let Some((_, _, name)) = bars.first() else { continue };
        let rectangle = |(left, y, _): &(f64, Spread, String)| {
            Rectangle::new([(left + 0.1, 0.0), (left + 0.9, y.median.max(0.0))], colour.filled())
        };
        let drawn = context.draw_series(bars.iter().map(rectangle))?;
        drawn.label(name).legend(|(x, y)| Rectangle::new([(x, y - 5), (x + 10, y + 5)], colour.filled()));
    }
    legend(&mut context)
}

/// What has which colour, in a corner where lines and bars seldom come.
fn legend<'a, CT: CoordTranslate>(context: &mut ChartContext<'a, SVGBackend<'a>, CT>) -> Result<()> {
    let mut legend = context.configure_series_labels();
    legend
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(TRANSPARENT)
        .draw()?;
    Ok(())
}

/// The name of the group whose middle this is.
fn middle_of(x: f64, width: f64, groups: &[Series]) -> String {
    let group = (x / width).floor();
    let is_middle = (x - (group + 0.5) * width).abs() < width / 8.0;
    let named = is_middle.then(|| groups.get(group as usize)).flatten();
    named.map_or_else(String::new, |group| group.name.clone())
}

/// A little above the highest median: single rounds may lie far above.
fn top(chart: &Chart) -> f64 {
    let medians = chart.series.iter().flat_map(|series| &series.points).map(|point| point.y.median);
    medians.fold(f64::MIN_POSITIVE, f64::max) * 1.35
}
