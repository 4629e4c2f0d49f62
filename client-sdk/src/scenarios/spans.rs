//! Spans of calls as a subscriber receives them: which exist, their fields, and their end on every path.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{LazyLock, Mutex, MutexGuard};

use damper_core::{CircuitBreaker, Code, CodeSet, Hedge, HedgeDelay};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Dispatch, Event, Span, Subscriber};
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;

use super::peer::{Peer, Reply, ScriptedBody, after, begun, data, ok, trailers_only, unavailable};
use super::*;

/// A recorded span.
#[derive(Clone, Debug, Default)]
struct Recorded {
    name: &'static str,
    /// Index of its parent.
    parent: Option<usize>,
    fields: BTreeMap<&'static str, String>,
    is_closed: bool,
}

impl Visit for Recorded {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.fields.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name(), value.to_owned());
    }
}

impl Recorded {
    fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("-", String::as_str)
    }

    /// The fields that most tests check: a call's fate, or an attempt's number and kind; code; whether an
    /// error.
    fn line(&self) -> String {
        let end = format!("{} {}", self.field("rpc.grpc.status_code"), self.field("otel.status_code"));
        match self.parent {
            None => format!("{} in {} {end}", self.field("damper.fate"), self.field("damper.attempts")),
            Some(parent) => format!(
                "{parent}: {} {} {end}",
                self.field("damper.attempt"),
                self.field("damper.attempt_kind")
            ),
        }
    }
}

/// Every span in order of creation, and every event.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<(u64, Recorded)>>>, Arc<Mutex<Vec<Recorded>>>);

impl Spans {
    /// Records the spans of this thread until the guard is dropped.
    fn listen() -> (Self, DefaultGuard) {
        // With a single subscriber in the process, a thread without one that reaches a span first would
        // disable it for all threads.
        static ANOTHER: LazyLock<Dispatch> = LazyLock::new(|| tracing_subscriber::registry().into());
        LazyLock::force(&ANOTHER);
        let spans = Self::default();
        let guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(spans.clone()));
        (spans, guard)
    }

    fn all(&self) -> MutexGuard<'_, Vec<(u64, Recorded)>> {
        self.0.lock().unwrap()
    }

    fn recorded(&self) -> Vec<Recorded> {
        self.all().iter().map(|(_, recorded)| recorded.clone()).collect()
    }

    /// The log, one line per event.
    fn log(&self) -> Vec<String> {
        let line = |recorded: &Recorded| {
            let fields =
                ["message", "callee", "kind", "after", "fate", "code"].map(|name| recorded.field(name));
            fields.join(" ")
        };
        self.1.lock().unwrap().iter().map(line).collect()
    }

    /// Checks that all spans have ended like this.
    #[track_caller]
    fn are(&self, expected: &[&str]) {
        let recorded = self.recorded();
        assert!(recorded.iter().all(|span| span.is_closed), "{recorded:#?}");
        assert_eq!(recorded.iter().map(Recorded::line).collect::<Vec<_>>(), expected);
    }
}

impl<S> tracing_subscriber::Layer<S> for Spans
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let metadata = attributes.metadata();
        if metadata.target() != "damper" {
            return;
        }
        let parent = context.span(id).and_then(|span| span.parent()).map(|parent| parent.id().into_u64());
        let mut all = self.all();
        let parent = parent.and_then(|parent| all.iter().rposition(|(id, _)| *id == parent));
        let mut recorded = Recorded { name: metadata.name(), parent, ..Recorded::default() };
        attributes.record(&mut recorded);
        all.push((id.into_u64(), recorded));
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() == "damper" {
            let mut recorded = Recorded { name: "event", is_closed: true, ..Recorded::default() };
            event.record(&mut recorded);
            self.1.lock().unwrap().push(recorded);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        if let Some((_, recorded)) =
            self.all().iter_mut().rev().find(|(recorded, _)| *recorded == id.into_u64())
        {
            values.record(recorded);
        }
    }

    fn on_close(&self, id: Id, _: Context<'_, S>) {
        if let Some((_, recorded)) =
            self.all().iter_mut().rev().find(|(recorded, _)| *recorded == id.into_u64())
        {
            recorded.is_closed = true;
        }
    }
}

fn hedged() -> Policy {
    let hedge = Hedge { delay: HedgeDelay::Fixed(ms(50)), max_hedges: 1 };
    Policy { retry: None, hedge: Some(hedge), ..enforce() }
}

