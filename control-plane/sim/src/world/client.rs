//! The caller: executes the engine's steps, as the SDK's client layer does.

use damper_core::circuit::Outcome;
use damper_core::endpoints::{self, Tried};
use damper_core::{
    Answer, AttemptKind, Call, CallStart, Code, CodeSet, Failure, Finish, SendAttempt, Step, Time, Verdict,
    deadline,
};
use smallvec::SmallVec;

use super::jobs::Delivered;
use super::server::Request;
use super::{CallKey, Event, JobKey, RequestKey, RouteSeat, World};
use crate::peers::PeerCall;
use crate::scenario::Balance;

/// Most attempts of a call: a rule's `max_attempts`.
const MOST_ATTEMPTS: usize = damper_core::policy::MAX_ATTEMPTS.max as usize;

/// A call in flight.
pub(super) struct ActiveCall {
    deciding: Deciding,
    route: usize,
    pub(super) hop: usize,
    parent: Parent,
    /// Request at the top to which it belongs; `None`: a job.
    origin: Option<usize>,
    begun_at: Time,
    /// Deadline of the application; only at the top.
    own_deadline: Option<Time>,
    /// Time of its next step.
    wake_at: Option<Time>,
    /// Attempts in flight.
    sent: SmallVec<[Sent; 2]>,
    /// Endpoints tried, with a balanced channel.
    tried: Tried,
    /// Result of each attempt.
    codes: [Code; MOST_ATTEMPTS],
    /// The last failed one.
    failure: Option<Failure>,
}

/// An attempt in flight.
#[derive(Clone, Copy)]
pub(super) struct Sent {
    attempt: u32,
    request: RequestKey,
    /// Instance, within its service.
    pub(super) endpoint: usize,
}

#[allow(clippy::large_enum_variant, reason = "most calls of a simulation are of one kind")]
enum Deciding {
    Damper(Call),
    Peer(PeerCall),
}

/// Origin of a call.
#[derive(Clone, Copy)]
pub(super) enum Parent {
    /// A load; the number of earlier requests at the top.
    Load { load: usize, request: usize },
    /// A request that a server handles.
    Request(RequestKey),
    /// A delivery of a job; the attempts made before.
    Job(JobKey, u32),
}

impl ActiveCall {
    /// True at the top of the chain.
    pub(super) fn is_request(&self) -> bool {
        matches!(self.parent, Parent::Load { .. })
    }

    /// Result for the caller.
    fn result(&self, finish: &Finish) -> Result<(), Code> {
        match finish.answer {
            _ if finish.ending.fate.is_ok() => Ok(()),
            Answer::Attempt(attempt) => Err(self.codes[place(attempt)]),
            Answer::TimedOut => Err(Code::DeadlineExceeded),
            Answer::CircuitOpen | Answer::Killed | Answer::Blocked => Err(Code::Unavailable),
        }
    }
}

fn place(attempt: u32) -> usize {
    (attempt.max(1) as usize - 1).min(MOST_ATTEMPTS - 1)
}

