//! tower layer of the client service.

use std::any::Any;
use std::sync::Arc;

use tower_layer::Layer;

use super::service::ClientService;
use crate::balance::Balanced;
use crate::routes::{Callee, Runtime};

/// Applies the rules to the calls to one callee. Made by
/// [`Damper::client_layer`](crate::Damper::client_layer).
#[derive(Clone, Debug)]
pub struct ClientLayer {
    engine: Arc<Runtime>,
    callee: Arc<Callee>,
    external: bool,
}

impl ClientLayer {
    pub(crate) fn new(engine: Arc<Runtime>, callee: Arc<Callee>) -> Self {
        Self { engine, callee, external: false }
    }

    /// Treats the callee as external to the trusted services: sends it no flags and ignores those it returns.
    #[must_use]
    pub fn external(self) -> Self {
        Self { external: true, ..self }
    }

    /// Wraps a channel to the callee, for any generated client. `inner` may be any service of gRPC requests.
    /// (The method of `tower_layer::Layer`, without the import.)
    ///
    /// If `inner` is a [`Balanced`] channel, the state of its endpoints is reported to the control plane. A
    /// balanced channel below other layers works too, but is not reported.
    pub fn layer<S: 'static>(&self, inner: S) -> ClientService<S> {
        if let Some(channel) = (&inner as &dyn Any).downcast_ref::<Balanced>() {
            self.callee.channels().add(channel);
        }
        let (engine, callee) = (Arc::clone(&self.engine), Arc::clone(&self.callee));
        ClientService::new(inner, engine, callee, self.external)
    }
}

impl<S: 'static> Layer<S> for ClientLayer {
    type Service = ClientService<S>;

    fn layer(&self, inner: S) -> ClientService<S> {
        self.layer(inner)
    }
}
