//! Cross-origin requests of a browser over raw HTTP are rejected, with and without access control.

use damper_proto::v1;
use prost::Message as _;

use super::sessions::{EMPTY, http};
use crate::harness::{shop_rule, soon, start, start_with};

fn put_rule() -> Vec<u8> {
    let message = v1::PutRuleRequest { rule: Some(shop_rule(2)), ..Default::default() }.encode_to_vec();
    let mut frame = vec![0];
    frame.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
    frame.extend(message);
    frame
}

#[tokio::test]
async fn another_site_changes_nothing_on_an_open_server() {
    let server = start().await;
    let own = format!("http://{}", server.address);
    let put = |host: &str, headers: &str| {
        format!(
            "POST /damper.v1.Rules/PutRule HTTP/1.1\r\nhost: {host}\r\n{headers}\r\ncontent-type: \
             application/grpc-web+proto"
        )
    };
    let address = server.address.to_string();
    for head in [
        put(&address, "origin: https://evil.example"),
        put(&address, "origin: null"),
        put(&address, "origin: http://localhost:7600"),
        put(&address, "sec-fetch-site: cross-site"),
        put(&address, "sec-fetch-site: same-site"),
        // A foreign name with the address of this server.
        put("evil.example", "origin: http://evil.example"),
        put("evil.example", "x-nothing: 1"),
        put(&address, "host: evil.example"),
    ] {
        let answer = http(server.address, &head, &put_rule()).await;
        assert!(answer.starts_with("HTTP/1.1 403") || answer.starts_with("HTTP/1.1 400"), "{head}: {answer}");
    }
    // A form has three content types; the server accepts none of them.
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"] {
        let head =
            format!("POST /damper.v1.Rules/PutRule HTTP/1.1\r\nhost: {address}\r\ncontent-type: {kind}");
        let answer = http(server.address, &head, &put_rule()).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{kind}: {answer}");
    }
    let listed = soon(server.rules().list_rules(v1::ListRulesRequest::default())).await.unwrap().into_inner();
    assert_eq!(listed.revision, 0, "nothing was written");
    let answer = http(server.address, &put(&address, &format!("origin: {own}")), &put_rule()).await;
    assert!(answer.contains("grpc-status:0"), "{answer}");
    let scraped = server.get(server.metrics, "GET /metrics HTTP/1.1").await;
    for reason in ["ORIGIN", "HOST"] {
        assert!(scraped.contains(&format!("damper_denied_total{{reason=\"{reason}\"}}")), "{scraped}");
    }
    server.stop().await;
}

#[tokio::test]
async fn web_ui_behind_a_proxy_uses_the_configured_origin() {
    let server = start_with(|settings| {
        settings.page_origins = vec!["https://damper.example.com".parse().unwrap()];
    });
    let server = server.await;
    for (host, origin, is_own) in [
        ("damper.example.com", "https://damper.example.com", true),
        ("damper.example.com", "http://damper.example.com", false),
        ("127.0.0.1:7600", "https://damper.example.com", true),
        ("damper.example.com", "https://evil.example", false),
        ("evil.example", "https://damper.example.com", false),
    ] {
        let head = format!(
            "POST /damper.v1.Tokens/WhoAmI HTTP/1.1\r\nhost: {host}\r\norigin: {origin}\r\ncontent-type: \
             application/grpc-web+proto"
        );
        let answer = http(server.address, &head, EMPTY).await;
        assert_eq!(answer.contains("grpc-status:0"), is_own, "{host} {origin}: {answer}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_link_to_the_page_from_elsewhere_can_be_followed() {
    let server = start().await;
    let link = |dest: &str, path: &str| {
        format!(
            "GET {path} HTTP/1.1\r\nhost: {}\r\nsec-fetch-site: cross-site\r\nsec-fetch-mode: navigate\r\n\
             sec-fetch-dest: {dest}",
            server.address
        )
    };
    for (dest, path, status) in [
        ("document", "/", "200"),
        ("iframe", "/", "403"),
        ("document", "/metrics", "403"),
        ("script", "/", "403"),
    ] {
        let answer = http(server.address, &link(dest, path), b"").await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{dest} {path}: {answer}");
    }
    server.stop().await;
}
