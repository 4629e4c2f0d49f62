//! The methods that this process serves, with their repeat limits.
//!
//! The limits come from the guards whose callee is this service. Counting a request of a known method costs a
//! clock read, one hash and a few atomics: no lock, no allocation. Changes (a new method, new guards, a local
//! override) are rare, replace the map as a whole and are serialized by a mutex.
//!
//! A method becomes known with the first response that not every name gets: HTTP status 200, and not
//! UNIMPLEMENTED, PERMISSION_DENIED or UNAUTHENTICATED. So clients cannot fill the table with invented names.
//! As for routes, 1,000 methods are distinguished. Further ones, and requests whose path names no method,
//! share one counter and the limits of guards for every method. This module makes no decisions; see
//! `damper_core::repeat_limit`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use damper_core::chain::Repeater;
use damper_core::repeat_limit::{LimitDecision, Limits, Served};
use damper_core::{Guard, MAX_ROUTES, MethodPart, Mode, OTHER_METHOD, RouteKey, Table, Time, key};

/// The methods of one process.
#[derive(Debug)]
pub(crate) struct ServedMethods {
    known: ArcSwap<HashMap<Arc<str>, ServedMethod>>,
    other: Arc<Served>,
    /// Requests of unknown methods in flight.
    open: Served,
    other_limits: ArcSwap<Limits>,
    /// True once the limit of methods was reached. Methods are never removed, so it stays true.
    is_full: AtomicBool,
    limiting: Mutex<LimitSource>,
}

/// Decision on a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived {
    pub(crate) admission: LimitDecision,
    /// True if the counter is still to be [chosen](ServedMethods::settled).
    pub(crate) is_open: bool,
}

#[derive(Clone, Debug)]
struct ServedMethod {
    limits: Limits,
    served: Arc<Served>,
}

/// Source of the limits.
#[derive(Debug)]
struct LimitSource {
    service: String,
    cluster: String,
    guards: Vec<Arc<Guard>>,
    most: Option<Mode>,
}

impl ServedMethods {
    /// Returns the methods of a process of this service and cluster; empty at first.
    pub(crate) fn new(service: &str, cluster: &str) -> Self {
        let (service, cluster) = (service.to_owned(), cluster.to_owned());
        Self {
            known: ArcSwap::default(),
            other: Arc::default(),
            open: Served::default(),
            other_limits: ArcSwap::default(),
            is_full: AtomicBool::new(false),
            limiting: Mutex::new(LimitSource { service, cluster, guards: Vec::new(), most: None }),
        }
    }

    /// Counts a request and decides on it. Requests of unknown methods share one limit, and their response
    /// decides which counter they belong to.
    pub(crate) fn arrived(&self, method: &str, repeated_by: Option<Repeater>, now: Time) -> Arrived {
        if let Some(admission) = self.count(method, repeated_by, now) {
            return Arrived { admission, is_open: false };
        }
        let limits = **self.other_limits.load();
        let may_become_known = !self.is_full.load(Ordering::Relaxed) && key::is_method(method);
        let is_open = may_become_known && self.open.arrived(repeated_by, limits, now) != LimitDecision::Shed;
        let admission =
            if is_open { LimitDecision::Served } else { self.other.arrived(repeated_by, limits, now) };
        Arrived { admission, is_open }
    }

    /// Counts a request of a method that was unknown on arrival, once its response begins or it ends.
    pub(crate) fn settled(&self, method: &str, repeated_by: Option<Repeater>, now: Time, is_served: bool) {
        if is_served {
            self.is_served(method);
        }
        if self.count(method, repeated_by, now).is_none() {
            self.other.arrived(repeated_by, Limits::default(), now);
        }
    }

    /// Applies the limits of a table's guards. Counters stay.
    pub(crate) fn apply(&self, table: &Table) {
        let mut limiting = self.limiting();
        let guards = table.guards().filter(|guard| guard.ceiling().repeat_limit.is_some());
        limiting.guards = guards.cloned().collect();
        self.rebuild(&limiting);
    }

    /// Limits the mode of repeat limits; `None` removes the limit.
    pub(crate) fn limit_mode(&self, most: Option<Mode>) {
        let mut limiting = self.limiting();
        limiting.most = most;
        self.rebuild(&limiting);
    }

