//! The queues and kills of the snapshot, in the form of the job server.
//!
//! A stored queue that this version cannot read is left out: then its jobs are held. While the policy store
//! is unavailable the last snapshot stays in force, also for jobs.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use damper_core::job::Wall;
use damper_queue::{KillUntil, Queues};
use tokio::sync::watch;

use crate::state::snapshot::Snapshot;

/// Returns the queues and kills of a snapshot.
pub(crate) fn of(table: &Snapshot, now: SystemTime) -> Queues {
    let queues = table.queues().filter_map(|(_, stored)| stored.queue.clone());
    let kills = table.kills().in_force(now).filter_map(|stored| {
        let remaining = stored.remaining(now)?;
        Some(KillUntil { kill: Arc::new(stored.kill.clone()), until: wall(now) + remaining })
    });
    Queues::new(queues, kills.collect())
}

/// Passes on the queues and kills of each snapshot in which they differ.
pub(crate) async fn follow(mut tables: watch::Receiver<Arc<Snapshot>>, current: watch::Sender<Arc<Queues>>) {
    let mut last = tables.borrow_and_update().clone();
    while tables.changed().await.is_ok() {
        let table = tables.borrow_and_update().clone();
        if !table.same_queues(&last) || !table.kills().same(last.kills()) {
            current.send_replace(Arc::new(of(&table, SystemTime::now())));
        }
        last = table;
    }
}

fn wall(at: SystemTime) -> Wall {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Wall(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
