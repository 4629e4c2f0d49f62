//! The dashboard and the alert rules in `deploy/monitoring` use only metrics of `/metrics`.
//!
//! There is no Prometheus here. A small scanner reads their expressions. It knows the functions in use and
//! rejects any other word, so that a misspelt name is not taken for a function.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use damper_proto::v1;
use damper_proto::v1::kills_client::KillsClient;
use serde_json::Value;

use crate::harness::{Agent, Running, hello, key, shop_rule, soon, start};
use crate::jobs::{first_job, put_queue};

const FUNCTIONS: [&str; 11] = [
    "time",
    "sum",
    "max",
    "rate",
    "increase",
    "absent",
    "max_over_time",
    "and",
    "or",
    "histogram_quantile",
    "min",
];
const GROUPINGS: [&str; 3] = ["by", "on", "without"];
/// Labels that Prometheus adds to what it scrapes.
const ADDED: [&str; 3] = ["instance", "job", "pod"];

/// The metrics and labels of an expression.
#[derive(Debug, Default)]
struct Asked {
    /// Metrics with the values that their labels are compared with.
    metrics: Vec<(String, Vec<(String, String)>)>,
    grouped_by: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Word(String),
    Text(String),
    Sign(char),
}

fn tokens(expression: &str) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    let mut rest = expression.chars().peekable();
    while let Some(&next) = rest.peek() {
        if next == '"' {
            rest.next();
            let mut text = String::new();
            loop {
                match rest.next() {
                    Some('"') => break,
                    Some('\\') => text.extend(rest.next()),
                    Some(c) => text.push(c),
                    None => return Err("a text does not end".to_owned()),
                }
            }
            tokens.push(Token::Text(text));
        } else if next == '[' {
            // A range: a duration, or a variable of the dashboard.
            let range: String = rest.by_ref().take_while(|c| *c != ']').collect();
            let known = range
                .strip_prefix('[')
                .is_some_and(|range| range == "$__rate_interval" || range.split(':').all(humantime_like));
            if !known {
                return Err(format!("{range}] is no range"));
            }
        } else if next.is_ascii_digit() {
            while rest.peek().is_some_and(|c| c.is_ascii_digit() || *c == '.') {
                rest.next();
            }
        } else if next.is_ascii_alphabetic() || next == '_' {
            let mut word = String::new();
            while let Some(&c) = rest.peek().filter(|c| c.is_ascii_alphanumeric() || **c == '_') {
                word.push(c);
                rest.next();
            }
            tokens.push(Token::Word(word));
        } else {
            rest.next();
            if !next.is_whitespace() {
                tokens.push(Token::Sign(next));
            }
        }
    }
    Ok(tokens)
}

fn humantime_like(text: &str) -> bool {
    let (number, unit) = text.split_at(text.len().saturating_sub(1));
    number.parse::<u32>().is_ok_and(|number| number > 0) && matches!(unit, "s" | "m" | "h" | "d")
}

fn asked(expression: &str) -> Result<Asked, String> {
    let tokens = tokens(expression)?;
    let mut asked = Asked::default();
    let mut open = Vec::new();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        at += 1;
        match token {
            Token::Word(word) if word.starts_with("damper_") => {
                let mut compared = Vec::new();
                if tokens.get(at) == Some(&Token::Sign('{')) {
                    let end = tokens[at..].iter().position(|token| *token == Token::Sign('}'));
                    let end = at + end.ok_or("a { is not closed")?;
                    compared = matchers(&tokens[at + 1..end])?;
                    at = end + 1;
                }
                asked.metrics.push((word.clone(), compared));
            }
            Token::Word(word) if GROUPINGS.contains(&word.as_str()) => {
                let end = tokens[at..].iter().position(|token| *token == Token::Sign(')'));
                let end = at + end.ok_or("a list of labels is not closed")?;
                for token in &tokens[at + 1..end] {
                    if let Token::Word(label) = token {
                        asked.grouped_by.insert(label.clone());
                    }
                }
                at = end + 1;
            }
            Token::Word(word) if FUNCTIONS.contains(&word.as_str()) => {}
            Token::Sign('(') => open.push(()),
            Token::Sign(')') => open.pop().ok_or("a ) too many")?,
            Token::Sign('/' | '>' | '<' | '*' | '=' | '-') => {}
            other => return Err(format!("{other:?} is not known")),
        }
    }
    if !open.is_empty() || asked.metrics.is_empty() {
        return Err("a ( is not closed, or there is no metric".to_owned());
    }
    Ok(asked)
}

/// `label="text"` and the like, with commas between.
fn matchers(tokens: &[Token]) -> Result<Vec<(String, String)>, String> {
    let parts = tokens.split(|token| *token == Token::Sign(','));
    let read = parts.map(|part| match part {
        [Token::Word(label), Token::Sign('='), Token::Text(text)]
        | [Token::Word(label), Token::Sign('=' | '!'), Token::Sign('~' | '='), Token::Text(text)] => {
            Ok((label.clone(), text.clone()))
        }
        other => Err(format!("{other:?} compares no label")),
    });
    read.collect()
}

