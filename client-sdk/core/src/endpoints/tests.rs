use super::*;

#[derive(Debug)]
struct Fake {
    state: EndpointState,
    slot: u32,
    connected: bool,
}

impl Endpoint for Fake {
    fn state(&self) -> &EndpointState {
        &self.state
    }

    fn slot(&self) -> u32 {
        self.slot
    }

    fn is_connected(&self) -> bool {
        self.connected
    }
}

fn fakes(count: u32) -> Vec<Fake> {
    (0..count).map(|slot| Fake { state: EndpointState::default(), slot, connected: true }).collect()
}

fn at(seconds: u64) -> Time {
    Time::from_micros(seconds * 1_000_000)
}

fn tried(slots: &[u32]) -> Tried {
    let mut tried = Tried::default();
    slots.iter().for_each(|slot| tried.insert(*slot));
    tried
}

/// Pseudo-random numbers, the same in every run.
fn numbers() -> impl Iterator<Item = u64> {
    let mut draws = Draws::new(7);
    draws.next();
    std::iter::repeat_with(move || draws.next())
}

/// Returns how often each endpoint is chosen in a thousand draws.
fn chosen(endpoints: &[Fake], local: usize, tried: Tried, now: Time) -> Vec<usize> {
    let mut chosen = vec![0; endpoints.len()];
    for number in numbers().take(1_000) {
        if let Some(place) = choose(endpoints, local, tried, now, number) {
            chosen[place] += 1;
        }
    }
    chosen
}

/// Sends ten requests per second. Each fails with the share of its endpoint in percent. Returns the changes
/// with their endpoints.
fn run(endpoints: &[Fake], requests: usize, share: impl Fn(usize) -> u64) -> Vec<(usize, Change)> {
    let mut numbers = numbers();
    let mut draw = || numbers.next().unwrap();
    let mut changes = Vec::new();
    for request in 0..requests {
        let now = at(1 + request as u64 / 10);
        let place = choose(endpoints, 0, Tried::default(), now, draw()).unwrap();
        let outcome = if draw() % 100 < share(place) { Outcome::Failed } else { Outcome::Good };
        changes.extend(ended(endpoints, place, outcome, now).map(|change| (place, change)));
    }
    changes
}

fn fail(endpoints: &[Fake], place: usize, times: usize, now: Time) -> Option<Change> {
    (0..times).filter_map(|_| ended(endpoints, place, Outcome::Failed, now)).last()
}

fn succeed(endpoints: &[Fake], place: usize, times: usize, now: Time) -> Option<Change> {
    (0..times).filter_map(|_| ended(endpoints, place, Outcome::Good, now)).last()
}

/// Returns three endpoints of which the first is ejected from the first second on.
fn with_one_ejected() -> Vec<Fake> {
    let endpoints = fakes(3);
    succeed(&endpoints, 1, 20, at(1));
    assert_eq!(fail(&endpoints, 0, 5, at(1)), Some(Change::Ejected(EJECTED_FOR)));
    endpoints
}

#[test]
fn equal_endpoints_are_chosen_equally() {
    for count in chosen(&fakes(4), 0, Tried::default(), at(1)) {
        assert!((200..300).contains(&count), "{count}");
    }
}

#[test]
fn endpoint_with_fewer_requests_in_flight_is_chosen() {
    let endpoints = fakes(3);
    endpoints[0].state.begin();
    let chosen = chosen(&endpoints, 0, Tried::default(), at(1));
    // Both draws hit the busy one.
    assert!((60..170).contains(&chosen[0]), "{chosen:?}");
    endpoints[0].state.end();
    assert_eq!(endpoints[0].state.in_flight(), 0);
}

#[test]
fn tried_endpoint_is_chosen_only_if_no_other_is_usable() {
    let mut endpoints = fakes(3);
    assert_eq!(chosen(&endpoints, 0, tried(&[0, 2]), at(1)), [0, 1_000, 0]);
    assert_eq!(chosen(&endpoints, 2, tried(&[0, 2]), at(1)), [0, 1_000, 0], "also if it is further away");
    let all_tried = chosen(&endpoints, 0, tried(&[0, 1, 2]), at(1));
    assert!(all_tried.iter().all(|count| *count > 200), "{all_tried:?}");
    endpoints[1].connected = false;
    assert_eq!(chosen(&endpoints, 0, tried(&[0]), at(1)), [0, 0, 1_000]);
    assert_eq!(chosen(&endpoints, 0, tried(&[0, 2]), at(1))[1], 0);
}

