//! Property tests: attempts are exact under any order of events, and no input overflows.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, Debug)]
enum Event {
    Deliver,
    Fail(Failure),
    Lose {
        is_alone: bool,
    },
    /// The worker disappears before it reports that it began.
    Vanish {
        is_alone: bool,
    },
    Release,
    Finish,
    /// The worker settles a delivery that the server has booked as lost.
    SettleLate(Option<Failure>),
    /// The wall clock jumps.
    Jump(i64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting(Wall),
    Leased,
    Ended(JobEnd),
}

/// A store of one job, as the contract of the job store requires it.
struct Model {
    settings: QueueSettings,
    job: Job,
    state: State,
    now: Wall,
    /// Handlers that began.
    begun: u32,
    /// Counters of the lease that was booked as lost.
    booked: Option<Job>,
}

impl Model {
    fn new(settings: QueueSettings) -> Self {
        let (job, due) = Job::submit(&settings, &untried(&settings), NOW, 0).unwrap();
        Self { settings, job, state: State::Waiting(due), now: NOW, begun: 0, booked: None }
    }

    fn apply(&mut self, event: Event, random: u64) {
        let (settings, now) = (&self.settings, self.now);
        let next = match (event, self.state) {
            (Event::Deliver, State::Waiting(at)) => {
                self.now = now.max(at);
                self.job.deliveries += 1;
                self.booked = None;
                match self.job.deliver(settings, self.now) {
                    Ok(_) => {
                        self.begun += 1;
                        self.state = State::Leased;
                        return;
                    }
                    Err(end) => Next::End(end),
                }
            }
            (Event::Fail(failure), State::Leased) => self.job.failed(settings, &failure, false, now, random),
            (Event::Lose { is_alone }, State::Leased) => {
                self.booked = Some(self.job);
                self.job.lost(settings, is_alone, now, random)
            }
            (Event::Vanish { is_alone }, State::Leased) => {
                self.booked = Some(self.job);
                self.job.unknown(settings, is_alone, now, random)
            }
            (Event::Release, State::Leased) => {
                self.begun -= 1;
                self.job.released(now)
            }
            (Event::Finish, State::Leased) => self.job.done(),
            (Event::SettleLate(failure), state) => {
                let is_open = match state {
                    State::Waiting(_) => true,
                    State::Leased => false,
                    State::Ended(end) => end.is_dead(),
                };
                let Some(before) = self.booked.take().filter(|_| is_open) else { return };
                self.job = before;
                match failure {
                    Some(failure) => self.job.failed(settings, &failure, false, now, random),
                    None => self.job.done(),
                }
            }
            (Event::Jump(by), _) => {
                self.now = Wall(now.0.saturating_add_signed(by));
                return;
            }
            _ => return,
        };
        self.state = match next {
            Next::At(at) => State::Waiting(at),
            Next::End(end) => State::Ended(end),
        };
    }

    fn check(&self) {
        let most = self.settings.retry().max_attempts;
        let unfinished = u32::from(self.state == State::Leased);
        assert_eq!(self.job.attempts, self.begun - unfinished, "{:?}", self.state);
        assert!(self.begun <= most, "{} of {most}", self.begun);
        match self.state {
            State::Ended(JobEnd::Dead(Fate::AttemptsExhausted)) => assert_eq!(self.begun, most),
            State::Waiting(_) => assert!(self.begun < most, "an attempt is left"),
            _ => {}
        }
    }
}

fn any_failure() -> impl Strategy<Value = Failure> {
    let pushback = prop_oneof![
        6 => Just(None),
        1 => Just(Some(Pushback::Stop)),
        1 => prop_oneof![Just(0), Just(1), Just(86_400_000), any::<u64>()]
            .prop_map(|wait| Some(Pushback::After(ms(wait)))),
    ];
    (any::<bool>(), pushback).prop_map(|(no_more_retry, pushback)| Failure {
        no_more_retry,
        pushback,
        ..UNAVAILABLE
    })
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => Just(Event::Deliver),
        4 => any_failure().prop_map(Event::Fail),
        3 => any::<bool>().prop_map(|is_alone| Event::Lose { is_alone }),
        2 => any::<bool>().prop_map(|is_alone| Event::Vanish { is_alone }),
        3 => Just(Event::Release),
        1 => Just(Event::Finish),
        2 => proptest::option::weighted(0.9, any_failure()).prop_map(Event::SettleLate),
        1 => prop_oneof![Just(-3_600_000), Just(3_600_000), -10_000_i64..10_000].prop_map(Event::Jump),
    ]
}

fn any_count() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), Just(1), Just(u32::MAX - 1), Just(u32::MAX), any::<u32>()]
}

