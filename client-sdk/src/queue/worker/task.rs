//! The task of a worker: one stream, and the handlers of its deliveries.
//!
//! Handlers are tasks of their own. They go on while there is no stream; how they ended is kept until the
//! server confirms it. `Started` is sent before the handlers of a batch begin, so that a delivery that was
//! tried counts as an attempt although its worker disappears.
//!
//! At the end new deliveries are released and handlers get the drain time. Those cut after it are lost: the
//! server delivers their jobs again at once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use damper_core::Code;
use damper_proto::v1;
use damper_proto::v1::from_worker::Kind as FromUs;
use damper_proto::v1::to_worker::Kind as ToUs;
use futures_util::FutureExt as _;
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior};
use tracing::Instrument as _;

use super::connection::{Connection, Event};
use super::leases::{Arrival, LeaseId, Leases};
use super::{Handler, Limits, StopSignal, WorkerShared};
use crate::background::clock::Clock;
use crate::options::body_keys::BodyKeys;
use crate::options::body_keys::cipher::BodyProblem;
use crate::queue::deliveries::{Delivery, Handled};

/// Interval of the signs of life.
const ALIVE_EVERY: Duration = Duration::from_secs(5);
/// Events handled in one turn: their deliveries are started by one message.
const MAX_EVENTS: usize = 256;
/// Time for handlers to end after they were cancelled.
const CANCEL_WITHIN: Duration = Duration::from_secs(1);
/// Reason to release a delivery whose body other workers may be able to decrypt.
const BODY_KEY: &str = "body_key";
/// Interval between warnings of the same outage, and of bodies that cannot be read.
const WARN_EVERY: Duration = Duration::from_secs(60);

pub(super) struct WorkerTask {
    pub(super) queue: String,
    pub(super) identity: v1::Identity,
    pub(super) keys: Option<BodyKeys>,
    pub(super) drain: Duration,
    pub(super) handler: Handler,
    pub(super) clock: Clock,
    pub(super) connection: Connection,
    pub(super) leases: Leases,
    pub(super) handlers: Handlers,
    pub(super) shared: Arc<WorkerShared>,
    /// Time of the last warning of the present outage.
    pub(super) warned: Option<Instant>,
    /// Time of the last warning of a body that cannot be read.
    pub(super) warned_of_body: Option<Instant>,
}

/// The handlers that run.
#[derive(Default)]
pub(super) struct Handlers {
    tasks: JoinSet<(Handled, Duration)>,
    by_task: HashMap<Id, (LeaseId, Instant)>,
    by_lease: HashMap<LeaseId, AbortHandle>,
}

impl WorkerTask {
    pub(super) async fn run(mut self, mut stop: StopSignal) {
        let mut alive = tokio::time::interval(ALIVE_EVERY);
        alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut drained_at = None;
        loop {
            tokio::select! {
                event = self.connection.next() => self.handle(event),
                joined = self.handlers.next() => self.handler_ended(joined),
                _ = alive.tick() => self.connection.send(FromUs::Alive(v1::Alive {})),
                () = stop.stopped(), if drained_at.is_none() => {
                    self.leases.stop();
                    drained_at = Some(Instant::now() + self.drain);
                }
                () = sleep_until(drained_at) => break,
            }
            self.grant();
            self.show();
            if drained_at.is_some() && self.leases.busy() == 0 && self.leases.held() == 0 {
                break;
            }
        }
        self.end().await;
    }

    /// Handles an event with all that are ready, then begins the deliveries among them.
    fn handle(&mut self, event: Event) {
        let mut arrived = Vec::new();
        let mut next = Some(event);
        let mut count = 0;
        while let Some(event) = next {
            self.handle_one(event, &mut arrived);
            count += 1;
            next = if count < MAX_EVENTS { self.connection.next().now_or_never() } else { None };
        }
        if arrived.is_empty() {
            return;
        }
        let leases = arrived.iter().map(|delivery| delivery.wire.lease.clone()).collect();
        self.connection.send(FromUs::Started(v1::Started { leases }));
        for delivery in arrived {
            self.begin(delivery);
        }
    }

