//! What a server knows of its queues in memory: lanes, callees, workers, leases, quotas, and the plan of the
//! next deliveries. Behind one lock, which is never held while something waits.

mod dispatch;
pub(crate) mod lane;
pub(crate) mod lease;
pub(crate) mod plan;
mod queue;
pub(crate) mod quota;
pub(crate) mod refusals;
mod server_state;
pub(crate) mod totals;
pub(crate) mod worker;

pub(crate) use queue::QueueState;
pub(crate) use server_state::State;
