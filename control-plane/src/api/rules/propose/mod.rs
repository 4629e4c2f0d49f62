//! Proposes a rule in `observe` for a key, based on the measurements of its routes. Writes nothing.

pub(crate) mod values;

use std::sync::Arc;

use damper_core::Pattern;
use damper_proto::{convert, v1};

use crate::api::rules::propose::values::Values;
use crate::push::fleet_state::FleetState;
use crate::state::error::ApiError;
use crate::state::snapshot::Snapshot;

pub(crate) async fn propose(
    fleet: &Arc<FleetState>,
    request: v1::ProposeRuleRequest,
) -> Result<v1::ProposeRuleResponse, ApiError> {
    let Some(key) = &request.key else { return Err(ApiError::fault("key", "is required")) };
    let pattern = convert::pattern(key).map_err(|faults| ApiError::at("key", faults))?;
    fleet.off_runtime(move |fleet| Ok(proposed(fleet, &pattern))).await
}

fn proposed(fleet: &FleetState, pattern: &Pattern) -> v1::ProposeRuleResponse {
    let Values { policy, mut reasons } = Values::of(pattern, &fleet.stats.measured(pattern));
    reasons.extend(replaced_rule(&fleet.table(), pattern));
    let rule = v1::Rule { key: Some(pattern.into()), policy: Some(policy), ..Default::default() };
    v1::ProposeRuleResponse { rule: Some(rule), reasons }
}

/// Returns a note about the existing rule with this key.
fn replaced_rule(table: &Snapshot, pattern: &Pattern) -> Option<String> {
    let stored = table.stored(pattern)?;
    let mode = match stored.wire.policy.as_ref().map(v1::Policy::mode) {
        Some(v1::Mode::Enforce) => "enforce",
        Some(v1::Mode::Observe) => "observe",
        _ => "off",
    };
    Some(format!(
        "key: a rule with this key exists, in mode {mode}; applying this one replaces it, and the measurements \
         contain its extra attempts"
    ))
}
