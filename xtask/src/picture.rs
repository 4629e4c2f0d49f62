//! The README's picture: the chain before and after, drawn from the report of a demo run.
//!
//! Everything that is drawn is measured; nothing is scaled but to fit. The picture follows the reader's light
//! or dark scheme.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::command::root;

const CHART: (f64, f64, f64, f64) = (48.0, 236.0, 896.0, 130.0);

/// Draws what came of a demo.
pub(crate) fn draw(report: &Path) -> Result<()> {
    let text =
        std::fs::read_to_string(report).with_context(|| format!("can not read {}", report.display()))?;
    let report: Value = serde_json::from_str(&text).context("the demo's report")?;
    let picture = picture(&report).context("the report lacks what the picture shows")?;
    let folder = root().join("docs");
    std::fs::create_dir_all(&folder).context("can not create the folder docs")?;
    std::fs::write(folder.join("chain.svg"), picture).context("can not write docs/chain.svg")
}

fn picture(report: &Value) -> Option<String> {
    let chain: Vec<&str> = report["chain"].as_array()?.iter().filter_map(Value::as_str).collect();
    let phases = report["phases"].as_array()?;
    let named = |name: &str| phases.iter().find(|phase| phase["name"] == name);
    let mut svg = String::from(HEAD);
    draw_chain(
        &mut svg,
        44.0,
        "Each layer retries on its own: three attempts, no breaker, no flags",
        &chain,
        named("naive")?,
    )?;
    draw_chain(&mut svg, 132.0, "The same three attempts, governed by Damper", &chain, named("governed")?)?;
    draw_seconds(&mut svg, phases)?;
    svg += "</svg>\n";
    Some(svg)
}

/// One row: the services, and between them the attempts that each hop carries per request.
fn draw_chain(svg: &mut String, y: f64, title: &str, chain: &[&str], phase: &Value) -> Option<()> {
    let requests = phase["requests"].as_f64()?.max(1.0);
    let mut sends = vec![1.0];
    for layer in phase["layers"].as_array()? {
        sends.push(layer["attempts"].as_f64()? / requests);
    }
    text(svg, 48.0, y, "title", "start", title);
    let step = 254.0;
    for (index, name) in chain.iter().enumerate() {
        let x = 48.0 + step * index as f64;
        let (center, middle) = (x + 65.0, y + 30.0);
        let class = if index + 1 == chain.len() { "box failing" } else { "box" };
        let _ = writeln!(
            svg,
            r#"<rect class="{class}" x="{x}" y="{}" width="130" height="32" rx="6"/>"#,
            middle - 16.0
        );
        text(svg, center, middle + 5.0, "name", "middle", name);
        let Some(load) = sends.get(index + 1).filter(|_| index + 1 < chain.len()) else { continue };
        let width = (load.ln_1p() * 3.0).max(1.5);
        let class = if *load > 1.5 { "hop storm" } else { "hop" };
        let (from, to) = (x + 132.0, x + step - 2.0);
        let _ = writeln!(
            svg,
            r#"<line class="{class}" x1="{from}" y1="{middle}" x2="{to}" y2="{middle}" stroke-width="{width:.1}"/>"#
        );
        text(svg, (from + to) / 2.0, middle - 10.0 - width / 2.0, "load", "middle", &format!("{load:.1} x"));
    }
    Some(())
}

/// Attempts at the last layer per request, by the second in which the request started.
fn draw_seconds(svg: &mut String, phases: &[Value]) -> Option<()> {
    let seconds: Vec<(usize, f64)> = phases
        .iter()
        .enumerate()
        .filter_map(|(index, phase)| Some((index, phase["bottom_amplification_by_second"].as_array()?)))
        .flat_map(|(index, seconds)| seconds.iter().map(move |value| (index, value.as_f64().unwrap_or(0.0))))
        .collect();
    let (left, top, width, height) = CHART;
    let most = seconds.iter().map(|(_, value)| *value).fold(3.0, f64::max);
    let bar = width / seconds.len().max(1) as f64;
    text(svg, left, top - 12.0, "title", "start", "Attempts at the last layer per request, second by second");
    for (place, (index, value)) in seconds.iter().enumerate() {
        let (x, tall) = (left + bar * place as f64, value / most * height);
        let class = if *value > 1.5 { "bar storm" } else { "bar" };
        let _ = writeln!(
            svg,
            r#"<rect class="{class}" x="{x:.1}" y="{:.1}" width="{:.1}" height="{tall:.1}"/>"#,
            top + height - tall,
            bar - 2.0
        );
        if place == 0 || seconds.get(place - 1).is_some_and(|(before, _)| before != index) {
            let phase = phases.get(*index)?;
            let share = phase["fault_percent"].as_f64()?;
            let mean = phase["bottom_amplification"].as_f64()?;
            text(svg, x, top + height + 18.0, "name", "start", phase["name"].as_str()?);
            text(svg, x, top + height + 35.0, "small", "start", &format!("stock fails {share} %"));
            text(svg, x, top + height + 51.0, "small", "start", &format!("{mean:.2} attempts per request"));
        }
    }
    Some(())
}

fn text(svg: &mut String, x: f64, y: f64, class: &str, anchor: &str, text: &str) {
    let _ =
        writeln!(svg, r#"<text class="{class}" x="{x:.0}" y="{y:.0}" text-anchor="{anchor}">{text}</text>"#);
}

const HEAD: &str = r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 432" role="img" aria-label="Attempts on each hop of a four-layer chain whose last layer fails: multiplied by naive retries, about one per request with Damper">
<style>
  text { font: 13px system-ui, sans-serif; fill: #1c2733; }
  .title { font-weight: 600; font-size: 14px; }
  .small { font-size: 12px; fill: #5b6875; }
  .load { font-weight: 600; font-variant-numeric: tabular-nums; }
  .box { fill: #eef2f6; stroke: #9aa8b5; }
  .failing { stroke: #b3261e; stroke-dasharray: 4 3; }
  .hop { stroke: #1f6f8b; } .bar { fill: #1f6f8b; }
  .hop.storm { stroke: #b3261e; } .bar.storm { fill: #b3261e; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .small { fill: #9aa8b5; }
    .box { fill: #1b2530; stroke: #4d5b69; } .failing { stroke: #ff8a80; }
    .hop { stroke: #5cc4e0; } .bar { fill: #5cc4e0; }
    .hop.storm { stroke: #ff8a80; } .bar.storm { fill: #ff8a80; }
  }
</style>
"#;
