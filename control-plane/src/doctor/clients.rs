//! Checks of the control plane itself and of its clients.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use damper_core::fault::Millis;
use damper_core::feature;
use damper_core::lint::codes::CLIENTS_LACK_FEATURE;
use damper_proto::{convert, v1};

use crate::clients::group::{ClientGroup, known};
use crate::doctor::{Check, DoctorInput, codes, finding, service_of};
use crate::state::kills::StoredKill;
use crate::state::text::many;

/// The time that a client may take to get live rules after it connected.
const LIVE_WITHIN: Duration = Duration::from_secs(15);

pub(crate) const CHECKS: &[Check] = &[
    Check { what: "the store answers", scope: |_| "1 replica".to_owned(), find: store },
    Check { what: "kill switches in force", scope: kills_scope, find: kills },
    Check { what: "clients apply the kills in force", scope: kills_scope, find: not_applied },
    Check { what: "processes are connected", scope: connected, find: no_client },
    Check { what: "clients acknowledge revisions", scope: DoctorInput::count_of_clients, find: lagging },
    Check {
        what: "clients accept rules, guards and kills",
        scope: DoctorInput::count_of_clients,
        find: refusals,
    },
    Check {
        what: "clients have the features that rules need",
        scope: DoctorInput::count_of_clients,
        find: features,
    },
    Check { what: "clients run the same SDK", scope: DoctorInput::count_of_clients, find: versions },
    Check { what: "instance ids are unique", scope: DoctorInput::count_of_clients, find: duplicates },
    Check { what: "modes are not overridden", scope: DoctorInput::count_of_clients, find: overrides },
    Check { what: "clients run on live rules", scope: DoctorInput::count_of_clients, find: not_live },
    Check { what: "called services have a server layer", scope: DoctorInput::count_of_clients, find: layers },
];

fn store(input: &DoctorInput) -> Vec<v1::Finding> {
    let stale = input.table.stale_since.map(|since| {
        let ago = age(since, input.now);
        finding(codes::STORE_STALE, "", format!("the store has not answered for {ago}"))
    });
    stale.into_iter().collect()
}

fn kills_scope(input: &DoctorInput) -> String {
    many(input.table.kills().in_force(input.now).count(), "kill")
}

fn kills(input: &DoctorInput) -> Vec<v1::Finding> {
    let kills = input.table.kills().in_force(input.now);
    let concerned = kills.filter(|stored| {
        let pattern = stored.kill.pattern();
        let is_route = input.rows().any(|row| row.route.key().is_some_and(|key| pattern.matches(&key)));
        let names = v1::Pattern::from(pattern);
        let named = [&names.caller_service, &names.callee_service];
        input.service.is_empty() || is_route || named.iter().any(|name| **name == input.service)
    });
    let findings = concerned.map(|stored| {
        let v1::KillSwitch { calls, reason, updated_by, .. } = &stored.wire;
        let what = if *calls { "stops all calls" } else { "stops retries and hedges" };
        let left = stored.remaining(input.now).unwrap_or_default();
        let by = if updated_by.is_empty() { "unknown" } else { updated_by };
        let message = format!("{what} for {} more; set by {by}: {reason:?}", rough(left));
        finding(codes::KILL_IN_FORCE, &stored.kill.pattern().to_string(), message)
    });
    findings.collect()
}

/// Formats a time with one or two units: 45 s, 60 min, 4 h 5 min.
fn rough(time: Duration) -> String {
    match time.as_secs() {
        s @ 0..100 => format!("{s} s"),
        s if s < 2 * 3600 => format!("{} min", s.div_ceil(60)),
        s => format!("{} h {} min", s / 3600, s % 3600 / 60),
    }
}

