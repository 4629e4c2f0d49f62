//! The callee: queue, workers, handler, and the server layer around them.

use std::collections::VecDeque;
use std::io::Write as _;
use std::time::Duration;

use damper_core::chain::{RepeatMarks, RequestContext};
use damper_core::classify::TransportFault;
use damper_core::deadline::{self, HeaderValue};
use damper_core::repeat_limit::{LimitDecision, Served};
use damper_core::{Code, Failure, Pushback, SendAttempt, Time, Verdict};
use smallvec::SmallVec;

use super::client::Parent;
use super::{CallKey, Event, RequestKey, World, served};
use crate::plan::Plan;

/// An attempt in flight, until its response arrived or its caller is gone.
pub(super) struct Request {
    /// Caller that waits for the response.
    pub(super) caller: Option<CallKey>,
    pub(super) instance: usize,
    method: usize,
    /// Hop of the attempt, and request at the top.
    pub(super) hop: usize,
    pub(super) origin: Option<usize>,
    /// Context as sent; its own once it has arrived.
    limit: Option<Duration>,
    flag: Option<u32>,
    previous_attempts: u32,
    pub(super) context: RequestContext,
    state: State,
    /// Start of its wait for a worker, or of its work.
    since: Time,
    /// True if it has a worker.
    is_worked_on: bool,
    stage: usize,
    /// Unfinished calls of the stage.
    pub(super) children: SmallVec<[CallKey; 2]>,
    answer: Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    OnItsWay,
    Queued,
    Working,
    Calling,
    Answering,
}

/// A process of a service.
pub(super) struct Instance {
    pub(super) is_up: bool,
    /// `None`: no limit.
    pub(super) workers: Option<u32>,
    busy: u32,
    /// Time of rejections that no worker has spent yet: the next one to start does.
    owed_us: u64,
    queue: VecDeque<RequestKey>,
    served: Vec<Served>,
}

impl Instance {
    pub(super) fn new(plan: &Plan<'_>, service: usize) -> Self {
        let workers = plan.scenario.services[service].workers;
        let served = served(plan, service);
        Self { is_up: true, workers, busy: 0, owed_us: 0, queue: VecDeque::new(), served }
    }

    fn has_worker(&self) -> bool {
        self.workers.is_none_or(|workers| self.busy < workers)
    }
}

impl Request {
    pub(super) fn new(
        caller: CallKey,
        send: &SendAttempt,
        previous_attempts: u32,
        instance: usize,
        method: usize,
    ) -> Self {
        Self {
            caller: Some(caller),
            instance,
            method,
            hop: 0,
            origin: None,
            limit: send.limit,
            flag: send.flag,
            previous_attempts,
            context: RequestContext::new(None, None),
            state: State::OnItsWay,
            since: Time::ZERO,
            is_worked_on: false,
            stage: 0,
            children: SmallVec::new(),
            answer: Verdict::Success,
        }
    }
}

