//! One change: read, check (guards, ownership, amplification), propose, report the effects.

pub(crate) mod amplification;
pub(crate) mod chain_comparison;
pub(crate) mod chain_limit;
pub(crate) mod change_set;
pub(crate) mod claim;
pub(crate) mod conflict;
pub(crate) mod digest;
pub(crate) mod findings;
pub(crate) mod held_kills;
pub(crate) mod job_action;
pub(crate) mod kill_expiry;
pub(crate) mod ownership;
pub(crate) mod queue_jobs;
pub(crate) mod reach;
pub(crate) mod removal;
pub(crate) mod request;
pub(crate) mod resource;
pub(crate) mod single;
pub(crate) mod token_expiry;

use std::sync::Arc;

use damper_net::limits::Limiter;

use crate::push::fleet_state::FleetState;
use crate::write::queue_jobs::QueueJobs;

/// The context of a write.
pub(crate) struct Writes {
    pub(crate) fleet: Arc<FleetState>,
    pub(crate) limiter: Limiter,
    pub(crate) limits: WriteLimits,
    /// Jobs of the queues.
    pub(crate) jobs: Arc<dyn QueueJobs>,
}

/// The most queues.
pub const MAX_QUEUES: usize = 1_000;

/// Limits of the stored resources.
#[derive(Clone, Debug)]
pub(crate) struct WriteLimits {
    pub(crate) max_rules: usize,
    pub(crate) max_guards: usize,
    pub(crate) max_tokens: usize,
    pub(crate) max_apply_bytes: usize,
    /// Writes that raise the worst chain above this limit are rejected unless forced.
    pub(crate) max_amplification: u32,
}
