//! What Prometheus reads of kills: how many are in force, and how many clients they concern.

use std::fmt::Write as _;
use std::time::SystemTime;

use crate::push::delivery::Delivery;
use crate::push::fleet_state::FleetState;

/// Writes the gauges; what is in force depends on the clock, so they are made when they are asked for.
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
            "Those of them that know nothing of kills and do not obey.",
            concerned.lacking as usize,
        ),
    ] {
        // Writing into a text does not fail.
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}");
    }
}