/// One finding for each kill that some of its clients do not support or refuse.
fn not_applied(input: &DoctorInput) -> Vec<v1::Finding> {
    let mut found = Vec::new();
    for stored in input.table.kills().in_force(input.now) {
        let affected = input.clients().filter_map(|client| Some((client, why_not_applied(client, stored)?)));
        let all: Vec<_> = affected.collect();
        let Some((first, why)) = all.first() else { continue };
        let v1::Identity { service, instance, .. } = first.identity.clone().unwrap_or_default();
        let others = match all.len() {
            1 => String::new(),
            count => format!("{count} processes, one of them "),
        };
        let subject = format!("kill {}", stored.kill.pattern());
        let message = format!("{others}{service} {instance}: {why}");
        found.push(finding(codes::KILL_NOT_APPLIED, &subject, message));
    }
    found
}

/// Returns why a client does not apply a kill that concerns it.
fn why_not_applied(client: &v1::Client, stored: &StoredKill) -> Option<String> {
    let v1::Identity { service, cluster, .. } = client.identity.clone()?;
    let class = ClientGroup { service, cluster, features: known(&client.features) };
    if !class.matches(stored.kill.pattern()) {
        return None;
    }
    if !class.knows_kills() {
        return Some(format!("its SDK lacks the feature {}", feature::KILL_SWITCH));
    }
    let refused = client.refused.iter().find(|refusal| {
        let key = refusal.key.as_ref().and_then(|key| convert::pattern(key).ok());
        refusal.kill && key.as_ref() == Some(stored.kill.pattern())
    });
    refused.map(|refusal| format!("refuses it: {}", refusal.reason))
}

fn connected(input: &DoctorInput) -> String {
    let clients = input.count_of_clients();
    if !input.is_settling() {
        return clients;
    }
    let started = age(input.started, input.now);
    format!("{clients}; this replica started {started} ago and clients are still connecting")
}

fn no_client(input: &DoctorInput) -> Vec<v1::Finding> {
    if input.is_settling() || input.clients().next().is_some() {
        return Vec::new();
    }
    let message = match input.service.as_str() {
        "" => "no process is connected to this control plane".to_owned(),
        service => {
            let connected: Vec<&str> = input.connected().into_iter().take(5).collect();
            let others = match connected.as_slice() {
                [] => "no other service is connected either".to_owned(),
                names => format!("connected services: {}", names.join(", ")),
            };
            format!("no process of {service} is connected; {others}")
        }
    };
    vec![finding(codes::NO_CLIENT_CONNECTED, &input.service, message)]
}

fn lagging(input: &DoctorInput) -> Vec<v1::Finding> {
    input.by_service(codes::CLIENT_LAGS, |client| {
        let since = SystemTime::try_from(client.behind_since?).ok()?;
        let lag = input.now.duration_since(since).unwrap_or_default();
        (lag >= input.lags_after).then(|| {
            format!(
                "acknowledged revision {}; revision {} was sent {} ago",
                client.acknowledged_revision,
                client.sent_revision,
                age(since, input.now)
            )
        })
    })
}

/// One finding for each refused rule, guard or kill.
fn refusals(input: &DoctorInput) -> Vec<v1::Finding> {
    let mut refused: BTreeMap<String, (usize, String)> = BTreeMap::new();
    for client in input.clients() {
        for v1::Refusal { key, reason, guard, kill, .. } in &client.refused {
            let Some(Ok(pattern)) = key.as_ref().map(convert::pattern) else { continue };
            let subject = match (guard, kill) {
                (_, true) => format!("kill {pattern}"),
                (true, false) => format!("guard {pattern}"),
                (false, false) => pattern.to_string(),
            };
            refused.entry(subject).or_insert_with(|| (0, reason.clone())).0 += 1;
        }
    }
    let findings = refused.into_iter().map(|(subject, (count, reason))| {
        finding(codes::ENTRY_REFUSED, &subject, format!("rejected by {}: {reason}", many(count, "process")))
    });
    findings.collect()
}

