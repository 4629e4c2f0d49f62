//! Who is connected and what each of them runs on.

use damper_proto::v1;

use crate::errors::Error;
use crate::shared::Shared;

pub(super) async fn list(
    shared: &Shared,
    request: v1::ListClientsRequest,
) -> Result<v1::ListClientsResponse, Error> {
    let table = shared.table();
    Ok(v1::ListClientsResponse {
        clients: shared.hub.clients(&request.service, &request.cluster, &table),
        revision: table.revision(),
        epoch: table.epoch().to_string(),
        missing_replicas: shared.replicas.missing(),
    })
}
