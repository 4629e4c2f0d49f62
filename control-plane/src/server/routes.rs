//! Routes of the main port: the services of the API behind the layers for authentication and limits, then the
//! web UI, health and metrics. [`report_health`] sets the status of each service.

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::any;
use damper_proto::v1;
use damper_proto::v1::fleet_server::FleetServer;
use damper_proto::v1::guards_server::GuardsServer;
use damper_proto::v1::history_server::HistoryServer;
use damper_proto::v1::jobs_server::JobsServer;
use damper_proto::v1::kills_server::KillsServer;
use damper_proto::v1::queues_server::QueuesServer;
use damper_proto::v1::replicas_server::ReplicasServer;
use damper_proto::v1::rules_server::RulesServer;
use damper_proto::v1::tokens_server::TokensServer;
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::api::fleet::Fleet;
use crate::api::guards::Guards;
use crate::api::history::History;
use crate::api::jobs::{JobsApi, JobsContext};
use crate::api::kills::Kills;
use crate::api::queues::Queues;
use crate::api::response_stream::StreamLimits;
use crate::api::rules::Rules;
use crate::api::tokens::Tokens;
use crate::auth;
use crate::auth::limits;
use crate::auth::session;
use crate::cluster::Replicas;
use crate::doctor::Doctor;
use crate::push::Distribution;
use crate::push::{PushConfig, PushContext};
use crate::server::http;
use crate::server::tasks::Parts;
use crate::telemetry::Telemetry;

/// Bytes above the message limit, so that the error for a long name can still name its field.
const MESSAGE_SPARE_BYTES: usize = 64 << 10;
/// The size of a health request, which contains a service name and needs no token.
const MAX_HEALTH_BYTES: usize = 4 << 10;

/// Returns all routes of the port: the API for gRPC and gRPC-Web, then the others.
pub(super) fn routes(
    parts: &Parts,
    telemetry: &Arc<Telemetry>,
    health: tonic_health::pb::health_server::HealthServer<impl tonic_health::pb::health_server::Health>,
) -> Router {
    let Parts { settings, auth, cluster, writes, jobs } = parts;
    let streams = StreamLimits {
        slow_consumer_after: settings.slow_consumer_after,
        slow_consumers: cluster.fleet.metrics.slow_consumers.clone(),
        limiter: writes.limiter.clone(),
        stopping: cluster.stopping.clone(),
    };
    let doctor = Arc::new(Doctor {
        cluster: cluster.clone(),
        replicas_wanted: settings.replicas,
        lags_after: settings.lags_after,
        jobs: jobs.clone(),
    });
    let most = settings.limits.max_message_bytes.saturating_add(MESSAGE_SPARE_BYTES);
    let rules = RulesServer::new(Rules::new(writes.clone(), cluster.stopping.clone()))
        .max_decoding_message_size(most);
    let guards = GuardsServer::new(Guards::new(writes.clone())).max_decoding_message_size(most);
    let distribution = Distribution::new(push(parts), most);
    let fleet = FleetServer::new(Fleet::new(
        cluster.clone(),
        doctor,
        streams.clone(),
        writes.limits.max_amplification,
    ))
    .max_decoding_message_size(most);
    let history = HistoryServer::new(History::new(writes.clone(), cluster.clone(), streams.clone()))
        .max_decoding_message_size(most);
    let kills = KillsServer::new(Kills::new(writes.clone())).max_decoding_message_size(most);
    let queues = QueuesServer::new(Queues::new(writes.clone(), jobs.clone())).max_decoding_message_size(most);
    let context = JobsContext {
        jobs: jobs.clone(),
        fleet: cluster.fleet.clone(),
        access: cluster.access.clone(),
        limiter: writes.limiter.clone(),
    };
    let jobs = JobsServer::new(JobsApi::new(context, streams)).max_decoding_message_size(most);
    let tokens = TokensServer::new(Tokens::new(writes.clone(), cluster.access.clone()))
        .max_decoding_message_size(most);
    let replicas = ReplicasServer::new(Replicas::new(cluster.clone())).max_decoding_message_size(most);
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(damper_proto::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
        .expect("the descriptors were made by the compiler")
        .max_decoding_message_size(most);
    let health = health.max_decoding_message_size(MAX_HEALTH_BYTES);
    let api: Router = Routes::new(rules)
        .add_service(guards)
        .add_service(distribution)
        .add_service(fleet)
        .add_service(history)
        .add_service(kills)
        .add_service(queues)
        .add_service(jobs)
        .add_service(tokens)
        .add_service(replicas)
        .add_service(health)
        .add_service(reflection)
        .into_axum_router()
        .layer(tower::util::MapResponseLayer::new(http::correct_code))
        .layer(from_fn_with_state(auth.clone(), limits::answer))
        .layer(from_fn_with_state(auth.clone(), auth::layer::api))
        .layer(tonic_web::GrpcWebLayer::new());
    let operations = http::operations(telemetry.clone(), cluster.stopping.clone(), Some(auth.clone()));
    let visits = || from_fn_with_state(auth.clone(), limits::visit);
    let page = any(http::page).layer(visits());
    api.merge(operations.merge(session::routes(auth.clone())).layer(visits()))
        .fallback_service(page.with_state(()))
        .layer(from_fn_with_state(auth.clone(), auth::own_site_only))
}

/// Sets the health of the server and of each service.
pub(super) async fn report_health(reporter: &HealthReporter, status: ServingStatus) {
    use v1::{
        distribution_server, fleet_server, guards_server, history_server, jobs_server, kills_server,
        queues_server, rules_server, tokens_server,
    };
    for service in [
        "",
        rules_server::SERVICE_NAME,
        guards_server::SERVICE_NAME,
        distribution_server::SERVICE_NAME,
        fleet_server::SERVICE_NAME,
        history_server::SERVICE_NAME,
        kills_server::SERVICE_NAME,
        queues_server::SERVICE_NAME,
        jobs_server::SERVICE_NAME,
        tokens_server::SERVICE_NAME,
    ] {
        reporter.set_service_status(service, status).await;
    }
}

/// Returns the context of client streams.
fn push(parts: &Parts) -> PushContext {
    let Parts { settings, cluster, writes, .. } = parts;
    let config = PushConfig {
        watched_report_interval: settings.watched_report_interval,
        bookmark_interval: settings.bookmark_interval,
        slow_consumer_after: settings.slow_consumer_after,
        stream_age: settings.stream_age,
        drain: settings.drain,
    };
    let (access, limiter) = (cluster.access.clone(), writes.limiter.clone());
    PushContext::new(cluster.fleet.clone(), access, limiter, cluster.stopping.clone(), config)
}
