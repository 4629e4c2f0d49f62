//! Tests of holds and pace, and of a whole outage in virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::*;
use crate::fault::Percent;
use crate::time::Time;

const FAILED: Outcome = Outcome::Failed(UNAVAILABLE);
const DONE: Outcome = Outcome::Done { took: Duration::from_millis(10) };

fn at(millis: u64) -> Time {
    Time::from_micros(1_000_000_000) + ms(millis)
}

/// One callee under the default settings with methods `a` and `b`.
struct Tested {
    callee: Callee,
    settings: QueueSettings,
}

impl Tested {
    fn new() -> Self {
        Self { callee: Callee::default(), settings: queue() }
    }

    fn admit(&self, method: &str, now: u64) -> Admit {
        self.callee.admit(&self.settings, method, at(now))
    }

    fn begins(&mut self, method: &str, now: u64) {
        self.callee.begins(&self.settings, method, at(now));
    }

    fn ends(&mut self, method: &str, outcome: Outcome, now: u64) {
        self.callee.ended(&self.settings, method, &outcome, at(now));
    }

    /// Runs deliveries one after the other, all at the same time.
    fn run(&mut self, method: &str, outcome: Outcome, times: u32, now: u64) {
        for _ in 0..times {
            self.begins(method, now);
            self.ends(method, outcome, now);
        }
    }
}

fn hold(until: u64, why: HoldReason) -> Admit {
    Admit::Hold { until: Some(at(until)), why }
}

const CALLEE: HoldReason = HoldReason::CalleeFailing;
const METHOD: HoldReason = HoldReason::MethodFailing;
const FULL: Admit = Admit::Hold { until: None, why: HoldReason::Pace };

#[test]
fn failures_in_a_row_hold_the_callee_until_a_probe_succeeds() {
    let mut tested = Tested::new();
    tested.run("a", FAILED, 19, 0);
    tested.run("b", DONE, 1, 0);
    tested.run("a", FAILED, 10, 0);
    tested.run("b", FAILED, 9, 0);
    assert!(matches!(tested.admit("b", 0), Admit::Deliver(_)), "19 in a row");
    tested.run("b", FAILED, 1, 5);
    assert_eq!(tested.admit("c", 5), hold(1_005, CALLEE), "all methods wait");
    assert_eq!(tested.admit("a", 1_004), hold(1_005, CALLEE));
    assert_eq!(tested.admit("a", 1_005), Admit::Probe);
    tested.begins("a", 1_005);
    assert_eq!(tested.admit("b", 3_000), hold(32_005, CALLEE), "alone");
    tested.ends("a", FAILED, 3_000);
    assert_eq!(tested.admit("b", 3_000), Admit::Probe, "another lane has its turn");
    tested.begins("b", 3_000);
    tested.ends("b", Outcome::Unknown, 3_100);
    assert_eq!(tested.admit("b", 3_100), hold(4_000, CALLEE), "released: no evidence");
    tested.begins("a", 4_000);
    tested.ends("a", DONE, 4_010);
    assert_eq!(tested.admit("b", 4_010), Admit::Deliver(2), "the pace rises from 1");
}

#[test]
fn failure_that_is_not_the_callees_ends_a_hold() {
    let mut tested = Tested::new();
    tested.run("a", FAILED, 20, 0);
    tested.run("a", Outcome::Failed(Failure::new(Code::NotFound)), 1, 0);
    assert!(matches!(tested.admit("a", 0), Admit::Deliver(_)));
    tested.run("a", Outcome::Failed(Failure::new(Code::NotFound)), 100, 0);
    assert!(matches!(tested.admit("a", 0), Admit::Deliver(_)));
    for code in breaker_failures() {
        let mut tested = Tested::new();
        tested.run("a", Outcome::Failed(Failure::new(code)), 20, 0);
        assert_eq!(tested.admit("a", 0), hold(1_000, CALLEE), "{code:?}");
    }
}

fn breaker_failures() -> impl Iterator<Item = Code> {
    Code::ALL.into_iter().filter(|code| crate::gates::breaker::FAILURES.contains(*code))
}

#[test]
fn method_that_fails_alone_holds_its_own_jobs_only() {
    let mut tested = Tested::new();
    for _ in 0..20 {
        tested.run("a", FAILED, 1, 0);
        tested.run("b", DONE, 1, 0);
    }
    assert_eq!(tested.admit("a", 0), hold(1_000, METHOD));
    assert!(matches!(tested.admit("b", 0), Admit::Deliver(_)));
    assert_eq!(tested.admit("a", 1_000), Admit::Probe);
    tested.begins("a", 1_000);
    assert_eq!(tested.admit("a", 2_500), hold(32_000, METHOD), "alone in its method");
    assert!(matches!(tested.admit("b", 2_500), Admit::Deliver(_)));
    tested.ends("a", DONE, 2_500);
    assert!(matches!(tested.admit("a", 2_500), Admit::Deliver(_)));
}

