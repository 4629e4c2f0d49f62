//! `damper.v1.Distribution`: rules to services, over one stream per process.
//!
//! Each stream is one task ([`stream`]) that knows what its client holds and asks for the difference to the
//! table when its one outgoing slot is free ([`responses`]); nothing is queued behind that slot, so the latest
//! table wins. [`pace`] decides when a change of the table is shown to the streams, [`told`] which kills go along.

pub(crate) mod pace;
pub(crate) mod reports;
mod responses;
mod stream;
mod told;

use std::pin::Pin;
use std::sync::Arc;

use damper_proto::v1;
use futures_core::Stream;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use self::responses::Responses;
use crate::access::Caller;
use crate::connection::Peer;
use crate::shared::Shared;

/// How many streams at once may be making their first response.
const ADMISSIONS: usize = 32;

/// The service.
pub(crate) struct Distribution {
    shared: Arc<Shared>,
    desk: Arc<Desk>,
}

/// What streams share among themselves.
struct Desk {
    responses: Responses,
    admissions: Semaphore,
}

impl Distribution {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let desk = Desk { responses: Responses::default(), admissions: Semaphore::new(ADMISSIONS) };
        Self { shared, desk: Arc::new(desk) }
    }
}

#[tonic::async_trait]
impl v1::distribution_server::Distribution for Distribution {
    type SubscribeStream = Pin<Box<dyn Stream<Item = Result<v1::ServerMessage, Status>> + Send>>;

    async fn subscribe(
        &self,
        request: Request<Streaming<v1::ClientMessage>>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let peer = request.extensions().get::<Peer>().cloned();
        let caller = Caller::of(&request);
        let (out, responses) = mpsc::channel(1);
        let (shared, desk) = (self.shared.clone(), self.desk.clone());
        tokio::spawn(stream::serve(shared, desk, (peer, caller), request.into_inner(), out));
        Ok(Response::new(Box::pin(ReceiverStream::new(responses))))
    }
}
