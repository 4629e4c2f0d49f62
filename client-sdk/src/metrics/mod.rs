//! Metrics of calls, attempts and fates, through the [`metrics`](https://docs.rs/metrics) facade.
//!
//! With the cargo feature `metrics` of this crate (off by default) the recorder of the process receives the
//! series below. Without the feature the code is not linked and has no cost. Names and labels follow gRFC A66
//! and A96 where defined there; additional ones begin with `damper.`.
//!
//! **Counters** are those of the engine, exported every 5 s and at [shutdown](crate::Damper::shutdown), never
//! within a call. Counters of calls have the labels `grpc.method` and `grpc.target`. At most 1,000 methods
//! are distinguished, further ones are `_OTHER`.
//!
//! | counter | further labels | counts |
//! |---|---|---|
//! | [`damper.calls`](CALLS) | `fate`, `would` | calls that ended, each with exactly one fate |
//! | [`damper.calls.started`](CALLS_STARTED) | | calls begun; the difference is in flight |
//! | [`grpc.client.attempt.started`](ATTEMPTS_STARTED) | | attempts of any kind |
//! | [`grpc.client.call.retries`](RETRIES) | | retries: attempts after a failed one |
//! | [`grpc.client.call.hedges`](HEDGES) | | hedges: attempts while an earlier one is in flight |
//! | [`grpc.client.call.transparent_retries`](TRANSPARENT_RETRIES) | | resends of requests that no server has processed |
//! | [`damper.attempts`](ATTEMPTS) | `grpc.status` | attempts that ended; one dropped in favour of another is not counted |
//! | [`damper.would_hedges`](WOULD_HEDGES) | | hedges that observe mode would have sent |
//! | [`damper.no_context_calls`](NO_CONTEXT_CALLS) | | calls outside of requests, in a process that serves |
//! | [`damper.outer_loop_calls`](OUTER_LOOP_CALLS) | | calls repeated by a loop of the caller, or its gRPC client |
//! | [`damper.server.first_sends`](SERVER_FIRST_SENDS) | | requests served that were no retries |
//! | [`damper.server.repeats`](SERVER_REPEATS) | `source`: `damper`, `grpc`, `envoy` | retries received |
//! | [`damper.server.shed_repeats`](SERVER_SHED_REPEATS) | | retries that the callee's retry limit rejected |
//! | [`damper.server.would_shed_repeats`](SERVER_WOULD_SHED_REPEATS) | | retries that an observed limit would have rejected |
//!
//! With the feature `queue`, [`damper.hand_overs`](HAND_OVERS) counts the failed calls of the process that
//! were to become jobs, with the label `result`: `accepted`, `failed`, or `orphan`, a failed one whose job may
//! run all the same.
//!
//! Counters of the server layer only have the label `grpc.method`. A counter with a further label appears
//! with its first value, as do `would_hedges` and the two after it.
//!
//! **Gauges** of callees with a [balanced](crate::balanced) channel, or behind `damper proxy`, have the label
//! `grpc.target`.
//!
//! | gauge | further labels | shows |
//! |---|---|---|
//! | [`damper.endpoints`](ENDPOINTS) | `state`: `connected`, `ejected`, `not_connected` | endpoints |
//! | [`damper.endpoint_connections`](ENDPOINT_CONNECTIONS) | | open connections to all endpoints |
//!
//! **Histograms**, in seconds, have the label `grpc.target`, and `grpc.method` with
//! `Options::histograms_per_route`, which adds some dozen series per route and process.
//!
//! | histogram | records |
//! |---|---|
//! | [`damper.call.duration`](CALL_DURATION) | each call, from its first attempt to the end of its response |
//! | [`grpc.client.attempt.duration`](ATTEMPT_DURATION) | each attempt, including dropped ones |
//! | [`grpc.client.call.retry_delay`](RETRY_DELAY) | time that a call waited without an attempt in flight, for calls that waited |
//!
//! Differences from the gRFCs: `grpc.target` is the callee's service name as given to the client layer, not
//! the channel's URI, which the layer cannot see. All series use it, so they can be joined. A96's retries,
//! hedges and transparent retries are histograms per call; these counters are their sums.
//! `grpc.client.attempt.duration` has no `grpc.status`; `damper.attempts` has the codes.
//!
//! # Coming from Resilience4j
//!
//! Its four counters are sums of `damper.calls`. As there, the reason for which a failed call ended decides
//! its class, not the number of its attempts.
//!
//! | Resilience4j | fates |
//! |---|---|
//! | successful without retry | `ok` |
//! | successful with retry | `ok_after_retry`, `ok_by_hedge` |
//! | failed with retry | `attempts_exhausted` |
//! | failed without retry | `not_retryable`, `policy_off`, `retry_breaker`, `budget`, `deadline`, `max_duration`, `pushback`, `chain_retry_flag`, `chain_no_more_retry`, `stop_when`, `circuit_open`, `killed`, `not_replayable`, `committed`, `cancelled`, `retry`, and every fate of observe mode (`would` is `true`) |

