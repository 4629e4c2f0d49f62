//! Streams the audit log: every change that passes a filter, the oldest first, with one message per
//! changed object.
//!
//! It ends at the revision that is the newest at its start. The reader sets the pace: at most one page of
//! changes is in memory. A page can have some MiB, so the number of audit logs and exports is limited.

use std::sync::Arc;

use damper_proto::v1;
use tonic::Request;

use crate::api::history::filter::Changes;
use crate::api::history::{export, object};
use crate::api::response_stream::{Out, Reader, ResponseStream, StreamLimits};
use crate::state::error::ApiError;
use crate::state::history::{changes, newest, oldest};
use crate::write::Writes;

/// Messages buffered for a reader.
const AHEAD: usize = 1;

pub(crate) async fn open(
    writes: &Arc<Writes>,
    streams: &StreamLimits,
    request: Request<v1::ExportAuditRequest>,
) -> Result<ResponseStream<v1::Change>, ApiError> {
    let reader = Reader::of(&request, streams);
    let place = export::place(writes, &request)?;
    let request = request.into_inner();
    let asked = request.filter.as_ref().map_or(0, |filter| filter.min_revision);
    let filter = Changes::read(request.filter)?;
    let oldest = oldest(&*writes.fleet.state.store).await?;
    if (1..=oldest).contains(&asked) {
        return Err(ApiError::NoLongerKept { asked, oldest });
    }
    let after = oldest.max(filter.revisions.start() - 1);
    let upto = newest(&writes.fleet.state).await?.min(*filter.revisions.end());
    let producer = writes.clone();
    Ok(ResponseStream::of(reader, AHEAD, |out| async move {
        let _place = place;
        send(&producer, &filter, after, upto, &out).await
    }))
}

/// Sends the changes `after + 1` to `upto`.
async fn send(
    writes: &Writes,
    filter: &Changes,
    after: u64,
    upto: u64,
    out: &Out<v1::Change>,
) -> Result<(), ApiError> {
    let mut reached = after;
    while reached < upto {
        let page = changes(&*writes.fleet.state.store, reached, upto).await?;
        let Some(last) = page.last() else {
            return Err(ApiError::unavailable(format!(
                "the store was replaced or restored: it lacks revision {upto}; see `damper store status`"
            )));
        };
        reached = last.revision;
        for change in page.iter().filter(|change| filter.accepts_change(change)) {
            let head = object::head(change);
            if filter.accepts_empty(change) && out.send(head.clone()).await.is_err() {
                return Ok(());
            }
            for object in object::objects(change, filter) {
                let message = v1::Change { objects: vec![object], ..head.clone() };
                if out.send(message).await.is_err() {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}
