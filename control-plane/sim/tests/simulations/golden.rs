//! One scenario with a bit of everything comes out the same to the last byte: on every platform, in debug and in
//! release. `cargo xtask release` holds the released binary to the same file.
//!
//! A change of the engine's rules or of the model changes it, and should be seen to: write it anew with
//! `damper simulate -f scenario.yaml -o json > figures.json` in `tests/golden`, and look at the difference.

use crate::harness::{read, simulated};

#[test]
fn figures_are_the_same_to_the_last_byte() {
    let scenario = read(include_str!("../golden/scenario.yaml")).unwrap_or_else(|faults| panic!("{faults}"));
    let figures = serde_json::to_string_pretty(&simulated(&scenario)).unwrap() + "\n";
    let golden = include_str!("../golden/figures.json");
    let differs = figures.lines().zip(golden.lines()).enumerate().find(|(_, (found, kept))| found != kept);
    assert_eq!(differs, None, "the first line that differs, found and kept");
    assert_eq!(figures.len(), golden.len());
}
