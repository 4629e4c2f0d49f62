//! Names, types and labels of `/metrics`: `golden/metrics.txt` lists them.
//!
//! A published line stays, because dashboards and alerts of users depend on it. New metrics are allowed, and
//! `DAMPER_TEST_UPDATE=1` adds them to the file. A metric without series here is listed without labels.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::monitoring::{metrics, with_traffic_text};

/// Returns `name type label label` for each metric, by name.
fn lines(text: &str) -> BTreeMap<String, String> {
    let series = metrics(text);
    let labels = |name: &str| -> Vec<&str> {
        let names = [name.to_owned(), format!("{name}_bucket"), format!("{name}_count")];
        let known = names.iter().filter_map(|name| series.get(name)).flat_map(BTreeMap::keys);
        known.map(String::as_str).collect::<BTreeSet<_>>().into_iter().collect()
    };
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    types
        .map(|(name, kind)| {
            let line = [&[name, kind][..], &labels(name)[..]].concat().join(" ");
            (name.to_owned(), line)
        })
        .collect()
}

#[tokio::test]
async fn published_metrics_stay() {
    let (server, text) = with_traffic_text().await;
    server.stop().await;
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/metrics.txt");
    let published = std::fs::read_to_string(&path).unwrap_or_default();
    let found = lines(&text);
    for line in published.lines() {
        let name = line.split(' ').next().unwrap();
        assert_eq!(found.get(name).map(String::as_str), Some(line), "a published metric has changed");
    }
    if std::env::var_os("DAMPER_TEST_UPDATE").is_some() {
        let all: Vec<String> = found.into_values().collect();
        std::fs::write(&path, all.join("\n") + "\n").unwrap();
    } else {
        assert!(published.lines().count() >= 40, "the file is incomplete");
    }
}
