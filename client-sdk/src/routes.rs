//! Every route this process calls, with the rule in force for it.
//!
//! Looking up a known route costs one hash and takes no lock: each callee keeps its routes in a map that is
//! replaced as a whole. All changes (a first-seen method, a new table, a local override) are rare; they go
//! through one mutex, so that a route is always built from the table that is in force when it appears.
//!
//! Nothing is decided here; see `damper_core::Call`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use damper_core::{Faults, MAX_ROUTES, Mode, OTHER_METHOD, Route, RouteKey, Rule, Table, key};

use crate::client::replay::Memory;
use crate::clock::Clock;

/// What all layers of one `Damper` share.
#[derive(Debug)]
pub(crate) struct Engine {
    clock: Clock,
    caller_service: String,
    caller_cluster: String,
    memory: Arc<Memory>,
    serves: AtomicBool,
    governed_calls: AtomicU64,
    registry: Mutex<Registry>,
}

#[derive(Debug, Default)]
struct Registry {
    table: Table,
    most: Option<Mode>,
    callees: HashMap<String, Arc<Callee>>,
    routes: usize,
}

/// The routes to one callee.
#[derive(Debug)]
pub(crate) struct Callee {
    name: String,
    routes: ArcSwap<HashMap<Arc<str>, Arc<Route>>>,
    other: Arc<Route>,
}

impl Engine {
    /// An engine without rules, in a process that says it is this service in this cluster.
    pub(crate) fn new(caller_service: &str, caller_cluster: &str) -> Arc<Self> {
        Arc::new(Self {
            clock: Clock::new(),
            caller_service: caller_service.to_owned(),
            caller_cluster: caller_cluster.to_owned(),
            memory: Arc::default(),
            serves: AtomicBool::new(false),
            governed_calls: AtomicU64::new(0),
            registry: Mutex::default(),
        })
    }

    /// Puts a table in force. Routes keep their state; calls in flight keep the route they began with.
    pub(crate) fn apply(&self, table: Table) {
        let mut registry = self.registry();
        registry.table = table;
        self.rebuild(&registry);
    }

    /// Lets rules do no more than this; none lifts the limit.
    pub(crate) fn limit_mode(&self, most: Option<Mode>) {
        let mut registry = self.registry();
        registry.most = most;
        self.rebuild(&registry);
    }

    /// The callee of this name, the same each time.
    ///
    /// # Errors
    /// What is wrong with the name.
    pub(crate) fn callee(&self, callee_service: &str) -> Result<Arc<Callee>, Faults> {
        let mut faults = Faults::none();
        key::check_name("callee_service", callee_service, &mut faults);
        faults.or(())?;
        let mut registry = self.registry();
        let callee = registry
            .callees
            .entry(callee_service.to_owned())
            .or_insert_with(|| Arc::new(Callee::new(callee_service)));
        Ok(Arc::clone(callee))
    }

    /// The route of a callee's method.
    pub(crate) fn route(&self, callee: &Callee, method: &str) -> Arc<Route> {
        match callee.known(method) {
            Some(route) => route,
            None => self.first_seen(callee, method),
        }
    }

    /// Shows every route: callee service, method, route. No lock is held meanwhile.
    pub(crate) fn for_each_route(&self, mut f: impl FnMut(&str, &str, &Route)) {
        let callees: Vec<_> = self.registry().callees.values().cloned().collect();
        for callee in callees {
            for (method, route) in callee.routes.load().iter() {
                f(&callee.name, method, route);
            }
            if callee.other.state().counters.calls() > 0 {
                f(&callee.name, OTHER_METHOD, &callee.other);
            }
        }
    }

    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    /// The requests kept for being sent again, of all calls.
    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Notes that this process serves requests, so that its calls should have a context.
    pub(crate) fn set_serves(&self) {
        self.serves.store(true, Ordering::Relaxed);
    }

    /// True if this process has a server layer.
    pub(crate) fn serves(&self) -> bool {
        self.serves.load(Ordering::Relaxed)
    }

    /// Counts a call under a rule, in a process that serves requests.
    pub(crate) fn count_governed_call(&self) {
        self.governed_calls.fetch_add(1, Ordering::Relaxed);
    }

    /// Calls under a rule since this process serves requests: those that should have a context.
    pub(crate) fn governed_calls(&self) -> u64 {
        self.governed_calls.load(Ordering::Relaxed)
    }

    /// Those of [`Engine::governed_calls`] that were made outside any request's context.
    pub(crate) fn calls_without_context(&self) -> u64 {
        let mut sum = 0;
        self.for_each_route(|_, _, route| sum += route.state().counters.without_context());
        sum
    }

    fn first_seen(&self, callee: &Callee, method: &str) -> Arc<Route> {
        let mut registry = self.registry();
        if let Some(route) = callee.known(method) {
            return route;
        }
        let key = self.key(callee, method).filter(|_| registry.routes < MAX_ROUTES);
        let Some(key) = key else {
            return Arc::clone(&callee.other);
        };
        let route = Arc::new(Route::new(registry.rule_for(&key)));
        let mut routes = HashMap::clone(&callee.routes.load());
        routes.insert(Arc::from(method), Arc::clone(&route));
        callee.routes.store(Arc::new(routes));
        registry.routes += 1;
        route
    }

    fn rebuild(&self, registry: &Registry) {
        for callee in registry.callees.values() {
            let routes = callee.routes.load();
            let rebuilt = routes.iter().map(|(method, route)| {
                let rule = self.key(callee, method).and_then(|key| registry.rule_for(&key));
                (Arc::clone(method), Arc::new(route.under(rule)))
            });
            callee.routes.store(Arc::new(rebuilt.collect()));
        }
    }

    fn key(&self, callee: &Callee, method: &str) -> Option<RouteKey> {
        RouteKey::new(&self.caller_service, &self.caller_cluster, &callee.name, method).ok()
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        // Nothing below leaves the registry half changed, so it is sound after a panic.
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registry {
    fn rule_for(&self, key: &RouteKey) -> Option<Arc<Rule>> {
        let rule = self.table.winner(key)?;
        match self.most {
            Some(most) if rule.policy().mode > most => Some(Arc::new(rule.at_most(most))),
            _ => Some(Arc::clone(rule)),
        }
    }
}

impl Callee {
    fn new(name: &str) -> Self {
        Self { name: name.to_owned(), routes: ArcSwap::default(), other: Arc::new(Route::new(None)) }
    }

    /// The callee's own service name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    fn known(&self, method: &str) -> Option<Arc<Route>> {
        self.routes.load().get(method).cloned()
    }
}
