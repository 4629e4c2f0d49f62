use proptest::prelude::*;

use super::*;
use crate::time::window::WindowShape;

struct Subject {
    circuit: Circuit,
    calls: Window,
    settings: CircuitBreaker,
}

fn subject(change: impl FnOnce(&mut CircuitBreaker)) -> Subject {
    let mut settings = CircuitBreaker::default();
    change(&mut settings);
    Subject { circuit: Circuit::default(), calls: Window::new(WindowShape::default()), settings }
}

fn at(ms: u64) -> Time {
    Time::from_micros(ms * 1_000)
}

impl Subject {
    fn admit(&self, ms: u64) -> CircuitDecision {
        self.circuit.admit(&self.settings, at(ms))
    }

    fn is_closed(&self, ms: u64) -> bool {
        matches!(self.admit(ms), CircuitDecision::Closed { .. })
    }

    fn end(&self, admission: CircuitDecision, outcome: Outcome, ms: u64) {
        self.circuit.ended(&self.settings, admission, outcome, &self.calls, at(ms));
    }

    /// Runs a call that ends at once; false if it was rejected.
    fn call(&self, outcome: Outcome, ms: u64) -> bool {
        let admission = self.admit(ms);
        self.end(admission, outcome, ms);
        admission != CircuitDecision::Refused
    }

    fn open(&self, ms: u64) {
        (0..5).for_each(|_| assert!(self.call(Outcome::Failed, ms)));
        assert_eq!(self.admit(ms), CircuitDecision::Refused);
    }
}

#[test]
fn five_failed_calls_in_a_row_open_it() {
    let subject = subject(|_| {});
    (0..4).for_each(|_| assert!(subject.call(Outcome::Failed, 0)));
    assert!(subject.call(Outcome::Good, 1), "a success ends the run");
    (0..5).for_each(|_| assert!(subject.call(Outcome::Failed, 2)));
    assert!(!subject.call(Outcome::Good, 3));
}

#[test]
fn half_of_twenty_calls_failing_opens_it() {
    let subject = subject(|settings| settings.consecutive_failures = 1_000);
    for n in 0..19 {
        let outcome = if n % 2 == 0 { Outcome::Failed } else { Outcome::Good };
        assert!(subject.call(outcome, n));
    }
    assert!(subject.is_closed(20), "nineteen are too few to tell");
    assert!(subject.call(Outcome::Failed, 21));
    assert!(!subject.call(Outcome::Good, 22));
}

#[test]
fn share_is_checked_after_successes_too() {
    let subject = subject(|settings| settings.min_calls = 5);
    for outcome in [Outcome::Failed, Outcome::Failed, Outcome::Failed, Outcome::Good] {
        assert!(subject.call(outcome, 0));
    }
    assert!(subject.call(Outcome::Good, 1), "four were too few to tell");
    assert_eq!(subject.admit(2), CircuitDecision::Refused, "three of five failed");
}

#[test]
fn calls_admitted_before_opening_do_not_count_after_closing() {
    let subject = subject(|_| {});
    let early = [0; 6].map(|_| subject.admit(0));
    subject.open(1_000);
    let probes = [0; 3].map(|_| subject.admit(6_000));
    probes.into_iter().for_each(|probe| subject.end(probe, Outcome::Good, 6_001));
    early.into_iter().for_each(|admission| subject.end(admission, Outcome::Failed, 10_000));
    assert!(subject.call(Outcome::Good, 10_001), "it was closed for reasons that are newer");
}

#[test]
fn fewer_than_half_of_the_calls_failing_leaves_it_closed() {
    let subject = subject(|settings| settings.consecutive_failures = 1_000);
    for n in 0..99 {
        // Failures last, so that their share is never greater than at the end of a round: 5 of 11.
        assert!(subject.call(if n % 11 < 6 { Outcome::Good } else { Outcome::Failed }, n));
    }
    assert!(subject.is_closed(100));
}

#[test]
fn three_good_probes_close_it_and_clear_failures() {
    let subject = subject(|_| {});
    subject.open(0);
    assert_eq!(subject.admit(4_999), CircuitDecision::Refused);
    let probes = [0; 3].map(|_| subject.admit(5_000));
    assert!(probes.iter().all(|probe| matches!(probe, CircuitDecision::Probe { .. })), "{probes:?}");
    assert_eq!(subject.admit(5_000), CircuitDecision::Refused, "no more than three");
    for probe in probes {
        assert_eq!(subject.admit(5_000), CircuitDecision::Refused, "all three must succeed");
        subject.end(probe, Outcome::Good, 5_001);
    }
    assert!(subject.is_closed(5_002));
    (0..4).for_each(|_| assert!(subject.call(Outcome::Failed, 5_003)));
    assert!(subject.is_closed(5_004), "four in a row are not five");
}

#[test]
fn one_failed_probe_opens_it_again() {
    let subject = subject(|_| {});
    subject.open(0);
    let (first, second) = (subject.admit(5_000), subject.admit(5_000));
    subject.end(first, Outcome::Failed, 5_100);
    assert_eq!(subject.admit(10_099), CircuitDecision::Refused);
    subject.end(second, Outcome::Good, 10_100);
    assert!(
        matches!(subject.admit(10_100), CircuitDecision::Probe { .. }),
        "open_for counts from the failure"
    );
}

#[test]
fn unfinished_probes_do_not_keep_it_half_open() {
    let subject = subject(|settings| settings.probes = 1);
    subject.open(0);
    assert!(matches!(subject.admit(5_000), CircuitDecision::Probe { .. }), "this one never ends");
    assert_eq!(subject.admit(9_999), CircuitDecision::Refused);
    let cancelled = subject.admit(10_000);
    assert_eq!(cancelled, CircuitDecision::Probe { since_ms: 10_000 });
    subject.end(cancelled, Outcome::Unknown, 10_001);
    assert!(subject.call(Outcome::Good, 10_002));
    assert!(subject.is_closed(10_003));
}

#[test]
fn calls_that_end_unknown_count_nothing() {
    let subject = subject(|_| {});
    (0..100).for_each(|_| assert!(subject.call(Outcome::Unknown, 0)));
    assert_eq!(subject.calls.counts(at(0)), Counts::default());
}

proptest! {
    #[test]
    fn every_state_is_left_by_time_alone(
        steps in prop::collection::vec((0_u64..3, 0_u64..6_000, any::<bool>()), 1..200),
        probes in 1_u32..=100,
    ) {
        let subject = subject(|settings| settings.probes = probes);
        let (mut now, mut pending) = (0, Vec::new());
        for (outcome, wait, ends) in steps {
            now += wait;
            let outcome = [Outcome::Good, Outcome::Failed, Outcome::Unknown][outcome as usize];
            let admission = subject.admit(now);
            if ends { subject.end(admission, outcome, now) } else { pending.push(admission) }
        }
        prop_assert_ne!(subject.admit(now + 5_000), CircuitDecision::Refused);
    }

    #[test]
    fn state_reads_back_as_it_was_written(since_ms in 0_u64..1 << 46, started in 0_u64..=100, good in 0_u64..=100) {
        for state in [
            State::Closed { since_ms }, State::Open { since_ms }, State::HalfOpen { since_ms, started, good },
        ] {
            prop_assert_eq!(State::unpack(state.pack()), state);
        }
    }
}
