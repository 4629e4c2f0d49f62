//! The groups of connected clients, each stored once, and how many of them one identity may use.
//!
//! A group costs a response of its own, and a visit of each rule when delivery is counted. Clients choose
//! their cluster and features, so the number of groups needs its own limit.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use damper_net::limits::{Limit, LimitExceeded};

use crate::clients::group::ClientGroup;

/// The most groups of one service and identity: clusters times SDK versions.
pub(crate) const PER_SERVICE: usize = 32;
/// The most groups of one identity.
pub(crate) const PER_IDENTITY: usize = 1024;

type Counts = HashMap<String, HashMap<Arc<ClientGroup>, usize>>;

/// Clones share the counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct GroupQuota(Arc<Mutex<Counts>>);

/// A counted client of a group.
#[derive(Debug)]
pub(crate) struct GroupPermit {
    pub(crate) class: Arc<ClientGroup>,
    identity: String,
    classes: GroupQuota,
}

impl GroupQuota {
    /// Counts a client's group until the result is dropped. Errors if the identity has too many groups.
    pub(crate) fn admit(&self, identity: &str, group: ClientGroup) -> Result<GroupPermit, LimitExceeded> {
        let of = format!("{} in cluster {}", group.service, group.cluster);
        self.take(identity, group).ok_or_else(|| {
            let text = format!(
                "{identity} has clients of {PER_SERVICE} clusters and feature sets of one service, or of \
                 {PER_IDENTITY} in all, and no more are allowed ({of})"
            );
            LimitExceeded::new(Limit::Classes, text)
        })
    }

    /// Counts one more client of a group; `None` if the identity has the most groups already.
    pub(crate) fn take(&self, identity: &str, class: ClientGroup) -> Option<GroupPermit> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_identity = counts.entry(identity.to_owned()).or_default();
        let class = match of_identity.get_key_value(&class) {
            Some((known, _)) => known.clone(),
            None => {
                let of_service = of_identity.keys().filter(|other| other.service == class.service).count();
                if of_service >= PER_SERVICE || of_identity.len() >= PER_IDENTITY {
                    return None;
                }
                Arc::new(class)
            }
        };
        *of_identity.entry(class.clone()).or_default() += 1;
        Some(GroupPermit { class, identity: identity.to_owned(), classes: self.clone() })
    }
}

impl Drop for GroupPermit {
    fn drop(&mut self) {
        let mut counts = self.classes.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(of_identity) = counts.get_mut(&self.identity) else { return };
        if let Some(count) = of_identity.get_mut(&self.class) {
            *count -= 1;
            if *count == 0 {
                of_identity.remove(&self.class);
            }
        }
        if of_identity.is_empty() {
            counts.remove(&self.identity);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(service: &str, cluster: usize) -> ClientGroup {
        let service = service.to_owned();
        ClientGroup { service, cluster: cluster.to_string(), features: [].into() }
    }

    #[test]
    fn classes_of_an_identity_are_bounded_and_given_back() {
        let classes = GroupQuota::default();
        let take = |identity: &str, service: &str, cluster| classes.take(identity, class(service, cluster));
        let held: Vec<_> = (0..PER_SERVICE).map(|n| take("a", "shop", n).unwrap()).collect();
        assert!(take("a", "shop", PER_SERVICE).is_none());
        // One more client of an existing group adds no group.
        let again = take("a", "shop", 0).unwrap();
        assert!(Arc::ptr_eq(&again.class, &held[0].class));
        let others: Vec<_> = (PER_SERVICE..PER_IDENTITY).map(|n| take("a", &n.to_string(), n)).collect();
        assert!(others.iter().all(Option::is_some) && take("a", "more", 0).is_none());
        let _other = take("b", "shop", PER_SERVICE).unwrap();
        drop((again, held, others));
        assert_eq!(classes.0.lock().unwrap().len(), 1, "only what is held is known");
    }
}
