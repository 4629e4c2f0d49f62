//! The routes that this process calls, each with its rule in force, tightened by guards.
//!
//! Looking up a known route costs one hash and no lock: each callee has a map that is replaced as a whole.
//! Changes (a new method, a new table, a local override) are rare and serialized by a mutex, so a route is
//! always built from the table in force when it appears. Paths that name no method and methods beyond the
//! limit return before the mutex.
//!
//! This module makes no decisions; see `damper_core::Call`.

pub(crate) mod failed_calls;
#[cfg(feature = "queue")]
pub(crate) mod kept_calls;
pub(crate) mod kills;
pub(crate) mod replay;
mod route;
mod served;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use damper_core::kill::TimedKill;
use damper_core::{Faults, Kill, MAX_ROUTES, Mode, OTHER_METHOD, Route, RouteKey, Rule, Table, Time, key};
use foldhash::fast::RandomState;
use http::Request;

use self::failed_calls::FailureQuota;
use self::kills::ActiveKills;
use self::replay::ReplayBudget;
use crate::background::clock::Clock;
use crate::balance::Channels;
use crate::context::Context;
use crate::metrics::{self, CallTimes, Detail};

pub(crate) use self::route::RouteHandle;
pub(crate) use self::served::ServedMethods;

/// State shared by all layers of one `Damper`.
#[derive(Debug)]
pub(crate) struct Runtime {
    clock: Clock,
    caller_service: String,
    caller_cluster: String,
    memory: Arc<ReplayBudget>,
    /// Quota of failed calls to report.
    room: Arc<FailureQuota>,
    methods: ServedMethods,
    serves: AtomicBool,
    /// True once the limit of methods was reached. Routes are never removed, so it stays true.
    is_full: AtomicBool,
    kills: ActiveKills,
    registry: Mutex<Registry>,
    #[cfg(feature = "queue")]
    kept: kept_calls::KeptCalls,
}

#[derive(Debug, Default)]
struct Registry {
    table: Table,
    detail: Detail,
    most: Option<Mode>,
    callees: HashMap<String, Arc<Callee>>,
    routes: usize,
}

/// Stands for methods without a route of their own: only rules for every method of a callee apply to them.
const NO_METHOD: &str = "_OTHER/_OTHER";

/// Holds at most `MAX_ROUTES`, so a fast hash is safe even for untrusted methods.
type ByMethod = HashMap<Arc<str>, Arc<RouteHandle>, RandomState>;

/// The routes to one callee.
#[derive(Debug)]
pub(crate) struct Callee {
    name: String,
    routes: ArcSwap<ByMethod>,
    other: ArcSwap<RouteHandle>,
    channels: Channels,
    histograms: metrics::OfCallee,
}

impl Runtime {
    /// Returns a runtime without rules, for a process of this service and cluster.
    pub(crate) fn new(caller_service: &str, caller_cluster: &str) -> Arc<Self> {
        Arc::new(Self {
            clock: Clock::new(),
            caller_service: caller_service.to_owned(),
            caller_cluster: caller_cluster.to_owned(),
            memory: Arc::default(),
            room: Arc::default(),
            methods: ServedMethods::new(caller_service, caller_cluster),
            serves: AtomicBool::new(false),
            is_full: AtomicBool::new(false),
            kills: ActiveKills::default(),
            registry: Mutex::default(),
            #[cfg(feature = "queue")]
            kept: kept_calls::KeptCalls::default(),
        })
    }

    /// Applies a table. Routes keep their state; calls in flight keep the route that they began with.
    pub(crate) fn apply(&self, table: Table) {
        let mut registry = self.registry();
        self.methods.apply(&table);
        let old = std::mem::replace(&mut registry.table, table);
        self.rebuild(&registry);
        // Dropping a large table takes long, and first calls of a method wait for the lock.
        drop(registry);
        drop(old);
    }

    /// Limits the mode of rules and repeat limits; `None` removes the limit.
    pub(crate) fn limit_mode(&self, most: Option<Mode>) {
        let mut registry = self.registry();
        self.methods.limit_mode(most);
        registry.most = most;
        self.rebuild(&registry);
    }

    /// Replaces the kills in force, also for calls in flight.
    pub(crate) fn obey(&self, mut kills: Vec<TimedKill>) {
        kills.retain(|held| held.kill.pattern().matches_caller(&self.caller_service, &self.caller_cluster));
        let registry = self.registry();
        self.kills.replace(kills);
        for callee in registry.callees.values() {
            callee.obey(&self.kills);
        }
        drop(registry);
        self.kills.wake();
    }

