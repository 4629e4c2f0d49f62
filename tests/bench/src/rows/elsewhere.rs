//! Rows of the table that other tasks measure, and what is not built.

use crate::figure::Row;

pub(super) fn rows() -> Vec<Row> {
    let lab = |id, title| Row::new(id, title).note("Measured by `cargo xtask lab`.");
    let simulated = |id, title| Row::new(id, title).note("Computed by `damper simulate`.");
    vec![
        Row::new("queue", "Durable queue: submit, lease, ack").note("Not built yet, so nothing to measure."),
        lab("chain", "Chains of 2 to 5 layers: attempts on the last hop"),
        lab("fleet", "1,000 caller processes against a callee that fails completely"),
        simulated("outage", "Total outage: extra attempts in 20 s"),
        simulated("recovery", "Recovery from overload"),
    ]
}
