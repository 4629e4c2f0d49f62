//! `damper.v1.Fleet`: statistics of the services and delivery of changes.
//!
//! All statistics come from [`crate::stats`] and [`crate::push::sessions`]; this folder selects and formats.

pub(crate) mod clients;
pub(crate) mod convergence;
pub(crate) mod endpoints;
pub(crate) mod routes;
pub(crate) mod watch;

use std::sync::Arc;

use damper_proto::v1;
use tonic::{Request, Response, Status};

use crate::api::response_stream::{Reader, ResponseStream, StreamLimits};
use crate::cluster;
use crate::cluster::Cluster;
use crate::doctor::Doctor;

/// The fleet service.
pub(crate) struct Fleet {
    cluster: Arc<Cluster>,
    doctor: Arc<Doctor>,
    streams: StreamLimits,
    max_amplification: u32,
}

impl Fleet {
    pub(crate) fn new(
        cluster: Arc<Cluster>,
        doctor: Arc<Doctor>,
        streams: StreamLimits,
        max_amplification: u32,
    ) -> Self {
        Self { cluster, doctor, streams, max_amplification }
    }
}

#[tonic::async_trait]
impl v1::fleet_server::Fleet for Fleet {
    type WatchConvergenceStream = ResponseStream<v1::Convergence>;
    type WatchStream = ResponseStream<v1::WatchResponse>;

    async fn list_routes(
        &self,
        request: Request<v1::ListRoutesRequest>,
    ) -> Result<Response<v1::ListRoutesResponse>, Status> {
        self.cluster.fleet.state.answer(routes::list(&self.cluster, request.into_inner())).await
    }

    async fn list_clients(
        &self,
        request: Request<v1::ListClientsRequest>,
    ) -> Result<Response<v1::ListClientsResponse>, Status> {
        self.cluster.fleet.state.answer(clients::list(&self.cluster, request.into_inner())).await
    }

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let reader = Reader::of(&request, &self.streams);
        let plan = watch::WatchOptions::read(request.into_inner())?;
        let cluster = self.cluster.clone();
        Ok(Response::new(ResponseStream::of(reader, 1, |out| watch::serve(cluster, plan, out))))
    }

    async fn watch_convergence(
        &self,
        request: Request<v1::WatchConvergenceRequest>,
    ) -> Result<Response<Self::WatchConvergenceStream>, Status> {
        let reader = Reader::of(&request, &self.streams);
        let plan = convergence::ConvergenceOptions::read(request.into_inner())?;
        Ok(Response::new(convergence::open(&self.cluster, plan, reader).await?))
    }

    async fn get_chain(
        &self,
        request: Request<v1::GetChainRequest>,
    ) -> Result<Response<v1::GetChainResponse>, Status> {
        self.cluster
            .fleet
            .state
            .answer(crate::api::rules::graph::get(
                &self.cluster,
                self.max_amplification,
                request.into_inner(),
            ))
            .await
    }

    async fn diagnose(
        &self,
        request: Request<v1::DiagnoseRequest>,
    ) -> Result<Response<v1::DiagnoseResponse>, Status> {
        self.cluster.fleet.state.answer(crate::doctor::diagnose(&self.doctor, request.into_inner())).await
    }

    async fn list_endpoints(
        &self,
        request: Request<v1::ListEndpointsRequest>,
    ) -> Result<Response<v1::ListEndpointsResponse>, Status> {
        self.cluster.fleet.state.answer(endpoints::list(&self.cluster, request.into_inner())).await
    }

    async fn list_replicas(
        &self,
        _request: Request<v1::ListReplicasRequest>,
    ) -> Result<Response<v1::ListReplicasResponse>, Status> {
        Ok(Response::new(cluster::list::list(&self.cluster)))
    }
}