    /// Returns the kills that concern this process.
    pub(crate) fn kills(&self) -> &ActiveKills {
        &self.kills
    }

    /// Calls `show` for each kill in force with its time left.
    pub(crate) fn for_each_kill(&self, mut show: impl FnMut(&Kill, Duration)) {
        let now = self.clock.now();
        for held in self.kills.in_force(now) {
            show(&held.kill, held.remaining(now));
        }
    }

    /// Returns the callee of this name, the same each time.
    ///
    /// # Errors
    /// The problem with the name.
    pub(crate) fn callee(&self, callee_service: &str) -> Result<Arc<Callee>, Faults> {
        let mut faults = Faults::none();
        key::check_name("callee_service", callee_service, &mut faults);
        faults.or(())?;
        let mut registry = self.registry();
        let name = registry.name_with_room(callee_service);
        if let Some(callee) = registry.callees.get(name) {
            return Ok(Arc::clone(callee));
        }
        let callee = Callee::new(name, registry.detail, &self.kills, &self.room);
        let rule = self.key(&callee, NO_METHOD).and_then(|key| registry.rule_for(&key));
        callee.other.store(Arc::new(callee.other.load().under(rule)));
        let callee = Arc::new(callee);
        registry.callees.insert(name.to_owned(), Arc::clone(&callee));
        Ok(callee)
    }

    /// Returns the route of a callee's method.
    pub(crate) fn route(&self, callee: &Callee, method: &str) -> Arc<RouteHandle> {
        if let Some(route) = callee.known(method) {
            return route;
        }
        let may_become_one = !self.is_full.load(Ordering::Relaxed) && key::is_method(method);
        let route = may_become_one.then(|| self.first_seen(callee, method)).flatten();
        route.unwrap_or_else(|| self.other(callee, method))
    }

    /// Returns the route of methods without one of their own. A kill may concern some of them only.
    fn other(&self, callee: &Callee, method: &str) -> Arc<RouteHandle> {
        if !self.kills.single_out(&callee.name, method) {
            return callee.other.load_full();
        }
        let apart = callee.other.load().apart();
        self.kills.update(&apart, &callee.name, method);
        Arc::new(apart)
    }

    /// Calls `f` for each route: callee service, method, route. Holds no lock meanwhile.
    pub(crate) fn for_each_route(&self, mut f: impl FnMut(&str, &str, &RouteHandle)) {
        for callee in self.callees() {
            for (method, route) in callee.routes() {
                f(&callee.name, &method, &route);
            }
        }
    }

    /// Returns all callees.
    pub(crate) fn callees(&self) -> Vec<Arc<Callee>> {
        self.registry().callees.values().cloned().collect()
    }

    /// Sets the detail of histograms for callees to come.
    pub(crate) fn measure(&self, detail: Detail) {
        self.registry().detail = detail;
    }

    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    /// Returns the replay budget of all calls.
    pub(crate) fn memory(&self) -> &Arc<ReplayBudget> {
        &self.memory
    }

    /// Returns the methods that this process serves.
    pub(crate) fn methods(&self) -> &ServedMethods {
        &self.methods
    }

    /// Notes that this process serves requests, so its calls should have a context.
    pub(crate) fn set_serves(&self) {
        self.serves.store(true, Ordering::Relaxed);
    }

    /// Returns true if this process has a server layer.
    pub(crate) fn serves(&self) -> bool {
        self.serves.load(Ordering::Relaxed)
    }

    /// Counts a call that begins by its context: one without in a process that serves, and one that repeats a
    /// failed call of the same request, or is declared to repeat one.
    pub(crate) fn count_context(&self, route: &Route, context: Option<&Context>, is_repeat: bool) {
        let counters = &route.state().counters;
        if is_repeat || context.is_some_and(|context| context.chain().has_failed(route.id())) {
            counters.count_outer_loop();
        }
        if context.is_none() && self.serves() {
            counters.count_without_context();
        }
    }

    /// Returns the number of all calls, and of those made without a request context since this process serves
    /// requests.
    pub(crate) fn calls_and_without_context(&self) -> (u64, u64) {
        let (mut calls, mut without) = (0, 0);
        self.for_each_route(|_, _, route| {
            let counters = &route.state().counters;
            without += counters.without_context();
            calls += counters.calls();
        });
        (calls, without)
    }

