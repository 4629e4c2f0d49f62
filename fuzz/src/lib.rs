//! Fuzz targets for what arrives from the network.
//!
//! Each target is a function of bytes that panics when something is wrong, in a module that says what it checks.
//! They are plain functions so that the committed corpus is replayed by a test on the stable compiler too; the
//! fuzzer's entry points in `fuzz_targets/` only call them. A target depends on its bytes alone: the clock is
//! paused and random numbers come from a seed, so that what was found once is found again.
#![forbid(unsafe_code)]

pub mod admin_requests;
mod any;
mod application;
pub mod client_answers;
pub mod control_stream;
pub mod engine;
mod fields;
pub mod manifests;
mod peer;
pub mod proxy_connect;
pub mod proxy_keys;
mod seed;
pub mod server_requests;

/// A target: fails by a panic.
pub type Target = fn(&[u8]);

/// Every target by name.
pub const TARGETS: [(&str, Target); 8] = [
    ("admin_requests", admin_requests::run),
    ("client_answers", client_answers::run),
    ("control_stream", control_stream::run),
    ("engine", engine::run),
    ("manifests", manifests::run),
    ("proxy_connect", proxy_connect::run),
    ("proxy_keys", proxy_keys::run),
    ("server_requests", server_requests::run),
];

/// Runs a case with a paused clock and seeded random numbers.
fn play<T>(case: impl Future<Output = T>) -> T {
    fastrand::seed(7);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime without I/O needs nothing of the system").block_on(case)
}
