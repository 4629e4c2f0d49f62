//! The service that calls: as it names itself, checked against its credential.

use damper_core::{Faults, key};
use damper_net::connection::ConnectionInfo;
use damper_proto::v1;
use tonic::Extensions;

use crate::api::jobs::JobsContext;
use crate::auth::caller::Caller;
use crate::auth::limits;
use crate::state::error::ApiError;

/// The sender of a request.
pub(crate) struct Sender {
    caller: Caller,
    peer: Option<ConnectionInfo>,
}

impl Sender {
    pub(crate) fn of(extensions: &Extensions) -> Self {
        Self { caller: Caller::found(extensions), peer: extensions.get::<ConnectionInfo>().cloned() }
    }

    /// Returns the identity whose limits apply; empty without a connection.
    pub(crate) fn name(&self) -> String {
        self.peer.as_ref().map(|peer| limits::identity(&self.caller, peer)).unwrap_or_default()
    }

    /// Returns true if it has limits: only tests call without a connection.
    pub(crate) fn is_limited(&self) -> bool {
        self.peer.is_some()
    }

    /// Checks the identity that a message names.
    pub(crate) fn checked(
        &self,
        context: &JobsContext,
        path: &str,
        identity: Option<v1::Identity>,
    ) -> Result<v1::Identity, ApiError> {
        let Some(identity) = identity else { return Err(ApiError::fault(path, "must be given")) };
        let mut faults = Faults::none();
        key::check_name("service", &identity.service, &mut faults);
        key::check_name("cluster", &identity.cluster, &mut faults);
        key::check_name("instance", &identity.instance, &mut faults);
        let identity = faults.or(identity).map_err(|faults| ApiError::at(path, faults))?;
        self.caller.permit_client(&identity.service).inspect_err(|denied| {
            context.fleet.metrics.denied(denied.reason());
            let (peer, service) = (self.peer.as_ref(), &identity.service);
            context.access.rejected.note(&context.limiter, peer, &self.caller, service, denied);
        })?;
        Ok(identity)
    }
}