/// Makes a call under a policy and returns its spans.
async fn play(policy: impl Into<Option<Policy>>, script: impl IntoIterator<Item = Reply>) -> Spans {
    let (spans, _listening) = Spans::listen();
    call(&mut governed(&engine(policy), Peer::new(script)), request()).await.unwrap();
    spans
}

/// Makes a call that the application drops after a time.
async fn play_and_drop(policy: Policy, after: Duration, request: Request<Body>, reply: Reply) -> Spans {
    let (spans, _listening) = Spans::listen();
    let mut service = governed(&engine(policy), Peer::new([reply]));
    assert!(tokio::time::timeout(after, call(&mut service, request)).await.is_err());
    spans
}

#[tokio::test(start_paused = true)]
async fn a_call_and_each_attempt_say_what_they_are() {
    let spans = play(enforce(), [unavailable(), ok()]).await;
    spans.are(&["ok_after_retry in 2 0 -", "0: 1 first 14 ERROR", "0: 2 retry 0 -"]);
    let recorded = spans.recorded();
    fn fields<'a, const N: usize>(span: &'a Recorded, names: [&str; N]) -> [&'a str; N] {
        names.map(|name| span.field(name))
    }
    let shared = ["rpc.system", "rpc.service", "rpc.method", "peer.service"];
    for span in &recorded {
        assert_eq!(fields(span, shared), ["grpc", "inventory.v1.Inventory", "Reserve", "inventory"]);
    }
    let [call, first, second] = recorded.as_slice() else { panic!("three spans") };
    assert_eq!((call.name, first.name), ("grpc.client.call", "grpc.client.attempt"));
    assert_eq!(
        fields(call, ["otel.name", "otel.kind", "damper.rule", "damper.revision"]),
        ["Sent.inventory.v1.Inventory.Reserve", "internal", "* * * *", "1"]
    );
    let attempt = ["otel.name", "otel.kind", "previous-rpc-attempts", "transparent-retry"];
    assert_eq!(fields(first, attempt), ["Attempt.inventory.v1.Inventory.Reserve", "client", "0", "false"]);
    assert_eq!(fields(second, attempt), ["Attempt.inventory.v1.Inventory.Reserve", "client", "1", "false"]);
}

#[tokio::test(start_paused = true)]
async fn each_repeat_and_each_failed_call_is_one_event() {
    let spans = play(enforce(), [unavailable(), ok()]).await;
    assert_eq!(spans.log(), ["extra attempt inventory retry UNAVAILABLE - -"]);
    let spans = play(hedged(), [Reply::Hang, after(20, ok())]).await;
    assert_eq!(spans.log(), ["extra attempt inventory hedge - - -"]);
    let once = with_retry(|retry| retry.max_attempts = 2);
    let spans = play(once, [unavailable(), unavailable()]).await;
    let repeat = "extra attempt inventory retry UNAVAILABLE - -";
    assert_eq!(spans.log(), [repeat, "call failed inventory - - attempts_exhausted UNAVAILABLE"]);
    let spans = play(observe(), [unavailable()]).await;
    assert_eq!(spans.log(), ["call failed inventory - - would_retry UNAVAILABLE"]);
    for silent in [play(enforce(), [ok()]).await, play(None, [unavailable()]).await] {
        assert!(silent.log().is_empty(), "{:?}", silent.log());
    }
}

#[tokio::test(start_paused = true)]
async fn a_loser_is_cancelled_and_no_error() {
    let spans = play(hedged(), [Reply::Hang, after(20, ok())]).await;
    spans.are(&["ok_by_hedge in 2 0 -", "0: 1 first 1 -", "0: 2 hedge 0 -"]);
    let spans = play(hedged(), [after(60, ok()), Reply::Hang]).await;
    spans.are(&["ok in 2 0 -", "0: 1 first 0 -", "0: 2 hedge 1 -"]);
}

#[tokio::test(start_paused = true)]
async fn a_transparent_resend_is_an_attempt_of_the_same_number() {
    let refused = Reply::Error(h2::Error::from(h2::Reason::REFUSED_STREAM).into());
    let spans = play(enforce(), [refused, ok()]).await;
    spans.are(&["ok in 2 0 -", "0: 1 first 14 ERROR", "0: 1 transparent_resend 0 -"]);
    assert_eq!(spans.recorded()[2].field("transparent-retry"), "true");
}

