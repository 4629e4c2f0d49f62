//! `damper queues stats [NAME]`: jobs by state, what is held, and counts since the server started.

use clap::Args;
use damper_proto::v1;

use crate::error::CliError;
use crate::output::figures::{age, now};
use crate::output::{Align, Table, show};
use crate::remote::client::Client;
use crate::remote::session::Session;

/// Arguments of `damper queues stats`.
#[derive(Args, Debug)]
pub(crate) struct StatsArgs {
    /// Name of the queue; then its routes are listed too [default: all queues]
    #[arg(default_value = "", hide_default_value = true)]
    name: String,
}

/// Prints the statistics.
pub(crate) async fn run(session: &Session, args: StatsArgs) -> Result<(), CliError> {
    let client = Client::connect(&session.server).await?;
    let request = v1::GetQueueStatsRequest { queue: args.name.clone() };
    let stats = client.answer(client.queues.clone().get_queue_stats(request)).await?;
    show(session.format, &stats, || {
        let queues = queues(&stats.queues).to_string();
        match stats.queues.first().filter(|queue| !args.name.is_empty() && !queue.lanes.is_empty()) {
            Some(queue) => format!("{queues}\n{}", lanes(&queue.lanes)),
            None => queues,
        }
    })
}

fn queues(queues: &[v1::QueueStats]) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("QUEUE", Left),
        ("WAITING", Right),
        ("BEHIND", Right),
        ("LEASED", Right),
        ("DEAD", Right),
        ("OLDEST DUE", Right),
        ("WORKERS", Right),
        ("FREE", Right),
        ("SUBMITTED", Right),
        ("DELIVERED", Right),
        ("DONE", Right),
        ("FAILED", Right),
        ("LOST", Right),
        ("HELD", Left),
    ]);
    let now = now();
    for queue in queues {
        let oldest = queue.oldest_due_at.as_ref();
        table.row([
            queue.queue.clone(),
            queue.waiting.to_string(),
            queue.behind.to_string(),
            queue.leased.to_string(),
            queue.dead.to_string(),
            oldest.map(|at| age(Some(at), now)).unwrap_or_default(),
            queue.workers.to_string(),
            queue.credits.to_string(),
            queue.submitted.to_string(),
            queue.delivered.to_string(),
            queue.done.to_string(),
            queue.failed.to_string(),
            queue.lost.to_string(),
            queue.held.clone(),
        ]);
    }
    table
}

fn lanes(lanes: &[v1::LaneStats]) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("CALLER", Left),
        ("CLUSTER", Left),
        ("CALLEE", Left),
        ("METHOD", Left),
        ("WAITING", Right),
        ("LEASED", Right),
        ("HELD", Left),
    ]);
    for lane in lanes {
        let route = lane.route.clone().unwrap_or_default();
        table.row([
            route.caller_service,
            route.caller_cluster,
            route.callee_service,
            route.callee_method,
            lane.waiting.to_string(),
            lane.leased.to_string(),
            lane.held.clone(),
        ]);
    }
    table
}