#[test]
fn nothing_is_chosen_where_nothing_is_connected() {
    let mut endpoints = fakes(2);
    endpoints.iter_mut().for_each(|endpoint| endpoint.connected = false);
    assert_eq!(choose(&endpoints, 1, Tried::default(), at(1), 5), None);
    assert_eq!(choose::<Fake>(&[], 0, Tried::default(), at(1), 5), None);
}

#[test]
fn near_endpoints_are_preferred_while_they_can_be_used() {
    let mut endpoints = fakes(6);
    let near = chosen(&endpoints, 3, Tried::default(), at(1));
    assert_eq!(near[3..], [0, 0, 0]);
    endpoints[0].connected = false;
    endpoints[1].connected = false;
    let one_is_left = chosen(&endpoints, 3, Tried::default(), at(1));
    assert!((600..800).contains(&one_is_left[2]), "the others take a part of its load: {one_is_left:?}");
    endpoints[2].connected = false;
    assert_eq!(chosen(&endpoints, 3, Tried::default(), at(1))[..3], [0, 0, 0]);
}

#[test]
fn failing_endpoint_of_three_is_ejected_soon_and_alone() {
    let endpoints = fakes(3);
    let changes = run(&endpoints, 60, |place| if place == 0 { 100 } else { 0 });
    assert_eq!(changes, [(0, Change::Ejected(EJECTED_FOR))]);
    assert_eq!(chosen(&endpoints, 0, Tried::default(), at(2))[0], 0);
}

#[test]
fn endpoint_that_fails_half_the_time_is_ejected() {
    let endpoints = fakes(2);
    succeed(&endpoints, 1, 40, at(1));
    let mut change = None;
    for _ in 0..10 {
        assert_eq!(change, None);
        succeed(&endpoints, 0, 1, at(1));
        change = fail(&endpoints, 0, 1, at(1));
    }
    assert_eq!(change, Some(Change::Ejected(EJECTED_FOR)));
}

#[test]
fn hardly_any_endpoint_is_ejected_while_all_fail() {
    for percent in [1, 5, 10, 20, 30, 50, 70, 90, 99, 100] {
        for count in [2, 3, 5, 10] {
            let changes = run(&fakes(count), 20_000, |_| percent);
            let ejected = changes.iter().filter(|(_, change)| *change != Change::Returned).count();
            let most = if (20..90).contains(&percent) { 3 } else { 0 };
            assert!(ejected <= most, "{percent} % of {count}: {changes:?}");
        }
    }
}

#[test]
fn single_endpoint_and_more_than_half_are_never_ejected() {
    let single = fakes(1);
    assert_eq!(fail(&single, 0, 100, at(1)), None);
    let endpoints = fakes(5);
    succeed(&endpoints, 4, 32, at(1));
    for bad in 0..4 {
        fail(&endpoints, bad, 32, at(1));
    }
    assert_eq!(endpoints.iter().filter(|endpoint| endpoint.state.is_ejected()).count(), 2);
}

#[test]
fn concurrent_ejections_leave_half_of_the_endpoints() {
    for _ in 0..200 {
        let endpoints = fakes(3);
        succeed(&endpoints, 2, 32, at(1));
        std::thread::scope(|scope| {
            for bad in [0, 1] {
                let endpoints = &endpoints;
                scope.spawn(move || fail(endpoints, bad, 5, at(1)));
            }
        });
        assert!(endpoints.iter().filter(|endpoint| endpoint.state.is_ejected()).count() <= 1);
    }
}

#[test]
fn ejected_endpoint_is_probed_after_its_time_once_a_second() {
    let endpoints = with_one_ejected();
    let count = |seconds| chosen(&endpoints, 0, Tried::default(), at(seconds))[0];
    assert_eq!(count(30), 0);
    assert_eq!(count(31), 1);
    assert_eq!(count(31), 0, "the probe is in flight");
    assert_eq!(count(32), 1, "its outcome is unknown");
    assert_eq!(succeed(&endpoints, 0, 1, at(32)), Some(Change::Returned));
    assert!(count(32) > 200);
    assert_eq!(fail(&endpoints, 0, 4, at(33)), None, "what was before is forgotten");
}

#[test]
fn failed_probe_doubles_the_ejection_up_to_the_longest() {
    let endpoints = with_one_ejected();
    let mut now = 31;
    for expected in [60, 120, 240, 300, 300] {
        assert_eq!(chosen(&endpoints, 0, Tried::default(), at(now))[0], 1);
        let change = fail(&endpoints, 0, 1, at(now));
        assert_eq!(change, Some(Change::Ejected(Duration::from_secs(expected))));
        now += expected;
    }
    assert_eq!(chosen(&endpoints, 0, Tried::default(), at(now))[0], 1);
    succeed(&endpoints, 0, 1, at(now));
    assert_eq!(fail(&endpoints, 0, 5, at(now + 299)), Some(Change::Ejected(LONGEST)));
    now += 299 + 300;
    assert_eq!(chosen(&endpoints, 0, Tried::default(), at(now))[0], 1);
    succeed(&endpoints, 0, 1, at(now));
    assert_eq!(fail(&endpoints, 0, 5, at(now + 300)), Some(Change::Ejected(EJECTED_FOR)));
}

