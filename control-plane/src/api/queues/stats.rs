//! Statistics of queues and their lanes.

use damper_proto::v1;
use damper_queue::{LaneStats, QueueStats};

use crate::api::jobs::wire::time;
use crate::jobs::Jobs;
use crate::state::error::ApiError;
use crate::write::request::read_queue_name;

pub(crate) async fn get(
    jobs: &Jobs,
    request: v1::GetQueueStatsRequest,
) -> Result<v1::GetQueueStatsResponse, ApiError> {
    let name = request.queue;
    if !name.is_empty() {
        read_queue_name("queue", &name).map_err(ApiError::Faults)?;
    }
    let queues: Vec<_> = jobs.required()?.stats(&name).into_iter().map(queue).collect();
    if queues.is_empty() && !name.is_empty() {
        return Err(ApiError::NotFound(format!("there is no queue {name}")));
    }
    Ok(v1::GetQueueStatsResponse { queues })
}

fn queue(stats: QueueStats) -> v1::QueueStats {
    let QueueStats {
        queue,
        has_policy: _,
        limits: _,
        counts,
        oldest_due,
        workers,
        credits,
        totals,
        held,
        lanes,
    } = stats;
    v1::QueueStats {
        queue,
        waiting: counts.waiting,
        behind: counts.behind,
        leased: counts.leased,
        dead: counts.dead,
        ended: counts.ended,
        bytes: counts.bytes,
        oldest_due_at: oldest_due.map(time),
        workers,
        credits,
        submitted: totals.submitted,
        delivered: totals.delivered_first + totals.delivered_again,
        done: totals.done,
        failed: totals.failed,
        released: totals.released,
        lost: totals.lost,
        died: totals.died,
        lanes: lanes.into_iter().map(lane).collect(),
        held,
    }
}

fn lane(stats: LaneStats) -> v1::LaneStats {
    let LaneStats { route, counts, next_due, held } = stats;
    v1::LaneStats {
        route: Some((&route).into()),
        waiting: counts.waiting,
        leased: counts.leased,
        next_due_at: next_due.map(time),
        held: held.map(|held| held.why.to_owned()).unwrap_or_default(),
        held_until: held.and_then(|held| held.until).map(time),
    }
}
