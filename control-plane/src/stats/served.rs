//! Served requests by method: first attempts and retries by their source, and retries shed by the repeat
//! limit.
//!
//! As for routes, reports carry totals and their differences are summed, so that the sums never fall while a
//! method is known.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use damper_core::{Faults, OTHER_METHOD, key};
use damper_proto::v1;

use crate::stats::counters::SparseCounters;
use crate::stats::instance::SERVED_BYTES;
use crate::stats::shares::Shares;
use crate::stats::window::{Window, WindowSums};
use crate::stats::{FORGET_IDLE_AFTER, MAX_ROUTES_PER_INSTANCE, StatsState};

/// The number of counters per method.
const COUNTERS: usize = 6;

/// Requests of one method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServedCounters {
    pub(crate) first_sends: u64,
    pub(crate) damper_repeats: u64,
    pub(crate) grpc_repeats: u64,
    pub(crate) envoy_repeats: u64,
    /// Retries that were rejected, and those that would have been.
    pub(crate) shed_repeats: u64,
    pub(crate) would_shed_repeats: u64,
}

/// A service and one of its methods.
pub(crate) type Method = (Arc<str>, Arc<str>);

/// All served methods, by service and method.
#[derive(Default)]
pub(super) struct ServedBooks {
    methods: HashMap<Method, MethodRecord>,
    /// By service.
    methods_of: Shares,
}

struct MethodRecord {
    sum: ServedCounters,
    window: Window,
    active: Duration,
}

/// A report of one process about served requests: its process and its period.
pub(super) struct ServedReport<'a> {
    pub(super) service: &'a Arc<str>,
    /// The last reported totals of the process.
    pub(super) before: &'a mut HashMap<Arc<str>, ServedCounters>,
    /// The memory left for the totals of all processes.
    pub(super) room: &'a mut usize,
    /// Lower totals are out of date; they do not mean a restart.
    pub(super) falls_are_late: bool,
    /// Set if any total fell.
    pub(super) fell: &'a mut bool,
    /// As for routes.
    pub(super) is_own: bool,
    /// `None` for a new process, which is counted from here on.
    pub(super) from: Option<Duration>,
    /// The time of arrival, perhaps at another replica.
    pub(super) at: Duration,
    pub(super) now: Duration,
}

impl ServedCounters {
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

    /// Returns the counts above 0, by their index in a window.
    fn moved(self) -> Vec<(u8, u64)> {
        let Self {
            first_sends,
            damper_repeats,
            grpc_repeats,
            envoy_repeats,
            shed_repeats,
            would_shed_repeats,
        } = self;
        let counts: [u64; COUNTERS] =
            [first_sends, damper_repeats, grpc_repeats, envoy_repeats, shed_repeats, would_shed_repeats];
        (0..).zip(counts).filter(|(_, n)| *n > 0).collect()
    }

    /// Returns the difference to lower counts; `None` if one of them is higher.
    pub(super) fn less(self, before: Self) -> Option<Self> {
        self.with(before, u64::checked_sub)
    }

    pub(super) fn plus(self, more: Self) -> Self {
        self.with(more, |a, b| Some(a.saturating_add(b))).unwrap_or(self)
    }

    /// Combines two sets of counts; `None` if that fails for one of them.
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
    /// Adds the report of one method; false if it was dropped.
    pub(super) fn report(
        &mut self,
        part: &v1::ServedReport,
        by: &mut ServedReport<'_>,
        limit: usize,
    ) -> bool {
        if !acceptable(&part.method) {
            return false;
        }
        let mut key: Method = (by.service.clone(), part.method.as_str().into());
        match self.methods.get_key_value(&key) {
            Some((known, _)) => key = known.clone(),
            None if self.methods_of.room(&key.0, limit) == 0 => return false,
            None => {}
        }
        let totals = ServedCounters::read(part);
        let more = match by.before.get(&key.1) {
            // Lower totals mean that the process restarted.
            Some(before) => match totals.less(*before) {
                None if by.falls_are_late => {
                    *by.fell = true;
                    return false;
                }
                more => Some(more.unwrap_or(totals)),
            },
            None if by.before.len() >= MAX_ROUTES_PER_INSTANCE || *by.room < SERVED_BYTES => return false,
            None => {
                *by.room -= SERVED_BYTES;
                by.from.map(|_| totals)
            }
        };
        by.before.insert(key.1.clone(), totals);
        let from = by.from.unwrap_or(by.at);
        let new =
            || MethodRecord { sum: ServedCounters::default(), window: Window::new(from), active: by.now };
        let methods_of = &mut self.methods_of;
        let book = self.methods.entry(key).or_insert_with_key(|(service, _)| {
            methods_of.take(service, 1);
            new()
        });
        book.active = by.now;
        if let Some(added) = more {
            if by.is_own {
                book.sum = book.sum.plus(added);
            }
            book.window.add((from, by.at), by.now, &added.moved(), &SparseCounters::default(), |_, _, _| {});
        }
        true
    }

    pub(super) fn methods(&self) -> impl Iterator<Item = &Method> {
        self.methods.keys()
    }

    /// Returns the rates of a method in a window; `None` if the method is unknown.
    pub(super) fn rates(&self, method: &Method, end: Duration, length: Duration) -> Option<v1::ServedRates> {
        let (sums, seconds): (WindowSums<COUNTERS>, f64) = self.methods.get(method)?.window.sums(end, length);
        Some(v1::ServedRates {
            first_sends_per_s: sums.of(0) / seconds,
            damper_repeats_per_s: sums.of(1) / seconds,
            grpc_repeats_per_s: sums.of(2) / seconds,
            envoy_repeats_per_s: sums.of(3) / seconds,
            shed_repeats_per_s: sums.of(4) / seconds,
            would_shed_repeats_per_s: sums.of(5) / seconds,
        })
    }

    pub(super) fn tidy(&mut self, now: Duration) {
        self.methods.retain(|_, book| now.saturating_sub(book.active) < FORGET_IDLE_AFTER);
        self.methods.values_mut().for_each(|book| book.window.forget(now, |_, _, _| {}));
        self.methods_of = Shares::of(self.methods.keys().map(|(service, _)| (service, 1)));
    }
}

impl StatsState {
    /// Returns all served methods, by service and method.
    pub(super) fn served(&self) -> Vec<(Arc<str>, Arc<str>, ServedCounters)> {
        let methods = &self.served.methods;
        methods.iter().map(|((service, method), book)| (service.clone(), method.clone(), book.sum)).collect()
    }
}

fn acceptable(method: &str) -> bool {
    let mut faults = Faults::none();
    if method != OTHER_METHOD {
        key::check_method("", method, &mut faults);
    }
    faults.is_empty()
}
