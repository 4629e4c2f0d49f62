//! Metrics of calls, attempts and fates, through the [`metrics`](https://docs.rs/metrics) facade.
//!
//! With the cargo feature `metrics` of this crate (off by default) whatever recorder the process installs gets
//! the series below; without the feature nothing of it is linked and no call pays for it. Names and labels are
//! those of gRFC A66 and A96 where they have one for the thing; ours begin with `damper.`.
//!
//! **Counters** are the engine's own, handed to the recorder every 5 s and at
//! [shutdown](crate::Damper::shutdown), never on the path of a call. Those of calls have the labels
//! `grpc.method` and `grpc.target`. At most 1,000 methods are told apart, further ones are `_OTHER`.
//!
//! | counter | further labels | counts |
//! |---|---|---|
//! | [`damper.calls`](CALLS) | `fate`, `would` | calls that ended, each by exactly one fate |
//! | [`damper.calls.started`](CALLS_STARTED) | | calls begun; those under way are the difference |
//! | [`grpc.client.attempt.started`](ATTEMPTS_STARTED) | | sends of any kind |
//! | [`grpc.client.call.retries`](RETRIES) | | sends after a failure |
//! | [`grpc.client.call.hedges`](HEDGES) | | sends beside an attempt that took long |
//! | [`grpc.client.call.transparent_retries`](TRANSPARENT_RETRIES) | | sends that the server had not seen before |
//! | [`damper.attempts`](ATTEMPTS) | `grpc.status` | attempts that ended; one given up for another is not counted |
//! | [`damper.would_hedges`](WOULD_HEDGES) | | hedges that observe mode would have sent |
//! | [`damper.no_context_calls`](NO_CONTEXT_CALLS) | | calls outside any request's context, in a process that serves |
//! | [`damper.outer_loop_calls`](OUTER_LOOP_CALLS) | | calls made again after the route had failed in the same request |
//! | [`damper.server.first_sends`](SERVER_FIRST_SENDS) | | requests served that were no repeats |
//! | [`damper.server.repeats`](SERVER_REPEATS) | `source`: `damper`, `grpc`, `envoy` | requests that their sender repeated |
//! | [`damper.server.shed_repeats`](SERVER_SHED_REPEATS) | | repeats that a repeat limit refused |
//! | [`damper.server.would_shed_repeats`](SERVER_WOULD_SHED_REPEATS) | | repeats that an observed limit would have refused |
//!
//! Those of the server layer have the label `grpc.method` only. A counter with a further label appears with
//! the first thing it counts, and so do `would_hedges` and the two after it.
//!
//! **Histograms**, in seconds, have the label `grpc.target`; and `grpc.method` if
//! `Options::histograms_per_route` asks for it, which is some dozen series for each route and process.
//!
//! | histogram | records |
//! |---|---|
//! | [`damper.call.duration`](CALL_DURATION) | each call, from its first send to the end of its answer |
//! | [`grpc.client.attempt.duration`](ATTEMPT_DURATION) | each attempt, those given up included |
//! | [`grpc.client.call.retry_delay`](RETRY_DELAY) | the time that a call waited without an attempt under way, of calls that waited |
//!
//! Where this differs from the gRFCs: `grpc.target` is the callee's service name as given to the client layer,
//! not the channel's URI, which the layer cannot see, and is the same label on ours, so that they can be
//! joined. A96's retries, hedges and transparent retries are histograms per call, of which these counters are
//! the sum. `grpc.client.attempt.duration` has no `grpc.status`; `damper.attempts` tells the codes.
//!
//! # Coming from Resilience4j
//!
//! Its four counters are sums of `damper.calls`. As there, what a failed call counts as is said by the reason
//! for which it ended, not by how many attempts it had made.
//!
//! | Resilience4j | fates |
//! |---|---|
//! | successful without retry | `ok` |
//! | successful with retry | `ok_after_retry`, `ok_by_hedge` |
//! | failed with retry | `attempts_exhausted` |
//! | failed without retry | `not_retryable`, `policy_off`, `retry_breaker`, `budget`, `deadline`, `max_duration`, `pushback`, `chain_retry_flag`, `chain_no_more_retry`, `stop_when`, `circuit_open`, `killed`, `not_replayable`, `committed`, `cancelled`, `retry`, and every fate that only would have been (`would` is `true`) |