    /// Adds a route, or returns the one that another thread has just added; `None` at the limit.
    fn first_seen(&self, callee: &Callee, method: &str) -> Option<Arc<RouteHandle>> {
        let key = self.key(callee, method)?;
        let mut registry = self.registry();
        if let Some(route) = callee.known(method) {
            return Some(route);
        }
        if registry.routes >= MAX_ROUTES {
            drop(registry);
            self.note_full(callee, method);
            return None;
        }
        let route = Arc::new(callee.other.load().sibling(registry.rule_for(&key)));
        self.kills.update(&route, &callee.name, method);
        let mut routes = HashMap::clone(&callee.routes.load());
        routes.insert(Arc::from(method), Arc::clone(&route));
        callee.routes.store(Arc::new(routes));
        registry.routes += 1;
        Some(route)
    }

    fn note_full(&self, callee: &Callee, method: &str) {
        if !self.is_full.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                callee = callee.name,
                method,
                "limit of {MAX_ROUTES} methods reached; this and all further ones are counted as {OTHER_METHOD}, and only rules with the method * apply to them"
            );
        }
    }

    fn rebuild(&self, registry: &Registry) {
        for callee in registry.callees.values() {
            let routes = callee.routes.load();
            let rebuilt = routes.iter().map(|(method, route)| {
                let rule = self.key(callee, method).and_then(|key| registry.rule_for(&key));
                (Arc::clone(method), Arc::new(route.under(rule)))
            });
            callee.routes.store(Arc::new(rebuilt.collect::<ByMethod>()));
            let rule = self.key(callee, NO_METHOD).and_then(|key| registry.rule_for(&key));
            callee.other.store(Arc::new(callee.other.load().under(rule)));
        }
    }

    fn key(&self, callee: &Callee, method: &str) -> Option<RouteKey> {
        RouteKey::new(&self.caller_service, &self.caller_cluster, &callee.name, method).ok()
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        // No code below leaves the registry inconsistent.
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registry {
    /// Returns the name, or at the limit the name that all further callees share.
    fn name_with_room<'a>(&self, name: &'a str) -> &'a str {
        if self.callees.contains_key(name) || self.callees.len() < MAX_ROUTES {
            return name;
        }
        if self.callees.len() == MAX_ROUTES {
            tracing::warn!(
                callee = name,
                "limit of {MAX_ROUTES} callees reached; this and all further ones are counted as {OTHER_METHOD}, and only rules and kill switches with the callee * apply to them"
            );
        }
        OTHER_METHOD
    }

    fn rule_for(&self, key: &RouteKey) -> Option<Arc<Rule>> {
        let rule = self.table.in_force(key)?;
        match self.most {
            Some(most) if rule.policy().mode > most => Some(Arc::new(rule.at_most(most))),
            _ => Some(rule),
        }
    }
}

impl Callee {
    fn new(name: &str, detail: Detail, kills: &ActiveKills, room: &Arc<FailureQuota>) -> Self {
        let callee = Self {
            name: name.to_owned(),
            routes: ArcSwap::default(),
            other: ArcSwap::from_pointee(RouteHandle::new(None, room, kills.bell())),
            channels: Channels::default(),
            histograms: metrics::OfCallee::new(name, detail),
        };
        callee.obey(kills);
        callee
    }

    /// Updates the kill state of every route.
    fn obey(&self, kills: &ActiveKills) {
        for (method, route) in self.routes.load().iter() {
            kills.update(route, &self.name, method);
        }
        kills.update(&self.other.load(), &self.name, OTHER_METHOD);
    }

    /// Returns the service name of the callee.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the balanced channels to the callee.
    pub(crate) fn channels(&self) -> &Channels {
        &self.channels
    }

    /// Returns every route with its method; the route of further methods only if it was called.
    pub(crate) fn routes(&self) -> Vec<(Arc<str>, Arc<RouteHandle>)> {
        let known = self.routes.load();
        let known = known.iter().map(|(method, route)| (Arc::clone(method), Arc::clone(route)));
        let other = Some(self.other.load_full()).filter(|other| other.state().counters.calls() > 0);
        known.chain(other.map(|other| (Arc::from(OTHER_METHOD), other))).collect()
    }

