//! Hands the engine's counters to the recorder.
//!
//! Each time all of it is said anew and nothing is remembered: so a recorder that is installed late gets
//! everything, and one that drops idle series keeps them. At most 1,000 routes make that some milliseconds;
//! in between the runtime, which is the application's, gets its turn.

use std::sync::Arc;
use std::time::Duration;

use ::metrics::{Label, SharedString, Unit};
use damper_core::chain::Repeater;
use damper_core::repeat_limit::Served;
use damper_core::{Code, Counters, Ending};

use super::*;
use crate::routes::Runtime;
use crate::turns::Turns;

/// How often.
pub(crate) const INTERVAL: Duration = Duration::from_secs(5);

/// Hands over everything.
pub(crate) async fn publish(engine: &Runtime) {
    describe();
    let mut turns = Turns::default();
    for callee in engine.callees() {
        callee.histograms().take_again();
        let target: Arc<str> = callee.name().into();
        for (method, route) in callee.routes() {
            let labels = [(METHOD_LABEL, method.into()), (TARGET_LABEL, Arc::clone(&target).into())];
            publish_route(&Series(labels.map(into_label).into()), &route.state().counters);
            turns.done().await;
        }
    }
    for (method, served) in engine.methods().all() {
        publish_served(&Series(vec![into_label((METHOD_LABEL, method.into()))]), &served);
        turns.done().await;
    }
}

/// The labels that some counters have in common.
struct Series(Vec<Label>);

impl Series {
    fn say<const N: usize>(
        &self,
        name: &'static str,
        further: [(&'static str, &'static str); N],
        value: u64,
    ) {
        let further = further.into_iter().map(|(label, value)| Label::from_static_parts(label, value));
        let labels: Vec<_> = self.0.iter().cloned().chain(further).collect();
        ::metrics::counter!(target: "damper", name, labels).absolute(value);
    }

    /// Once there is something to say.
    fn say_any<const N: usize>(
        &self,
        name: &'static str,
        further: [(&'static str, &'static str); N],
        value: u64,
    ) {
        if value > 0 {
            self.say(name, further, value);
        }
    }
}

fn into_label((label, value): (&'static str, SharedString)) -> Label {
    Label::new(label, value)
}

/// What ended before what began: calls go on meanwhile, and no more may have ended than begun.
fn publish_route(route: &Series, counters: &Counters) {
    for ending in Ending::all() {
        let would = if ending.would { "true" } else { "false" };
        let labels = [(FATE_LABEL, ending.fate.name()), (WOULD_LABEL, would)];
        route.say_any(CALLS, labels, counters.ended(ending));
    }
    for code in Code::ALL {
        route.say_any(ATTEMPTS, [(STATUS_LABEL, code.name())], counters.code(code));
    }
    route.say(RETRIES, [], counters.retries());
    route.say(HEDGES, [], counters.hedges());
    route.say(TRANSPARENT_RETRIES, [], counters.transparent_resends());
    route.say(ATTEMPTS_STARTED, [], counters.attempts());
    route.say_any(WOULD_HEDGES, [], counters.would_hedges());
    route.say_any(NO_CONTEXT_CALLS, [], counters.without_context());
    route.say_any(OUTER_LOOP_CALLS, [], counters.outer_loop_calls());
    route.say(CALLS_STARTED, [], counters.calls());
}

fn publish_served(method: &Series, served: &Served) {
    for repeater in Repeater::ALL {
        let source = match repeater {
            Repeater::Damper => "damper",
            Repeater::Grpc => "grpc",
            Repeater::Envoy => "envoy",
        };
        method.say_any(SERVER_REPEATS, [(SOURCE_LABEL, source)], served.repeats(repeater));
    }
    method.say(SERVER_FIRST_SENDS, [], served.first_sends());
    method.say(SERVER_SHED_REPEATS, [], served.shed());
    method.say(SERVER_WOULD_SHED_REPEATS, [], served.would_be_shed());
}

fn describe() {
    for (name, text) in [
        (CALLS, "Calls that ended, by fate"),
        (CALLS_STARTED, "Calls begun"),
        (ATTEMPTS_STARTED, "Sends of any kind"),
        (RETRIES, "Sends after a failure"),
        (HEDGES, "Sends beside an attempt that took long"),
        (TRANSPARENT_RETRIES, "Sends that the server had not seen before"),
        (ATTEMPTS, "Attempts that ended, by gRPC code"),
        (WOULD_HEDGES, "Hedges that observe mode would have sent"),
        (NO_CONTEXT_CALLS, "Calls outside any request's context, in a process that serves requests"),
        (OUTER_LOOP_CALLS, "Calls made again after the route had failed in the same request"),
        (SERVER_FIRST_SENDS, "Requests that were no repeats"),
        (SERVER_REPEATS, "Requests that their sender repeated, by who did"),
        (SERVER_SHED_REPEATS, "Repeats that a repeat limit refused"),
        (SERVER_WOULD_SHED_REPEATS, "Repeats that an observed repeat limit would have refused"),
    ] {
        ::metrics::describe_counter!(name, Unit::Count, text);
    }
    for (name, text) in [
        (CALL_DURATION, "From a call's first send to the end of its answer"),
        (ATTEMPT_DURATION, "From an attempt's send to its end"),
        (RETRY_DELAY, "Time that a call waited without an attempt under way"),
    ] {
        ::metrics::describe_histogram!(name, Unit::Seconds, text);
    }
}