#[cfg(feature = "metrics")]
mod histograms;
#[cfg(not(feature = "metrics"))]
mod without;

#[cfg(feature = "metrics")]
pub(crate) use histograms::{AttemptTimes, CallTimes, Detail, OfCallee};
#[cfg(not(feature = "metrics"))]
pub(crate) use without::{AttemptTimes, CallTimes, Detail, OfCallee};

/// Counter: calls that ended, by `fate` and `would`.
pub const CALLS: &str = "damper.calls";
/// Counter: calls begun.
pub const CALLS_STARTED: &str = "damper.calls.started";
/// Counter: attempts of any kind, as in gRFC A66.
pub const ATTEMPTS_STARTED: &str = "grpc.client.attempt.started";
/// Counter: attempts after a failed one; the sum of gRFC A96's histogram.
pub const RETRIES: &str = "grpc.client.call.retries";
/// Counter: attempts while an earlier one is in flight; the sum of gRFC A96's histogram.
pub const HEDGES: &str = "grpc.client.call.hedges";
/// Counter: resends of requests that no server has processed; the sum of gRFC A96's histogram.
pub const TRANSPARENT_RETRIES: &str = "grpc.client.call.transparent_retries";
/// Counter: attempts that ended, by `grpc.status`.
pub const ATTEMPTS: &str = "damper.attempts";
/// Counter: hedges that observe mode would have sent.
pub const WOULD_HEDGES: &str = "damper.would_hedges";
/// Counter: calls without a request context, in a process that serves requests.
pub const NO_CONTEXT_CALLS: &str = "damper.no_context_calls";
/// Counter: calls repeated after the route had failed in the same request.
pub const OUTER_LOOP_CALLS: &str = "damper.outer_loop_calls";
/// Counter: requests served that were no retries.
pub const SERVER_FIRST_SENDS: &str = "damper.server.first_sends";
/// Counter: retries received, by `source`.
pub const SERVER_REPEATS: &str = "damper.server.repeats";
/// Counter: retries that the callee's retry limit rejected.
pub const SERVER_SHED_REPEATS: &str = "damper.server.shed_repeats";
/// Counter: retries that the callee's retry limit would have rejected, in observe mode.
pub const SERVER_WOULD_SHED_REPEATS: &str = "damper.server.would_shed_repeats";
/// Counter: failed calls that were to become jobs, by `result`.
pub const HAND_OVERS: &str = "damper.hand_overs";
/// Gauge: endpoints of a callee, by `state`.
pub const ENDPOINTS: &str = "damper.endpoints";
/// Gauge: open connections to the endpoints of a callee.
pub const ENDPOINT_CONNECTIONS: &str = "damper.endpoint_connections";
/// Histogram: seconds from a call's first attempt to the end of its response.
pub const CALL_DURATION: &str = "damper.call.duration";
/// Histogram: seconds from sending an attempt to its end, as in gRFC A66.
pub const ATTEMPT_DURATION: &str = "grpc.client.attempt.duration";
/// Histogram: seconds that a call waited without an attempt in flight, as in gRFC A96.
pub const RETRY_DELAY: &str = "grpc.client.call.retry_delay";

/// Label: `package.Service/Method`.
pub const METHOD_LABEL: &str = "grpc.method";
/// Label: the callee's service name.
pub const TARGET_LABEL: &str = "grpc.target";
/// Label: name of a gRPC code, such as `DEADLINE_EXCEEDED`.
pub const STATUS_LABEL: &str = "grpc.status";
/// Label: name of a fate.
pub const FATE_LABEL: &str = "fate";
/// Label: `true` for a fate of observe mode.
pub const WOULD_LABEL: &str = "would";
/// Label: which software sent a retry.
pub const SOURCE_LABEL: &str = "source";
/// Label: state of an endpoint.
pub const STATE_LABEL: &str = "state";
/// Label: result of a hand-over.
pub const RESULT_LABEL: &str = "result";
