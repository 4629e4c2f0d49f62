//! The peer of a strategy.

use damper_core::CodeSet;

use super::fields::Fields;
use super::{code, ratio};
use crate::scenario::{Peer, PeerBackoff, PeerBudget, PeerCap, PeerJitter, PeerQuota, PeerThrottling};

/// Content of `peer` in a strategy.
pub(super) fn peer(fields: &mut Fields<'_>) -> Peer {
    let default = Peer::naive(3);
    let codes = fields.list("codes", code);
    Peer {
        attempts: fields.number("attempts").unwrap_or(default.attempts),
        codes: if codes.is_empty() { default.codes } else { CodeSet::of(&codes) },
        per_attempt_timeout: fields.duration("per_attempt_timeout"),
        callee_timeouts: fields.durations("callee_timeouts"),
        backoff: fields.fields("backoff", |fields| {
            let default = PeerBackoff::default();
            PeerBackoff {
                base: fields.duration("base").unwrap_or(default.base),
                max: fields.duration("max").unwrap_or(default.max),
                jitter: fields
                    .one_of("jitter", &[("full", PeerJitter::Full), ("added", PeerJitter::Added)])
                    .unwrap_or_default(),
            }
        }),
        cap: cap(fields),
    }
}

fn cap(fields: &mut Fields<'_>) -> Option<PeerCap> {
    let caps = [
        fields.fields("budget", |fields| {
            let default = PeerBudget::default();
            PeerCap::Budget(PeerBudget {
                ttl: fields.duration("ttl").unwrap_or(default.ttl),
                min_per_sec: fields.number("min_per_sec").unwrap_or(default.min_per_sec),
                retry_percent: fields.part("retry_percent", ratio).unwrap_or(default.retry_percent),
            })
        }),
        fields.fields("throttling", |fields| {
            let default = PeerThrottling::default();
            PeerCap::Throttling(PeerThrottling {
                max_tokens: fields.number("max_tokens").unwrap_or(default.max_tokens),
                token_ratio: fields.part("token_ratio", ratio).unwrap_or(default.token_ratio),
            })
        }),
        fields.fields("quota", |fields| {
            let default = PeerQuota::default();
            PeerCap::Quota(PeerQuota {
                tokens: fields.number("tokens").unwrap_or(default.tokens),
                cost: fields.number("cost").unwrap_or(default.cost),
                timeout_cost: fields.number("timeout_cost").unwrap_or(default.timeout_cost),
            })
        }),
    ];
    let mut caps = caps.into_iter().flatten();
    let cap = caps.next();
    if caps.next().is_some() {
        fields.problem("", "allows only one of budget, throttling, quota");
    }
    cap
}