#[tokio::test(start_paused = true)]
async fn an_attempt_whose_time_is_over_exceeded_its_deadline() {
    let policy = with_retry(|retry| {
        retry.per_attempt_timeout = Some(ms(30));
        retry.codes = CodeSet::from_iter([Code::DeadlineExceeded]);
    });
    // A timer elsewhere ends the second and reports a cancellation; the third ends in its body.
    let cancelled = after(28, trailers_only(&[("grpc-status", "1")]));
    let stalling = begun(ScriptedBody::stalling([data("wor")]));
    let spans = play(policy, [Reply::Hang, cancelled, stalling]).await;
    spans.are(&["committed in 3 4 ERROR", "0: 1 first 4 ERROR", "0: 2 retry 4 ERROR", "0: 3 retry 4 ERROR"]);
}

#[tokio::test(start_paused = true)]
async fn the_deadline_ends_every_attempt() {
    let policy = Policy { timeout: Some(ms(120)), ..hedged() };
    let spans = play(policy, [Reply::Hang, Reply::Hang]).await;
    spans.are(&["deadline in 2 4 ERROR", "0: 1 first 4 ERROR", "0: 2 hedge 4 ERROR"]);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_call_is_cancelled_with_its_attempt() {
    for reply in [Reply::Hang, begun(ScriptedBody::stalling([data("wor")]))] {
        let spans = play_and_drop(enforce(), ms(20), request(), reply).await;
        spans.are(&["cancelled in 1 1 -", "0: 1 first 1 -"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_dropped_by_a_timer_of_its_deadline_exceeded_it() {
    for reply in [Reply::Hang, begun(ScriptedBody::stalling([data("wor")]))] {
        let mut request = request();
        request.headers_mut().insert("grpc-timeout", "50m".parse().unwrap());
        let spans = play_and_drop(enforce(), ms(48), request, reply).await;
        spans.are(&["deadline in 1 4 ERROR", "0: 1 first 4 ERROR"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_dropped_while_it_waits_leaves_no_attempt_open() {
    let spans = play_and_drop(enforce(), ms(5), request(), unavailable()).await;
    spans.are(&["cancelled in 1 1 -", "0: 1 first 14 ERROR"]);
}

#[tokio::test(start_paused = true)]
async fn an_open_circuit_is_a_call_without_attempts() {
    let circuit_breaker = Some(CircuitBreaker::default());
    let engine = engine(Policy { circuit_breaker, retry: None, ..enforce() });
    let mut service = governed(&engine, Peer::new([(); 5].map(|()| unavailable())));
    for _ in 0..5 {
        call(&mut service, request()).await.unwrap();
    }
    let (spans, _listening) = Spans::listen();
    call(&mut service, request()).await.unwrap();
    spans.are(&["circuit_open in 0 14 ERROR"]);
}

#[tokio::test(start_paused = true)]
async fn observed_calls_say_what_would_have_been() {
    play(observe(), [unavailable()]).await.are(&["would_retry in 1 14 ERROR", "0: 1 first 14 ERROR"]);
}

#[tokio::test(start_paused = true)]
async fn without_a_rule_or_with_one_that_is_off_there_are_no_spans() {
    play(None, [unavailable()]).await.are(&[]);
    play(Policy { mode: Mode::Off, ..enforce() }, [unavailable()]).await.are(&[]);
}

#[tokio::test(start_paused = true)]
async fn the_callee_runs_inside_the_span_of_its_attempt() {
    let (spans, _listening) = Spans::listen();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let see = Arc::clone(&seen);
    let peer = Peer::new([unavailable(), ok()]);
    let inner = tower::service_fn(move |request| {
        let (see, mut peer) = (Arc::clone(&see), peer.clone());
        see.lock().unwrap().push(Span::current().id().map(|id| id.into_u64()));
        async move {
            tokio::task::yield_now().await;
            see.lock().unwrap().push(Span::current().id().map(|id| id.into_u64()));
            peer.call(request).await
        }
    });
    call(&mut governed(&engine(enforce()), inner), request()).await.unwrap();
    let attempts: Vec<_> = spans.all().iter().skip(1).flat_map(|(id, _)| [Some(*id); 2]).collect();
    assert_eq!((attempts.len(), attempts), (4, seen.lock().unwrap().clone()));
    assert_eq!(Span::current().id(), None, "no span is left entered");
}