    fn handle_one(&mut self, event: Event, arrived: &mut Vec<Delivery>) {
        match event {
            Event::Connected => {
                let (more, leases) = self.leases.begin_stream();
                let queues = vec![v1::Credits { queue: self.queue.clone(), more }];
                self.connection.open(v1::WorkerHello {
                    identity: Some(self.identity.clone()),
                    queues,
                    leases,
                });
            }
            Event::Opened => self.repeat(),
            Event::Closed(problem) => self.note_closed(problem),
            Event::Message(ToUs::Delivery(delivery)) => self.arrived(delivery, arrived),
            Event::Message(ToUs::Settled(v1::Settled { lease, lost })) => {
                self.leases.confirmed(&lease);
                self.shared.update(|stats| stats.lost += u64::from(lost));
            }
            Event::Message(ToUs::Cancelled(v1::LeaseCancelled { lease })) => self.lost(&lease),
            Event::Message(ToUs::Welcome(v1::WorkerWelcome { lost })) => {
                self.warned = None;
                tracing::debug!(queue = self.queue, "worker connected");
                self.shared.update(|stats| (stats.connected, stats.last_problem) = (true, None));
                for lease in lost {
                    self.lost(&lease);
                }
            }
            Event::Message(ToUs::Alive(v1::Alive {}) | ToUs::Goodbye(_)) => {}
        }
    }

    /// Repeats on a new stream what was not confirmed on an earlier one.
    fn repeat(&mut self) {
        let (leases, ends) = self.leases.unconfirmed();
        if !leases.is_empty() {
            self.connection.send(FromUs::Started(v1::Started { leases }));
        }
        for end in ends {
            self.connection.send(FromUs::Settle(end));
        }
    }

    fn arrived(&mut self, delivery: v1::Delivery, arrived: &mut Vec<Delivery>) {
        let (lease, job_id) = (delivery.lease.clone(), delivery.job_id.clone());
        let delivery = Delivery::read(delivery, self.keys.as_ref());
        match (self.leases.arrived(&lease, delivery.is_ok()), delivery) {
            (Arrival::Begin, Ok(delivery)) => {
                self.shared.update(|stats| stats.begun += 1);
                arrived.push(delivery);
            }
            (Arrival::Release(why), _) => {
                self.end_at_once(&lease, Handled::Released { why, not_before: None });
            }
            (Arrival::Unreadable, Err(problem)) => self.unreadable(&lease, &job_id, &problem),
            (Arrival::Known | Arrival::Begin | Arrival::Unreadable, _) => {}
        }
    }

    /// Ends a delivery whose body cannot be read.
    fn unreadable(&mut self, lease: &LeaseId, job_id: &str, problem: &BodyProblem) {
        let queue = &self.queue;
        if self.warned_of_body.is_some_and(|at| at.elapsed() < WARN_EVERY) {
            tracing::debug!(queue, job_id, %problem, "a job was not started");
        } else {
            self.warned_of_body = Some(Instant::now());
            tracing::warn!(queue, job_id, %problem, "a job was not started; this is logged at most once a minute");
        }
        self.shared.update(|stats| stats.unreadable += 1);
        // A lane without any job for this worker is taken from it for longer and longer.
        let released = Handled::Released { why: BODY_KEY, not_before: None };
        let is_final = matches!(problem, BodyProblem::Foreign);
        self.end_at_once(lease, if is_final { Handled::Dead(problem.to_string()) } else { released });
    }

    /// Ends a delivery that does not begin.
    fn end_at_once(&mut self, lease: &LeaseId, handled: Handled) {
        self.shared.count(&handled);
        let end = self.leases.ended_at_once(lease, handled.into_wire(Duration::ZERO));
        self.connection.send(FromUs::Settle(end));
    }

    /// Begins the handler of a delivery.
    fn begin(&mut self, delivery: Delivery) {
        let limit = delivery.wire.limit.and_then(|limit| Duration::try_from(limit).ok());
        let lease = delivery.wire.lease.clone();
        let span = span_of(&delivery);
        let (handler, clock) = (Arc::clone(&self.handler), self.clock);
        self.handlers.begin(lease, async move {
            let began = Instant::now();
            let limits = Limits { clock, deadline: limit.map(|limit| clock.now() + limit) };
            // A handler that panics when it is called panics here too.
            let handling = handler(delivery, limits).instrument(span);
            let handled = match limit {
                None => handling.await,
                Some(limit) => match tokio::time::timeout(limit, handling).await {
                    Ok(handled) => handled,
                    Err(_) => Handled::failed(Code::DeadlineExceeded, "not done within its time limit"),
                },
            };
            (handled, began.elapsed())
        });
    }

