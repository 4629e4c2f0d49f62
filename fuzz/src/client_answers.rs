//! Whatever a callee answers, under any policy: the client layer over a service that answers as the fuzzer says.
//!
//! Checked of every call:
//! - It ends where the callee lets it, and wherever a time limit of the rule holds, whatever the callee does.
//! - It has exactly one fate: fates sum to calls. An answered call is `ok*`, any other is not.
//! - It is sent at most `max_attempts` times and once more transparently; once where nothing is to be repeated.
//! - Each attempt has the same fields, and the same body, whole; a repeat says that it is one.
//! - The application never sees what an answer said to this hop only.
//! - When all calls are over, no byte of a request is kept.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use arbitrary::{Result, Unstructured};
use bytes::Bytes;
use damper_core::chain::{BAGGAGE, CALL_ID, HOP_BY_HOP, PREVIOUS_ATTEMPTS, RETRY};
use damper_core::{Ending, Mode, Policy, Table, deadline};
use damper_sdk::fuzzing::FuzzHarness;
use http::{HeaderMap, Request};
use http_body::Frame;
use tonic::Status;
use tonic::body::Body;

use crate::application::{End, HUNG, Manner, Saw, call};
use crate::peer::{CALL, Peer, Script};
use crate::{any, fields, play};

const CALLEE: &str = "stock";
const METHOD: &str = "a.B/C";
/// What attempts of one call may differ in.
const PER_ATTEMPT: [&str; 4] = [deadline::HEADER, RETRY, PREVIOUS_ATTEMPTS, BAGGAGE];
/// A timer of a paused clock has a millisecond's grain; an attempt may end one and the next begin another.
const GRAIN: Duration = Duration::from_millis(5);

struct Case {
    table: Table,
    external: bool,
    at_once: bool,
    ready: bool,
    calls: Vec<Plan>,
}

struct Plan {
    headers: HeaderMap,
    body: Vec<Bytes>,
    body_stalls: bool,
    manner: Manner,
    script: Script,
    /// Time passes before the call.
    after: Duration,
}

/// Runs one case.
pub fn run(data: &[u8]) {
    if let Ok(case) = case(&mut Unstructured::new(data)) {
        play(case.play());
    }
}

fn case(u: &mut Unstructured<'_>) -> Result<Case> {
    let table = any::table(u, CALLEE, METHOD)?;
    let (external, at_once, ready) = (u.ratio(1, 8)?, u.ratio(1, 3)?, u.ratio(19, 20)?);
    let count = u.int_in_range(1..=6)?;
    let calls = (0..count).map(|_| plan(u)).collect::<Result<_>>()?;
    Ok(Case { table, external, at_once, ready, calls })
}

fn plan(u: &mut Unstructured<'_>) -> Result<Plan> {
    let script = Script::any(u, 4)?;
    let chunks = u.int_in_range(0..=3)?;
    let chunk = |u: &mut Unstructured<'_>| {
        let length = if u.ratio(1, 10)? { u.int_in_range(0..=100_000)? } else { u.int_in_range(0..=9)? };
        Ok(Bytes::from(vec![7; length]))
    };
    Ok(Plan {
        script,
        headers: fields::of_request(u, 4)?,
        body: (0..chunks).map(|_| chunk(u)).collect::<Result<_>>()?,
        body_stalls: u.ratio(1, 20)?,
        manner: Manner::any(u)?,
        after: Duration::from_micros(u.int_in_range(0..=3_000_000)?),
    })
}

