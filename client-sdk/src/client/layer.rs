//! Puts the client service around a channel.

use std::any::Any;
use std::sync::Arc;

use tower_layer::Layer;

use super::service::ClientService;
use crate::balance::Balanced;
use crate::routes::{Callee, Runtime};

/// Governs the calls to one callee. Made by `Damper::client_layer`.
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

    /// For a callee outside the trusted chain: no flags are sent to it, and those it returns are ignored.
    #[must_use]
    pub fn external(self) -> Self {
        Self { external: true, ..self }
    }

    /// The channel to the callee with Damper around it, for any generated client. `inner` may be any service
    /// of gRPC requests. (As `tower_layer::Layer`, without having to import that.)
    ///
    /// If `inner` is a [`Balanced`] channel, the control plane is told how its endpoints stand. A balanced channel below
    /// other layers works as well, and its endpoints are not told.
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
