//! The sum of everything that the server holds under the default limits: at most the 512 MiB of the shipped
//! manifests, with every bound filled at once.
//!
//! The numbers of things are the settings and constants that the server uses. The cost of one thing is
//! measured ("Sizes" in docs/deployment.md, the row `streams` of docs/benchmarks) or the size of its buffers.
//! What has no bound of its own, such as gaps of the allocator, is in the reserve. docs/security.md has the
//! same rows.

use damper_core::kill::MAX_KILLS;
use damper_net::connection::{MAX_HEAD_BYTES, STREAM_WINDOW_BYTES};
use damper_net::limits::{
    MAX_EXPORTS, MAX_OPEN_REQUESTS, MAX_OPEN_URGENT, MAX_OPEN_VISITS, MAX_PARTIAL_BYTES, METRICS_CONNECTIONS,
};
use damper_store::writer::MAX_REQUEST_ID_BYTES;
use damper_store::{MAX_READ_BYTES, StoreUrl};

use crate::api::page;
use crate::api::rules::apply::quota::LARGEST_SETS;
use crate::clients::session::MAX_REFUSAL_BYTES;
use crate::config::{ServerConfig, max_bytes};
use crate::push::responses::{PAGE_BYTES, SHARED_BYTES};
use crate::state::history::{KEPT_BYTES, READERS};
use crate::state::retention::MAX_BYTES as HISTORY_BYTES;
use crate::write::MAX_QUEUES;

const SECURITY: &str = include_str!("../../../docs/security.md");

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const MANIFESTS: usize = 512 * MIB;

/// The least that must remain for what has no bound of its own: gaps of the allocator, buffers of connections
/// beyond the measured ones, requests while they are decoded.
const RESERVE: usize = 16 * MIB;

// Costs of one, measured.
const PROCESS: usize = 20 * MIB;
const CONNECTION: usize = 40 * KIB;
const RULE: usize = 7 * KIB;
const USUAL_RULE_BYTES: usize = 350;
const TOKEN: usize = KIB;
const CLASS: usize = KIB;
/// Memory per byte of entries that are longer than usual, and of a set until it is written.
const COPIES_OF_AN_ENTRY: usize = 4;
const COPIES_OF_A_SET: usize = 6;

/// Entries of a kind, compiled, with their keys and values as long as they may be.
fn entries(number: usize, each: usize) -> usize {
    let longer = max_bytes(number).saturating_sub(number * USUAL_RULE_BYTES);
    number * each + COPIES_OF_AN_ENTRY * longer
}

/// Returns the rows of the page.
fn rows(of: &ServerConfig) -> Vec<(&'static str, usize)> {
    let limits = &of.limits;
    let history = usize::try_from(HISTORY_BYTES).expect("a few MiB");
    let (metrics, _) = METRICS_CONNECTIONS;
    let visit = MAX_HEAD_BYTES as usize + STREAM_WINDOW_BYTES as usize;
    // A page with its last entry; its buffer may have doubled before.
    let response = 2 * page::PAGE_BYTES;
    // A whole set with all that it replaced, at the end of what is read at once.
    let read = MAX_READ_BYTES + 2 * of.max_apply_bytes;
    vec![
        ("process, without peers or rules", PROCESS),
        ("cache of the embedded store", history),
        ("rules", entries(of.max_rules, RULE)),
        ("guards", entries(of.max_guards, RULE)),
        ("queues", entries(MAX_QUEUES, RULE)),
        ("kills", MAX_KILLS * RULE),
        ("tokens", entries(of.max_tokens, TOKEN)),
        ("ids of requests", MAX_REQUEST_ID_BYTES),
        ("connections", (limits.max_connections + metrics) * CONNECTION),
        ("clients", limits.max_connections * (MAX_REFUSAL_BYTES + PAGE_BYTES + CLASS)),
        ("shared responses to clients", SHARED_BYTES),
        ("statistics", of.max_statistics_bytes),
        ("incomplete messages", MAX_PARTIAL_BYTES),
        ("requests without a proven identity", MAX_OPEN_VISITS * visit),
        ("other open requests", (MAX_OPEN_REQUESTS + MAX_OPEN_URGENT) * response),
        // The rollback and the export keep their part after their turn.
        ("earlier changes", READERS * (read + KEPT_BYTES) + 2 * KEPT_BYTES),
        ("exports and audit logs", MAX_EXPORTS * read),
        ("sets to apply", LARGEST_SETS * COPIES_OF_A_SET * of.max_apply_bytes),
    ]
}

#[test]
fn all_bounds_together_fit_the_manifests() {
    let rows = rows(&ServerConfig::new(StoreUrl::Sled("unused".into())));
    let sum: usize = rows.iter().map(|(_, bytes)| bytes).sum();
    let reserve = MANIFESTS.saturating_sub(sum);
    let all = rows.into_iter().chain([("reserve", reserve), ("sum", sum + reserve)]);
    let lines: Vec<String> =
        all.map(|(what, bytes)| format!("| {what} | {:.1} MiB |", bytes as f64 / MIB as f64)).collect();
    println!("{}", lines.join("\n"));
    assert!(reserve >= RESERVE, "the bounds are {} MiB", sum.div_ceil(MIB));
    let missing: Vec<_> = lines.iter().filter(|line| !SECURITY.contains(line.as_str())).collect();
    assert!(missing.is_empty(), "docs/security.md lacks {missing:#?}");
}