fn any_wall() -> impl Strategy<Value = Wall> {
    prop_oneof![Just(0), Just(1), Just(NOW.0), Just(u64::MAX - 1), Just(u64::MAX), any::<u64>()]
        .prop_map(Wall)
}

prop_compose! {
    fn any_job()(
        deliveries in any_count(),
        attempts in any_count(),
        sends_before in any_count(),
        lost in any_count(),
        waits in (any_count(), prop_oneof![Just(0), Just(u64::MAX), any::<u64>()]),
        began in any_wall(),
        expires in any_wall(),
    ) -> Job {
        let waits = Sequence::from_parts(waits.0, waits.1);
        Job { deliveries, attempts, sends_before, lost, waits, began, expires }
    }
}

fn any_backoff() -> impl Strategy<Value = Waits> {
    let growth = Growth { max: DAY, over_max: OverMax::Cap, jitter: Jitter::Decorrelated };
    prop_oneof![
        Just(Waits::None),
        Just(Waits::Fixed { delay: DAY, jitter: Jitter::Equal }),
        Just(Waits::Random { min: ms(1), max: DAY, jitter: Jitter::Full }),
        Just(Waits::Exponential { base: DAY, multiplier: Ratio::from_bp(100_000), growth }),
        Just(Waits::Fibonacci { unit: DAY, growth }),
    ]
}

proptest! {
    #[test]
    fn attempts_are_exact_under_any_order_of_events(
        max_attempts in prop_oneof![Just(1_u32), Just(2), 1_u32..6],
        max_lost in prop_oneof![Just(1_u32), Just(1_000), 1_u32..6],
        events in proptest::collection::vec((any_event(), any::<u64>()), 1..80),
    ) {
        let mut settings = with_retry(|retry| retry.max_attempts = max_attempts);
        settings.max_lost = max_lost;
        let mut model = Model::new(settings);
        for (event, random) in events {
            let before = (model.job.deliveries, model.begun);
            model.apply(event, random);
            model.check();
            prop_assert!(model.job.deliveries >= before.0, "the fence only grows");
        }
    }

    #[test]
    fn job_is_never_due_before_its_wait_has_passed(
        failure in any_failure(),
        waits in any_backoff(),
        job in any_job(),
        now in any_wall(),
        random in any::<u64>(),
    ) {
        let settings = with_backoff(waits);
        let mut job = Job { attempts: 0, ..job };
        let (began, Next::At(due)) = (job, job.failed(&settings, &failure, false, now, random)) else {
            return Ok(());
        };
        let asked = match failure.pushback {
            Some(Pushback::After(wait)) => wait.min(DAY),
            Some(Pushback::Stop) => secs(60),
            None => Duration::ZERO,
        };
        let least = if failure.no_more_retry { asked.max(secs(60)) } else { asked };
        prop_assert!(due >= now + least, "{due:?}");
        prop_assert!(due <= began.expires);
        let pushed = matches!(failure.pushback, Some(Pushback::After(_))) && !failure.no_more_retry;
        prop_assert!(!pushed || due == now + least, "a pushback is exact");
    }

    #[test]
    fn no_counter_or_time_overflows(
        job in any_job(),
        waits in any_backoff(),
        max_duration in proptest::option::of(prop_oneof![Just(secs(1)), Just(DAY * 30)]),
        (now, not_before) in (any_wall(), proptest::option::of(any_wall())),
        (failure, sends_before, random) in (any_failure(), any_count(), any::<u64>()),
    ) {
        let mut settings = with_backoff(waits);
        settings.policy.retry.as_mut().unwrap().max_duration = max_duration;
        let failed = Some(failure);
        let submission = Submission { failed, sends_before, not_before, ..untried(&settings) };
        if let Ok((job, due)) = Job::submit(&settings, &submission, now, random) {
            prop_assert!(due >= now && due <= job.expires && Some(due) >= not_before);
        }
        let sent = job.deliver(&settings, now);
        prop_assert!(sent.is_err() || now <= job.expires);
        for is_alone in [false, true] {
            let mut lost = job;
            lost.lost(&settings, is_alone, now, random);
            let mut unknown = job;
            unknown.unknown(&settings, is_alone, now, random);
            for gone in [lost, unknown] {
                prop_assert!(gone.attempts == job.attempts.saturating_add(1) && gone.lost >= job.lost);
                prop_assert!(gone.deliveries == job.deliveries);
            }
        }
        let mut ended = job;
        ended.failed(&settings, &failure, true, now, random);
        prop_assert!(ended.sends() >= job.sends() && ended.lost == 0);
        let replayed = ended.replayed(&settings, now);
        prop_assert!(replayed.sends() == ended.sends() && replayed.expires >= now);
        prop_assert!(replayed.deliveries == job.deliveries, "the fence only grows");
    }
}
