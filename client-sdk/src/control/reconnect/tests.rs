//! Rounds, what ends a wait's growth, and what keeps a server from being hammered.

use super::*;

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

/// The next one to ask; names that have no address are passed over, as after a miss.
fn next(replicas: &mut Replicas) -> Replica {
    loop {
        match replicas.turn().unwrap() {
            Turn::Ask(replica) => return replica,
            Turn::LookUp(endpoint) => replicas.found(&endpoint, addresses(&endpoint)),
        }
    }
}

fn of<const N: usize>(endpoints: [&str; N]) -> Replicas {
    Replicas::new(endpoints.iter().map(|endpoint| uri(endpoint)).collect())
}

#[test]
fn every_address_of_every_endpoint_gets_its_turn_before_one_gets_another() {
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
fn who_was_left_is_asked_last() {
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
fn a_round_of_misses_waits_once_at_its_end() {
    let mut replicas = of(["http://a:1", "http://many:1"]);
    for round in 0..20 {
        for _ in 0..3 {
            next(&mut replicas);
            // A name that comes last has not been looked up yet: the round is not over then either.
            assert_eq!(replicas.after_miss(), Duration::ZERO);
        }
        next(&mut replicas);
        assert!(replicas.is_round_over());
        let ceiling = (SHORTEST * 2_u32.pow(round.min(10))).min(LONGEST);
        assert!(replicas.after_miss() <= ceiling);
    }
    assert_eq!(replicas.waits.ceiling, LONGEST);
}

#[test]
fn waits_grow_up_to_the_longest_and_use_their_whole_range() {
    let most = |round: usize| {
        let draws = (0..300).map(|_| {
            let mut waits = Waits::new();
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

#[test]
fn rolling_restarts_never_lengthen_the_wait() {
    // However often: each stream before lasted long enough.
    let mut replicas = of(["http://a:1", "http://b:1"]);
    for _ in 0..1000 {
        next(&mut replicas);
        assert!(replicas.after_stream(FREE_AFTER) <= SHORTEST);
        // The other one is not up yet, nor is the first any more.
        next(&mut replicas);
        next(&mut replicas);
        assert!(replicas.after_miss() <= SHORTEST);
    }
    // Twenty of them 2 s apart are paid by what was saved up.
    let mut replicas = of(["http://a:1", "http://b:1"]);
    for _ in 0..20 {
        next(&mut replicas);
        assert!(replicas.after_stream(Duration::from_secs(2)) <= SHORTEST);
    }
}

#[test]
fn a_server_that_ends_every_stream_at_once_is_asked_ever_more_rarely() {
    let mut replicas = of(["http://a:1"]);
    let mut waits = Vec::new();
    for _ in 0..40 {
        next(&mut replicas);
        waits.push(replicas.after_stream(Duration::ZERO));
    }
    assert_eq!(replicas.waits.ceiling, LONGEST);
    let short = waits.iter().filter(|wait| **wait <= SHORTEST).count();
    // Twelve are paid in advance; of the others only few draws are as short.
    assert!((12..=20).contains(&short), "{short} of {waits:?}");
    // Once one lasts, all is well again.
    assert!(replicas.after_stream(Duration::from_secs(10)) <= SHORTEST);
    assert_eq!(replicas.waits.ceiling, SHORTEST);
}

#[test]
fn streams_that_do_not_last_earn_nothing() {
    let mut replicas = of(["http://a:1"]);
    for _ in 0..100 {
        replicas.after_stream(Duration::from_secs(1));
    }
    assert_eq!((replicas.waits.ceiling, replicas.saved < FREE_AFTER), (LONGEST, true));
    // Longer ones do, up to the most.
    replicas.after_stream(Duration::from_secs(3600));
    assert_eq!(replicas.saved, MOST_SAVED);
}

#[test]
fn who_is_not_let_in_waits_the_longest_at_once() {
    let longest = (0..300).map(|_| of(["http://a:1"]).after_denial()).max().unwrap();
    assert!(longest > LONGEST.mul_f64(0.9), "{longest:?}");
}

#[test]
fn a_replica_names_its_address_only_where_the_endpoint_does_not() {
    let shown = |endpoint: &str, address: &str| {
        Replica { endpoint: uri(endpoint), address: address.parse().unwrap() }.to_string()
    };
    assert_eq!(shown("http://127.0.0.1:7600", "127.0.0.1:7600"), "http://127.0.0.1:7600");
    assert_eq!(shown("https://[::1]:7600/", "[::1]:7600"), "https://[::1]:7600");
    assert_eq!(shown("https://damper:7600", "10.0.0.1:7600"), "https://damper:7600 (10.0.0.1:7600)");
}
