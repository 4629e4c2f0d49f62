//! tonic's interceptors around and below the layers: both compile and behave as without Damper.

use damper_sdk::Damper;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower_layer::Layer as _;

fn refuse(_: Request<()>) -> Result<Request<()>, Status> {
    Err(Status::unauthenticated("no credentials"))
}

fn nowhere() -> Channel {
    Channel::from_static("http://127.0.0.1:1").connect_lazy()
}

#[tokio::test]
async fn an_interceptor_over_a_layered_channel_refuses_calls() {
    let channel = Damper::off().client_layer("price").unwrap().layer(nowhere());
    let mut client = HealthClient::with_interceptor(channel, refuse);
    let status = client.check(HealthCheckRequest::default()).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unauthenticated, "no credentials"));
}

#[tokio::test]
async fn an_interceptor_below_the_layer_refuses_each_attempt() {
    let intercepted = InterceptedService::new(nowhere(), refuse);
    let channel = Damper::off().client_layer("price").unwrap().layer(intercepted);
    let status = HealthClient::new(channel).check(HealthCheckRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
}

#[tokio::test]
async fn an_interceptor_over_the_server_layer_refuses_requests() {
    let server = Damper::off().server_layer().layer(tonic_health::server::health_reporter().1);
    let mut client = HealthClient::new(InterceptedService::new(server, refuse));
    let status = client.check(HealthCheckRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
}
