//! Metrics of kills: the number in force, and of the clients that they concern.

use std::fmt::Write as _;
use std::time::SystemTime;

use crate::push::delivery::Delivery;
use crate::push::fleet_state::FleetState;

/// Writes the gauges. Computed per request, because kills expire with time.
pub(crate) fn write_figures(text: &mut String, fleet: &FleetState) {
    let table = fleet.table();
    let patterns: Vec<_> =
        table.kills().in_force(SystemTime::now()).map(|stored| stored.kill.pattern().clone()).collect();
    let concerned = Delivery::here(&fleet.hub, &table).killed(&patterns);
    for (name, help, value) in [
        ("damper_kills", "Kills in force.", patterns.len()),
        (
            "damper_killed_clients",
            "Clients connected to this replica that a kill concerns.",
            concerned.clients as usize,
        ),
        (
            "damper_killed_clients_lacking_feature",
            "Those of them whose SDK does not support kills.",
            concerned.lacking as usize,
        ),
    ] {
        // Writing to a string does not fail.
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}");
    }
}