impl World<'_> {
    /// Handles the arrival of a request.
    pub(super) fn deliver(&mut self, key: RequestKey) {
        let Some(request) = self.requests.get(key) else { return };
        let service = self.plan.instances[request.instance];
        if !self.instances[request.instance].is_up {
            return self.reply(key, TransportFault::NotConnected.verdict());
        }
        self.ledger.services[service].arrived += 1;
        if self.has_layer && !self.admitted(key) {
            self.ledger.services[service].shed += 1;
            return self.fail(key, Code::Unavailable);
        }
        let Request { method, hop, origin, .. } = self.requests[key];
        if let Some(origin) = origin {
            self.ledger.reached_handler(origin, hop);
        }
        if let Some(code) = self.error_at(key, service, method) {
            self.ledger.handled(service, self.now());
            return self.fail(key, code);
        }
        if self.swallows(key, service, method) {
            self.requests.remove(key);
            return;
        }
        self.queue(key, service);
    }

    /// The server layer: creates the context and checks the retry limit.
    fn admitted(&mut self, key: RequestKey) -> bool {
        let now = self.now();
        let request = &mut self.requests[key];
        let (mut retry, mut previous) = ([0; 10], [0; 10]);
        let marks = RepeatMarks {
            retry: request.flag.map(|flag| digits(&mut retry, flag)),
            previous_attempts: (request.previous_attempts > 0)
                .then(|| digits(&mut previous, request.previous_attempts)),
            ..RepeatMarks::default()
        };
        request.context = RequestContext::new(marks.flag(), request.limit.map(|limit| now + sent(limit)));
        let service = self.plan.instances[request.instance];
        let limits = self.limits[service][request.method];
        let served = &self.instances[request.instance].served[request.method];
        let admission = served.arrived(marks.repeated_by(), limits, now);
        if admission == LimitDecision::Shed {
            request.context.mark_final();
        }
        admission != LimitDecision::Shed
    }

    fn queue(&mut self, key: RequestKey, service: usize) {
        let (now, plan) = (self.now(), &self.plan.scenario.services[service]);
        let request = &mut self.requests[key];
        let instance = &mut self.instances[request.instance];
        request.since = now;
        if instance.has_worker() && instance.queue.is_empty() {
            return self.work(key);
        }
        if plan.queue.is_some_and(|most| instance.queue.len() >= most as usize) {
            self.ledger.services[service].queue_full += 1;
            self.owe(key, service);
            return self.fail(key, plan.full);
        }
        request.state = State::Queued;
        instance.queue.push_back(key);
        self.ledger.services[service].queued(instance.queue.len());
    }

    /// Charges the workers for a rejection.
    fn owe(&mut self, key: RequestKey, service: usize) {
        let cost = self.plan.scenario.services[service].full_cost;
        if cost.bp() > 0 {
            let us = u128::from(self.work_us(key, service)) * u128::from(cost.bp()) / 10_000;
            self.instances[self.requests[key].instance].owed_us += us as u64;
        }
    }

    /// Returns the duration of the method's own work for a request.
    fn work_us(&mut self, key: RequestKey, service: usize) -> u64 {
        let method = self.requests[key].method;
        let time = &self.plan.scenario.services[service].methods[method].time;
        let own = time.draw(&mut self.streams.service);
        self.slowed(key, service, method, own)
    }

    /// Starts the method's own work.
    fn work(&mut self, key: RequestKey) {
        let now = self.now();
        let request = &self.requests[key];
        let service = self.plan.instances[request.instance];
        self.ledger.services[service].begun(now.since(request.since));
        self.ledger.handled(service, now);
        let own = self.work_us(key, service);
        let request = &mut self.requests[key];
        let instance = &mut self.instances[request.instance];
        let us = own + std::mem::take(&mut instance.owed_us);
        instance.busy += 1;
        request.state = State::Working;
        request.is_worked_on = true;
        request.since = now;
        self.agenda.after(us, Event::Worked(key));
    }

    /// Handles the end of a method's own work.
    pub(super) fn worked(&mut self, key: RequestKey) {
        let Some(request) = self.requests.get_mut(key) else { return };
        // A crash came first.
        if request.state != State::Working {
            return;
        }
        let service = self.plan.instances[request.instance];
        request.state = State::Calling;
        if !self.plan.scenario.services[service].holds_worker {
            self.release(key);
        }
        self.call_next(key);
    }

    /// Gives the worker of a request to the next one in the queue.
    fn release(&mut self, key: RequestKey) {
        let now = self.now();
        let request = &mut self.requests[key];
        if !std::mem::take(&mut request.is_worked_on) {
            return;
        }
        let (instance, since) = (request.instance, request.since);
        self.ledger.services[self.plan.instances[instance]].worked(now.since(since));
        self.instances[instance].busy -= 1;
        self.dispatch(instance);
    }

    /// Starts queued requests on free workers.
    pub(super) fn dispatch(&mut self, instance: usize) {
        while self.instances[instance].is_up && self.instances[instance].has_worker() {
            let Some(next) = self.instances[instance].queue.pop_front() else { return };
            self.work(next);
        }
    }

    /// Makes the calls of the next stage; after the last one the method is done.
    fn call_next(&mut self, key: RequestKey) {
        let request = &mut self.requests[key];
        let (service, instance) = (self.plan.instances[request.instance], request.instance);
        let plan = &self.plan.services[service];
        let Some(stage) = plan.methods[request.method].stages.get(request.stage) else {
            return self.answer(key, Verdict::Success);
        };
        let number = request.stage;
        request.stage += 1;
        let first_route = plan.first_route + (instance - plan.first_instance) * plan.hops.len();
        for place in stage {
            self.begin_call(first_route + place, Parent::Request(key), None);
            // An immediate failure has ended the method; a single call has no concurrent ones.
            let goes_on = self
                .requests
                .get(key)
                .is_some_and(|request| request.state == State::Calling && request.stage == number + 1);
            if !goes_on {
                return;
            }
        }
    }

    /// Handles the end of a call made for a request.
    pub(super) fn child_ended(&mut self, key: RequestKey, child: CallKey, result: Result<(), Code>) {
        let Some(request) = self.requests.get_mut(key) else { return };
        request.children.retain(|known| *known != child);
        if request.state != State::Calling {
            return;
        }
        match result {
            Ok(()) if request.children.is_empty() => self.call_next(key),
            Ok(()) => {}
            Err(code) => self.fail(key, code),
        }
    }

    /// Ends a failed or rejected request.
    fn fail(&mut self, key: RequestKey, code: Code) {
        let flagged = self.has_layer && self.requests[key].context.no_more_retry(code);
        let pushback = flagged.then_some(Pushback::Stop);
        self.answer(key, Verdict::Failure(Failure { code, no_more_retry: flagged, pushback }));
    }

    /// Sends the response of a service.
    fn answer(&mut self, key: RequestKey, verdict: Verdict) {
        self.stop(key);
        let Request { instance, method, .. } = self.requests[key];
        if self.is_lost(key, self.plan.instances[instance], method) {
            self.requests.remove(key);
        } else {
            self.reply(key, verdict);
        }
    }

    /// Sends the result to the caller, if it still waits.
    fn reply(&mut self, key: RequestKey, verdict: Verdict) {
        let request = &mut self.requests[key];
        request.state = State::Answering;
        request.answer = verdict;
        if request.caller.is_none() {
            self.requests.remove(key);
            return;
        }
        let us = self.network_us();
        self.agenda.after(us, Event::Answer(key));
    }

    /// Handles the arrival of a response.
    pub(super) fn answered(&mut self, key: RequestKey) {
        let Some(request) = self.requests.remove(key) else { return };
        if let Some(call) = request.caller {
            self.attempt_ended(call, key, request.answer);
        }
    }

    /// Handles a cancellation, at a server that stops cancelled work.
    pub(super) fn hung_up(&mut self, key: RequestKey) {
        if self.requests.contains_key(key) {
            self.stop(key);
            self.requests.remove(key);
        }
    }

    /// Ends all work for a request: its place in the queue, its worker, its calls.
    fn stop(&mut self, key: RequestKey) {
        let request = &mut self.requests[key];
        let (instance, was) = (request.instance, request.state);
        request.state = State::Answering;
        let children = std::mem::take(&mut request.children);
        if was == State::Queued {
            self.instances[instance].queue.retain(|queued| *queued != key);
        }
        for child in children {
            self.give_up(child, false);
        }
        self.release(key);
    }

    /// Ends a process: its requests end without a response.
    pub(super) fn crash(&mut self, instance: usize) {
        self.instances[instance].is_up = false;
        let of_it = |request: &Request| {
            request.instance == instance && !matches!(request.state, State::OnItsWay | State::Answering)
        };
        let lost: Vec<_> =
            self.requests.iter().filter(|(_, request)| of_it(request)).map(|(key, _)| key).collect();
        self.instances[instance].queue.clear();
        for key in lost {
            self.stop(key);
            self.reply(key, TransportFault::Lost.verdict());
        }
        self.instances[instance].served = served(self.plan, self.plan.instances[instance]);
    }
}

/// Returns a limit as the server reads it from its header.
fn sent(limit: Duration) -> Duration {
    let mut text = [0; deadline::MAX_VALUE_BYTES];
    let mut rest = text.as_mut_slice();
    let written = write!(rest, "{}", HeaderValue::new(limit));
    let free = rest.len();
    written.ok().and_then(|()| deadline::parse(&text[..text.len() - free])).unwrap_or(limit)
}

fn digits(room: &mut [u8; 10], number: u32) -> &[u8] {
    let mut rest = room.as_mut_slice();
    let written = write!(rest, "{number}");
    let free = rest.len();
    assert!(written.is_ok(), "a number has at most ten digits");
    &room[..10 - free]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_read_as_the_header_carries_it() {
        let sent = |us| sent(Duration::from_micros(us)).as_micros();
        assert_eq!(sent(123_456), 123_456);
        assert_eq!(sent(0), 1, "never 0");
        assert_eq!(sent(100_000_999), 100_000_000, "milliseconds from 100 s on");
    }

    #[test]
    fn any_number_fits_the_room_for_its_digits() {
        assert_eq!(digits(&mut [0; 10], 0), b"0");
        assert_eq!(digits(&mut [0; 10], u32::MAX), b"4294967295");
    }
}