/// Every metric with the values of its labels.
pub(crate) type Metrics = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// Reads the text format; panics if it is invalid.
pub(crate) fn metrics(text: &str) -> Metrics {
    let mut metrics = Metrics::new();
    let mut typed = BTreeSet::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.split(' ');
            if words.next() == Some("TYPE") {
                assert!(typed.insert(words.next().unwrap().to_owned()), "typed twice: {line}");
            }
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<f64>().is_ok(), "{line}");
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        assert!(typed.contains(name), "no type: {line}");
        let known = metrics.entry(name.to_owned()).or_default();
        for pair in labels.strip_suffix('}').unwrap().split("\",").filter(|pair| !pair.is_empty()) {
            let (label, value) = pair.split_once("=\"").unwrap();
            known.entry(label.to_owned()).or_default().insert(value.trim_end_matches('"').to_owned());
        }
    }
    metrics
}

/// Errors if an expression uses an absent metric, label or value.
fn check(expression: &str, metrics: &Metrics) -> Result<(), String> {
    let asked = asked(expression)?;
    for (name, compared) in &asked.metrics {
        let labels = metrics.get(name).ok_or_else(|| format!("there is no metric {name}"))?;
        for (label, text) in compared {
            let values = labels.get(label).ok_or_else(|| format!("{name} has no label {label}"))?;
            let literal = !text.contains('$');
            if let Some(odd) = text.split('|').find(|value| literal && !values.contains(*value)) {
                return Err(format!("{name} has no {label}=\"{odd}\", only {values:?}"));
            }
        }
    }
    let has = |label: &String| asked.metrics.iter().all(|(name, _)| metrics[name].contains_key(label));
    match asked.grouped_by.iter().find(|label| !has(label) && !ADDED.contains(&label.as_str())) {
        Some(label) => Err(format!("not every metric has the label {label}")),
        None => Ok(()),
    }
}

/// Returns the labels in `{{ $labels.x }}` or `{{x}}` of a text.
fn mentioned(text: &str) -> impl Iterator<Item = &str> {
    text.split("{{").skip(1).filter_map(|rest| {
        let inner = rest.split("}}").next()?.trim();
        match inner.strip_prefix("$labels.") {
            Some(label) => Some(label),
            None => (!inner.starts_with('$')).then_some(inner),
        }
    })
}

fn file(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Starts a server with every counted event; returns its metrics.
async fn with_traffic() -> (Running, Metrics) {
    let (server, text) = with_traffic_text().await;
    (server, metrics(&text))
}

/// Starts a server with every counted event; returns the text of its metrics.
pub(crate) async fn with_traffic_text() -> (Running, String) {
    let server = start().await;
    server.put(shop_rule(3)).await;
    let mut shop = Agent::connect(&server, v1::Hello { serves: true, ..hello("shop") }).await;
    shop.snapshot().await;
    let fate = |fate: v1::Fate, would, count| v1::FateCount { fate: fate.into(), would, count };
    let route = v1::RouteReport {
        callee_service: "stock".to_owned(),
        callee_method: "stock.v1.Stock/Take".to_owned(),
        calls: 1000,
        attempts: 1500,
        fates: vec![fate(v1::Fate::Ok, false, 900), fate(v1::Fate::Retry, true, 100)],
        codes: [v1::Code::Ok, v1::Code::Unavailable]
            .map(|code| v1::CodeCount { code: code.into(), count: 500 })
            .into(),
        latency: vec![v1::BucketCount { bucket: 100, count: 1000 }],
        ..Default::default()
    };
    let served = v1::ServedReport {
        method: "stock.v1.Stock/Take".to_owned(),
        first_sends: 1000,
        grpc_repeats: 10,
        envoy_repeats: 10,
        ..Default::default()
    };
    let since = prost_types::Duration::try_from(Duration::from_secs(20)).ok();
    shop.report(v1::Report { routes: vec![route], served: vec![served], since, ..Default::default() }).await;
    let options = v1::WriteOptions { reason: "a test".to_owned(), ..Default::default() };
    let kill =
        v1::KillRequest { key: Some(key("*", "x", "*")), options: Some(options), ..Default::default() };
    soon(KillsClient::new(server.channel()).kill(kill)).await.unwrap();
    put_queue(&server).await;
    first_job(&server, "order-1").await;
    let text = soon(async {
        loop {
            let answer = server.get(server.metrics, "GET /metrics HTTP/1.1").await;
            let (_, body) = answer.split_once("\r\n\r\n").unwrap();
            if body.contains("damper_call_seconds{") && body.contains("damper_queue_held_lanes{") {
                return body.to_owned();
            }
        }
    })
    .await;
    (server, text)
}

/// Returns all values of this field at any depth.
fn fields<'a>(value: &'a Value, name: &str, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| {
            if key == name {
                found.extend(value.as_str());
            }
            fields(value, name, found);
        }),
        Value::Array(all) => all.iter().for_each(|value| fields(value, name, found)),
        _ => {}
    }
}

