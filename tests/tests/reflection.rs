//! A client that knows nothing but the reflection service, on every store: it finds all services, the types of every
//! method, and calls each with messages that it makes from JSON.

#![allow(clippy::unwrap_used, reason = "a failure in a test's helper is the failure of the test")]

use std::collections::{BTreeMap, BTreeSet};

use damper_tests::control_plane::ControlPlane;
use damper_tests::etcd::Etcd;
use futures_util::StreamExt as _;
use prost::Message as _;
use prost::bytes::{Buf, BufMut};
use prost_reflect::{
    DescriptorPool, DynamicMessage, MessageDescriptor, MethodDescriptor, ReflectMessage as _,
};
use prost_types::FileDescriptorProto;
use serde_json::{Value, json};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tonic_reflection::pb::v1 as reflection;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

/// Messages of which only the descriptors are known.
#[derive(Clone)]
struct Dynamic {
    answer: MessageDescriptor,
}

impl Codec for Dynamic {
    type Encode = DynamicMessage;
    type Decode = DynamicMessage;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        self.clone()
    }

    fn decoder(&mut self) -> Self {
        self.clone()
    }
}

impl Encoder for Dynamic {
    type Item = DynamicMessage;
    type Error = Status;

    fn encode(&mut self, item: DynamicMessage, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put(item.encode_to_vec().as_slice());
        Ok(())
    }
}

