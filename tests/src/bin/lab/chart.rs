//! One chart of lines, each named where it ends.
//!
//! Nothing has a background and all colours are of middle lightness, so that a picture reads on light pages and on
//! dark ones. Names stand beside the lines, pushed apart where lines end close to each other: no legend to look up.

use std::ops::Range;

use damper_tests::lab::strategy::Strategy;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

/// Where it is drawn.
pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// Whether it could be.
pub(crate) type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// Of all text but names.
const TEXT: RGBColor = RGBColor(120, 128, 138);
const FONT: &str = "sans-serif";
const TROUBLE: RGBColor = RGBColor(200, 70, 70);
/// Room for names, and from one to the next, in pixels.
const NAMES: u32 = 150;
const LINE: i32 = 18;

/// What is drawn.
pub(crate) struct Chart<'a> {
    pub(crate) title: &'a str,
    pub(crate) x: Axis<'a>,
    pub(crate) y: Axis<'a>,
    /// When something was wrong, from and until, and what.
    pub(crate) trouble: Option<(Range<f64>, &'a str)>,
    pub(crate) lines: Vec<Line>,
}

/// What an axis says.
pub(crate) struct Axis<'a> {
    pub(crate) title: &'a str,
    pub(crate) labels: usize,
    pub(crate) shown: &'a dyn Fn(&f64) -> String,
}

/// A line.
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) color: RGBColor,
    /// Whether its points are marked: few measured ones, and not a course.
    pub(crate) marked: bool,
    pub(crate) points: Vec<(f64, f64)>,
}

impl Chart<'_> {
    /// Draws it with these axes.
    pub(crate) fn draw<Y>(&self, area: &Area<'_>, across: Range<f64>, up: Range<f64>, scale: Y) -> Drawn
    where
        Y: AsRangedCoord<Value = f64>,
        Y::CoordDescType: ValueFormatter<f64>,
    {
        let text = |size: u32| (FONT, size).into_font().color(&TEXT);
        let mut chart = ChartBuilder::on(area)
            .caption(self.title, text(20))
            .margin(10)
            .margin_right(NAMES)
            .x_label_area_size(46)
            .y_label_area_size(60)
            .build_cartesian_2d(across, scale)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .bold_line_style(TEXT.mix(0.2))
            .light_line_style(TRANSPARENT)
            .axis_style(TEXT.mix(0.6))
            .axis_desc_style(text(16))
            .label_style(text(15))
            .x_desc(self.x.title)
            .x_labels(self.x.labels)
            .x_label_formatter(self.x.shown)
            .y_desc(self.y.title)
            .y_labels(self.y.labels)
            .y_label_formatter(self.y.shown)
            .draw()?;
        if let Some((when, what)) = &self.trouble {
            let corners = [(when.start, up.start), (when.end, up.end)];
            chart.draw_series([Rectangle::new(corners, TROUBLE.mix(0.12).filled())])?;
            let (x, y) = within(chart.backend_coord(&(when.start, up.end)), area);
            area.draw(&Text::new(*what, (x + 6, y + 6), text(15)))?;
        }
        let mut ends = Vec::new();
        for line in &self.lines {
            chart.draw_series(LineSeries::new(line.points.iter().copied(), line.color.stroke_width(2)))?;
            let marks = line.points.iter().filter(|_| line.marked);
            chart.draw_series(marks.map(|at| Circle::new(*at, 3, line.color.filled())))?;
            ends.extend(line.points.last().map(|end| (within(chart.backend_coord(end), area), line)));
        }
        let places = apart(ends.iter().map(|((_, y), _)| *y).collect());
        for (((x, _), line), y) in ends.iter().zip(places) {
            let style = (FONT, 17).into_font().color(&line.color);
            // Text hangs below its place.
            area.draw(&Text::new(line.name.as_str(), (x + 9, y - 8), style))?;
        }
        Ok(())
    }
}

/// A place of the picture as one of this part of it.
fn within((x, y): (i32, i32), area: &Area<'_>) -> (i32, i32) {
    let (left, top) = area.get_base_pixel();
    (x - left, y - top)
}

/// The same heights, moved as little as keeps names a line apart; each in its place of the list.
fn apart(heights: Vec<i32>) -> Vec<i32> {
    let mut order: Vec<usize> = (0..heights.len()).collect();
    order.sort_by_key(|place| heights[*place]);
    // Groups of names that touch: their middle stays where it was.
    let mut groups: Vec<(Vec<usize>, i32)> = Vec::new();
    for place in order {
        groups.push((vec![place], heights[place]));
        while let [.., (above, from), (below, to)] = groups.as_slice() {
            let (many, few) = (above.len() as i32, below.len() as i32);
            if to - from >= LINE * (many + few) / 2 {
                break;
            }
            let middle = (from * many + to * few) / (many + few);
            let both = [above.as_slice(), below.as_slice()].concat();
            groups.truncate(groups.len() - 2);
            groups.push((both, middle));
        }
    }
    let mut moved = heights;
    for (places, middle) in groups {
        let first = middle - LINE * (places.len() as i32 - 1) / 2;
        (first..).step_by(LINE as usize).zip(places).for_each(|(height, place)| moved[place] = height);
    }
    moved
}

/// The strategies that are drawn, for a picture can not show all, each with its colour; the last one on top.
pub(crate) fn drawn() -> [(Strategy, RGBColor); 5] {
    [
        (Strategy::None, RGBColor(125, 133, 144)),
        (Strategy::Naive, RGBColor(214, 69, 61)),
        (Strategy::TowerBudget, RGBColor(184, 128, 20)),
        (Strategy::DamperRatio, RGBColor(46, 148, 92)),
        (Strategy::Damper, RGBColor(33, 139, 184)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_touch_are_moved_apart_around_their_middle() {
        assert_eq!(apart(vec![100, 10, 50]), [100, 10, 50], "nothing touches");
        assert_eq!(apart(vec![52, 50]), [60, 42]);
        assert_eq!(apart(vec![50, 50, 50]), [32, 50, 68]);
        assert_eq!(apart(Vec::new()), Vec::<i32>::new());
    }

    #[test]
    fn names_keep_their_order_and_a_line_between_them() {
        let heights = vec![10, 300, 12, 20, 301, 38, 150];
        let moved = apart(heights.clone());
        let mut order: Vec<_> = (0..heights.len()).collect();
        order.sort_by_key(|place| heights[*place]);
        for pair in order.windows(2) {
            assert!(moved[pair[1]] - moved[pair[0]] >= LINE, "{moved:?}");
        }
        assert_eq!(moved[6], 150, "what touches nothing stays");
    }
}