    fn handler_ended(&mut self, ended: (LeaseId, Option<(Handled, Duration)>)) {
        self.leases.free_slot();
        let (lease, Some((handled, took))) = ended else { return };
        let how = handled.clone().into_wire(took);
        if let Some(end) = self.leases.ended(&lease, how) {
            self.shared.count(&handled);
            self.connection.send(FromUs::Settle(end));
        }
    }

    /// Stops the handler of a lease that the worker no longer has.
    fn lost(&mut self, lease: &LeaseId) {
        if self.leases.lost(lease) {
            self.shared.update(|stats| stats.cancelled += 1);
            self.handlers.cancel(lease);
        }
    }

    fn grant(&mut self) {
        if !self.connection.is_open() {
            return;
        }
        let more = self.leases.grant();
        if more > 0 {
            self.connection.send(FromUs::Credits(v1::Credits { queue: self.queue.clone(), more }));
        }
    }

    fn note_closed(&mut self, problem: String) {
        let queue = &self.queue;
        if self.warned.is_some_and(|at| at.elapsed() < WARN_EVERY) {
            tracing::debug!(queue, problem, "worker still disconnected");
        } else {
            self.warned = Some(Instant::now());
            tracing::warn!(queue, problem, "worker disconnected; reconnecting, handlers continue");
        }
        self.shared.update(|stats| (stats.connected, stats.last_problem) = (false, Some(problem)));
    }

    fn show(&self) {
        let (running, busy) = (self.leases.running(), self.leases.busy());
        let unconfirmed = self.leases.held().saturating_sub(running);
        let stuck = usize::try_from(busy).unwrap_or(usize::MAX).saturating_sub(running);
        self.shared.update(|stats| {
            (stats.running, stats.unconfirmed, stats.stuck) = (running, unconfirmed, stuck);
        });
    }

    /// Cancels the handlers that are left, then sends the goodbye: the server may deliver their jobs at once.
    async fn end(mut self) {
        let left = self.leases.running();
        if left > 0 {
            tracing::warn!(queue = self.queue, handlers = left, "drain time is over; handlers cancelled");
        }
        _ = tokio::time::timeout(CANCEL_WITHIN, self.handlers.tasks.shutdown()).await;
        self.connection.close().await;
    }
}

impl Handlers {
    fn begin(&mut self, lease: LeaseId, handler: impl Future<Output = (Handled, Duration)> + Send + 'static) {
        let task = self.tasks.spawn(handler);
        self.by_task.insert(task.id(), (lease.clone(), Instant::now()));
        self.by_lease.insert(lease, task);
    }

    fn cancel(&mut self, lease: &LeaseId) {
        if let Some(task) = self.by_lease.get(lease) {
            task.abort();
        }
    }

    /// Returns the next handler that ends, with its result; `None` for a cancelled one. Pending while there
    /// is none.
    async fn next(&mut self) -> (LeaseId, Option<(Handled, Duration)>) {
        loop {
            let Some(joined) = self.tasks.join_next_with_id().await else { std::future::pending().await };
            let id = joined.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
            let Some((lease, began)) = self.by_task.remove(&id) else { continue };
            // A job that was delivered again may have the lease's next handler.
            if self.by_lease.get(&lease).is_some_and(|task| task.id() == id) {
                self.by_lease.remove(&lease);
            }
            let result = match joined {
                Ok((_, result)) => Some(result),
                Err(error) if error.is_panic() => {
                    Some((Handled::failed(Code::Internal, "the handler panicked"), began.elapsed()))
                }
                Err(_) => None,
            };
            return (lease, result);
        }
    }
}

/// Pending forever without a time.
async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

fn span_of(delivery: &Delivery) -> tracing::Span {
    tracing::info_span!(
        target: "damper",
        "damper.delivery",
        otel.kind = "consumer",
        damper.queue = delivery.queue(),
        damper.job = delivery.job_id(),
        damper.delivery = delivery.number(),
        damper.attempts_before = delivery.attempts_before(),
        peer.service = delivery.callee_service(),
        damper.method = delivery.callee_method(),
        traceparent = delivery.metadata("traceparent"),
    )
}
