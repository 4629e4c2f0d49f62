//! The stream of a worker: carries messages between it and the job server.
//!
//! The task always reads what either side sends, unless the other one is slow: a worker that does not read is
//! disconnected, and one that sends faster than settlements are written waits.

use std::sync::Arc;
use std::time::Duration;

use damper_proto::v1;
use damper_proto::v1::from_worker::Kind;
use damper_queue::{FromWorker, LeaseId, MAX_DELIVERIES, ToWorker, Work, WorkerIdentity};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tonic::{Request, Streaming};

use crate::api::jobs::identity::Sender;
use crate::api::jobs::{JobsContext, wire};
use crate::api::response_stream::Out;
use crate::state::error::ApiError;

const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// Time between two signs of life.
const ALIVE_EVERY: Duration = Duration::from_secs(5);
/// Queues that one stream may name.
const MAX_QUEUES: usize = 100;

/// Serves one stream to its end.
pub(crate) async fn serve(
    context: Arc<JobsContext>,
    request: Request<Streaming<v1::FromWorker>>,
    out: Out<v1::ToWorker>,
) -> Result<(), ApiError> {
    let sender = Sender::of(request.extensions());
    let _places = match sender.is_limited() {
        true => Some(context.limiter.stream(&sender.name())?),
        false => None,
    };
    let mut inbound = request.into_inner();
    let hello = match timeout(HELLO_WITHIN, inbound.message()).await {
        Ok(Ok(Some(v1::FromWorker { kind: Some(Kind::Hello(hello)) }))) => hello,
        Ok(Ok(Some(_))) => return Err(ApiError::fault("kind", "the first message must be a hello")),
        Ok(Ok(None)) => return Ok(()),
        Ok(Err(status)) => return Err(ApiError::Unread(status)),
        Err(_) => return Err(ApiError::TooLate(HELLO_WITHIN)),
    };
    let v1::WorkerHello { identity, queues, leases } = hello;
    let v1::Identity { service, cluster, instance } = sender.checked(&context, "hello.identity", identity)?;
    let server = context.jobs.required()?;
    let leases = named_leases(&leases)?;
    let queues = named_queues(queues)?;
    let work = server.connect_worker(WorkerIdentity { service, cluster, instance }, queues, leases).await?;
    converse(work, inbound, out).await
}

fn named_leases(leases: &[Vec<u8>]) -> Result<Vec<LeaseId>, ApiError> {
    if leases.len() > MAX_DELIVERIES {
        let text = format!("has {} leases, at most {MAX_DELIVERIES} are allowed", leases.len());
        return Err(ApiError::fault("hello.leases", text));
    }
    leases.iter().map(|bytes| wire::lease("hello.leases", bytes)).collect()
}

fn named_queues(queues: Vec<v1::Credits>) -> Result<Vec<(String, u32)>, ApiError> {
    if queues.len() > MAX_QUEUES {
        let text = format!("has {} queues, at most {MAX_QUEUES} are allowed", queues.len());
        return Err(ApiError::fault("hello.queues", text));
    }
    Ok(queues.into_iter().map(|v1::Credits { queue, more }| (queue, more)).collect())
}

/// Carries messages until one side ends.
async fn converse(
    work: Work,
    mut inbound: Streaming<v1::FromWorker>,
    out: Out<v1::ToWorker>,
) -> Result<(), ApiError> {
    let Work { events, mut deliveries } = work;
    let mut alive = interval(ALIVE_EVERY);
    alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
    alive.reset();
    let mut unread: Option<FromWorker> = None;
    loop {
        tokio::select! {
            message = deliveries.recv() => {
                let Some(message) = message else { return Err(broken()) };
                let is_last = matches!(message, ToWorker::Goodbye(_));
                if out.send(wire::to_worker(message)).await.is_err() || is_last {
                    return Ok(());
                }
                alive.reset();
            }
            room = events.reserve(), if unread.is_some() => {
                let Ok(room) = room else { return Err(broken()) };
                if let Some(message) = unread.take() {
                    room.send(message);
                }
            }
            message = inbound.message(), if unread.is_none() => match message {
                Ok(Some(v1::FromWorker { kind })) => unread = wire::from_worker(kind)?,
                // Without a Bye its leases go on for a while.
                Ok(None) => return Ok(()),
                Err(status) => return Err(ApiError::Unread(status)),
            },
            _ = alive.tick() => {
                let kind = Some(v1::to_worker::Kind::Alive(v1::Alive {}));
                if out.send(v1::ToWorker { kind }).await.is_err() {
                    return Ok(());
                }
            }
            () = out.closed() => return Ok(()),
        }
    }
}

/// The job server ended the stream: it got more credits than a stream may give.
fn broken() -> ApiError {
    ApiError::fault("credits.more", format!("a stream may give at most {MAX_DELIVERIES} in all"))
}