impl World<'_> {
    /// Starts a call over a route and runs its first steps.
    pub(super) fn begin_call(
        &mut self,
        route: usize,
        parent: Parent,
        own_deadline: Option<Time>,
    ) -> Option<CallKey> {
        let (now, hop) = (self.now(), self.plan.routes[route]);
        let context = match parent {
            Parent::Load { .. } | Parent::Job(..) => None,
            Parent::Request(request) => Some(&self.requests.get(request)?.context),
        };
        let origin = match parent {
            Parent::Load { request, .. } => Some(request),
            Parent::Request(request) => self.requests.get(request)?.origin,
            Parent::Job(..) => None,
        };
        let sends_before = if let Parent::Job(_, sends) = parent { sends } else { 0 };
        let deciding = match &self.routes[route] {
            RouteSeat::Damper(route) => {
                let inherited = context.and_then(damper_core::chain::RequestContext::deadline);
                let deadline = deadline::earliest([inherited, own_deadline]);
                let flag = context.and_then(damper_core::chain::RequestContext::flag);
                let start = CallStart { now, deadline, flag, replayable: true, sends_before };
                Deciding::Damper(Call::begin(route, start))
            }
            RouteSeat::Peer(_) => {
                let reported = own_deadline.filter(|_| !self.plan.is_bare(route));
                Deciding::Peer(PeerCall::begin(now, reported))
            }
        };
        self.ledger.call(hop);
        let key = self.calls.insert(ActiveCall {
            deciding,
            route,
            hop,
            parent,
            origin,
            begun_at: now,
            own_deadline,
            wake_at: None,
            sent: SmallVec::new(),
            tried: Tried::default(),
            codes: [Code::Ok; MOST_ATTEMPTS],
            failure: None,
        });
        // Before any step can end it: its origin must know it first.
        if let Parent::Request(request) = parent {
            self.requests[request].children.push(key);
        }
        self.advance(key);
        Some(key)
    }

    /// Runs steps of the engine until the next wait.
    fn advance(&mut self, key: CallKey) {
        let now = self.now();
        loop {
            let Some(call) = self.calls.get_mut(key) else { return };
            let step = match (&mut call.deciding, &self.routes[call.route]) {
                (Deciding::Damper(call), RouteSeat::Damper(route)) => call.next_step(route, now),
                (Deciding::Peer(call), RouteSeat::Peer(route)) => call.next_step(route, now),
                _ => unreachable!("a call is of its route's kind"),
            };
            match step {
                Step::Send(send) => self.send(key, &send),
                Step::Cancel { attempt } => self.cut(key, attempt),
                Step::Finish(finish) => return self.finished(key, &finish),
                Step::Wait { until } => {
                    let until = deadline::earliest([until, call.own_deadline]);
                    if call.own_deadline.is_some_and(|deadline| deadline <= now) {
                        return self.give_up(key, true);
                    }
                    if let Some(at) = until.filter(|at| call.wake_at != Some(*at)) {
                        self.agenda.at(at.max(now), Event::Wake(key));
                    }
                    call.wake_at = until;
                    return;
                }
            }
        }
    }

    /// The time of a call's next step has come.
    pub(super) fn wake(&mut self, key: CallKey) {
        let now = self.now();
        if let Some(call) = self.calls.get_mut(key)
            && call.wake_at.is_some_and(|at| at <= now)
        {
            call.wake_at = None;
            self.advance(key);
        }
    }

    fn send(&mut self, key: CallKey, send: &SendAttempt) {
        let call = &self.calls[key];
        let (hop, route, origin, mut tried) = (call.hop, call.route, call.origin, call.tried);
        let endpoint = self.choose_instance(hop, route, &mut tried);
        let instance = self.plan.services[self.plan.hops[hop].service].first_instance + endpoint;
        self.ledger.attempt(hop, send.kind, self.agenda.now());
        let previous = if self.has_layer { send.previous_attempts() } else { 0 };
        let mut request = Request::new(key, send, previous, instance, self.plan.hops[hop].method);
        (request.hop, request.origin) = (hop, origin);
        let request = self.requests.insert(request);
        let call = &mut self.calls[key];
        call.tried = tried;
        // A transparent resend replaces its attempt.
        if send.kind == AttemptKind::Resend {
            call.sent.retain(|sent| sent.attempt != send.attempt);
        }
        call.sent.push(Sent { attempt: send.attempt, request, endpoint });
        let us = self.network_us();
        self.agenda.after(us, Event::Deliver(request));
    }

    /// Chooses the callee's instance, within its service.
    fn choose_instance(&mut self, hop: usize, route: usize, tried: &mut Tried) -> usize {
        let service = self.plan.hops[hop].service;
        let plan = &self.plan.scenario.services[service];
        match plan.balance {
            _ if plan.instances == 1 => 0,
            Balance::Random => self.streams.balance.index(plan.instances as usize),
            Balance::RoundRobin => {
                let turn = self.turns[route];
                self.turns[route] = (turn + 1) % plan.instances;
                turn as usize
            }
            Balance::Balanced => {
                self.choose_endpoint(route, self.plan.services[service].first_instance, tried)
            }
        }
    }

    /// The engine cancelled an attempt.
    fn cut(&mut self, key: CallKey, attempt: u32) {
        let now = self.now();
        let call = &mut self.calls[key];
        let route = call.route;
        let sent = call.sent.iter().position(|sent| sent.attempt == attempt);
        let sent = sent.map(|place| call.sent.remove(place));
        match (&mut call.deciding, &mut self.routes[call.route]) {
            (Deciding::Damper(call), RouteSeat::Damper(route)) => {
                call.attempt_timed_out(route, attempt, now, self.streams.engine.any());
            }
            (Deciding::Peer(call), RouteSeat::Peer(route)) => {
                call.attempt_timed_out(route, now, &mut self.streams.engine);
            }
            _ => unreachable!("a call is of its route's kind"),
        }
        if let Some(sent) = sent {
            self.endpoint_left(route, &sent, Outcome::Failed);
            self.hang_up(sent.request);
        }
    }

    /// A response arrived.
    pub(super) fn attempt_ended(&mut self, key: CallKey, request: RequestKey, verdict: Verdict) {
        let now = self.now();
        let Some(call) = self.calls.get_mut(key) else { return };
        let Some(place_in_sent) = call.sent.iter().position(|sent| sent.request == request) else { return };
        let (route, sent) = (call.route, call.sent.remove(place_in_sent));
        let attempt = sent.attempt;
        call.codes[place(attempt)] = verdict.code();
        if let Verdict::Failure(failure) = verdict {
            call.failure = Some(failure);
        }
        match (&mut call.deciding, &mut self.routes[call.route]) {
            (Deciding::Damper(call), RouteSeat::Damper(route)) => {
                call.attempt_ended(route, attempt, verdict, now, self.streams.engine.any());
            }
            (Deciding::Peer(call), RouteSeat::Peer(route)) => {
                call.attempt_ended(route, verdict, now, &mut self.streams.engine);
            }
            _ => unreachable!("a call is of its route's kind"),
        }
        self.endpoint_left(route, &sent, endpoints::outcome_of(&verdict));
        self.advance(key);
    }

    fn finished(&mut self, key: CallKey, finish: &Finish) {
        let Some(call) = self.calls.remove(key) else { return };
        let now = self.now();
        self.ledger.ended(call.hop, finish.ending);
        self.give_up_attempts(&call);
        let result = call.result(finish);
        match call.parent {
            Parent::Load { load, request } => {
                self.ledger.request_ended(request, call.begun_at, now, result);
                self.load_answered(load);
            }
            Parent::Request(request) => {
                if let Some(request) = self.requests.get(request).filter(|_| finish.marks_context) {
                    let code = result.err().unwrap_or(Code::Ok);
                    request.context.mark_no_more_retry(CodeSet::of(&[code]));
                }
                self.child_ended(request, key, result);
            }
            Parent::Job(job, _) => {
                let how = match (finish.answer, result) {
                    (_, Ok(())) => Delivered::Done,
                    (Answer::Attempt(_) | Answer::TimedOut, Err(code)) => {
                        let hints = call.failure.unwrap_or(Failure::new(code));
                        Delivered::Failed(Failure { code, ..hints })
                    }
                    (Answer::CircuitOpen | Answer::Killed | Answer::Blocked, Err(_)) => Delivered::Released,
                };
                self.delivered(job, &how);
            }
        }
    }

    /// The application cancels a call. The ledger records it if the deadline passed, not if the caller is
    /// gone.
    pub(super) fn give_up(&mut self, key: CallKey, is_reported: bool) {
        let now = self.now();
        let Some(call) = self.calls.get_mut(key) else { return };
        let finish = match (&mut call.deciding, &self.routes[call.route]) {
            (Deciding::Damper(call), RouteSeat::Damper(route)) => call.dropped(route, now),
            (Deciding::Peer(call), RouteSeat::Peer(_)) => call.dropped(now),
            _ => unreachable!("a call is of its route's kind"),
        };
        let Some(finish) = finish else { return };
        if is_reported {
            return self.finished(key, &finish);
        }
        let Some(call) = self.calls.remove(key) else { return };
        self.ledger.ended(call.hop, finish.ending);
        self.give_up_attempts(&call);
    }

    fn give_up_attempts(&mut self, call: &ActiveCall) {
        for sent in &call.sent {
            self.endpoint_left(call.route, sent, Outcome::Unknown);
            self.hang_up(sent.request);
        }
    }

    /// Cancels an attempt that is not needed any more.
    fn hang_up(&mut self, key: RequestKey) {
        let Some(request) = self.requests.get_mut(key) else { return };
        request.caller = None;
        let service = self.plan.instances[request.instance];
        if self.plan.scenario.services[service].cancellable {
            let us = self.network_us();
            self.agenda.after(us, Event::Hangup(key));
        }
    }
}