    /// Returns every method with a request.
    pub(crate) fn all(&self) -> Vec<(Arc<str>, Arc<Served>)> {
        let is_used = |served: &Served| {
            let repeats: u64 = Repeater::ALL.into_iter().map(|by| served.repeats(by)).sum();
            served.first_sends() + repeats > 0
        };
        let known = self.known.load();
        let known = known.iter().map(|(name, method)| (Arc::clone(name), Arc::clone(&method.served)));
        let other = (Arc::from(OTHER_METHOD), Arc::clone(&self.other));
        known.chain([other]).filter(|(_, served)| is_used(served)).collect()
    }

    /// Calls `f` for each method. Holds no lock meanwhile.
    pub(crate) fn for_each(&self, mut f: impl FnMut(&str, &Served)) {
        self.all().iter().for_each(|(name, served)| f(name, served));
    }

    fn count(&self, method: &str, repeated_by: Option<Repeater>, now: Time) -> Option<LimitDecision> {
        let known = self.known.load();
        let ServedMethod { limits, served } = known.get(method)?;
        Some(served.arrived(repeated_by, *limits, now))
    }

    /// Adds a method, up to the limit.
    fn is_served(&self, method: &str) {
        let limiting = self.limiting();
        let known = self.known.load();
        if known.contains_key(method) {
            return;
        }
        if known.len() >= MAX_ROUTES {
            self.note_full(method);
            return;
        }
        let mut more = HashMap::clone(&known);
        let new = ServedMethod { limits: limiting.limits_of(method), served: Arc::default() };
        more.insert(Arc::from(method), new);
        self.known.store(Arc::new(more));
    }