#[cfg(feature = "metrics")]
mod histograms;
#[cfg(feature = "metrics")]
mod publish;
#[cfg(not(feature = "metrics"))]
mod without;

#[cfg(feature = "metrics")]
pub(crate) use histograms::{AttemptTimes, CallTimes, Detail, OfCallee};
#[cfg(feature = "metrics")]
pub(crate) use publish::{INTERVAL, publish};
#[cfg(not(feature = "metrics"))]
pub(crate) use without::{AttemptTimes, CallTimes, Detail, OfCallee};

/// Counter: calls that ended, by `fate` and `would`.
pub const CALLS: &str = "damper.calls";
/// Counter: calls begun.
pub const CALLS_STARTED: &str = "damper.calls.started";
/// Counter: sends of any kind, as in gRFC A66.
pub const ATTEMPTS_STARTED: &str = "grpc.client.attempt.started";
/// Counter: sends after a failure; the sum of gRFC A96's histogram.
pub const RETRIES: &str = "grpc.client.call.retries";
/// Counter: sends beside an attempt that took long; the sum of gRFC A96's histogram.
pub const HEDGES: &str = "grpc.client.call.hedges";
/// Counter: sends that the server had not seen before; the sum of gRFC A96's histogram.
pub const TRANSPARENT_RETRIES: &str = "grpc.client.call.transparent_retries";
/// Counter: attempts that ended, by `grpc.status`.
pub const ATTEMPTS: &str = "damper.attempts";
/// Counter: hedges that observe mode would have sent.
pub const WOULD_HEDGES: &str = "damper.would_hedges";
/// Counter: calls outside any request's context, in a process that serves requests.
pub const NO_CONTEXT_CALLS: &str = "damper.no_context_calls";
/// Counter: calls made again after the route had failed for good in the same request.
pub const OUTER_LOOP_CALLS: &str = "damper.outer_loop_calls";
/// Counter: requests served that were no repeats.
pub const SERVER_FIRST_SENDS: &str = "damper.server.first_sends";
/// Counter: requests that their sender repeated, by `source`.
pub const SERVER_REPEATS: &str = "damper.server.repeats";
/// Counter: repeats that a repeat limit refused.
pub const SERVER_SHED_REPEATS: &str = "damper.server.shed_repeats";
/// Counter: repeats that a limit which is only observed would have refused.
pub const SERVER_WOULD_SHED_REPEATS: &str = "damper.server.would_shed_repeats";
/// Histogram: seconds from a call's first send to the end of its answer.
pub const CALL_DURATION: &str = "damper.call.duration";
/// Histogram: seconds from an attempt's send to its end, as in gRFC A66.
pub const ATTEMPT_DURATION: &str = "grpc.client.attempt.duration";
/// Histogram: seconds that a call waited without an attempt under way, as in gRFC A96.
pub const RETRY_DELAY: &str = "grpc.client.call.retry_delay";

/// Label: `package.Service/Method`.
pub const METHOD_LABEL: &str = "grpc.method";
/// Label: the callee's service name.
pub const TARGET_LABEL: &str = "grpc.target";
/// Label: a gRPC code by its name, such as `DEADLINE_EXCEEDED`.
pub const STATUS_LABEL: &str = "grpc.status";
/// Label: a fate by its name.
pub const FATE_LABEL: &str = "fate";
/// Label: `true` for a fate that only would have been, in observe mode.
pub const WOULD_LABEL: &str = "would";
/// Label: who repeated a request.
pub const SOURCE_LABEL: &str = "source";