#[test]
fn hold_of_the_callee_ends_for_all_methods() {
    let mut tested = Tested::new();
    tested.run("a", FAILED, 20, 0);
    tested.run("b", FAILED, 20, 0);
    tested.run("b", DONE, 1, 1_000);
    assert_eq!(tested.admit("a", 1_000), Admit::Deliver(2), "no probe of its own");
}

#[test]
fn long_delivery_delays_probes_and_does_not_stop_them() {
    let mut tested = Tested::new();
    tested.begins("a", 0);
    tested.run("a", FAILED, 20, 0);
    assert_eq!(tested.admit("a", 30_999), hold(31_000, CALLEE));
    assert_eq!(tested.admit("a", 31_000), Admit::Probe);
}

#[test]
fn hold_follows_the_settings_in_force() {
    let mut tested = Tested::new();
    tested.run("a", FAILED, 5, 0);
    tested.settings.hold_after = 5;
    assert_eq!(tested.admit("a", 0), Admit::Probe, "one at a time from now on");
    tested.settings.hold_after = 6;
    assert!(matches!(tested.admit("a", 0), Admit::Deliver(_)));
}

#[test]
fn pace_rises_by_successes_and_halves_once_a_second() {
    let mut tested = Tested::new();
    let room = |tested: &Tested| match tested.admit("a", 0) {
        Admit::Deliver(room) => room,
        other => panic!("{other:?}"),
    };
    assert_eq!(room(&tested), 10);
    (0..10).for_each(|_| tested.begins("a", 0));
    assert_eq!(tested.admit("a", 0), FULL);
    (0..10).for_each(|_| tested.ends("a", DONE, 0));
    assert_eq!((room(&tested), tested.callee.in_flight()), (20, 0), "it doubles per round");
    tested.run("a", DONE, 1_000, 0);
    assert_eq!(room(&tested), 100, "max_in_flight");
    tested.settings.max_in_flight = 7;
    assert_eq!(room(&tested), 7);
    tested.settings.max_in_flight = 100;
    tested.run("a", FAILED, 5, 0);
    assert_eq!(room(&tested), 50, "once");
    tested.run("a", FAILED, 1, 999);
    assert_eq!(room(&tested), 50);
    tested.run("a", FAILED, 1, 1_000);
    assert_eq!(room(&tested), 25);
    for second in 2..10 {
        tested.run("a", FAILED, 1, second * 1_000);
    }
    assert_eq!(room(&tested), 1, "never below 1");
}

#[test]
fn success_rate_holds_the_callee_until_it_is_better() {
    let mut tested = Tested::new();
    let rate = Percent::from_hundredths(5_000);
    let stop_when = StopWhen { success_rate_below: Some(rate), ..StopWhen::default() };
    tested.settings.policy.stop_when = Some(stop_when);
    tested.run("a", FAILED, 10, 0);
    tested.run("a", DONE, 9, 0);
    assert!(matches!(tested.admit("a", 0), Admit::Deliver(_)), "19 samples");
    tested.run("a", FAILED, 1, 0);
    assert_eq!(tested.admit("a", 0), hold(1_000, HoldReason::StopWhen));
    assert!(!tested.callee.stops(&tested.settings, DAY, at(0)), "it waits instead");
    assert!(matches!(tested.admit("a", 11_000), Admit::Deliver(_)), "the window has passed");
    tested.settings.on_stop = OnStop::Dead;
    assert!(matches!(tested.admit("a", 0), Admit::Deliver(_)));
    assert!(tested.callee.stops(&tested.settings, Duration::ZERO, at(0)));
}

#[test]
fn slow_delivery_stops_its_job_only_if_on_stop_is_dead() {
    let mut tested = Tested::new();
    let median = Some(Percent::from_hundredths(5_000));
    tested.settings.policy.stop_when =
        Some(StopWhen { latency_above_percentile: median, ..StopWhen::default() });
    let stops = |tested: &Tested, took| tested.callee.stops(&tested.settings, took, at(0));
    tested.settings.on_stop = OnStop::Dead;
    tested.run("a", DONE, 19, 0);
    assert!(!stops(&tested, DAY), "too few samples");
    tested.run("a", DONE, 1, 0);
    assert!(stops(&tested, ms(20)) && !stops(&tested, ms(5)));
    tested.settings.on_stop = OnStop::Hold;
    assert!(!stops(&tested, DAY));
}

#[test]
fn methods_are_forgotten_when_they_are_idle() {
    let mut tested = Tested::new();
    for method in 0..3_000 {
        tested.run(&format!("done {method}"), DONE, 1, 0);
        tested.run(&format!("failed {method}"), FAILED, 1, 0);
    }
    assert!(format!("{:?}", tested.callee).matches("failed ").count() <= 1_000);
    assert_eq!(format!("{:?}", tested.callee).matches("done ").count(), 0);
}

