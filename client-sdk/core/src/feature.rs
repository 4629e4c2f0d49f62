//! What an SDK must be able to carry out before it is sent a rule.
//!
//! An SDK lists the features it has when it connects; the control plane derives from each rule those it
//! needs and withholds the rule from a client without them, naming the feature. Names are only ever added.

use crate::policy::Policy;

/// Everything `damper.v1` began with: mode, timeout, retry with its first four backoffs, breaker, chain flags.
pub const BASE: &str = "base";

/// The features this engine has.
pub const ALL: &[&str] = &[BASE];

/// The first feature that carrying out the policy needs and `has` does not list.
#[must_use]
pub fn lacking<'a>(policy: &Policy, has: impl Fn(&str) -> bool + 'a) -> Option<&'static str> {
    needed(policy).find(|feature| !has(feature))
}

/// The features that carrying out the policy needs.
pub fn needed(_policy: &Policy) -> impl Iterator<Item = &'static str> {
    ALL.iter().copied()
}
