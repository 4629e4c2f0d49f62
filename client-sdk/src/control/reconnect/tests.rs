//! Rounds, growth of waits, and protection of servers.

use proptest::prelude::*;

use super::*;
use crate::background::reconnect_backoff::SHORTEST;

fn uri(text: &str) -> Uri {
    text.parse().unwrap()
}

fn addresses(of: &Uri) -> Vec<SocketAddr> {
    match of.host().unwrap() {
        "many" => (1..=3).map(|i| SocketAddr::from(([10, 0, 1, i], 1))).collect(),
        "none" => Vec::new(),
        host => vec![SocketAddr::from(([10, 0, 0, host.as_bytes()[0]], 1))],
    }
}

/// Returns the next replica to try; names without an address are skipped, as after a failure.
fn next(replicas: &mut Replicas) -> Replica {
    loop {
        match replicas.turn().unwrap() {
            ReconnectStep::Ask(replica) => return replica,
            ReconnectStep::LookUp(endpoint) => replicas.found(&endpoint, addresses(&endpoint)),
        }
    }
}

fn of<const N: usize>(endpoints: [&str; N]) -> Replicas {
    Replicas::new(endpoints.iter().map(|endpoint| uri(endpoint)).collect())
}

#[test]
fn each_address_is_tried_once_per_round() {
    for _ in 0..50 {
        let mut replicas = of(["http://a:1", "http://many:1", "http://none:1", "http://b:1"]);
        for _ in 0..3 {
            let mut round: Vec<_> = (0..5).map(|_| next(&mut replicas).address).collect();
            round.sort();
            round.dedup();
            assert_eq!(round.len(), 5);
        }
    }
}

#[test]
fn clients_begin_with_different_replicas() {
    let first = |_| next(&mut of(["http://a:1", "http://b:1"])).address;
    let mut seen: Vec<_> = (0..100).map(first).collect();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 2);
}

#[test]
fn the_last_used_replica_is_tried_last() {
    for _ in 0..50 {
        let mut replicas = of(["http://a:1", "http://b:1", "http://c:1"]);
        let mut left = next(&mut replicas);
        for _ in 0..10 {
            replicas.after_stream(Duration::from_secs(10));
            let round: Vec<_> = (0..3).map(|_| next(&mut replicas)).collect();
            assert_eq!(round[2], left);
            left = round[2].clone();
        }
        let mut one = of(["http://many:1"]);
        let left = next(&mut one);
        one.after_stream(Duration::from_secs(10));
        let round: Vec<_> = (0..3).map(|_| next(&mut one)).collect();
        assert_eq!(round[2], left, "also among the addresses of one name");
    }
}

#[test]
fn a_failed_round_waits_once_at_its_end() {
    let mut replicas = of(["http://a:1", "http://many:1"]);
    for round in 0..20 {
        for _ in 0..3 {
            next(&mut replicas);
            // If a name comes last it is not looked up yet: the round has not ended then either.
            assert_eq!(replicas.after_miss(), Duration::ZERO);
        }
        next(&mut replicas);
        assert!(replicas.is_round_over());
        let ceiling = (SHORTEST * 2_u32.pow(round.min(10))).min(LONGEST);
        assert!(replicas.after_miss() <= ceiling);
    }
    assert_eq!(replicas.after_rounds.longest_now(), LONGEST);
}

#[test]
fn a_client_reconnects_within_three_seconds() {
    for _ in 0..300 {
        let mut client = life(["http://a:1"]);
        let back = Duration::from_secs(100);
        let (_, opened) = client.open(|_, now| now >= back);
        assert!(opened - back < Duration::from_secs(3), "{:?}", opened - back);
    }
}

#[test]
fn waits_grow_to_the_longest_and_use_their_range() {
    let most = |round: usize| {
        let draws = (0..300).map(|_| {
            let mut waits = ReconnectBackoff::up_to(LONGEST);
            for _ in 0..round {
                waits.next();
            }
            waits.next()
        });
        draws.max().unwrap()
    };
    assert!((SHORTEST.mul_f64(0.9)..=SHORTEST).contains(&most(0)));
    assert!((SHORTEST.mul_f64(1.8)..=SHORTEST * 2).contains(&most(1)));
    assert!((LONGEST.mul_f64(0.9)..=LONGEST).contains(&most(40)));
}

/// A client on a simulated clock.
struct Life {
    replicas: Replicas,
    now: Duration,
}

impl Life {
    /// Tries until a replica serves. Returns its name and the time. A replica named c denies access.
    fn open(&mut self, serves: impl Fn(u8, Duration) -> bool) -> (u8, Duration) {
        loop {
            self.now += Duration::from_millis(1);
            let replica = next(&mut self.replicas).address;
            let SocketAddr::V4(address) = replica else { unreachable!("all are of version 4") };
            let name = address.ip().octets()[3];
            if serves(name, self.now) {
                return (name, self.now);
            }
            self.now += match name {
                b'c' => self.replicas.after_denial(),
                _ => self.replicas.after_miss(),
            };
        }
    }

    fn wait_after(&mut self, lasted: Duration) {
        self.now += lasted;
        self.now += self.replicas.after_stream(lasted);
    }
}

