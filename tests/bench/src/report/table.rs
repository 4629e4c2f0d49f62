//! The report as Markdown: what was aimed at and whether it was met, then every figure.

use std::fmt::Write as _;

use damper_tests::machine::Machine;
use damper_tests::spread::Spread;

use super::Report;
use super::picture::Picture;
use crate::figure::{Figure, Measured, Row, Target};

const HEAD: &str = "# Benchmarks

Made by `cargo xtask bench`; do not edit. Times hold for the machine below and no other. What can be compared are counts, and
the ratios: ours and the peer's are measured in turn in one run, a ratio is taken within each round, and what stands here is
the median of the rounds with the smallest and the largest (`min..max`). A target is judged by the median. [What is missed, and why](missed.md).
";

const TARGETS: &str = "
## Targets

| row | what | ours | peer's | ratio | target | met | shown by |
|---|---|--:|--:|--:|--:|---|---|
";

const FIGURES: &str = "| what | ours | min..max | peer's | min..max | ratio | min..max | peer |
|---|--:|--:|--:|--:|--:|--:|---|
";

pub(super) fn of_all(report: &Report, pictures: &[Picture]) -> String {
    let mut text = HEAD.to_owned();
    text += &where_and_what(report);
    text += TARGETS;
    for row in &report.rows {
        for figure in row.figures.iter().filter(|figure| figure.target.is_some()) {
            text += &summary(row, figure);
        }
        if row.figures.is_empty() {
            let _ = writeln!(text, "| {} | {} | | | | | | {} |", row.id, row.title, row.notes.join(" "));
        }
    }
    for picture in pictures {
        let _ = write!(text, "\n![{}]({})\n", picture.title, picture.file);
    }
    for row in report.rows.iter().filter(|row| !row.figures.is_empty()) {
        let _ = write!(text, "\n{}", of_row(row));
    }
    text
}

fn where_and_what(report: &Report) -> String {
    let Machine { processor, cores, memory_gib, kernel, rustc, crates, commit } = &report.machine;
    format!(
        "\n{processor}, {cores} cores (clients, servers and stores share them), {memory_gib:.0} GiB; {kernel}; {rustc}; \
         release profile; {}, {}; {} open files per process. Last measured at commit {commit}; each row says its own.\n",
        crates.join(", "),
        report.etcd,
        report.open_files,
    )
}

/// A row with everything that is known of it.
pub(super) fn of_row(row: &Row) -> String {
    let mut text = format!("## {}\n\n`{}`", row.title, row.command);
    match &row.measured {
        Some(Measured { commit, size, rounds, load, took_s, .. }) => {
            let _ = write!(
                text,
                ", {size}: commit {commit}, {rounds} rounds in {took_s:.0} s, load {load:.1} when it began.\n\n"
            );
        }
        None => text += "\n\n",
    }
    for note in &row.notes {
        let _ = write!(text, "{note}\n\n");
    }
    text += FIGURES;
    for figure in &row.figures {
        text += &line(figure);
    }
    text
}

fn line(figure: &Figure) -> String {
    let unit = figure.unit.as_str();
    let (ours, range) = both(Some(figure.ours), unit);
    let (peers, peers_range) = both(figure.peer.as_ref().map(|peer| peer.figure), unit);
    let (ratio, ratio_range) = both(figure.ratio, "");
    let peer = figure.peer.as_ref().map_or("", |peer| &peer.name);
    let what = &figure.what;
    format!("| {what} | {ours} | {range} | {peers} | {peers_range} | {ratio} | {ratio_range} | {peer} |\n")
}

fn summary(row: &Row, figure: &Figure) -> String {
    let unit = figure.unit.as_str();
    let ours = number(figure.ours.median, unit);
    let peers = figure.peer.as_ref().map(|peer| number(peer.figure.median, unit)).unwrap_or_default();
    let ratio = figure.ratio.map(|ratio| format!("{} ({})", number(ratio.median, ""), range(ratio)));
    let met = match figure.is_met() {
        Some(true) => "met",
        Some(false) => "**missed**",
        None => "",
    };
    format!(
        "| [{}](#{}) | {} | {ours} | {peers} | {} | {} | {met} | `{}` |\n",
        row.id,
        anchor(&row.title),
        figure.what,
        ratio.unwrap_or_default(),
        figure.target.map(|target| aim(target, unit)).unwrap_or_default(),
        row.command,
    )
}

fn aim(target: Target, unit: &str) -> String {
    match target {
        Target::AtMost(most) => format!("<= {}", number(most, unit)),
        Target::AtLeast(least) => format!(">= {}", number(least, unit)),
        Target::RatioAtMost(most) => format!("ratio <= {}", number(most, "")),
        Target::RatioAtLeast(least) => format!("ratio >= {}", number(least, "")),
    }
}

/// Median and range; nothing where they say the same.
fn both(spread: Option<Spread>, unit: &str) -> (String, String) {
    let Some(spread) = spread else { return (String::new(), String::new()) };
    let is_exact = spread.min == spread.max;
    (number(spread.median, unit), if is_exact { String::new() } else { range(spread) })
}

fn range(spread: Spread) -> String {
    format!("{}..{}", number(spread.min, ""), number(spread.max, ""))
}

/// Three digits, or all of a whole number.
fn number(value: f64, unit: &str) -> String {
    let digits = match value.abs() {
        _ if value.fract() == 0.0 => 0,
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 0.1 => 2,
        _ => 4,
    };
    format!("{value:.digits$} {unit}").trim_end().to_owned()
}

/// As GitHub makes it of a heading.
fn anchor(title: &str) -> String {
    let kept = title.to_lowercase().replace(' ', "-");
    kept.chars().filter(|letter| letter.is_alphanumeric() || *letter == '-' || *letter == '_').collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_that_is_missed_says_so() {
        let figure = Figure::beside("time", "ns", &[30.0, 20.0], "peer", &[10.0, 10.0]);
        let row = Row::new("layer", "SDK layer: a call").with(figure.aim(Target::RatioAtMost(2.0)));
        let text = summary(&row, &row.figures[0]);
        assert_eq!(
            text,
            "| [layer](#sdk-layer-a-call) | time | 25 ns | 10 ns | 2.50 (2..3) | ratio <= 2 | **missed** \
             | `cargo xtask bench --only layer` |\n"
        );
    }

    #[test]
    fn numbers_keep_three_digits() {
        let shown = [0.0, 0.01234, 0.9871, 12.345, 123.45, 5_000.0].map(|value| number(value, "ns"));
        assert_eq!(shown, ["0 ns", "0.0123 ns", "0.99 ns", "12.3 ns", "123 ns", "5000 ns"]);
    }
}
