//! tower layer of the server service.

use std::sync::Arc;

use tower_layer::Layer;

use super::service::ServerService;
use crate::routes::Runtime;

/// Gives every request a [`Context`](crate::Context). Made by
/// [`Damper::server_layer`](crate::Damper::server_layer).
#[derive(Clone, Debug)]
pub struct ServerLayer {
    engine: Arc<Runtime>,
    edge: bool,
}

impl ServerLayer {
    pub(crate) fn new(engine: Arc<Runtime>) -> Self {
        engine.set_serves();
        Self { engine, edge: false }
    }

    /// For a service at the edge of the trusted services: removes flags from requests, so that none counts as
    /// a retry. An error that must not be retried has no `damper-no-more-retry` there, only the fields that
    /// stock gRPC clients and Envoy understand.
    #[must_use]
    pub fn edge(self) -> Self {
        Self { edge: true, ..self }
    }
}

impl<S> Layer<S> for ServerLayer {
    type Service = ServerService<S>;

    fn layer(&self, inner: S) -> ServerService<S> {
        ServerService::new(inner, Arc::clone(&self.engine), self.edge)
    }
}
