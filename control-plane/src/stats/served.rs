//! What services serve, by method: first sends and repeats, by whoever repeats, and what the repeat limit sheds.
//!
//! As with routes, reports carry totals and what is kept is their differences, so that the sums never fall while a
//! method is known.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use damper_core::{Faults, OTHER_METHOD, key};
use damper_proto::v1;

use super::{Books, FORGET_IDLE_AFTER, MAX_ROUTES_PER_INSTANCE};

/// Requests of one method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Served {
    pub(crate) first_sends: u64,
    pub(crate) damper_repeats: u64,
    pub(crate) grpc_repeats: u64,
    pub(crate) envoy_repeats: u64,
    /// Of the repeats those that were refused, and those that would have been.
    pub(crate) shed_repeats: u64,
    pub(crate) would_shed_repeats: u64,
}

/// All methods that services serve, by service and method.
#[derive(Default)]
pub(super) struct ServedBooks {
    methods: HashMap<(Arc<str>, Arc<str>), (Served, Duration)>,
}

impl Served {
    fn read(part: &v1::ServedReport) -> Self {
        Self {
            first_sends: part.first_sends,
            damper_repeats: part.damper_repeats,
            grpc_repeats: part.grpc_repeats,
            envoy_repeats: part.envoy_repeats,
            shed_repeats: part.shed_repeats,
            would_shed_repeats: part.would_shed_repeats,
        }
    }

    /// Joins two sets of counts; none where that is not possible for one of them.
    fn with(self, other: Self, join: fn(u64, u64) -> Option<u64>) -> Option<Self> {
        Some(Self {
            first_sends: join(self.first_sends, other.first_sends)?,
            damper_repeats: join(self.damper_repeats, other.damper_repeats)?,
            grpc_repeats: join(self.grpc_repeats, other.grpc_repeats)?,
            envoy_repeats: join(self.envoy_repeats, other.envoy_repeats)?,
            shed_repeats: join(self.shed_repeats, other.shed_repeats)?,
            would_shed_repeats: join(self.would_shed_repeats, other.would_shed_repeats)?,
        })
    }
}

impl ServedBooks {
    /// Adds what a report says of one method; false where it was left out. `before` are the same process's totals
    /// as it last reported them; a process that is new is only counted from here on, unless `countable`.
    pub(super) fn report(
        &mut self,
        service: &Arc<str>,
        part: &v1::ServedReport,
        before: &mut HashMap<Arc<str>, Served>,
        now: Duration,
        countable: bool,
        limit: usize,
    ) -> bool {
        let method: Arc<str> = part.method.as_str().into();
        let key = (service.clone(), method.clone());
        let full = self.methods.len() >= limit && !self.methods.contains_key(&key);
        let no_room = before.len() >= MAX_ROUTES_PER_INSTANCE && !before.contains_key(&method);
        if full || no_room || !acceptable(&part.method) {
            return false;
        }
        let totals = Served::read(part);
        let added = match before.insert(method, totals) {
            // Totals that fell are those of a process that began anew.
            Some(before) => Some(totals.with(before, u64::checked_sub).unwrap_or(totals)),
            None => countable.then_some(totals),
        };
        let (sum, active) = self.methods.entry(key).or_default();
        *active = now;
        let more = |a: u64, b: u64| Some(a.saturating_add(b));
        *sum = added.and_then(|added| sum.with(added, more)).unwrap_or(*sum);
        true
    }

    pub(super) fn tidy(&mut self, now: Duration) {
        self.methods.retain(|_, (_, active)| now.saturating_sub(*active) < FORGET_IDLE_AFTER);
    }
}

impl Books {
    /// Every method that is served, by service and method.
    pub(super) fn served(&self) -> Vec<(Arc<str>, Arc<str>, Served)> {
        let methods = &self.served.methods;
        methods.iter().map(|((service, method), (sum, _))| (service.clone(), method.clone(), *sum)).collect()
    }
}

fn acceptable(method: &str) -> bool {
    let mut faults = Faults::none();
    if method != OTHER_METHOD {
        key::check_method("", method, &mut faults);
    }
    faults.is_empty()
}
