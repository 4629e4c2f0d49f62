//! Checks of the store against the state known to this control plane and its clients.

use std::time::{Duration, SystemTime};

use damper_proto::v1;

use crate::doctor::clients::age;
use crate::doctor::{Check, DoctorInput, codes, finding};

/// A replica that is slightly behind holds clients of another one for at most this time.
const HELD_FOR: Duration = Duration::from_secs(5);

pub(crate) const CHECKS: &[Check] = &[
    Check { what: "the store is the known one", scope: entries, find: unaccepted },
    Check { what: "the store has room", scope: entries, find: full },
    Check { what: "no client holds more than the store", scope: DoctorInput::count_of_clients, find: held },
];

fn entries(input: &DoctorInput) -> String {
    format!("revision {} of {}", input.table.revision(), input.table.epoch())
}

fn unaccepted(input: &DoctorInput) -> Vec<v1::Finding> {
    let table = &input.table;
    let found = table.unaccepted.iter().map(|found| {
        let since = age(found.since, input.now);
        let (there, known) = (found.entries, table.entries());
        let problem = &found.problem;
        let message = format!(
            "for {since}: {problem}. It has {there} rules, guards, kills and tokens; {known} are served from memory"
        );
        finding(codes::STORE_UNACCEPTED, "", message)
    });
    found.collect()
}

fn full(input: &DoctorInput) -> Vec<v1::Finding> {
    let message = || "the disk is full: all changes but kills and removals are rejected".to_owned();
    input.store_is_full.then(|| finding(codes::STORE_FULL, "", message())).into_iter().collect()
}

fn held(input: &DoctorInput) -> Vec<v1::Finding> {
    input.by_service(codes::CLIENT_HELD, |client| {
        let since = client.connected_at.and_then(|at| SystemTime::try_from(at).ok())?;
        let is_settled = input.now.duration_since(since).is_ok_and(|since| since >= HELD_FOR);
        (client.held && is_settled).then(|| {
            let address = &client.address;
            format!("keeps rules of another store or of a later revision ({address})")
        })
    })
}