    /// Begins to measure a call of this method on its route.
    pub(crate) fn call_begins(&self, route: &RouteHandle, method: &str, now: Time) -> CallTimes {
        let is_known = route.id() != self.other.load().id();
        self.histograms.call_begins(if is_known { method } else { OTHER_METHOD }, now)
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn histograms(&self) -> &metrics::OfCallee {
        &self.histograms
    }

    fn known(&self, method: &str) -> Option<Arc<RouteHandle>> {
        self.routes.load().get(method).cloned()
    }
}

/// Returns `package.Service/Method`, or the path if it has another form.
pub(crate) fn method_of<B>(request: &Request<B>) -> &str {
    let path = request.uri().path();
    path.strip_prefix('/').unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// Longer than a lookup takes on a busy machine; reaching it is a failure.
    const PATIENCE: Duration = Duration::from_secs(30);

    /// Looks up methods on another thread while this one holds the lock; they share a route.
    #[track_caller]
    fn found_without_the_lock(engine: &Arc<Runtime>, methods: [&'static str; 2]) -> Arc<RouteHandle> {
        let callee = engine.callee("stock").unwrap();
        let (sender, receiver) = mpsc::channel();
        let held = engine.registry();
        let engine = Arc::clone(engine);
        thread::spawn(move || methods.map(|method| sender.send(engine.route(&callee, method))));
        let [first, second] = methods
            .map(|method| receiver.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{method} waits")));
        drop(held);
        assert!(Arc::ptr_eq(&first, &second));
        first
    }

    #[test]
    fn a_known_route_takes_no_lock() {
        let engine = Runtime::new("orders", "default");
        let known = engine.route(&engine.callee("stock").unwrap(), "a.B/C");
        assert!(Arc::ptr_eq(&found_without_the_lock(&engine, ["a.B/C", "a.B/C"]), &known));
    }

    #[test]
    fn a_path_without_a_method_takes_no_lock() {
        let engine = Runtime::new("orders", "default");
        let route = found_without_the_lock(&engine, ["nothing", "a.B/C/D"]);
        assert!(Arc::ptr_eq(&route, &engine.callee("stock").unwrap().other.load()));
    }

    #[test]
    fn a_method_beyond_the_limit_takes_no_lock() {
        let engine = Runtime::new("orders", "default");
        let callee = engine.callee("stock").unwrap();
        for number in 0..MAX_ROUTES {
            engine.route(&callee, &format!("a.B/M{number}"));
        }
        assert!(!engine.is_full.load(Ordering::Relaxed), "below the limit");
        // The first method beyond the limit is logged.
        engine.route(&callee, "a.B/Over");
        assert!(engine.is_full.load(Ordering::Relaxed));
        let route = found_without_the_lock(&engine, ["a.B/Over", "a.B/More"]);
        assert!(Arc::ptr_eq(&route, &callee.other.load()));
    }

    #[test]
    fn a_method_beyond_the_limit_has_the_rule_for_every_method() {
        let engine = Runtime::new("orders", "default");
        let callee = engine.callee("stock").unwrap();
        (0..MAX_ROUTES).for_each(|number| _ = engine.route(&callee, &format!("a.B/M{number}")));
        let late = engine.callee("late").unwrap();
        assert!(engine.route(&late, "a.B/C").policy().is_none());
        let rule = |method: &str| {
            let pattern = damper_core::Pattern::parse("*", "*", "late", method).unwrap();
            let policy = damper_core::Policy::new(Mode::Enforce);
            Arc::new(Rule::new(pattern, policy, 1).unwrap())
        };
        engine.apply(Table::from_iter([rule("a.B/C")]));
        assert!(engine.route(&late, "a.B/C").policy().is_none(), "the rule is for one method");
        engine.apply(Table::from_iter([rule("*")]));
        assert!(engine.route(&late, "a.B/C").policy().is_some());
        assert!(engine.route(&callee, "a.B/Over").policy().is_none(), "another callee");
    }

    #[test]
    fn callees_beyond_the_limit_share_one() {
        let engine = Runtime::new("orders", "default");
        for number in 0..2 * MAX_ROUTES {
            engine.callee(&format!("shard-{number}")).unwrap();
        }
        assert_eq!(engine.callees().len(), MAX_ROUTES + 1);
        assert_eq!(engine.callee("shard-7").unwrap().name(), "shard-7");
        assert_eq!(engine.callee("one-more").unwrap().name(), OTHER_METHOD);
        engine.apply(crate::scenarios::table(crate::scenarios::enforce()));
        let callee = engine.callee("one-more").unwrap();
        assert!(engine.route(&callee, "a.B/C").policy().is_some(), "rules for every callee apply");
    }
}
