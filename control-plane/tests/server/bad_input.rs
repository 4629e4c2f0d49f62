//! Invalid input gets an error that names the field, and nothing is stored.

use damper_proto::v1;
use damper_proto::v1::kills_client::KillsClient;
use damper_proto::v1::tokens_client::TokensClient;
use prost::Message as _;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::harness::{
    Agent, Running, header, hello, key, put_change, rule, shop_rule, soon, start, start_with,
};

/// Checks that each request is rejected with this field and this part of the message.
async fn check(server: &Running, cases: Vec<(v1::Rule, &str, &str)>) {
    for (bad, field, words) in cases {
        let request = v1::PutRuleRequest { rule: Some(bad.clone()), ..Default::default() };
        let refused = server.rules().put_rule(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{field}: {refused:?}");
        let violations = refused.get_details_bad_request().unwrap().field_violations;
        let named = violations.iter().find(|violation| violation.field == field);
        let named = named.unwrap_or_else(|| panic!("{field} is not among {violations:?}"));
        assert!(named.description.contains(words), "{field}: {named:?}");
        assert!(refused.message().len() < 2000);
    }
    let listed = server.rules().list_rules(v1::ListRulesRequest::default()).await.unwrap().into_inner();
    assert_eq!((listed.total, listed.revision), (0, 0), "nothing was stored");
}

fn with_policy(adjust: impl FnOnce(&mut v1::Policy)) -> v1::Rule {
    let mut rule = shop_rule(3);
    adjust(rule.policy.as_mut().unwrap());
    rule
}

#[tokio::test]
async fn every_bad_field_is_named() {
    let server = start().await;
    let ratio = |ratio| {
        with_policy(|policy| {
            policy.retry_breaker = Some(v1::RetryBreaker { ratio: Some(ratio), ..Default::default() });
        })
    };
    let base = |seconds| {
        with_policy(|policy| {
            let base = Some(prost_types::Duration { seconds, nanos: 0 });
            let kind = v1::backoff::Kind::Exponential(v1::ExponentialBackoff { base, ..Default::default() });
            policy.retry.as_mut().unwrap().backoff = Some(v1::Backoff { kind: Some(kind) });
        })
    };
    let negative = prost_types::Duration { seconds: -1, nanos: 0 };
    check(
        &server,
        vec![
            (v1::Rule::default(), "rule.key", "required"),
            (v1::Rule { policy: None, ..shop_rule(1) }, "rule.policy", "required"),
            (with_policy(|policy| policy.mode = 0), "rule.policy.mode", "required"),
            (with_policy(|policy| policy.mode = 77), "rule.policy.mode", "77"),
            (shop_rule(11), "rule.policy.retry.max_attempts", "must be between 1 and 10, not 11"),
            (ratio(f64::NAN), "rule.policy.retry_breaker.ratio", "NaN"),
            (ratio(1.5), "rule.policy.retry_breaker.ratio", "1.5"),
            (with_policy(|policy| policy.timeout = Some(negative)), "rule.policy.timeout", "-1s"),
            (
                base(25 * 3600),
                "rule.policy.retry.backoff.exponential.base",
                "must be between 0ms and 24h, not 25h",
            ),
            (rule(key("shop", "stock", "Take"), 2), "rule.key.callee_method", "package.Service/Method"),
            (rule(key("sh\u{fc}p", "stock", "*"), 2), "rule.key.caller_service", "visible ASCII"),
            (rule(key(&"x".repeat(1 << 20), "stock", "*"), 2), "rule.key.caller_service", "1048576 bytes"),
        ],
    )
    .await;
    server.stop().await;
}

#[tokio::test]
async fn request_lists_all_faults_at_once() {
    let server = start().await;
    let mut bad = rule(key("", "st ock", "*"), 0);
    bad.policy.as_mut().unwrap().mode = 0;
    let options = v1::WriteOptions { request_id: "x".repeat(129), ..Default::default() };
    let request = v1::PutRuleRequest { rule: Some(bad), options: Some(options), ..Default::default() };
    let refused = server.rules().put_rule(request).await.unwrap_err();
    let violations = refused.get_details_bad_request().unwrap().field_violations;
    let fields: Vec<&str> = violations.iter().map(|violation| violation.field.as_str()).collect();
    for field in [
        "rule.key.caller_service",
        "rule.key.callee_service",
        "rule.policy.mode",
        "rule.policy.retry.max_attempts",
        "options.request_id",
    ] {
        assert!(fields.contains(&field), "{field} is not among {fields:?}");
    }
    server.stop().await;
}

/// Sends bytes as they are.
#[derive(Clone, Default)]
struct Raw;

impl tonic::codec::Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl tonic::codec::Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, out: &mut tonic::codec::EncodeBuf<'_>) -> Result<(), Status> {
        bytes::BufMut::put_slice(out, &item);
        Ok(())
    }
}

impl tonic::codec::Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, input: &mut tonic::codec::DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        use bytes::Buf as _;
        Ok(Some(input.copy_to_bytes(input.remaining()).to_vec()))
    }
}

async fn put_raw(server: &Running, message: Vec<u8>) -> Status {
    let mut grpc = tonic::client::Grpc::new(server.channel());
    grpc.ready().await.unwrap();
    let path = http::uri::PathAndQuery::from_static("/damper.v1.Rules/PutRule");
    soon(grpc.unary(tonic::Request::new(message), path, Raw)).await.unwrap_err()
}

