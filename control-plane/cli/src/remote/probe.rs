//! Finds the cause of a failed connection with one more connection.
//!
//! A server that rejects the client certificate sends its alert after the client finished the handshake, and
//! closes. The alert can be lost if a write fails first. The probe writes nothing after the handshake, so it
//! reads the alert. A server that requires TLS is probed with HTTP/1, which it can answer as text. The probe
//! runs only after a failure, without a token, with a timeout.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use damper_endpoint::{Access, address, problem};
use http::Uri;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// A link that loses packets may lose an alert too.
const ATTEMPTS: usize = 3;
/// Limit of the response to a plaintext request.
const MAX_ANSWER: u64 = 2048;
/// The first byte of an alert in TLS.
const ALERT: u8 = 0x15;

/// Returns the cause of the failed connection, if it is found within this time.
pub(crate) async fn ask(access: &Access, uri: &Uri, within: Duration) -> Option<String> {
    let asked = async {
        match address::is_tls(uri) {
            true => handshakes(access, uri).await,
            false => plainly(uri).await,
        }
    };
    tokio::time::timeout(within, asked).await.ok()?
}

async fn handshakes(access: &Access, uri: &Uri) -> Option<String> {
    for _ in 0..ATTEMPTS {
        match handshake(access, uri).await {
            Ok(()) => return None,
            Err(error) => {
                if let Some(cause) = problem::of(&*error) {
                    return Some(cause);
                }
            }
        }
    }
    None
}

/// Completes one handshake and waits for an alert.
async fn handshake(access: &Access, uri: &Uri) -> Result<(), Box<dyn Error>> {
    let (config, name) = access.handshake(uri)?;
    let stream = TcpStream::connect((address::host(uri), address::port(uri))).await?;
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    // Data and end are equal here: only an alert is an error.
    let _: usize = stream.read(&mut [0]).await?;
    Ok(())
}

/// Returns a remedy if the server requires TLS.
async fn plainly(uri: &Uri) -> Option<String> {
    let mut stream = TcpStream::connect((address::host(uri), address::port(uri))).await.ok()?;
    let authority = uri.authority()?;
    let request = format!("GET /livez HTTP/1.1\r\nhost: {authority}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    // Bytes read before a reset are enough.
    let _ = stream.take(MAX_ANSWER).read_to_end(&mut answer).await;
    wants_tls(&answer).then(|| format!("the server requires TLS: use https://{authority}"))
}

/// True if the response to HTTP/1 is a TLS alert or a text that asks for HTTPS.
fn wants_tls(answer: &[u8]) -> bool {
    let text = String::from_utf8_lossy(answer);
    let refused = text.strip_prefix("HTTP/1.").is_some_and(|rest| rest.get(1..5) == Some(" 400"));
    answer.starts_with(&[ALERT, 3]) || refused && (text.contains("speaks TLS") || text.contains("HTTPS"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tls_server_is_recognised() {
        let words = b"HTTP/1.1 400 Bad Request\r\n\r\nthis port speaks TLS: use https\r\n\n";
        assert!(wants_tls(words));
        assert!(wants_tls(
            b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
        ));
        assert!(wants_tls(&[ALERT, 3, 1, 0, 2, 2, 10]));
        for other in
            [b"".as_slice(), b"HTTP/1.1 400 Bad Request\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\nHTTPS", b"\x15"]
        {
            assert!(!wants_tls(other), "{other:?}");
        }
    }
}
