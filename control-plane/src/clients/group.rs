//! What decides which rules a client is sent, and in what form: who it is and what it can do.
//!
//! A rule that a client can not honour is off there, and so is one that a guard tightens where the client knows
//! nothing of guards: it would carry the rule out as it stands. Clients of one class get the same bytes.

use std::borrow::Cow;
use std::collections::BTreeSet;

use damper_core::{Faults, Pattern, Policy, Rule, feature, key};
use damper_proto::v1;

use crate::state::guards::GuardTable;
use crate::state::resource_key::ResourceKey;
use crate::state::snapshot::{Snapshot, UNREAD};

/// The most features that a client may list.
const MAX_FEATURES: usize = 256;

/// Clients that are sent the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClientGroup {
    pub(crate) service: String,
    pub(crate) cluster: String,
    /// Those of this server's engine; what else a client lists has no effect here and is not kept.
    pub(crate) features: BTreeSet<&'static str>,
}

/// The features among these that this server's engine has.
pub(crate) fn known(listed: &[String]) -> BTreeSet<&'static str> {
    feature::ALL.iter().copied().filter(|known| listed.iter().any(|listed| listed == known)).collect()
}

/// The rules that are off at the clients of a class.
#[derive(Debug, Default)]
pub(crate) struct Withheld {
    pub(crate) count: usize,
    /// The first of them.
    pub(crate) first: Vec<v1::Pattern>,
}

impl ClientGroup {
    /// Who says hello, for the choice of rules.
    pub(crate) fn read(hello: &v1::Hello) -> Result<Self, Faults> {
        let mut faults = Faults::none();
        let Some(identity) = &hello.identity else {
            faults.add("identity", "must be given");
            return Err(faults);
        };
        key::check_name("identity.service", &identity.service, &mut faults);
        key::check_name("identity.cluster", &identity.cluster, &mut faults);
        key::check_name("identity.instance", &identity.instance, &mut faults);
        if hello.features.len() > MAX_FEATURES {
            let listed = hello.features.len();
            faults.add("features", format!("{listed} are listed, at most {MAX_FEATURES} may be"));
        }
        for (n, feature) in hello.features.iter().enumerate().take(MAX_FEATURES) {
            key::check_name(&format!("features[{n}]"), feature, &mut faults);
        }
        if hello.sdk_version.len() > key::MAX_NAME_BYTES {
            faults.add("sdk_version", format!("is longer than {} bytes", key::MAX_NAME_BYTES));
        }
        faults.or(Self {
            service: identity.service.clone(),
            cluster: identity.cluster.clone(),
            features: known(&hello.features),
        })
    }

    /// The features as the wire has them.
    pub(crate) fn wire_features(&self) -> Vec<String> {
        self.features.iter().map(|feature| (*feature).to_owned()).collect()
    }

    /// True if rules and guards with this pattern concern the client. A guard with a repeat limit, which its
    /// callee carries out, is for all callers and so for the callee too.
    pub(crate) fn matches(&self, pattern: &Pattern) -> bool {
        pattern.matches_caller(&self.service, &self.cluster)
    }

    /// True if the client knows what a guard is.
    pub(crate) fn knows_guards(&self) -> bool {
        self.features.contains(feature::GUARDS)
    }

    /// True if the client obeys kills.
    pub(crate) fn knows_kills(&self) -> bool {
        self.features.contains(feature::KILL_SWITCH)
    }

    /// Why a rule that concerns the client is off there: a feature that it lacks, or what this server can not read
    /// (no rule, or a guard that bears on it). None where the rule is carried out.
    pub(crate) fn off_because(
        &self,
        guards: &GuardTable,
        pattern: &Pattern,
        rule: Option<&Rule>,
    ) -> Option<&'static str> {
        let Some(rule) = rule else { return Some(UNREAD) };
        if let Some(feature) = self.lacking(rule.policy()) {
            return Some(feature);
        }
        let bearing = || guards.overlapping(pattern).filter(|stored| self.matches(&stored.pattern));
        if !guards.all_read() && bearing().any(|stored| stored.guard.is_none()) {
            return Some(UNREAD);
        }
        let cuts = || guards.exceeded_by(rule).any(|cut| self.matches(cut.guard.pattern()));
        (!self.knows_guards() && cuts()).then_some(feature::GUARDS)
    }

    /// The first feature that the policy needs and the client lacks.
    fn lacking(&self, policy: &Policy) -> Option<&'static str> {
        feature::lacking(policy, |feature| self.features.contains(feature))
    }

    /// The policy as it is sent: a client without credit goes by the ratio.
    pub(crate) fn sent<'a>(&self, policy: &'a Policy) -> Cow<'a, Policy> {
        if self.features.contains(feature::CREDIT) {
            Cow::Borrowed(policy)
        } else {
            Cow::Owned(feature::without_credit(policy))
        }
    }

    /// What keeps the client from carrying out what is there now; what is gone asks nothing of anybody.
    pub(crate) fn lacks(&self, subject: &ResourceKey, view: &Snapshot) -> Option<&'static str> {
        view.revision_of(subject)?;
        match subject {
            ResourceKey::Rule(pattern) => {
                let rule = view.stored(pattern).and_then(|stored| stored.rule.as_deref());
                self.off_because(view.guards(), pattern, rule)
            }
            ResourceKey::Guard(_) => (!self.knows_guards()).then_some(feature::GUARDS),
            ResourceKey::Kill(_) => (!self.knows_kills()).then_some(feature::KILL_SWITCH),
        }
    }

    /// The features of this server's engine that the client does not have.
    pub(crate) fn features_lacking(&self) -> impl Iterator<Item = &'static str> {
        feature::ALL.iter().copied().filter(|feature| !self.features.contains(*feature))
    }

    /// True if nothing that this server can read is beyond the client.
    pub(crate) fn has_all_features(&self) -> bool {
        self.features_lacking().next().is_none()
    }

    /// The rules that are off at these clients, of which so many are listed.
    pub(crate) fn withheld(&self, view: &Snapshot, listed: usize) -> Withheld {
        let mut withheld = Withheld::default();
        for pattern in self.off(view) {
            if withheld.count < listed {
                withheld.first.push(pattern.into());
            }
            withheld.count += 1;
        }
        withheld
    }

    /// True if a rule is off at these clients for want of a feature.
    pub(crate) fn is_behind_rules(&self, view: &Snapshot) -> bool {
        !self.has_all_features() && self.off(view).next().is_some()
    }

    fn off<'a>(&'a self, view: &'a Snapshot) -> impl Iterator<Item = &'a Pattern> {
        let all_but_unread = self.has_all_features() && view.guards().all_read();
        let rules = view.iter().filter(move |(_, stored)| !all_but_unread || stored.rule.is_none());
        let rules = rules.filter(move |(pattern, stored)| {
            self.matches(pattern)
                && self.off_because(view.guards(), pattern, stored.rule.as_deref()).is_some()
        });
        rules.map(|(pattern, _)| pattern)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_that_this_server_does_not_know_make_no_class() {
        let hello = |features: &[&str]| {
            let [service, cluster, instance] = ["shop", "default", "one"].map(str::to_owned);
            let identity = Some(v1::Identity { service, cluster, instance });
            let features = features.iter().map(|name| (*name).to_owned()).collect();
            ClientGroup::read(&v1::Hello { identity, features, ..Default::default() }).unwrap()
        };
        let class = hello(&[feature::GUARDS, "of-a-later-version", "invented"]);
        assert_eq!(class, hello(&[feature::GUARDS]));
        assert_eq!(class.wire_features(), [feature::GUARDS]);
    }
}
