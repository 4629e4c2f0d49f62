//! Counters of a running simulation.
//!
//! A request belongs to the second and the phase of its start, an attempt to those of its start, a handler
//! run to the phase of its start.

use std::time::Duration;

use damper_core::job::JobEnd;
use damper_core::{AttemptKind, Code, Ending, Fate, Time};

use crate::plan::Plan;
use crate::trace::Trace;

/// Before, during and after the faults.
pub(crate) const PHASES: usize = 3;
const SECOND: u64 = 1_000_000;

/// Counters of one strategy.
#[derive(Debug)]
pub(crate) struct Ledger {
    trouble: Option<(Time, Time)>,
    pub(crate) phases: [PhaseCount; PHASES],
    pub(crate) seconds: Vec<SecondCount>,
    pub(crate) hops: Vec<HopCount>,
    pub(crate) services: Vec<ServiceCount>,
    /// By load.
    pub(crate) jobs: Vec<JobCount>,
    pub(crate) unfinished: u64,
    /// Ended requests by code.
    pub(crate) codes: [u64; Code::ALL.len()],
    pub(crate) events: u64,
    requests: usize,
    /// Trace of each request, if requested.
    pub(crate) traces: Option<Vec<Trace>>,
}

/// Requests started in a phase.
#[derive(Clone, Debug, Default)]
pub(crate) struct PhaseCount {
    pub(crate) requests: u64,
    /// Latency of successful requests.
    pub(crate) succeeded_us: Vec<u64>,
}

/// One second.
#[derive(Clone, Debug)]
pub(crate) struct SecondCount {
    /// Requests started in it.
    pub(crate) requests: u64,
    /// Successful requests among them.
    pub(crate) succeeded: u64,
    /// Requests that succeeded in it, from any start.
    pub(crate) answered: u64,
    /// Attempts started in it, by hop.
    pub(crate) attempts: Vec<u64>,
}

/// One hop.
#[derive(Clone, Debug, Default)]
pub(crate) struct HopCount {
    pub(crate) calls: u64,
    pub(crate) retries: u64,
    pub(crate) hedges: u64,
    pub(crate) resends: u64,
    pub(crate) attempts: [u64; PHASES],
    pub(crate) unfinished: u64,
    real: [u64; Fate::ALL.len()],
    would: [u64; Fate::ALL.len()],
}

/// One service.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServiceCount {
    pub(crate) arrived: u64,
    pub(crate) shed: u64,
    pub(crate) handler_runs: [u64; PHASES],
    pub(crate) queue_full: u64,
    pub(crate) longest_queue: u64,
    pub(crate) waited_us: u64,
    pub(crate) begun: u64,
    pub(crate) busy_us: u64,
}

/// The jobs of one load.
#[derive(Clone, Debug, Default)]
pub(crate) struct JobCount {
    pub(crate) submitted: u64,
    pub(crate) deliveries: [u64; PHASES],
    pub(crate) failed: u64,
    pub(crate) released: u64,
    pub(crate) dead: u64,
    pub(crate) expired: u64,
    /// Time from submission to end of jobs that are done.
    pub(crate) done_us: Vec<u64>,
    /// When the last job ended.
    pub(crate) last_ended: Time,
}

impl Ledger {
    pub(crate) fn new(plan: &Plan<'_>) -> Self {
        let seconds = plan.end.as_micros().div_ceil(SECOND);
        let second =
            SecondCount { requests: 0, succeeded: 0, answered: 0, attempts: vec![0; plan.hops.len()] };
        Self {
            trouble: plan.trouble,
            phases: Default::default(),
            seconds: vec![second; usize::try_from(seconds).unwrap_or(0)],
            hops: vec![HopCount::default(); plan.hops.len()],
            services: vec![ServiceCount::default(); plan.services.len()],
            jobs: vec![JobCount::default(); plan.loads.len()],
            unfinished: 0,
            codes: [0; Code::ALL.len()],
            events: 0,
            requests: 0,
            traces: None,
        }
    }

    fn phase(&self, at: Time) -> usize {
        match self.trouble {
            Some((_, until)) if at >= until => 2,
            Some((from, _)) if at >= from => 1,
            _ => 0,
        }
    }

    /// `None` after the end of the load.
    fn second(&mut self, at: Time) -> Option<&mut SecondCount> {
        let number = usize::try_from(at.as_micros() / SECOND).ok()?;
        self.seconds.get_mut(number)
    }

