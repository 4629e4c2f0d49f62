//! Client group: identity and features, which select the rules of a client and their form.
//!
//! A rule that a client cannot apply is off there. So is one that a guard tightens if the client does not
//! know guards, since it would apply the rule as written. Clients of one group get the same bytes.

use std::borrow::Cow;
use std::collections::BTreeSet;

use damper_core::{Faults, Pattern, Policy, Rule, feature, key};
use damper_proto::v1;

use crate::state::guards::GuardTable;
use crate::state::resource_key::ResourceKey;
use crate::state::snapshot::{Snapshot, UNREAD};

/// Maximum number of features that a client may list.
const MAX_FEATURES: usize = 256;

/// Clients that are sent the same rules.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClientGroup {
    pub(crate) service: String,
    pub(crate) cluster: String,
    /// Features known to this server's engine; others have no effect and are not kept.
    pub(crate) features: BTreeSet<&'static str>,
}

/// Returns the features that this server's engine knows.
pub(crate) fn known(listed: &[String]) -> BTreeSet<&'static str> {
    feature::ALL.iter().copied().filter(|known| listed.iter().any(|listed| listed == known)).collect()
}

/// Rules that are off at the clients of a group.
#[derive(Debug, Default)]
pub(crate) struct Withheld {
    pub(crate) count: usize,
    /// The first of them.
    pub(crate) first: Vec<v1::Pattern>,
}

impl ClientGroup {
    /// Reads the group of a Hello.
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

    /// Returns the features in wire form.
    pub(crate) fn wire_features(&self) -> Vec<String> {
        self.features.iter().map(|feature| (*feature).to_owned()).collect()
    }

    /// Returns true if rules and guards with this pattern apply to the client. The callee applies the retry
    /// limit of a guard, so such a guard applies to callers and callee.
    pub(crate) fn matches(&self, pattern: &Pattern) -> bool {
        pattern.matches_caller(&self.service, &self.cluster)
    }

    /// Returns true if the client knows guards.
    pub(crate) fn knows_guards(&self) -> bool {
        self.features.contains(feature::GUARDS)
    }

    /// Returns true if the client applies kills.
    pub(crate) fn knows_kills(&self) -> bool {
        self.features.contains(feature::KILL_SWITCH)
    }

    /// Returns why a rule is off at the client: a missing feature, or an entry that this server cannot read
    /// (the rule, or a guard on it). `None` if the rule applies.
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

    /// Returns the first feature that the policy needs and the client lacks.
    fn lacking(&self, policy: &Policy) -> Option<&'static str> {
        feature::lacking(policy, |feature| self.features.contains(feature))
    }

    /// Returns the policy as it is sent: a client without credit gets the ratio.
    pub(crate) fn sent<'a>(&self, policy: &'a Policy) -> Cow<'a, Policy> {
        if self.features.contains(feature::CREDIT) {
            Cow::Borrowed(policy)
        } else {
            Cow::Owned(feature::without_credit(policy))
        }
    }

    /// Returns the feature that the client lacks for the current entry; a removed entry needs none.
    pub(crate) fn lacks(&self, subject: &ResourceKey, view: &Snapshot) -> Option<&'static str> {
        view.revision_of(subject)?;
        match subject {
            ResourceKey::Rule(pattern) => {
                let rule = view.stored(pattern).and_then(|stored| stored.rule.as_deref());
                self.off_because(view.guards(), pattern, rule)
            }
            ResourceKey::Guard(_) => (!self.knows_guards()).then_some(feature::GUARDS),
            ResourceKey::Kill(_) => (!self.knows_kills()).then_some(feature::KILL_SWITCH),
            ResourceKey::Queue(_) => None,
        }
    }

    /// Returns true if an entry concerns the group; a queue concerns none.
    pub(crate) fn is_concerned(&self, subject: &ResourceKey) -> bool {
        subject.pattern().is_some_and(|pattern| self.matches(pattern))
    }

    /// Iterates over the features of this server's engine that the client lacks.
    pub(crate) fn features_lacking(&self) -> impl Iterator<Item = &'static str> {
        feature::ALL.iter().copied().filter(|feature| !self.features.contains(*feature))
    }

    /// Returns true if the client has all features of this server.
    pub(crate) fn has_all_features(&self) -> bool {
        self.features_lacking().next().is_none()
    }

    /// Returns the rules that are off at these clients, with the first `listed` of them.
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

    /// Returns true if a rule is off at these clients for lack of a feature.
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
