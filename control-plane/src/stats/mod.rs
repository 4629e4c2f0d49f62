//! Figures per route, summed from what the services report.
//!
//! A report carries totals since its process started. The difference to the last report of the same process is
//! spread evenly over the time between the two and put into the route's window; so a lost report loses nothing,
//! a repeated one adds nothing, and a process that restarts (its totals fall) begins again at 0. The window that
//! is read ends where every connected process of the route has reported, and lasts [`WINDOW`].
//!
//! Error share = calls with another ending than `ok...` and `cancelled` / calls, whether the
//! ending was real or what would have been. Amplification = attempts / calls.

mod instance;
mod rows;
mod served;
mod window;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use damper_core::{Ending, Faults, MAX_ROUTES, OTHER_METHOD, RouteKey, key};
use damper_proto::v1;
use tokio::sync::watch;
use tokio::time::Instant;

use self::instance::{Instance, InstanceId, Totals};
use self::rows::Memo;
pub(crate) use self::rows::Row;
pub(crate) use self::served::Served;
use self::served::ServedBooks;
use self::window::Window;
use crate::hub::Session;

/// Over how long rates are taken.
pub(crate) const WINDOW: Duration = Duration::from_secs(10);
/// A process that left keeps its totals this long, in case it comes back.
const FORGET_GONE_AFTER: Duration = Duration::from_secs(600);
/// A route without calls is no longer shown after this.
const FORGET_IDLE_AFTER: Duration = Duration::from_secs(3600);
const TIDY_EVERY: Duration = Duration::from_secs(30);
/// The most routes taken from one process: those that SDKs tell apart, and the rest of as many callees.
const MAX_ROUTES_PER_INSTANCE: usize = 2 * MAX_ROUTES;
/// The most processes whose totals are kept.
const MAX_INSTANCES: usize = 50_000;

/// A route as reported.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Route {
    pub(crate) caller_service: Arc<str>,
    pub(crate) caller_cluster: Arc<str>,
    pub(crate) callee_service: Arc<str>,
    pub(crate) callee_method: Arc<str>,
}

impl Route {
    /// The engine's key; none for the sum of the routes that are not counted one by one.
    pub(crate) fn key(&self) -> Option<RouteKey> {
        RouteKey::new(&self.caller_service, &self.caller_cluster, &self.callee_service, &self.callee_method)
            .ok()
    }

    pub(crate) fn wire(&self) -> v1::RouteKey {
        v1::RouteKey {
            caller_service: self.caller_service.to_string(),
            caller_cluster: self.caller_cluster.to_string(),
            callee_service: self.callee_service.to_string(),
            callee_method: self.callee_method.to_string(),
        }
    }

    pub(crate) fn names(&self) -> [&str; 4] {
        [&self.caller_service, &self.caller_cluster, &self.callee_service, &self.callee_method]
    }
}

/// What was counted of one route; never falls while the route is known.
pub(crate) struct Counted {
    pub(crate) route: Route,
    pub(crate) calls: u64,
    pub(crate) attempts: u64,
    pub(crate) hedges: u64,
    pub(crate) would_hedges: u64,
    pub(crate) outer_loop_calls: u64,
    pub(crate) fates: Vec<(Ending, u64)>,
}

/// The statistics of one server.
pub(crate) struct Stats {
    max_routes: usize,
    report_interval: watch::Receiver<Duration>,
    start: Instant,
    books: Mutex<Books>,
    memo: Mutex<Option<Memo>>,
}

/// What is known of processes and routes.
#[derive(Default)]
struct Books {
    instances: HashMap<InstanceId, Instance>,
    routes: HashMap<Route, RouteBook>,
    served: ServedBooks,
    tidied: Duration,
}

/// What is known of one route.
struct RouteBook {
    key: Option<Arc<RouteKey>>,
    window: Window,
    /// All that was counted since this server first heard of the route; never falls.
    counted: Totals,
    active: Duration,
}

impl Stats {
    pub(crate) fn new(max_routes: usize, report_interval: watch::Receiver<Duration>) -> Self {
        Self {
            max_routes,
            report_interval,
            start: Instant::now(),
            books: Mutex::default(),
            memo: Mutex::default(),
        }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().expect("no holder of the lock panics")
    }

