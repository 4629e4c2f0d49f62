//! The audit log: every change that passes a filter, the oldest first, a message for each rule or guard in it.
//!
//! It ends at the revision that is the newest when it begins. It goes as fast as it is read: no more than a page of
//! changes is in memory.

use std::pin::Pin;
use std::sync::Arc;

use damper_proto::v1;
use futures_core::Stream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::filter::Changes;
use super::object;
use super::past::{changes, newest, oldest};
use crate::errors::Error;
use crate::shared::Shared;

type Exported = Pin<Box<dyn Stream<Item = Result<v1::Change, Status>> + Send>>;

pub(super) async fn open(shared: &Arc<Shared>, request: v1::ExportAuditRequest) -> Result<Exported, Error> {
    let asked = request.filter.as_ref().map_or(0, |filter| filter.min_revision);
    let filter = Changes::read(request.filter)?;
    let oldest = oldest(&*shared.store).await?;
    if (1..=oldest).contains(&asked) {
        return Err(Error::NoLongerKept { asked, oldest });
    }
    let after = oldest.max(filter.revisions.start() - 1);
    let upto = newest(shared).await?.min(*filter.revisions.end());
    let (out, responses) = mpsc::channel(16);
    let shared = shared.clone();
    tokio::spawn(async move {
        let ended = tokio::select! {
            ended = export(&shared, &filter, after, upto, &out) => ended,
            () = shared.stopping.cancelled() => Err(Error::unavailable("the server is stopping")),
        };
        if let Err(error) = ended {
            // Who does not even take the last word is told nothing.
            let _ = out.try_send(Err(error.into()));
        }
    });
    Ok(Box::pin(ReceiverStream::new(responses)))
}

/// Sends the changes `after + 1 ..= upto`.
async fn export(
    shared: &Shared,
    filter: &Changes,
    after: u64,
    upto: u64,
    out: &mpsc::Sender<Result<v1::Change, Status>>,
) -> Result<(), Error> {
    let mut reached = after;
    while reached < upto {
        let page = changes(&*shared.store, reached, upto).await?;
        let Some(last) = page.last() else { return Ok(()) };
        reached = last.revision;
        for change in page.iter().filter(|change| filter.accepts_change(change)) {
            let head = object::head(change);
            for object in object::objects(change, filter) {
                let told = v1::Change { objects: vec![object], ..head.clone() };
                if out.send(Ok(told)).await.is_err() {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}