#[tokio::test]
async fn invalid_messages_and_names_are_invalid_argument() {
    let server = start().await;
    let request = v1::PutRuleRequest { rule: Some(shop_rule(2)), ..Default::default() };
    let mut not_utf8 = request.encode_to_vec();
    let place = not_utf8.windows(4).position(|window| window == b"shop").unwrap();
    not_utf8[place] = 0xff;
    let refused = put_raw(&server, not_utf8).await;
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
    assert!(refused.message().contains("caller_service"), "{refused:?}");
    assert_eq!(put_raw(&server, vec![0xff; 7]).await.code(), Code::InvalidArgument);
    server.stop().await;
}

#[tokio::test]
async fn a_message_over_the_limit_is_too_much_not_out_of_range() {
    let server = start().await;
    let refused = put_raw(&server, vec![0; 2 << 20]).await;
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    let large = put_change(rule(key(&"x".repeat(2 << 20), "stock", "*"), 2));
    let requests = tokio_stream::iter(vec![header(Default::default()), large]);
    let refused = soon(server.rules().apply_rules(requests)).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    server.stop().await;
}

#[tokio::test]
async fn a_rule_over_64_kib_is_too_large() {
    let server = start().await;
    let wide = with_policy(|policy| {
        let codes = vec![v1::Code::Unavailable.into(); 70_000];
        let allow = v1::codes::Kind::Allow(v1::CodeList { codes });
        policy.retry.as_mut().unwrap().codes = Some(v1::Codes { kind: Some(allow) });
    });
    let request = v1::PutRuleRequest { rule: Some(wide), ..Default::default() };
    let refused = server.rules().put_rule(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    let listed = server.rules().list_rules(v1::ListRulesRequest::default()).await.unwrap().into_inner();
    assert_eq!(listed.total, 0);
    server.stop().await;
}

#[tokio::test]
async fn two_hundred_thousand_rules_are_refused_while_they_arrive() {
    let server = start().await;
    let changes = (0..200_000).map(|n| put_change(rule(key("shop", "stock", &format!("s.S/M{n}")), 2)));
    let requests = std::iter::once(header(Default::default())).chain(changes);
    let refused = soon(server.rules().apply_rules(tokio_stream::iter(requests))).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    assert!(refused.message().contains("100000"), "{refused:?}");
    let listed = server.rules().list_rules(v1::ListRulesRequest::default()).await.unwrap().into_inner();
    assert_eq!(listed.total, 0);
    server.stop().await;
}

#[tokio::test]
async fn an_apply_without_its_header_is_refused() {
    let server = start().await;
    let requests = tokio_stream::iter(vec![put_change(shop_rule(2))]);
    let refused = soon(server.rules().apply_rules(requests)).await.unwrap_err();
    assert_eq!(refused.get_details_bad_request().unwrap().field_violations[0].field, "header");
    server.stop().await;
}

#[tokio::test]
async fn set_up_to_the_rule_limit_is_stored_and_the_next_rejected() {
    const LIMIT: usize = 100_000;
    let server = start_with(|settings| settings.max_rules = LIMIT).await;
    let changes = (0..LIMIT).map(|n| put_change(rule(key("shop", "stock", &format!("s.S/M{n}")), 2)));
    let requests = std::iter::once(header(Default::default())).chain(changes);
    let applied = soon(server.rules().apply_rules(tokio_stream::iter(requests))).await.unwrap().into_inner();
    assert_eq!((applied.created as usize, applied.revision), (LIMIT, 1));
    let request = v1::PutRuleRequest { rule: Some(shop_rule(2)), ..Default::default() };
    let refused = server.rules().put_rule(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    let mut shop = Agent::connect(&server, hello("shop")).await;
    let (_, rules) = shop.snapshot().await;
    assert_eq!(rules.len(), LIMIT);
    server.put(rule(key("shop", "stock", "s.S/M7"), 4)).await;
    assert_eq!(shop.delta().await.1.changed.len(), 1);
    server.stop().await;
}

/// Returns the field of the fault.
fn fault_of(refused: Result<(), Status>, what: &str) -> String {
    let refused = refused.expect_err(what);
    assert_eq!(refused.code(), Code::InvalidArgument, "{what}: {refused:?}");
    let violations = refused.get_details_bad_request().unwrap().field_violations;
    violations.into_iter().map(|violation| violation.field).collect::<Vec<_>>().join(",")
}

#[tokio::test]
async fn extreme_durations_are_faults_of_their_fields() {
    let server = start().await;
    for (seconds, nanos) in [(i64::MIN, i32::MIN), (i64::MIN, 0), (0, i32::MIN), (i64::MAX, i32::MAX)] {
        let length = Some(prost_types::Duration { seconds, nanos });
        let watch = v1::WatchRequest { interval: length, ..Default::default() };
        let watched = server.fleet().watch(watch).await.map(drop);
        assert_eq!(fault_of(watched, "interval"), "interval");
        let list = v1::ListRoutesRequest { window: length, ..Default::default() };
        assert_eq!(fault_of(server.fleet().list_routes(list).await.map(drop), "window"), "window");
        let within = v1::WatchConvergenceRequest { within: length, ..Default::default() };
        let waited = server.fleet().watch_convergence(within).await.map(drop);
        assert!(fault_of(waited, "within").split(',').any(|field| field == "within"));
        let kill = v1::KillRequest { time_to_live: length, ..Default::default() };
        let killed = KillsClient::new(server.channel()).kill(kill).await.map(drop);
        assert!(fault_of(killed, "kill").split(',').any(|field| field == "time_to_live"));
        let token = v1::CreateTokenRequest { time_to_live: length, ..Default::default() };
        let created = TokensClient::new(server.channel()).create_token(token).await.map(drop);
        assert!(fault_of(created, "token").split(',').any(|field| field == "time_to_live"));
    }
    server.stop().await;
}