#[test]
fn outcomes_of_attempts_from_before_an_ejection_change_nothing() {
    let endpoints = with_one_ejected();
    assert_eq!(succeed(&endpoints, 0, 3, at(2)), None);
    assert_eq!(fail(&endpoints, 0, 3, at(2)), None);
    assert!(endpoints[0].state.is_ejected());
    let Counts { all, failures } = endpoints[0].state.recent();
    assert_eq!((all - failures, failures), (3, 8));
}

#[test]
fn ejected_endpoints_are_used_where_no_other_is_connected() {
    let mut endpoints = with_one_ejected();
    endpoints[1].connected = false;
    endpoints[2].connected = false;
    assert_eq!(chosen(&endpoints, 0, tried(&[0]), at(2)), [1_000, 0, 0]);
}

#[test]
fn verdict_shows_if_the_endpoint_is_at_fault() {
    let failed = |code| Verdict::Failure(Failure::new(code));
    let table = [
        (Verdict::Success, Outcome::Good),
        (failed(Code::Unavailable), Outcome::Failed),
        (failed(Code::Internal), Outcome::Failed),
        (Verdict::TimedOut, Outcome::Failed),
        (failed(Code::NotFound), Outcome::Good),
        (failed(Code::ResourceExhausted), Outcome::Good),
        (
            Verdict::Failure(Failure { no_more_retry: true, ..Failure::new(Code::Unavailable) }),
            Outcome::Unknown,
        ),
        (Verdict::Unsent, Outcome::Unknown),
        (Verdict::Unprocessed, Outcome::Unknown),
        (Verdict::Local, Outcome::Unknown),
    ];
    for (verdict, outcome) in table {
        assert_eq!(outcome_of(&verdict), outcome, "{verdict:?}");
    }
}

#[test]
fn ejection_for_a_streak_keeps_only_the_streak() {
    let endpoints = fakes(2);
    succeed(&endpoints, 0, 27, at(1));
    succeed(&endpoints, 1, 27, at(1));
    fail(&endpoints, 0, 4, at(1));
    assert_eq!(endpoints[0].state.recent(), Counts { all: 31, failures: 4 });
    assert!(fail(&endpoints, 0, 1, at(1)).is_some());
    assert_eq!(endpoints[0].state.recent(), Counts { all: 5, failures: 5 });
    fail(&endpoints, 0, 1_000, at(1));
    assert_eq!(endpoints[0].state.recent(), Counts { all: 32, failures: 32 });
}

#[test]
fn ejection_for_a_share_keeps_all_outcomes() {
    let endpoints = fakes(2);
    succeed(&endpoints, 1, 32, at(1));
    let ejected = (0..32).find(|_| {
        succeed(&endpoints, 0, 1, at(1));
        fail(&endpoints, 0, 1, at(1)).is_some()
    });
    assert!(ejected.is_some());
    let Counts { all, failures } = endpoints[0].state.recent();
    assert_eq!((all, failures), (20, 10));
}

#[test]
fn higher_share_of_failures_is_greater_and_no_outcomes_least() {
    let counts = |failures, all| Counts { all, failures };
    let mut shares = [counts(9, 20), counts(1, 1), counts(0, 0), counts(8, 32)];
    shares.sort_by(|one, other| one.by_share(*other));
    assert_eq!(shares, [counts(0, 0), counts(8, 32), counts(9, 20), counts(1, 1)]);
}

#[test]
fn ejected_endpoint_without_probes_leaves_room_for_others() {
    let endpoints = with_one_ejected();
    succeed(&endpoints, 2, 20, at(20));
    assert_eq!(fail(&endpoints, 1, 5, at(20)), None, "one of three is ejected");
    assert_eq!(fail(&endpoints, 1, 1, at(31)), Some(Change::Ejected(EJECTED_FOR)));
}

#[test]
fn disconnected_endpoints_do_not_count_as_others() {
    let mut endpoints = fakes(4);
    for place in [2, 3] {
        succeed(&endpoints, place, 32, at(1));
        endpoints[place].connected = false;
    }
    assert_eq!((fail(&endpoints, 0, 32, at(1)), fail(&endpoints, 1, 32, at(1))), (None, None));
}