fn features(input: &DoctorInput) -> Vec<v1::Finding> {
    input.by_service(CLIENTS_LACK_FEATURE, |client| {
        let first = convert::pattern(client.withheld.first()?).ok()?;
        let lacks = client.features_lacking.join(", ");
        let withheld = client.withheld_count as usize;
        Some(format!("lacks {lacks}; {} off there, such as {first}", many(withheld, "rule")))
    })
}

fn versions(input: &DoctorInput) -> Vec<v1::Finding> {
    let newest = input.clients.iter().filter_map(|client| version(&client.sdk_version)).max();
    let Some(newest) = newest else { return Vec::new() };
    input.by_service(codes::OLD_SDK, |client| {
        let is_older = version(&client.sdk_version).is_some_and(|version| version < newest);
        let [major, minor, patch] = newest;
        is_older.then(|| format!("SDK {}, others have {major}.{minor}.{patch}", client.sdk_version))
    })
}

/// Parses the three numbers of a version; `None` for another form.
fn version(text: &str) -> Option<[u64; 3]> {
    let numbers = text.split(['-', '+']).next()?.split('.').map(|part| part.parse().ok());
    numbers.collect::<Option<Vec<u64>>>()?.try_into().ok()
}

/// One finding for each service.
fn duplicates(input: &DoctorInput) -> Vec<v1::Finding> {
    let mut services: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (service, instance) in input.shared_ids.iter().filter(|(service, _)| input.is_about(service)) {
        services.entry(service).or_default().push(instance);
    }
    let findings = services.into_iter().map(|(service, mut ids)| {
        ids.sort_unstable();
        let (example, others) = (ids[0], ids.len() - 1);
        let others = if others > 0 { format!("; {others} more shared ids") } else { String::new() };
        finding(
            codes::DUPLICATE_INSTANCE,
            service,
            format!("{example}: several processes report under this id{others}"),
        )
    });
    findings.collect()
}

fn overrides(input: &DoctorInput) -> Vec<v1::Finding> {
    input.by_service(codes::MODE_OVERRIDDEN, |client| {
        let mode = match client.override_mode() {
            v1::Mode::Unspecified => return None,
            v1::Mode::Off => "off",
            v1::Mode::Observe => "observe",
            v1::Mode::Enforce => "enforce",
        };
        Some(format!("local override to {mode}, by DAMPER_MODE or the override file"))
    })
}

fn not_live(input: &DoctorInput) -> Vec<v1::Finding> {
    input.by_service(codes::NOT_LIVE, |client| {
        let since = SystemTime::try_from(client.connected_at?).ok()?;
        let source = match client.source() {
            v1::Source::LastKnownGood => "runs with the last rules that it saved on its disk",
            v1::Source::BuiltIn => "runs without rules",
            v1::Source::Unspecified | v1::Source::Live => return None,
        };
        let waited = input.now.duration_since(since).unwrap_or_default() >= LIVE_WITHIN;
        let age = age(since, input.now);
        waited.then(|| format!("the process {source}, although it connected to the control plane {age} ago"))
    })
}

fn layers(input: &DoctorInput) -> Vec<v1::Finding> {
    let called: BTreeSet<&str> = input.rows.iter().map(|row| &*row.route.callee_service).collect();
    input.by_service(codes::SERVER_LAYER_MISSING, |client| {
        let is_called = called.contains(service_of(client));
        let lacks = match client.via() {
            v1::Via::Unspecified => "no Damper server layer",
            v1::Via::Proxy => "a proxy without `inbound`, which callers must dial",
        };
        (is_called && !client.serves).then(|| format!("is called by others but has {lacks}"))
    })
}

/// Returns the age in whole seconds.
pub(crate) fn age(since: SystemTime, now: SystemTime) -> Millis {
    Millis(Duration::from_secs(now.duration_since(since).unwrap_or_default().as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_their_numbers() {
        assert!(version("0.10.0") > version("0.9.9"));
        assert_eq!(version("1.2.3-rc.1"), Some([1, 2, 3]));
        assert_eq!(version("1.2"), None);
        assert_eq!(version("newest"), None);
    }
}