impl Decoder for Dynamic {
    type Item = DynamicMessage;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<DynamicMessage>, Status> {
        let bytes = from.copy_to_bytes(from.remaining());
        let message = DynamicMessage::decode(self.answer.clone(), bytes);
        message.map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}

async fn ask(channel: &Channel, question: MessageRequest) -> MessageResponse {
    let request =
        reflection::ServerReflectionRequest { host: String::new(), message_request: Some(question) };
    let mut client = ServerReflectionClient::new(channel.clone());
    let mut answers = client.server_reflection_info(tokio_stream::once(request)).await.unwrap().into_inner();
    let answer = answers.next().await.unwrap().unwrap();
    answer.message_response.unwrap()
}

async fn services(channel: &Channel) -> BTreeSet<String> {
    match ask(channel, MessageRequest::ListServices(String::new())).await {
        MessageResponse::ListServicesResponse(list) => list.service.into_iter().map(|one| one.name).collect(),
        other => panic!("{other:?}"),
    }
}

/// All types that the services speak of, put together file by file as the server hands them out.
async fn types(channel: &Channel, services: &BTreeSet<String>) -> DescriptorPool {
    let mut files: BTreeMap<String, FileDescriptorProto> = BTreeMap::new();
    let mut questions: Vec<MessageRequest> =
        services.iter().cloned().map(MessageRequest::FileContainingSymbol).collect();
    while let Some(question) = questions.pop() {
        let MessageResponse::FileDescriptorResponse(found) = ask(channel, question).await else {
            panic!("a service is in no file")
        };
        for file in found.file_descriptor_proto {
            let file = FileDescriptorProto::decode(file.as_slice()).unwrap();
            let unknown = file.dependency.iter().filter(|name| !files.contains_key(*name));
            questions.extend(unknown.cloned().map(MessageRequest::FileByFilename));
            files.insert(file.name().to_owned(), file);
        }
    }
    let mut pool = DescriptorPool::new();
    pool.add_file_descriptor_protos(files.into_values()).unwrap();
    pool
}

fn message(of: MessageDescriptor, json: Value) -> DynamicMessage {
    DynamicMessage::deserialize(of, json).unwrap()
}

/// Calls a method with one message, and takes the first of its answers.
async fn call(channel: &Channel, method: &MethodDescriptor, request: Value) -> Result<Value, Status> {
    let path = format!("/{}/{}", method.parent_service().full_name(), method.name());
    let path = PathAndQuery::try_from(path).unwrap();
    let codec = Dynamic { answer: method.output() };
    let request = message(method.input(), request);
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let answer = if method.is_server_streaming() {
        let request = tonic::Request::new(tokio_stream::once(request));
        let mut answers = client.streaming(request, path, codec).await?.into_inner();
        answers.next().await.expect("a stream says something")?
    } else if method.is_client_streaming() {
        client
            .client_streaming(tonic::Request::new(tokio_stream::once(request)), path, codec)
            .await?
            .into_inner()
    } else {
        client.unary(tonic::Request::new(request), path, codec).await?.into_inner()
    };
    assert_eq!(answer.descriptor(), method.output());
    Ok(serde_json::to_value(&answer).unwrap())
}

/// A request for each method, in an order in which each finds what it needs. What a method without a request here is
/// asked is the empty message: it must answer in any case.
fn requests() -> Vec<(&'static str, Value)> {
    let key = json!({ "callerService": "shop", "callerCluster": "*", "calleeService": "stock", "calleeMethod": "*" });
    let route = json!({
        "callerService": "shop", "callerCluster": "default", "calleeService": "stock", "calleeMethod": "p.S/M"
    });
    let policy = json!({ "mode": "MODE_OBSERVE", "timeout": "1.5s", "retry": { "maxAttempts": 3 } });
    let rule = json!({ "key": key, "policy": policy, "owner": "team-a" });
    let guard = json!({ "key": key, "ceiling": { "maxAttempts": 3 } });
    let options = json!({ "reason": "reflection", "author": "a stranger" });
    vec![
        ("damper.v1.Rules/PutRule", json!({ "rule": rule, "expectedRevision": "0", "options": options })),
        ("damper.v1.Rules/GetRule", json!({ "key": key })),
        ("damper.v1.Rules/ListRules", json!({ "filter": { "owner": "team-a" }, "pageSize": 10 })),
        ("damper.v1.Rules/Explain", json!({ "route": route })),
        ("damper.v1.Rules/ApplyRules", json!({ "header": { "owner": "team-a", "validateOnly": true } })),
        ("damper.v1.Guards/PutGuard", json!({ "guard": guard })),
        ("damper.v1.Guards/GetGuard", json!({ "key": key })),
        ("damper.v1.Guards/ListGuards", json!({})),
        ("damper.v1.History/ListChanges", json!({ "filter": { "author": "a stranger" } })),
        ("damper.v1.History/GetObject", json!({ "key": { "rule": key }, "revision": "1" })),
        ("damper.v1.History/DiffRevisions", json!({ "fromRevision": "0" })),
        ("damper.v1.History/ExportAudit", json!({})),
        ("damper.v1.History/Export", json!({ "revision": "1" })),
        ("damper.v1.History/Rollback", json!({ "key": { "guard": key }, "toRevision": "2" })),
        ("damper.v1.Guards/DeleteGuard", json!({ "key": key })),
        ("damper.v1.Kills/Kill", json!({ "key": key, "options": options })),
        ("damper.v1.Kills/ListKills", json!({})),
        ("damper.v1.Kills/Unkill", json!({ "key": key })),
        ("damper.v1.Rules/DeleteRule", json!({ "key": key, "options": options })),
        ("damper.v1.History/RollbackAll", json!({ "toRevision": "1", "options": options })),
        ("damper.v1.Fleet/Watch", json!({ "interval": "1s" })),
        ("grpc.health.v1.Health/Check", json!({ "service": "damper.v1.Rules" })),
        ("grpc.health.v1.Health/Watch", json!({ "service": "" })),
    ]
}

/// Those that a stranger can not answer for: a service would have to say hello, and reflection itself is how we ask.
fn is_left_out(method: &MethodDescriptor) -> bool {
    method.is_client_streaming() && method.is_server_streaming()
}

async fn can_list_and_call_everything(server: &ControlPlane) {
    let channel = server.channel().await;
    let names = services(&channel).await;
    for expected in ["Rules", "Guards", "History", "Kills", "Fleet", "Distribution"] {
        assert!(names.contains(&format!("damper.v1.{expected}")), "{names:?}");
    }
    assert!(names.contains("grpc.health.v1.Health"), "{names:?}");
    let pool = types(&channel, &names).await;
    let mut methods: BTreeMap<String, MethodDescriptor> = BTreeMap::new();
    for service in &names {
        let service = pool.get_service_by_name(service).expect("its file says so");
        for method in service.methods() {
            let types = [method.input(), method.output()];
            assert!(types.iter().all(|of| pool.get_message_by_name(of.full_name()).is_some()));
            methods.insert(format!("{}/{}", service.full_name(), method.name()), method);
        }
    }
    assert!(methods.len() >= 25, "{methods:?}");

    let mut answers = BTreeMap::new();
    for (name, request) in requests() {
        let method = methods.remove(name).unwrap_or_else(|| panic!("there is no {name}"));
        let answer = call(&channel, &method, request).await;
        answers.insert(name, answer.unwrap_or_else(|status| panic!("{name}: {status:?}")));
    }
    assert_eq!(answers["damper.v1.Rules/PutRule"]["rule"]["policy"]["timeout"], "1.500s");
    assert_eq!(answers["damper.v1.Rules/GetRule"]["updatedBy"], "a stranger");
    assert_eq!(answers["damper.v1.Rules/ListRules"]["rules"][0]["owner"], "team-a");
    assert_eq!(answers["damper.v1.Rules/Explain"]["effective"]["retry"]["maxAttempts"], 3);
    assert_eq!(answers["damper.v1.Rules/ApplyRules"]["revision"], "1");
    assert_eq!(answers["damper.v1.History/Export"]["objects"][0]["rule"]["owner"], "team-a");
    assert_eq!(answers["damper.v1.Kills/ListKills"]["kills"].as_array().map(Vec::len), Some(1));
    assert_eq!(answers["grpc.health.v1.Health/Check"]["status"], "SERVING");

    // The others are asked with nothing: what they answer is theirs, but it is an answer of their own.
    for (name, method) in methods.into_iter().filter(|(_, method)| !is_left_out(method)) {
        if let Err(status) = call(&channel, &method, json!({})).await {
            let is_about_jobs = name.starts_with("damper.v1.Jobs/") || name.starts_with("damper.v1.Queues/");
            let has_no_store = status.code() == Code::Unavailable && status.message().contains("job store");
            let is_own = matches!(status.code(), Code::InvalidArgument | Code::NotFound);
            assert!(is_own || is_about_jobs && has_no_store, "{name}: {status:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sled_a_client_by_reflection_alone_can_list_and_call_everything() {
    can_list_and_call_everything(&ControlPlane::start().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_a_client_by_reflection_alone_can_list_and_call_everything() {
    let etcd = Etcd::start().await;
    can_list_and_call_everything(&ControlPlane::on(&format!("etcd://{}", etcd.endpoint())).await).await;
}
