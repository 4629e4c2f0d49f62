//! Creates or replaces one queue.
//!
//! A change also applies to jobs that already wait. Neither guards nor the limit along the chain
//! concern a queue: a delivery is sent once.

use std::sync::Arc;
use std::time::SystemTime;

use damper_core::Faults;
use damper_net::limits::Limit;
use damper_proto::v1;
use tonic::Request;

use crate::state::error::ApiError;
use crate::state::resource_key::ResourceKey;
use crate::state::snapshot::Snapshot;
use crate::write::chain_limit::ChainCheck;
use crate::write::findings;
use crate::write::findings::FindingList;
use crate::write::request::{CompletedWrite, WriteRequest, all_or, check_expected, check_options, too_many};
use crate::write::resource::NewQueue;
use crate::write::single;
use crate::write::single::{Effects, SingleWrite, SingleWriteResult};
use crate::write::{MAX_QUEUES, Writes};

pub(crate) async fn put(
    writes: &Arc<Writes>,
    request: Request<v1::PutQueueRequest>,
) -> Result<v1::PutQueueResponse, ApiError> {
    let (asked, request) = WriteRequest::read("put queue", request, |request| request.options.take());
    let mut faults = Faults::none();
    check_options("options", &asked.options, &mut faults);
    let written = all_or(NewQueue::read("queue", request.queue), faults)?;
    match single::put(writes, &asked, &written, request.expected_revision).await? {
        SingleWriteResult::Tried(table, effects) => {
            try_out(&table, &written, request.expected_revision, effects)
        }
        SingleWriteResult::Written(done, effects) => Ok(response(&written, &done, effects)),
    }
}

impl SingleWrite for NewQueue {
    fn subject(&self) -> ResourceKey {
        self.subject()
    }

    fn changes(&self, table: &Snapshot) -> bool {
        self.unchanged(table).is_none()
    }

    fn value(&self, table: &Snapshot, author: &str, at: SystemTime) -> bytes::Bytes {
        self.value(table, author, at)
    }

    fn permit(&self, _: &Snapshot, _: &ChainCheck, _: &v1::WriteOptions) -> Result<(), ApiError> {
        Ok(())
    }
}

fn response(
    written: &NewQueue,
    CompletedWrite { committed, after: table, .. }: &CompletedWrite,
    effects: Effects,
) -> v1::PutQueueResponse {
    let revision = committed.keys.first().and_then(|(_, revision)| *revision).unwrap_or(committed.revision);
    let stored = table.queue(written.queue.name()).filter(|stored| stored.wire.revision == revision);
    let queue =
        stored.map_or_else(|| v1::Queue { revision, ..written.wire.clone() }, |stored| stored.wire.clone());
    v1::PutQueueResponse {
        queue: Some(queue),
        revision: committed.revision,
        findings: found(written, effects),
        changed: !committed.unchanged,
    }
}

/// Returns the response to a dry run.
fn try_out(
    table: &Snapshot,
    written: &NewQueue,
    expected: Option<u64>,
    effects: Effects,
) -> Result<v1::PutQueueResponse, ApiError> {
    let subject = written.subject();
    check_expected(table, &subject, expected)?;
    let count = table.queues.size();
    if table.revision_of(&subject).is_none() && count >= MAX_QUEUES {
        return Err(too_many(Limit::Queues, count + 1, MAX_QUEUES));
    }
    let same = written.unchanged(table);
    Ok(v1::PutQueueResponse {
        queue: Some(same.unwrap_or(&written.wire).clone()),
        revision: table.revision(),
        findings: found(written, effects),
        changed: same.is_none(),
    })
}

fn found(written: &NewQueue, effects: Effects) -> Vec<v1::Finding> {
    let effects = effects.findings(&written.subject());
    FindingList::all(effects.chain(findings::of_queue(&written.queue)))
}