fn life<const N: usize>(endpoints: [&str; N]) -> Life {
    Life { replicas: of(endpoints), now: Duration::ZERO }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    /// Two replicas are restarted in turn, a hundred times, and are down for a part of the time. The third
    /// denies access.
    #[test]
    fn a_client_reconnects_within_ten_seconds_to_any_replica(
        every in 100..20_000_u64,
        away in 0.0..0.99_f64,
        pace in 0.5..2.0_f64,
    ) {
        // Restarts grow closer together or farther apart over time.
        let restarts: Vec<Duration> = (0..100_i32)
            .scan(Duration::ZERO, |at, n| {
                *at += Duration::from_millis(every).mul_f64(pace.powf(f64::from(n) / 50.0));
                Some(*at)
            })
            .collect();
        let away = |n: usize| {
            let until = restarts.get(n + 1).map_or(restarts[n] * 2, |next| *next);
            restarts[n]..restarts[n] + (until - restarts[n]).mul_f64(away)
        };
        let serves = |name: u8, at: Duration| {
            let last = restarts.partition_point(|restart| *restart <= at);
            name != b'c' && (last == 0 || name != [b'a', b'b'][(last - 1) % 2] || !away(last - 1).contains(&at))
        };
        let mut client = life(["http://a:1", "http://b:1", "http://c:1"]);
        let mut left = Duration::ZERO;
        loop {
            let (name, opened) = client.open(serves);
            let without = opened - left;
            prop_assert!(without <= Duration::from_secs(6), "{without:?} without a stream at {left:?}");
            let first = restarts.partition_point(|restart| *restart <= opened);
            let Some(end) = (first..restarts.len()).find(|n| name == [b'a', b'b'][n % 2]) else { break };
            left = restarts[end];
            client.wait_after(left - opened);
        }
    }

    /// For any durations of streams.
    #[test]
    fn a_server_that_ends_streams_sees_a_client_every_two_seconds(
        lasting in prop::collection::vec(0..8_000_u64, 1..20),
    ) {
        let mut client = life(["http://a:1"]);
        let streams = 2_000_u32;
        for n in 0..streams as usize {
            client.open(|_, _| true);
            client.wait_after(Duration::from_millis(lasting[n % lasting.len()]));
        }
        prop_assert!(client.now / streams >= Duration::from_millis(1_700), "{:?}", client.now / streams);
    }
}

#[test]
fn a_server_that_ends_streams_at_once_is_soon_spared() {
    let mut waits = Vec::new();
    for _ in 0..300 {
        let mut replicas = of(["http://a:1"]);
        waits.extend((0..10).map(|_| replicas.after_stream(Duration::ZERO)).skip(3));
        // A stream that lasts resets the wait.
        assert!(replicas.after_stream(LASTING) <= SHORTEST);
    }
    let count = u32::try_from(waits.len()).unwrap();
    let (average, longest) = (waits.iter().sum::<Duration>() / count, waits.iter().max().unwrap());
    assert!((1_850..2_150).contains(&average.as_millis()), "{average:?}");
    assert!((LONGEST_AFTER_STREAM.mul_f64(0.9)..=LONGEST_AFTER_STREAM).contains(longest), "{longest:?}");
}

#[test]
fn waits_of_streams_and_rounds_are_independent() {
    let mut replicas = of(["http://a:1"]);
    for _ in 0..20 {
        next(&mut replicas);
        replicas.after_miss();
    }
    assert_eq!(replicas.after_rounds.longest_now(), LONGEST);
    assert!(replicas.after_stream(Duration::ZERO) <= SHORTEST);
    for _ in 0..20 {
        replicas.after_stream(Duration::ZERO);
    }
    next(&mut replicas);
    assert!(replicas.after_miss() <= SHORTEST);
}

#[test]
fn a_client_denied_by_all_waits_longest_at_once() {
    let longest = |denials: usize| {
        let draws = (0..300).map(|_| {
            let mut replicas = of(["http://a:1", "http://b:1"]);
            let misses = 2 - denials;
            let waits: Vec<_> = (0..2)
                .map(|turn| {
                    next(&mut replicas);
                    if turn < misses { replicas.after_miss() } else { replicas.after_denial() }
                })
                .collect();
            assert_eq!(waits[0], Duration::ZERO, "the other one may accept");
            waits[1]
        });
        draws.max().unwrap()
    };
    assert!(longest(2) > LONGEST_AFTER_DENIAL.mul_f64(0.9), "{:?}", longest(2));
    assert!(longest(1) <= SHORTEST, "the other one was not reached, and may be back soon");
}

#[test]
fn waits_of_rounds_return_after_denials() {
    let mut replicas = of(["http://a:1"]);
    for _ in 0..20 {
        next(&mut replicas);
        replicas.after_denial();
    }
    next(&mut replicas);
    assert!(replicas.after_miss() <= SHORTEST);
}

#[test]
fn a_replica_adds_its_address_if_the_endpoint_is_a_name() {
    let shown = |endpoint: &str, address: &str| {
        Replica { endpoint: uri(endpoint), address: address.parse().unwrap() }.to_string()
    };
    assert_eq!(shown("http://127.0.0.1:7600", "127.0.0.1:7600"), "http://127.0.0.1:7600");
    assert_eq!(shown("https://[::1]:7600/", "[::1]:7600"), "https://[::1]:7600");
    assert_eq!(shown("https://damper:7600", "10.0.0.1:7600"), "https://damper:7600 (10.0.0.1:7600)");
}