/// A queue of jobs to one callee: deliveries take 50 ms, workers are always free.
struct Outage {
    tested: Tested,
    jobs: Vec<Job>,
    /// Due times of waiting jobs, in milliseconds.
    due: BinaryHeap<Reverse<(u64, usize)>>,
    /// Ends of deliveries in flight.
    in_flight: BinaryHeap<Reverse<(u64, usize)>>,
    now: u64,
    deliveries: u32,
    done: usize,
    ended: Vec<JobEnd>,
}

impl Outage {
    fn new(jobs: usize) -> Self {
        let settings = QueueSettings::new(Mode::Enforce);
        let job = job(&settings);
        let tested = Tested { callee: Callee::default(), settings };
        let due = (0..jobs).map(|number| Reverse((0, number))).collect();
        let (in_flight, ended) = (BinaryHeap::new(), Vec::new());
        Self { tested, jobs: vec![job; jobs], due, in_flight, now: 0, deliveries: 0, done: 0, ended }
    }

    /// Runs for a time with a callee that fails or not.
    fn run_for(&mut self, time: u64, outcome: Outcome) {
        let end = self.now + time;
        while let Some(at) = self.step().filter(|at| *at <= end) {
            self.now = at;
            while let Some(Reverse((at, number))) = self.in_flight.peek().copied()
                && at <= self.now
            {
                self.in_flight.pop();
                self.ends(number, outcome);
            }
        }
        self.now = end;
    }

    /// Delivers what may be delivered now. Returns the time of the next event.
    fn step(&mut self) -> Option<u64> {
        let mut until = None;
        while let Some(Reverse((due, number))) = self.due.peek().copied()
            && due <= self.now
        {
            if let Admit::Hold { until: next, .. } = self.tested.admit("a", self.now) {
                until = next.map(|next| next.since(at(0)).as_millis() as u64);
                break;
            }
            self.due.pop();
            self.tested.begins("a", self.now);
            self.jobs[number].deliveries += 1;
            self.jobs[number].deliver(&self.tested.settings, NOW + ms(self.now)).unwrap();
            self.deliveries += 1;
            self.in_flight.push(Reverse((self.now + 50, number)));
        }
        let ends = self.in_flight.peek().map(|Reverse((at, _))| *at);
        let due = self.due.peek().map(|Reverse((at, _))| *at).filter(|at| *at > self.now);
        [until, ends, due].into_iter().flatten().min()
    }

    fn ends(&mut self, number: usize, outcome: Outcome) {
        let (settings, now) = (&self.tested.settings, NOW + ms(self.now));
        let next = match outcome {
            Outcome::Failed(failure) => {
                self.jobs[number].failed(settings, &failure, false, now, number as u64 * 7_919)
            }
            _ => self.jobs[number].done(),
        };
        self.tested.ends("a", outcome, self.now);
        match next {
            Next::At(due) => self.due.push(Reverse((due.0 - NOW.0, number))),
            Next::End(JobEnd::Done) => self.done += 1,
            Next::End(end) => self.ended.push(end),
        }
    }
}

#[test]
fn hour_of_outage_costs_one_probe_a_second() {
    const JOBS: usize = 100_000;
    const HOUR: u64 = 3_600_000;
    let mut outage = Outage::new(JOBS);
    outage.run_for(10_000, DONE);
    let (deliveries, done) = (outage.deliveries, outage.done);
    assert!((10_000..30_000).contains(&done), "{done}: 100 at once, 50 ms each");
    outage.run_for(HOUR, FAILED);
    let probes = outage.deliveries - deliveries;
    assert!((3_500..=3_700).contains(&probes), "{probes} deliveries");
    assert_eq!(outage.done, done);
    let most = outage.jobs.iter().map(|job| job.attempts).max();
    assert!(most <= Some(3), "{most:?}: the others wait and use up nothing");
    let before = outage.done;
    outage.run_for(1_500, DONE);
    assert!(outage.done > before, "the next probe ends the hold");
    outage.run_for(24 * HOUR, DONE);
    assert_eq!((outage.done, outage.ended.as_slice()), (JOBS, [].as_slice()), "none is dead");
}

#[test]
fn recovered_callee_gets_its_load_back_gradually() {
    let mut outage = Outage::new(10_000);
    outage.run_for(60_000, FAILED);
    let in_flight = (0..40).map(|_| {
        outage.run_for(50, DONE);
        outage.in_flight.len()
    });
    let rounds: Vec<_> = in_flight.skip_while(|count| *count <= 1).take(8).collect();
    assert_eq!(rounds, [2, 4, 8, 16, 32, 64, 100, 100], "doubled per round");
}
