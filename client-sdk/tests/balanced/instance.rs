//! An instance of a callee that counts its calls and responds, fails or hangs on demand.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::transport::Server;
use tonic::transport::server::ServerTlsConfig;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

#[derive(Clone, Copy)]
pub(crate) enum Behaviour {
    Refuse = 1,
    Silent = 2,
}

/// Ends with its last handle.
pub(crate) struct Instance {
    pub(crate) address: SocketAddr,
    state: Arc<State>,
    tls: Option<ServerTlsConfig>,
    running: Option<Running>,
}

struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

struct State {
    behaviour: AtomicU8,
    calls: AtomicU32,
    called: watch::Sender<u32>,
}

impl Instance {
    pub(crate) async fn start() -> Self {
        Self::start_with(None).await
    }

    pub(crate) async fn start_with(tls: Option<ServerTlsConfig>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state =
            State { behaviour: AtomicU8::new(0), calls: AtomicU32::new(0), called: watch::channel(0).0 };
        let mut instance = Self { address, state: Arc::new(state), tls, running: None };
        instance.serve(listener);
        instance
    }

    fn serve(&mut self, listener: TcpListener) {
        let (stop, stopped) = oneshot::channel::<()>();
        let mut server = Server::builder();
        if let Some(tls) = &self.tls {
            server = server.tls_config(tls.clone()).unwrap();
        }
        let serving = server.add_service(HealthServer::new(Handler(Arc::clone(&self.state))));
        let serving = serving.serve_with_incoming_shutdown(TcpListenerStream::new(listener), async {
            _ = stopped.await;
        });
        let task = tokio::spawn(async { serving.await.unwrap() });
        self.running = Some(Running { stop, task });
    }

    pub(crate) fn behave(&self, behaviour: Behaviour) {
        self.state.behaviour.store(behaviour as u8, Ordering::SeqCst);
    }

    pub(crate) fn calls(&self) -> u32 {
        self.state.calls.load(Ordering::SeqCst)
    }

    /// Waits for the next call.
    pub(crate) async fn next_call(&self) {
        self.state.called.subscribe().changed().await.unwrap();
    }

    /// Completes requests in flight and closes the connections.
    pub(crate) async fn stop(&mut self) {
        let Running { stop, task } = self.running.take().unwrap();
        stop.send(()).unwrap();
        task.await.unwrap();
    }

    /// Serves again at the same address.
    pub(crate) async fn start_again(&mut self) {
        self.serve(TcpListener::bind(self.address).await.unwrap());
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Some(running) = &self.running {
            running.task.abort();
        }
    }
}

struct Handler(Arc<State>);

#[tonic::async_trait]
impl Health for Handler {
    async fn check(&self, _: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        let State { behaviour, calls, called } = &*self.0;
        called.send_replace(calls.fetch_add(1, Ordering::SeqCst) + 1);
        match behaviour.load(Ordering::SeqCst) {
            0 => Ok(Response::new(answer())),
            1 => Err(Status::unavailable("fails by request")),
            _ => std::future::pending().await,
        }
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    /// Responds once at the start and with each following call of `check`.
    async fn watch(&self, _: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let calls = tokio_stream::wrappers::WatchStream::new(self.0.called.subscribe());
        Ok(Response::new(Box::pin(calls.map(|_| Ok(answer())))))
    }
}

fn answer() -> HealthCheckResponse {
    HealthCheckResponse { status: ServingStatus::Serving.into() }
}