impl Case {
    async fn play(self) {
        let Self { table, external, at_once, ready, calls } = self;
        let key =
            damper_core::RouteKey::new("orders", "default", CALLEE, METHOD).expect("names are constants");
        let policy = table.in_force(&key).expect("there is a rule for it").policy().clone();
        let bench = FuzzHarness::new("orders").expect("the name is a constant");
        bench.apply(table);
        let mut scripts = Vec::new();
        let mut told = Vec::new();
        for Plan { headers, body, body_stalls, manner, script, after } in calls {
            let hangs = !ready || body_stalls || script.answers.iter().any(|answer| answer.may_hang());
            scripts.push(script);
            told.push(Told { headers, body, body_stalls, manner, after, hangs });
        }
        let peer = Peer::new(scripts, ready);
        let layer = bench.client_layer(CALLEE).expect("the name is a constant");
        let layer = if external { layer.external() } else { layer };
        let one = async |number: usize, told: &Told| {
            tokio::time::sleep(told.after).await;
            let before = endings(&bench);
            let saw =
                call(&mut layer.layer(peer.clone()), told.request(number), told.manner, told.hangs).await;
            told.check(&policy, &saw);
            if !at_once {
                judge(&before, &endings(&bench), &saw);
            }
        };
        let all = told.iter().enumerate().map(|(number, told)| one(number, told));
        if at_once {
            futures_util::future::join_all(all).await;
        } else {
            for one in all {
                one.await;
            }
        }
        let mut sent = 0;
        for (number, told) in told.iter().enumerate() {
            sent += told.check_attempts(&policy, external, &peer, number);
        }
        check_counters(&bench, told.len() as u64, sent).await;
        assert_eq!(bench.kept_bytes(), 0, "request bytes are kept after the last call");
    }
}

/// What the calls were told, and is left of a plan.
struct Told {
    headers: HeaderMap,
    body: Vec<Bytes>,
    body_stalls: bool,
    manner: Manner,
    after: Duration,
    /// The callee may leave the call without an end.
    hangs: bool,
}

impl Told {
    fn request(&self, number: usize) -> Request<Body> {
        let body = RequestBody { chunks: self.body.clone(), stalls: self.body_stalls };
        let mut request = Request::post(format!("/{METHOD}")).body(Body::new(body)).expect("it is a request");
        *request.headers_mut() = self.headers.clone();
        request.headers_mut().insert(CALL, number.into());
        request
    }

    /// Until when the layer itself ends the call; none where nothing says so.
    fn limit(&self, policy: &Policy) -> Option<Duration> {
        let own = self.headers.get(deadline::HEADER).and_then(|value| deadline::parse(value.as_bytes()));
        let enforced = policy.mode == Mode::Enforce;
        [own, policy.timeout].into_iter().flatten().min().filter(|_| enforced)
    }

    fn check(&self, policy: &Policy, saw: &Saw) {
        for fields in saw.headers.iter().map(|(_, headers)| headers).chain(&saw.trailers) {
            assert!(HOP_BY_HOP.iter().all(|name| !fields.contains_key(*name)), "hop by hop: {fields:?}");
        }
        // After a status in the headers the call is over, and the rest of the body is the callee's.
        let decided = saw
            .headers
            .as_ref()
            .is_some_and(|(http, headers)| *http != 200 || headers.contains_key("grpc-status"));
        let limit = self.limit(policy);
        if saw.end == End::Never {
            let per_attempt = policy.retry.as_ref().and_then(|retry| retry.per_attempt_timeout);
            let alone = per_attempt.filter(|_| policy.mode == Mode::Enforce && !policy.repeats());
            let limited = [limit, alone].into_iter().flatten().any(|limit| limit + GRAIN < HUNG);
            assert!(self.hangs && (decided || !limited), "the call did not end");
        } else if let Some(limit) = limit.filter(|_| !decided) {
            assert!(saw.took <= limit + GRAIN, "{:?} is longer than {limit:?}", saw.took);
        }
    }