    /// Time since these statistics began.
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// A process opened a stream.
    pub(crate) fn connected(&self, session: &Session) {
        let now = self.now();
        let mut books = self.books();
        books.tidy(now);
        let id = InstanceId::of(session);
        if books.instances.len() < MAX_INSTANCES || books.instances.contains_key(&id) {
            books
                .instances
                .entry(id)
                .or_insert_with(|| Instance::new(now, session.fresh))
                .opened(session.serves);
        }
    }

    /// A stream of a process ended.
    pub(crate) fn disconnected(&self, session: &Session) {
        let now = self.now();
        if let Some(instance) = self.books().instances.get_mut(&InstanceId::of(session)) {
            instance.closed(now);
        }
    }

    /// Takes a report; answers how many of its parts were left out.
    pub(crate) fn report(&self, session: &Session, report: v1::Report) -> u64 {
        let now = self.now();
        let since = report.since.and_then(|since| Duration::try_from(since).ok());
        let mut books = self.books();
        let books = &mut *books;
        let Some(instance) = books.instances.get_mut(&InstanceId::of(session)) else {
            return (report.routes.len() + report.served.len()) as u64;
        };
        let from = instance.counted_from(now, since);
        let (caller_service, caller_cluster) = instance.caller(session);
        let mut left_out = 0;
        for part in report.routes {
            let route = Route {
                caller_service: caller_service.clone(),
                caller_cluster: caller_cluster.clone(),
                callee_service: part.callee_service.as_str().into(),
                callee_method: part.callee_method.as_str().into(),
            };
            let full = books.routes.len() >= self.max_routes && !books.routes.contains_key(&route);
            if full || !acceptable(&part) || !instance.has_room_for(&route, MAX_ROUTES_PER_INSTANCE) {
                left_out += 1;
                continue;
            }
            let (added, unknown) = instance.advance(&route, Totals::read(&part), from.is_some());
            left_out += unknown;
            let book = books.routes.entry(route).or_insert_with_key(|route| RouteBook {
                key: route.key().map(Arc::new),
                window: Window::new(from.unwrap_or(now)),
                counted: Totals::default(),
                active: now,
            });
            if let Some(added) = added {
                if added.calls > 0 || added.attempts > 0 {
                    book.active = now;
                }
                book.window.add(from.unwrap_or(now), now, &added);
                book.counted.add(&added);
            }
        }
        for part in &report.served {
            let before = instance.served();
            let countable = from.is_some();
            let kept = books.served.report(&caller_service, part, before, now, countable, self.max_routes);
            left_out += u64::from(!kept);
        }
        instance.reported(now);
        left_out
    }

    /// Routes and totals since this server first heard of them, for Prometheus.
    pub(crate) fn counted(&self) -> Vec<Counted> {
        let books = self.books();
        let counted = |(route, book): (&Route, &RouteBook)| Counted {
            route: route.clone(),
            calls: book.counted.calls,
            attempts: book.counted.attempts,
            hedges: book.counted.hedges,
            would_hedges: book.counted.would_hedges,
            outer_loop_calls: book.counted.outer_loop_calls,
            fates: book.counted.fates.iter().map(|(ending, n)| (*ending, *n)).collect(),
        };
        books.routes.iter().map(counted).collect()
    }

    /// What services serve since this server first heard of it, for Prometheus.
    pub(crate) fn served(&self) -> Vec<(Arc<str>, Arc<str>, Served)> {
        self.books().served()
    }

    /// The keys of all routes that can have a rule.
    pub(crate) fn keys(&self) -> Vec<Arc<RouteKey>> {
        self.books().routes.values().filter_map(|book| book.key.clone()).collect()
    }
}

/// True if the names can be a route's.
fn acceptable(part: &v1::RouteReport) -> bool {
    let mut faults = Faults::none();
    key::check_name("", &part.callee_service, &mut faults);
    if part.callee_method != OTHER_METHOD {
        key::check_method("", &part.callee_method, &mut faults);
    }
    faults.is_empty()
}

impl Books {
    /// Forgets what has been gone or idle for long.
    fn tidy(&mut self, now: Duration) {
        if now.saturating_sub(self.tidied) < TIDY_EVERY {
            return;
        }
        self.tidied = now;
        self.instances.retain(|_, instance| {
            instance.gone_since().is_none_or(|gone| now.saturating_sub(gone) < FORGET_GONE_AFTER)
        });
        self.routes.retain(|_, book| now.saturating_sub(book.active) < FORGET_IDLE_AFTER);
        self.served.tidy(now);
    }
}

#[cfg(test)]
mod tests;