    fn note_full(&self, method: &str) {
        if !self.is_full.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                method,
                "limit of {MAX_ROUTES} served methods reached; this and all further ones are counted and limited together as {OTHER_METHOD}"
            );
        }
    }

    fn rebuild(&self, limiting: &LimitSource) {
        let known = self.known.load();
        let rebuilt = known.iter().map(|(name, method)| {
            let served = Arc::clone(&method.served);
            (Arc::clone(name), ServedMethod { limits: limiting.limits_of(name), served })
        });
        let mut rebuilt: HashMap<_, _> = rebuilt.collect();
        // Methods with a limit of their own apply it from the first request on.
        for name in limiting.named() {
            if rebuilt.len() < MAX_ROUTES && !rebuilt.contains_key(name) {
                let new = ServedMethod { limits: limiting.limits_of(name), served: Arc::default() };
                rebuilt.insert(Arc::from(name), new);
            }
        }
        self.known.store(Arc::new(rebuilt));
        self.other_limits.store(Arc::new(limiting.limits_of_others()));
    }

    fn limiting(&self) -> MutexGuard<'_, LimitSource> {
        // No code above leaves it inconsistent.
        self.limiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LimitSource {
    /// Returns the methods that guards of this service name.
    fn named(&self) -> impl Iterator<Item = &str> {
        self.guards.iter().filter_map(|guard| match &guard.pattern().callee_method {
            MethodPart::Exact(method) if self.guards_of(method).any(|other| Arc::ptr_eq(other, guard)) => {
                Some(method.as_str())
            }
            _ => None,
        })
    }

    /// A guard with a repeat limit applies to all callers, including this service.
    fn limits_of(&self, method: &str) -> Limits {
        let guards = self.guards_of(method);
        self.combined(guards)
    }

    /// Returns the limits of all further methods together: those for every method of the service.
    fn limits_of_others(&self) -> Limits {
        let guards = self.guards_of("any/any");
        self.combined(guards.filter(|guard| guard.pattern().callee_method == MethodPart::Any))
    }

    fn guards_of(&self, method: &str) -> impl Iterator<Item = &Arc<Guard>> {
        let route = RouteKey::new(&self.service, &self.cluster, &self.service, method).ok();
        let matches = move |guard: &Guard| route.as_ref().is_some_and(|route| guard.pattern().matches(route));
        self.guards.iter().filter(move |guard| matches(guard))
    }

    fn combined<'a>(&self, guards: impl Iterator<Item = &'a Arc<Guard>>) -> Limits {
        let limits = guards.filter_map(|guard| guard.ceiling().repeat_limit);
        limits.map(|limit| self.most.map_or(limit, |most| limit.at_most(most))).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use damper_core::guard::Ceiling;
    use damper_core::{Pattern, Ratio, RepeatLimit};

    use super::*;

    /// Longer than a lookup takes on a busy machine; reaching it is a failure.
    const PATIENCE: Duration = Duration::from_secs(30);

    fn guard(callee: &str, method: &str, mode: Mode, min: u32) -> Arc<Guard> {
        let pattern = Pattern::parse("*", "*", callee, method).unwrap();
        let limit = RepeatLimit { mode, ratio: Ratio::from_bp(1000), min };
        let ceiling = Ceiling { repeat_limit: Some(limit), ..Ceiling::default() };
        Arc::new(Guard::new(pattern, ceiling, String::new(), 1).unwrap())
    }

    fn table(guards: impl IntoIterator<Item = Arc<Guard>>) -> Table {
        let mut table = Table::default();
        for guard in guards {
            table.insert_guard(guard);
        }
        table
    }

    /// Returns how many of 20 retries of a method are served.
    fn served(methods: &ServedMethods, method: &str) -> usize {
        methods.is_served(method);
        let admissions =
            (0..20).map(|_| methods.arrived(method, Some(Repeater::Damper), Time::ZERO).admission);
        admissions.filter(|admission| *admission != LimitDecision::Shed).count()
    }

    #[test]
    fn each_method_has_the_limits_of_this_services_guards() {
        let methods = ServedMethods::new("orders", "default");
        assert_eq!(served(&methods, "a.B/Before"), 20);
        let most = |method, min| guard("orders", method, Mode::Enforce, min);
        let elsewhere = guard("billing", "*", Mode::Enforce, 0);
        let observed = guard("*", "*", Mode::Observe, 0);
        methods.apply(&table([most("*", 7), most("a.B/*", 5), most("a.B/M", 3), elsewhere, observed]));
        assert_eq!(served(&methods, "a.B/M"), 3);
        assert_eq!(served(&methods, "a.B/N"), 5);
        assert_eq!(served(&methods, "a.C/N"), 7);
        assert_eq!(served(&methods, "a.B/Before"), 0, "requests before the limit count");
    }

    #[test]
    fn counters_stay_when_guards_change() {
        let methods = ServedMethods::new("orders", "default");
        methods.apply(&table([guard("*", "*", Mode::Enforce, 7)]));
        assert_eq!(served(&methods, "a.B/M"), 7);
        methods.apply(&Table::default());
        assert_eq!(served(&methods, "a.B/M"), 20);
        let mut shown = Vec::new();
        methods.for_each(|method, served| {
            shown.push((method.to_owned(), served.repeats(Repeater::Damper), served.shed()));
        });
        assert_eq!(shown, [("a.B/M".to_owned(), 40, 13)]);
    }

    #[test]
    fn a_local_override_reduces_what_limits_do() {
        let methods = ServedMethods::new("orders", "default");
        methods.limit_mode(Some(Mode::Observe));
        methods.apply(&table([guard("*", "*", Mode::Enforce, 7)]));
        assert_eq!(served(&methods, "a.B/M"), 20);
        methods.limit_mode(None);
        assert_eq!(served(&methods, "a.B/N"), 7);
    }

    #[test]
    fn methods_beyond_the_limit_share_the_limits_for_every_method() {
        let methods = ServedMethods::new("stock", "default");
        let everything = guard("stock", "*", Mode::Enforce, 5);
        methods.apply(&table([everything, guard("stock", "a.B/*", Mode::Enforce, 1)]));
        (0..MAX_ROUTES).for_each(|n| methods.is_served(&format!("a.X/M{n}")));
        assert_eq!(served(&methods, "a.B/M") + served(&methods, "a.C/M"), 5);
        methods.apply(&Table::default());
        assert_eq!(served(&methods, "a.B/M"), 20);
    }

    #[test]
    fn methods_beyond_the_limit_are_counted_without_a_lock() {
        let methods = Arc::new(ServedMethods::new("orders", "default"));
        for number in 0..=MAX_ROUTES {
            methods.is_served(&format!("a.B/M{number}"));
            methods.arrived(&format!("a.B/M{number}"), None, Time::ZERO);
        }
        let (sender, receiver) = mpsc::channel();
        let (held, counting) = (methods.limiting(), Arc::clone(&methods));
        thread::spawn(move || {
            for path in ["", "nothing", "a.B/C/D", "a.B/More", "a.B/M7"] {
                counting.arrived(path, None, Time::ZERO);
            }
            sender.send(())
        });
        receiver.recv_timeout(PATIENCE).expect("counting takes the lock");
        drop(held);
        let mut counts = HashMap::new();
        methods.for_each(|method, served| {
            assert!(counts.insert(method.to_owned(), served.first_sends()).is_none())
        });
        assert_eq!((counts.len(), counts["a.B/M7"], counts[OTHER_METHOD]), (MAX_ROUTES + 1, 2, 5));
    }
}