    /// So many attempts were sent.
    fn check_attempts(&self, policy: &Policy, external: bool, peer: &Peer, number: usize) -> u64 {
        let seen = peer.seen(number);
        let repeats = policy.mode == Mode::Enforce && policy.repeats();
        let most = if repeats { policy.max_attempts() as usize + 1 } else { 1 };
        assert!(seen.len() <= most, "{} attempts, at most {most} are allowed", seen.len());
        let Some(first) = seen.first() else { return 0 };
        let kept = fields::without(&first.headers, &PER_ATTEMPT);
        let own = fields::without(&self.headers, &[&PER_ATTEMPT[..], &[CALL, CALL_ID]].concat());
        let sent = fields::without(&first.headers, &[&PER_ATTEMPT[..], &[CALL, CALL_ID]].concat());
        assert_eq!(own, sent, "the application's fields");
        assert!(!policy.call_id || policy.mode != Mode::Enforce || first.headers.contains_key(CALL_ID));
        let whole = self.body.concat();
        for attempt in &seen {
            assert_eq!(fields::without(&attempt.headers, &PER_ATTEMPT), kept, "attempts differ");
            assert!(attempt.body.as_ref().is_none_or(|body| *body == whole), "a body was not sent whole");
        }
        let marked = |headers: &HeaderMap| headers.contains_key(RETRY);
        // The first send and its transparent resend, which may come after a hedge.
        let unmarked = seen.iter().filter(|attempt| !marked(&attempt.headers)).count();
        assert!(external || unmarked <= 2, "a repeat does not say so");
        assert!(
            !external || !seen.iter().any(|attempt| marked(&attempt.headers)),
            "the flag left the border"
        );
        seen.len() as u64
    }
}

fn endings(bench: &FuzzHarness) -> BTreeMap<Ending, u64> {
    let mut all = BTreeMap::new();
    bench.for_each_route(|_, _, counters| {
        all.extend(Ending::all().map(|ending| (ending, counters.ended(ending))));
    });
    all
}

/// Exactly one ending was added, and it is the one that the application saw.
fn judge(before: &BTreeMap<Ending, u64>, after: &BTreeMap<Ending, u64>, saw: &Saw) {
    let added = |ending: &Ending| after[ending] - before.get(ending).copied().unwrap_or(0);
    let added: Vec<_> = after.keys().filter(|ending| added(ending) > 0).collect();
    let sum: u64 = after.values().sum::<u64>() - before.values().sum::<u64>();
    assert_eq!((added.len(), sum), (1, 1), "one call, one ending: {added:?}");
    let Some((http, headers)) = saw.headers.as_ref().filter(|_| saw.end == End::Whole) else { return };
    let fate = added[0].fate;
    let by_headers = headers.contains_key("grpc-status");
    match saw.status() {
        _ if *http != 200 && !by_headers => assert!(!fate.is_ok(), "{fate:?} of HTTP {http}"),
        Some(b"0") if by_headers || !saw.error => assert!(fate.is_ok(), "{fate:?}, but it was answered"),
        Some(b"14" | b"13" | b"4") | None => assert!(!fate.is_ok(), "{fate:?} without an answer"),
        _ => {}
    }
}

async fn check_counters(bench: &FuzzHarness, calls: u64, seen: u64) {
    let (mut counted, mut ended, mut attempts) = (0, 0, 0);
    bench.for_each_route(|_, _, counters| {
        counted += counters.calls();
        attempts += counters.attempts();
        ended += Ending::all().map(|ending| counters.ended(ending)).sum::<u64>();
    });
    // A call that is dropped before its first poll was begun all the same.
    assert_eq!((counted, ended), (calls, calls), "fates do not sum to calls");
    // An attempt may be given up before the callee was ready for it.
    assert!(seen <= attempts, "{seen} attempts reached the callee, {attempts} were counted");
    for report in bench.report().await {
        assert!(report.routes.iter().all(|route| route.calls == calls));
    }
}

/// A request's body; gives its chunks at once.
struct RequestBody {
    chunks: Vec<Bytes>,
    stalls: bool,
}

impl http_body::Body for RequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, Status>>> {
        match self.chunks.is_empty() {
            true if self.stalls => Poll::Pending,
            true => Poll::Ready(None),
            false => Poll::Ready(Some(Ok(Frame::data(self.chunks.remove(0))))),
        }
    }
}
