//! What one passage through `damper-proxy` costs, compared with Envoy and a bare pass-through of hyper.
//!
//! Both ends are grpc-go (`tests/bench/go`). What a passage adds is the time of a call through it less that
//! of a call without a proxy in the same round.

mod change;
mod pass_through;
mod passages;

use std::time::Duration;

use anyhow::{Context as _, Result};
use damper_tests::spread::Spread;
use serde::{Deserialize, Serialize};

use self::passages::{Proxy, bare};
use super::Size;
use crate::calls;
use crate::figure::{Figure, Row, Target};
use crate::process::Conversation;
use crate::queue::go;
use crate::rounds::pairwise;

pub use pass_through::pass_through;

const IN_FLIGHT: [usize; 3] = [1, 16, 64];
const ENVOY: &str = "Envoy";
const HYPER: &str = "hyper, pass-through";
/// The load under which processor time and memory are measured.
const PER_SECOND: usize = 1_000;
const CONNECTIONS: usize = 100;

/// A load of unary calls.
#[derive(Clone, Debug, Serialize)]
struct Calls {
    address: String,
    connections: usize,
    in_flight: usize,
    milliseconds: u128,
    /// 0: as many as the calls in flight allow.
    per_second: usize,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Called {
    p50_us: f64,
    p99_us: f64,
}

/// The caller.
struct Caller(Conversation);

impl Caller {
    async fn make(&mut self, calls: &Calls) -> Result<Called> {
        let line = self.0.ask(&serde_json::to_string(calls)?, "the calls").await?;
        serde_json::from_str(&line).context(line)
    }
}

pub(super) async fn measure(size: Size) -> Result<(usize, Row)> {
    let rounds = size.pick(1, 9, 31);
    let time = Duration::from_millis(size.pick(100, 700, 1_000));
    let control_plane = calls::control_plane().await?;
    let mut service = go("serve-calls", &[])?;
    let service_address = service.read("the address of the service").await?;
    let threads = std::thread::available_parallelism()?.get();
    let damper = Proxy::damper(control_plane.url(), &service_address).await?;
    let envoy = Proxy::envoy(&service_address, threads).await?;
    let (_bare, bare_address) = bare(&service_address).await?;
    let mut caller = Caller(go("make-calls", &[])?);
    let passages =
        [[service_address.clone()].as_slice(), &damper.addresses, &envoy.addresses, &[bare_address]].concat();
    let mut row = Row::new("proxy", "One passage through damper proxy").note(format!(
        "Unary calls of grpc-go to grpc-go over one connection, {} ms through each passage in a round; caller, proxies and \
         service share the cores. Added is the time through a passage less that without one. Envoy has a static \
         configuration and {threads} threads; Damper is the program `damper-proxy` with one thread, its default.",
        time.as_millis()
    ));
    for in_flight in IN_FLIGHT {
        let mut called = Vec::new();
        for round in 0..rounds {
            let mut of_round = vec![None; passages.len()];
            for place in 0..passages.len() {
                let index = (round + place) % passages.len();
                let (Some(address), Some(of)) = (passages.get(index), of_round.get_mut(index)) else {
                    continue;
                };
                let calls = Calls {
                    address: address.clone(),
                    connections: 1,
                    in_flight,
                    milliseconds: time.as_millis(),
                    per_second: 0,
                };
                *of = Some(caller.make(&calls).await?);
            }
            called.push(of_round.into_iter().flatten().collect::<Vec<_>>());
        }
        row = row.with_all(added(&called, in_flight));
    }
    drop((damper, envoy));
    let row =
        row.with_all(footprint(control_plane.url(), &service_address, &mut caller, threads, size).await?);
    drop(control_plane);
    let row = row.with_all(change::measure(&service_address, size).await?);
    Ok((rounds, row))
}

/// Figures of one number of calls in flight. Passages: none, Damper's without and with a rule, Envoy, hyper.
fn added(called: &[Vec<Called>], in_flight: usize) -> Vec<Figure> {
    let column = |place: usize, of: fn(&Called) -> f64| -> Vec<f64> {
        called.iter().filter_map(|round| round.get(place)).map(of).collect()
    };
    let added = |place, of| -> Vec<f64> {
        pairwise(&column(place, of), &column(0, of), |through, without| through - without).collect()
    };
    let [p50, p99]: [fn(&Called) -> f64; 2] = [|called| called.p50_us, |called| called.p99_us];
    let what = |what: &str| format!("{what}, {in_flight} in flight");
    let direct = Figure::new(what("median of a call without a proxy"), "µs", Spread::of(column(0, p50)));
    vec![
        direct,
        Figure::beside(what("median added, no rule"), "µs", &added(1, p50), ENVOY, &added(3, p50))
            .aim(Target::RatioAtMost(1.0)),
        Figure::beside(what("p99 added, no rule"), "µs", &added(1, p99), ENVOY, &added(3, p99))
            .aim(Target::RatioAtMost(1.0)),
        Figure::beside(what("median added, no rule"), "µs", &added(1, p50), HYPER, &added(4, p50))
            .aim(Target::RatioAtMost(1.1)),
        Figure::beside(
            what("median added, under a rule"),
            "µs",
            &added(2, p50),
            "without a rule",
            &added(1, p50),
        )
        .aim(Target::RatioAtMost(1.1)),
    ]
}

/// What a fresh proxy uses under a steady load.
#[derive(Clone, Copy, Debug)]
struct Used {
    processor: f64,
    memory_mib: f64,
    connection_kib: f64,
}

async fn footprint(
    control_plane: &str,
    service: &str,
    caller: &mut Caller,
    threads: usize,
    size: Size,
) -> Result<Vec<Figure>> {
    let time = Duration::from_secs(size.pick(1, 5, 20));
    let idle = size.pick(CONNECTIONS + 10, 1_100, 5_100);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..size.pick(1, 3, 5) {
        let damper = Proxy::damper(control_plane, service).await?;
        ours.push(used(&damper, caller, time, idle).await?);
        drop(damper);
        let envoy = Proxy::envoy(service, threads).await?;
        theirs.push(used(&envoy, caller, time, idle).await?);
    }
    let compared = |what: String, unit, of: fn(&Used) -> f64| {
        let [ours, theirs] = [&ours, &theirs].map(|all| all.iter().map(of).collect::<Vec<_>>());
        Figure::beside(what, unit, &ours, ENVOY, &theirs)
    };
    let load = format!("{PER_SECOND} requests/s over {CONNECTIONS} connections");
    let processor = || compared(format!("processor time at {load}"), "% of a core", |used| used.processor);
    Ok(vec![
        processor().aim(Target::RatioAtMost(1.0)),
        processor().aim(Target::AtMost(20.0)),
        compared(format!("memory at {load}"), "MiB", |used| used.memory_mib).aim(Target::AtMost(20.0)),
        compared("memory per idle connection".to_owned(), "KiB", |used| used.connection_kib)
            .aim(Target::AtMost(40.0)),
    ])
}

async fn used(proxy: &Proxy, caller: &mut Caller, time: Duration, idle: usize) -> Result<Used> {
    let address = proxy.addresses.first().context("a proxy listens")?.clone();
    let steady = Calls {
        address,
        connections: CONNECTIONS,
        in_flight: CONNECTIONS,
        milliseconds: time.as_millis(),
        per_second: PER_SECOND,
    };
    // Its connections are made before the time begins, so they are made once more before.
    caller.make(&Calls { milliseconds: 100, ..steady.clone() }).await?;
    let before = proxy.usage()?;
    caller.make(&steady).await?;
    let after = proxy.usage()?;
    caller.make(&Calls { connections: idle, in_flight: 1, milliseconds: 100, ..steady }).await?;
    let connected = proxy.usage()?;
    let more = connected.memory_kib.saturating_sub(after.memory_kib) as f64;
    Ok(Used {
        processor: after.processor_since(&before).as_secs_f64() / time.as_secs_f64() * 100.0,
        memory_mib: after.memory_kib as f64 / 1024.0,
        connection_kib: more / (idle - CONNECTIONS) as f64,
    })
}
