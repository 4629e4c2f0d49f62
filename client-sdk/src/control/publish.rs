//! Exports the engine's counters to the recorder.
//!
//! Each export sends all values and keeps no state: a recorder that is installed late receives everything,
//! and one that drops idle series keeps them. With at most 1,000 routes this takes a few milliseconds; it
//! yields to the application's runtime in between.

use std::sync::Arc;
use std::time::Duration;

use ::metrics::{Label, SharedString, Unit};
use damper_core::chain::Repeater;
use damper_core::repeat_limit::Served;
use damper_core::{Code, Counters, Ending};

use super::Stop;
use crate::background::turns::Turns;
use crate::balance::States;
use crate::metrics::*;
use crate::routes::Runtime;

/// Interval between exports.
const INTERVAL: Duration = Duration::from_secs(5);

/// Exports until stopped, and once at the end.
pub(super) async fn run(engine: &Runtime, mut stop: Stop) {
    let mut is_ending = false;
    while !is_ending {
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            () = stop.stopped() => is_ending = true,
        }
        publish(engine).await;
    }
}

/// Exports all counters.
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
        if let Some(states) = callee.channels().states() {
            publish_endpoints(&target, states);
        }
    }
    #[cfg(feature = "queue")]
    publish_hand_overs(engine);
    for (method, served) in engine.methods().all() {
        publish_served(&Series(vec![into_label((METHOD_LABEL, method.into()))]), &served);
        turns.done().await;
    }
}

/// Labels that several counters share.
struct Series(Vec<Label>);

impl Series {
    fn export<const N: usize>(
        &self,
        name: &'static str,
        further: [(&'static str, &'static str); N],
        value: u64,
    ) {
        let further = further.into_iter().map(|(label, value)| Label::from_static_parts(label, value));
        let labels: Vec<_> = self.0.iter().cloned().chain(further).collect();
        ::metrics::counter!(target: "damper", name, labels).absolute(value);
    }

    /// Exports a value unless it is zero.
    fn export_nonzero<const N: usize>(
        &self,
        name: &'static str,
        further: [(&'static str, &'static str); N],
        value: u64,
    ) {
        if value > 0 {
            self.export(name, further, value);
        }
    }
}

fn into_label((label, value): (&'static str, SharedString)) -> Label {
    Label::new(label, value)
}

/// Exports ends before starts: calls continue meanwhile, and no more may have ended than started.
fn publish_route(route: &Series, counters: &Counters) {
    for ending in Ending::all() {
        let would = if ending.would { "true" } else { "false" };
        let labels = [(FATE_LABEL, ending.fate.name()), (WOULD_LABEL, would)];
        route.export_nonzero(CALLS, labels, counters.ended(ending));
    }
    for code in Code::ALL {
        route.export_nonzero(ATTEMPTS, [(STATUS_LABEL, code.name())], counters.code(code));
    }
    route.export(RETRIES, [], counters.retries());
    route.export(HEDGES, [], counters.hedges());
    route.export(TRANSPARENT_RETRIES, [], counters.transparent_resends());
    route.export(ATTEMPTS_STARTED, [], counters.attempts());
    route.export_nonzero(WOULD_HEDGES, [], counters.would_hedges());
    route.export_nonzero(NO_CONTEXT_CALLS, [], counters.without_context());
    route.export_nonzero(OUTER_LOOP_CALLS, [], counters.outer_loop_calls());
    route.export(CALLS_STARTED, [], counters.calls());
}

fn publish_served(method: &Series, served: &Served) {
    for repeater in Repeater::ALL {
        let source = match repeater {
            Repeater::Damper => "damper",
            Repeater::Grpc => "grpc",
            Repeater::Envoy => "envoy",
        };
        method.export_nonzero(SERVER_REPEATS, [(SOURCE_LABEL, source)], served.repeats(repeater));
    }
    method.export(SERVER_FIRST_SENDS, [], served.first_sends());
    method.export(SERVER_SHED_REPEATS, [], served.shed());
    method.export(SERVER_WOULD_SHED_REPEATS, [], served.would_be_shed());
}

fn publish_endpoints(target: &Arc<str>, states: States) {
    let States { connected, ejected, not_connected, connections } = states;
    let gauge = |name, further: &[(&'static str, &'static str)], value: usize| {
        let further = further.iter().map(|(label, value)| Label::from_static_parts(label, value));
        let target = into_label((TARGET_LABEL, Arc::clone(target).into()));
        let labels: Vec<_> = [target].into_iter().chain(further).collect();
        ::metrics::gauge!(target: "damper", name, labels).set(value as f64);
    };
    for (state, value) in [("connected", connected), ("ejected", ejected), ("not_connected", not_connected)] {
        gauge(ENDPOINTS, &[(STATE_LABEL, state)], value);
    }
    gauge(ENDPOINT_CONNECTIONS, &[], connections);
}

#[cfg(feature = "queue")]
fn publish_hand_overs(engine: &Runtime) {
    let process = Series(Vec::new());
    for (result, value) in ["accepted", "failed", "orphan"].into_iter().zip(engine.hand_overs().read()) {
        process.export_nonzero(HAND_OVERS, [(RESULT_LABEL, result)], value);
    }
}

fn describe() {
    for (name, text) in [
        (CALLS, "Calls that ended, by fate"),
        (CALLS_STARTED, "Calls begun"),
        (ATTEMPTS_STARTED, "Attempts of any kind"),
        (RETRIES, "Attempts after a failed one"),
        (HEDGES, "Attempts while an earlier one is in flight"),
        (TRANSPARENT_RETRIES, "Resends of requests that no server has processed"),
        (ATTEMPTS, "Attempts that ended, by gRPC code"),
        (WOULD_HEDGES, "Hedges that observe mode would have sent"),
        (NO_CONTEXT_CALLS, "Calls without a request context, in a process that serves requests"),
        (OUTER_LOOP_CALLS, "Calls repeated by a loop of the caller, or its gRPC client"),
        (HAND_OVERS, "Failed calls that were to become jobs, by result"),
        (SERVER_FIRST_SENDS, "Requests served that were no retries"),
        (SERVER_REPEATS, "Retries received, by source"),
        (SERVER_SHED_REPEATS, "Retries that the callee's retry limit rejected"),
        (
            SERVER_WOULD_SHED_REPEATS,
            "Retries that the callee's retry limit would have rejected, in observe mode",
        ),
    ] {
        ::metrics::describe_counter!(name, Unit::Count, text);
    }
    for (name, text) in [
        (ENDPOINTS, "Endpoints of a callee, by state"),
        (ENDPOINT_CONNECTIONS, "Open connections to the endpoints of a callee"),
    ] {
        ::metrics::describe_gauge!(name, Unit::Count, text);
    }
    for (name, text) in [
        (CALL_DURATION, "From a call's first attempt to the end of its response"),
        (ATTEMPT_DURATION, "From sending an attempt to its end"),
        (RETRY_DELAY, "Time that a call waited without an attempt in flight"),
    ] {
        ::metrics::describe_histogram!(name, Unit::Seconds, text);
    }
}
