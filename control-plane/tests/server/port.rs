//! One port for gRPC, gRPC-Web, the web UI, health and metrics; and reasons for a failed start.

use damper_control_plane::{Server, StartError};
use tempfile::TempDir;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::harness::{settings_in, soon, start};

#[tokio::test]
async fn health_is_reported_per_service() {
    let server = start().await;
    let mut health = HealthClient::new(server.channel());
    for service in ["", "damper.v1.Rules", "damper.v1.Distribution", "damper.v1.Fleet", "damper.v1.Kills"] {
        let request = HealthCheckRequest { service: service.to_owned() };
        let status = soon(health.check(request)).await.unwrap().into_inner().status();
        assert_eq!(status, ServingStatus::Serving, "{service}");
    }
    for (address, path) in
        [(server.address, "/livez"), (server.metrics, "/livez"), (server.metrics, "/readyz")]
    {
        let answer = server.get(address, &format!("GET {path} HTTP/1.1")).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    server.stop().await;
}

#[tokio::test]
async fn reflection_names_the_services() {
    use tonic_reflection::pb::v1::ServerReflectionRequest;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    let server = start().await;
    let list = MessageRequest::ListServices(String::new());
    let request = ServerReflectionRequest { host: String::new(), message_request: Some(list) };
    let mut reflection = ServerReflectionClient::new(server.channel());
    let asked = soon(reflection.server_reflection_info(tokio_stream::iter([request]))).await;
    let answer = soon(asked.unwrap().into_inner().message()).await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
        panic!("{answer:?}");
    };
    let names: Vec<&str> = list.service.iter().map(|service| service.name.as_str()).collect();
    for service in [
        "damper.v1.Rules",
        "damper.v1.Fleet",
        "damper.v1.Distribution",
        "damper.v1.History",
        "damper.v1.Kills",
    ] {
        assert!(names.contains(&service), "{service} is not among {names:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn unknown_service_is_unimplemented_and_path_is_the_web_ui() {
    let server = start().await;
    let mut grpc = tonic::client::Grpc::new(server.channel());
    grpc.ready().await.unwrap();
    let path = http::uri::PathAndQuery::from_static("/no.such.Service/Call");
    let codec = tonic_prost::ProstCodec::<(), ()>::default();
    let refused = soon(grpc.unary(tonic::Request::new(()), path, codec)).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented);
    for path in ["/", "/rules/some/deep/link"] {
        let page = server.get(server.address, &format!("GET {path} HTTP/1.1")).await;
        let head = page.split("\r\n\r\n").next().unwrap().to_lowercase();
        assert!(head.starts_with("http/1.1 200"), "{head}");
        assert!(head.contains("content-type: text/html"), "{head}");
        assert!(head.contains("content-security-policy: default-src 'self'"), "{head}");
        let tag = page.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap();
        let again = server.get(server.address, &format!("GET {path} HTTP/1.1\r\nif-none-match: {tag}")).await;
        assert!(again.starts_with("HTTP/1.1 304"), "{again}");
    }
    let missing = server.get(server.address, "GET /assets/none.js HTTP/1.1").await;
    assert!(missing.starts_with("HTTP/1.1 404"), "{missing}");
    server.stop().await;
}

#[tokio::test]
async fn web_ui_is_sent_compressed_if_the_client_accepts_it() {
    let server = start().await;
    for (takes, packed) in [
        ("gzip, deflate, br", true),
        ("br, GZIP;q=0.5", true),
        ("deflate\r\naccept-encoding: gzip", true),
        ("gzip;q=0.0, br", false),
        ("identity", false),
        ("", false),
    ] {
        let request = format!("GET / HTTP/1.1\r\naccept-encoding: {takes}");
        let answer = server.get(server.address, &request).await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let head = head.to_lowercase();
        assert!(head.contains("vary: accept-encoding"), "{takes}: {head}");
        assert_eq!(head.contains("content-encoding: gzip"), packed, "{takes}: {head}");
        assert_eq!(body.contains("<html"), !packed, "{takes}: {body}");
    }
    server.stop().await;
}

#[tokio::test]
async fn browsers_call_the_api_over_http_1() {
    let server = start().await;
    let head = "POST /damper.v1.Rules/ListRules HTTP/1.1\r\ncontent-type: application/grpc-web+proto\r\n\
                content-length: 5";
    let body = "\0\0\0\0\0";
    let answer = {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let mut stream = tokio::net::TcpStream::connect(server.address).await.unwrap();
        let request = format!("{head}\r\nhost: localhost\r\nconnection: close\r\n\r\n{body}");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        soon(stream.read_to_end(&mut answer)).await.unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    };
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("application/grpc-web+proto"), "{answer}");
    assert!(answer.contains("grpc-status:0"), "{answer}");
    server.stop().await;
}

#[tokio::test]
async fn failed_start_reports_its_reason() {
    let server = start().await;
    let folder = TempDir::new().unwrap();
    let mut taken = settings_in(&folder);
    taken.listen = server.address;
    assert!(matches!(Server::bind(taken).await, Err(StartError::AddressInUse { .. })));

    let mut open = settings_in(&folder);
    open.listen = "0.0.0.0:0".parse().unwrap();
    let refused = Server::bind(open.clone()).await;
    assert!(matches!(refused, Err(StartError::Insecure(_))), "{refused:?}");
    open.allow_insecure = true;
    assert!(Server::bind(open).await.is_ok());

    let folder = server.stop().await;
    let first = Server::bind(settings_in(&folder)).await.unwrap();
    let second = Server::bind(settings_in(&folder)).await;
    assert!(matches!(second, Err(StartError::StoreLocked(_))), "{second:?}");
    drop(first);
}
