//! Sessions of the web UI over raw HTTP.

use damper_proto::v1;

use super::{Guarded, wanted};
use crate::harness::soon;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Sends a request head with these headers and a body, and returns the answer.
pub(super) async fn http(address: std::net::SocketAddr, head: &str, body: &[u8]) -> String {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let lines = format!("{head}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(lines.as_bytes()).await.unwrap();
    stream.write_all(body).await.unwrap();
    let mut answer = Vec::new();
    soon(stream.read_to_end(&mut answer)).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

/// An empty message of gRPC-Web.
pub(super) const EMPTY: &[u8] = b"\0\0\0\0\0";

impl Guarded {
    fn origin(&self) -> String {
        format!("http://{}", self.server.address)
    }

    async fn sign_in(&self, token: &str) -> String {
        let head = format!(
            "POST /session HTTP/1.1\r\nhost: {}\r\norigin: {}\r\nauthorization: Bearer {token}",
            self.server.address,
            self.origin()
        );
        http(self.server.address, &head, b"").await
    }

    /// Returns the identity of a cookie.
    async fn who(&self, cookie: &str, origin: &str) -> String {
        let head = format!(
            "POST /damper.v1.Tokens/WhoAmI HTTP/1.1\r\nhost: {}\r\norigin: {origin}\r\ncontent-type: \
             application/grpc-web+proto\r\ncookie: theme=dark; {cookie}",
            self.server.address
        );
        http(self.server.address, &head, EMPTY).await
    }
}

fn cookie(answer: &str) -> (String, String) {
    let line = answer
        .lines()
        .find_map(|line| line.strip_prefix("set-cookie: "))
        .unwrap_or_else(|| panic!("{answer}"));
    let (pair, flags) = line.split_once("; ").unwrap();
    (pair.to_owned(), flags.to_owned())
}

#[tokio::test]
async fn session_lasts_until_sign_out_or_revocation() {
    let server = Guarded::start().await;
    let (id, token) = server.make(wanted(v1::Role::Viewer, &[], &[])).await;
    let answer = server.sign_in(&token).await;
    assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
    let (cookie_pair, flags) = cookie(&answer);
    assert!(!answer.contains(token.rsplit('_').next().unwrap()), "the token does not go into the cookie");
    for flag in ["HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43"] {
        assert!(flags.contains(flag), "{flag} is not in {flags}");
    }
    let who = server.who(&cookie_pair, &server.origin()).await;
    assert!(who.contains(&format!("token a ROLE_VIEWER ({id})")) && who.contains("grpc-status:0"), "{who}");

    let out = format!(
        "DELETE /session HTTP/1.1\r\nhost: {}\r\norigin: {}\r\ncookie: {cookie_pair}",
        server.server.address,
        server.origin()
    );
    let (gone, flags) = cookie(&http(server.server.address, &out, b"").await);
    assert!(gone.ends_with('=') && flags.contains("Max-Age=0"), "{gone}; {flags}");

    server.revoke(&id).await.unwrap();
    let over = server.who(&cookie_pair, &server.origin()).await;
    assert!(over.contains("grpc-status: 16"), "{over}");
    server.server.stop().await;
}

#[tokio::test]
async fn foreign_or_cross_origin_cookie_is_rejected() {
    let server = Guarded::start().await;
    let (pair, _) = cookie(&server.sign_in(&server.admin).await);
    let (name, value) = pair.split_once('=').unwrap();
    let swapped = if value.starts_with('A') { "B" } else { "A" };
    for (bad, expected) in [
        (format!("{name}={}", &value[..value.len() - 1]), "grpc-status: 16"),
        (format!("{name}={swapped}{}", &value[1..]), "grpc-status: 16"),
        (format!("{name}="), "grpc-status: 16"),
        (format!("__Host-{pair}"), "grpc-status: 16"),
        (pair.clone(), "grpc-status:0"),
    ] {
        let answer = server.who(&bad, &server.origin()).await;
        assert!(answer.contains(expected), "{bad}: {answer}");
    }
    let elsewhere = server.who(&pair, "https://evil.example").await;
    assert!(elsewhere.starts_with("HTTP/1.1 403"), "{elsewhere}");
    // Without an origin header the cookie does not count.
    let head = format!(
        "POST /damper.v1.Tokens/WhoAmI HTTP/1.1\r\nhost: {}\r\ncontent-type: application/grpc-web+proto\r\ncookie: {pair}",
        server.server.address
    );
    let nobody = http(server.server.address, &head, EMPTY).await;
    assert!(nobody.contains("grpc-status: 16"), "{nobody}");
    server.server.stop().await;
}

#[tokio::test]
async fn sign_in_requires_a_valid_token() {
    let server = Guarded::start().await;
    let agent = server.token(v1::Role::Agent, &[], &[]).await;
    for (token, status) in [("x", "401"), (agent.as_str(), "403"), (&server.admin, "204")] {
        let answer = server.sign_in(token).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
        assert_eq!(answer.contains("set-cookie"), status == "204");
    }
    let head = format!("POST /session HTTP/1.1\r\nhost: {}", server.server.address);
    let missing = http(server.server.address, &head, b"").await;
    assert!(missing.starts_with("HTTP/1.1 401"), "{missing}");
    let head = format!("GET /session HTTP/1.1\r\nhost: {}", server.server.address);
    assert!(http(server.server.address, &head, b"").await.starts_with("HTTP/1.1 405"));
    server.server.stop().await;

    let open = crate::harness::start().await;
    let head = format!("POST /session HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer x", open.address);
    assert!(http(open.address, &head, b"").await.starts_with("HTTP/1.1 404"));
    open.stop().await;
}
