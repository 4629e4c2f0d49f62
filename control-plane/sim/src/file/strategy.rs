//! Strategies of a scenario: none, a peer, or Damper with manifests.

use std::collections::BTreeMap;
use std::time::Duration;

use damper_core::fault::Faults;
use damper_core::{Code, CodeSet};
use damper_document::Value;
use serde::Deserialize;

use super::{Empty, Manifests, Policies, ReadManifests, items, required};
use crate::scenario::{Peer, PeerBackoff, PeerBudget, PeerCap, PeerQuota, PeerThrottling, Retries, Strategy};
use crate::values::{Of, list, optional, present};

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct StrategyFile {
    name: Option<String>,
    #[serde(deserialize_with = "present")]
    none: Option<Empty>,
    #[serde(deserialize_with = "present")]
    peer: Option<PeerFile>,
    /// Name of a file, or a list of file names and manifests.
    damper: Option<Value>,
    /// The same with queues, for strategies of each kind.
    queues: Option<Value>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct PeerFile {
    attempts: Option<u32>,
    #[serde(deserialize_with = "list")]
    codes: Vec<Code>,
    #[serde(deserialize_with = "optional")]
    per_attempt_timeout: Option<Duration>,
    callee_timeouts: BTreeMap<String, Of<Duration>>,
    #[serde(deserialize_with = "present")]
    backoff: Option<PeerBackoff>,
    #[serde(deserialize_with = "present")]
    budget: Option<PeerBudget>,
    #[serde(deserialize_with = "present")]
    throttling: Option<PeerThrottling>,
    #[serde(deserialize_with = "present")]
    quota: Option<PeerQuota>,
}

impl StrategyFile {
    pub(super) fn strategy(self, path: &str, manifests: &ReadManifests<'_>, faults: &mut Faults) -> Strategy {
        let none = self.none.map(|Empty {}| Retries::Peer(Peer::naive(1)));
        let peer = self.peer.map(|file| Retries::Peer(file.peer(&format!("{path}.peer"), faults)));
        let mut policies =
            self.damper.as_ref().map(|value| read(value, &format!("{path}.damper"), manifests, faults));
        let mut queues = self.queues.map_or_else(Vec::new, |value| {
            let path = format!("{path}.queues");
            let Policies { rules, guards, queues } = read(&value, &path, manifests, faults);
            if !rules.is_empty() || !guards.is_empty() {
                faults.add(path, "allows only queues");
            }
            queues
        });
        queues.extend(policies.iter_mut().flat_map(|policies| std::mem::take(&mut policies.queues)));
        let damper = policies.map(|Policies { rules, guards, .. }| Retries::Damper { rules, guards });
        let mut kinds = [none, peer, damper].into_iter().flatten();
        let (kind, second) = (kinds.next(), kinds.next());
        if kind.is_none() || second.is_some() {
            faults.add(path, "requires one of none, peer, damper");
        }
        Strategy {
            name: required(self.name, format!("{path}.name"), String::new(), faults),
            retries: kind.unwrap_or(Retries::Peer(Peer::naive(1))),
            queues,
        }
    }
}

/// Reads a file name, or a list of file names and manifests.
fn read(value: &Value, path: &str, manifests: &ReadManifests<'_>, faults: &mut Faults) -> Policies {
    let mut read = |value: &Value, path: &str| {
        let which = match value {
            Value::String(file) => Manifests::File(file),
            inline => Manifests::Inline(inline),
        };
        manifests(which).map_err(|found| faults.nest(path, found)).unwrap_or_default()
    };
    let found = match value {
        Value::Array(list) => items(path, list.iter().collect(), |path, value| read(value, path)),
        one => vec![read(one, path)],
    };
    let mut all = Policies::default();
    for Policies { rules, guards, queues } in found {
        all.rules.extend(rules);
        all.guards.extend(guards);
        all.queues.extend(queues);
    }
    all
}

impl PeerFile {
    fn peer(self, path: &str, faults: &mut Faults) -> Peer {
        let default = Peer::naive(3);
        let caps = [
            self.budget.map(PeerCap::Budget),
            self.throttling.map(PeerCap::Throttling),
            self.quota.map(PeerCap::Quota),
        ];
        let mut caps = caps.into_iter().flatten();
        let cap = caps.next();
        if caps.next().is_some() {
            faults.add(path, "allows only one of budget, throttling, quota");
        }
        Peer {
            attempts: self.attempts.unwrap_or(default.attempts),
            codes: if self.codes.is_empty() { default.codes } else { CodeSet::of(&self.codes) },
            per_attempt_timeout: self.per_attempt_timeout,
            callee_timeouts: self
                .callee_timeouts
                .into_iter()
                .map(|(name, Of(length))| (name, length))
                .collect(),
            backoff: self.backoff,
            cap,
        }
    }
}