    /// Records a request and returns the number of earlier ones.
    pub(crate) fn request(&mut self, now: Time) -> usize {
        let phase = self.phase(now);
        self.phases[phase].requests += 1;
        if let Some(second) = self.second(now) {
            second.requests += 1;
        }
        let hops = self.hops.len();
        if let Some(traces) = &mut self.traces {
            traces.push(Trace::begun(now, hops));
        }
        self.requests += 1;
        self.requests - 1
    }

    /// Records the arrival of an attempt for a request at a handler.
    pub(crate) fn reached_handler(&mut self, request: usize, hop: usize) {
        if let Some(traces) = &mut self.traces {
            traces[request].arrivals[hop] += 1;
        }
    }

    /// Records the start of a handler, or the error of a fault in its place.
    pub(crate) fn handled(&mut self, service: usize, now: Time) {
        let phase = self.phase(now);
        self.services[service].handler_runs[phase] += 1;
    }

    pub(crate) fn request_ended(
        &mut self,
        request: usize,
        begun_at: Time,
        now: Time,
        result: Result<(), Code>,
    ) {
        if let Some(traces) = &mut self.traces {
            traces[request].ended(now, result.is_ok());
        }
        self.codes[result.err().unwrap_or(Code::Ok) as usize] += 1;
        if result.is_err() {
            return;
        }
        let phase = self.phase(begun_at);
        self.phases[phase].succeeded_us.push(now.as_micros() - begun_at.as_micros());
        if let Some(second) = self.second(begun_at) {
            second.succeeded += 1;
        }
        if let Some(second) = self.second(now) {
            second.answered += 1;
        }
    }

    /// Records the start of a delivery.
    pub(crate) fn delivery(&mut self, load: usize, now: Time) {
        let phase = self.phase(now);
        self.jobs[load].deliveries[phase] += 1;
    }

    pub(crate) fn call(&mut self, hop: usize) {
        self.hops[hop].calls += 1;
    }

    pub(crate) fn attempt(&mut self, hop: usize, kind: AttemptKind, now: Time) {
        let phase = self.phase(now);
        let count = &mut self.hops[hop];
        count.attempts[phase] += 1;
        match kind {
            AttemptKind::First => {}
            AttemptKind::Retry => count.retries += 1,
            AttemptKind::Hedge => count.hedges += 1,
            AttemptKind::Resend => count.resends += 1,
        }
        if let Some(second) = self.second(now) {
            second.attempts[hop] += 1;
        }
    }

    pub(crate) fn ended(&mut self, hop: usize, ending: Ending) {
        let count = &mut self.hops[hop];
        let fates = if ending.would { &mut count.would } else { &mut count.real };
        fates[ending.fate as usize] += 1;
    }

    pub(crate) fn unfinished(&mut self, hop: usize, is_request: bool) {
        self.hops[hop].unfinished += 1;
        self.unfinished += u64::from(is_request);
    }
}

impl HopCount {
    /// Ended calls by name of the fate, in order of the fates; without zeros.
    pub(crate) fn fates(&self) -> impl Iterator<Item = (String, u64)> {
        let count = |ending: Ending| {
            let counts = if ending.would { &self.would } else { &self.real };
            (ending.to_string(), counts[ending.fate as usize])
        };
        Ending::all().map(count).filter(|(_, count)| *count > 0)
    }
}

impl JobCount {
    /// Records the end of a job.
    pub(crate) fn ended(&mut self, end: JobEnd, submitted: Time, now: Time) {
        self.last_ended = now;
        match end {
            JobEnd::Done => self.done_us.push(now.as_micros() - submitted.as_micros()),
            JobEnd::Expired | JobEnd::Cancelled => self.expired += 1,
            JobEnd::Dead(_) | JobEnd::Lost | JobEnd::Refused => self.dead += 1,
        }
    }
}

impl ServiceCount {
    /// Records a request that found no free worker.
    pub(crate) fn queued(&mut self, queue: usize) {
        self.longest_queue = self.longest_queue.max(queue as u64);
    }

    /// Records the start of a worker on a request, after a wait.
    pub(crate) fn begun(&mut self, wait: Duration) {
        self.begun += 1;
        self.waited_us += crate::spread::us(wait);
    }

    /// Records the end of a worker's request.
    pub(crate) fn worked(&mut self, time: Duration) {
        self.busy_us += crate::spread::us(time);
    }
}