#[tokio::test]
async fn the_dashboard_asks_only_for_what_there_is() {
    let (server, metrics) = with_traffic().await;
    let dashboard: Value = serde_json::from_str(&file("deploy/monitoring/grafana-dashboard.json")).unwrap();
    let mut expressions = Vec::new();
    fields(&dashboard, "expr", &mut expressions);
    assert!(expressions.len() > 30, "{expressions:?}");
    for expression in &expressions {
        check(expression, &metrics).unwrap_or_else(|problem| panic!("{problem}: {expression}"));
    }
    for target in dashboard["panels"].as_array().unwrap().iter().flat_map(|panel| panel["targets"].as_array())
    {
        for target in target {
            let expression = target["expr"].as_str().unwrap();
            let grouped = asked(expression).unwrap().grouped_by;
            for label in mentioned(target["legendFormat"].as_str().unwrap()) {
                let is_added = ADDED.contains(&label);
                assert!(
                    is_added || grouped.contains(label),
                    "{label} is not what {expression} is grouped by"
                );
            }
        }
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        let query = variable["query"].as_str().unwrap();
        if let Some(of) = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')')) {
            let (metric, label) = of.split_once(", ").unwrap();
            assert!(metrics[metric].contains_key(label), "{query}");
        }
    }
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<i64> = panels.iter().map(|panel| panel["id"].as_i64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "every panel has an id of its own");
    server.stop().await;
}

#[tokio::test]
async fn alerts_use_existing_metrics_and_link_to_operations() {
    let (server, metrics) = with_traffic().await;
    let alerts: Value = serde_saphyr::from_str(&file("deploy/monitoring/alerts.yaml")).unwrap();
    let guide = file("docs/operations.md");
    let headings = guide.lines().filter_map(|line| line.strip_prefix("## "));
    let anchors: BTreeSet<String> =
        headings.map(|heading| heading.to_lowercase().replace(' ', "-").replace('\'', "")).collect();
    let mut names = BTreeSet::new();
    for group in alerts["groups"].as_array().unwrap() {
        assert!(group["name"].is_string());
        for rule in group["rules"].as_array().unwrap() {
            let name = rule["alert"].as_str().unwrap();
            assert!(names.insert(name.to_owned()), "{name} is there twice");
            let known = ["alert", "expr", "for", "labels", "annotations"];
            assert!(rule.as_object().unwrap().keys().all(|key| known.contains(&key.as_str())), "{rule}");
            let expression = rule["expr"].as_str().unwrap();
            check(expression, &metrics).unwrap_or_else(|problem| panic!("{name}: {problem}"));
            if let Some(time) = rule.get("for") {
                assert!(humantime_like(time.as_str().unwrap()), "{name}: {time}");
            }
            let severity = rule["labels"]["severity"].as_str().unwrap();
            assert!(["critical", "warning", "info"].contains(&severity), "{name}: {severity}");
            let grouped = asked(expression).unwrap().grouped_by;
            for part in ["summary", "description"] {
                for label in mentioned(rule["annotations"][part].as_str().unwrap()) {
                    assert!(grouped.contains(label), "{name}: {part} names {label}");
                }
            }
            let runbook = rule["annotations"]["runbook"].as_str().unwrap();
            let anchor = runbook.strip_prefix("docs/operations.md#").unwrap();
            assert!(anchors.contains(anchor), "{name}: no heading for {anchor} among {anchors:?}");
        }
    }
    assert!(names.len() >= 10, "{names:?}");
    server.stop().await;
}

#[test]
fn a_slip_in_an_expression_is_found() {
    let known = metrics(
        "# TYPE damper_calls_total counter\ndamper_calls_total{callee_service=\"a\",fate=\"ok\"} 1\n",
    );
    for good in [
        "sum by (callee_service) (rate(damper_calls_total{fate=\"ok\",callee_service=~\"$callee\"}[5m])) > 0.5",
        "damper_calls_total and max_over_time(sum(damper_calls_total)[30m:1m]) < 2",
    ] {
        check(good, &known).unwrap_or_else(|problem| panic!("{problem}: {good}"));
    }
    for bad in [
        "sum(rate(damper_call_total[5m]))",
        "sum by (callee) (damper_calls_total)",
        "damper_calls_total{callee=\"a\"}",
        "damper_calls_total{fate=\"okay\"}",
        "damper_calls_total{fate=~\"ok|okay\"}",
        "summ(damper_calls_total)",
        "sum(damper_calls_total",
        "rate(damper_calls_total[5x])",
        "calls_total",
        "1 > 0",
    ] {
        assert!(check(bad, &known).is_err(), "{bad}");
    }
}
