//! Bytes of a connection to the proxy's listener for HTTP CONNECT.
//!
//! The first byte chooses whether others on the network can reach the listener, and the packets in which the
//! rest arrives. Checked: nothing panics, also not when a callee's channel opens. A tunnel is granted by the
//! status 200 alone. No byte after the CONNECT is lost or changed. A listener that others can reach grants
//! listed hosts alone. A host that is governed without being listed is a name within the cluster, never an
//! address, in any spelling.

use std::io;
use std::net::IpAddr;

use damper_proxy::fuzzing::{Governs, Listener, Tunnel};
use damper_proxy::{Config, ReadConfig};
use damper_sdk::Damper;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

use crate::play;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const LISTED: [&str; 2] = ["stock:50051", "payments.example:443"];
/// What the proxy may keep of a connection before it is granted, and more.
const BUFFER: usize = 1 << 20;

/// Inputs that bytes alone would hardly find.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let hosts = [
        LISTED[0],
        LISTED[1],
        "inventory:80",
        "Inventory.shop.svc.cluster.local.:1",
        "stock-0.stock.depot.svc:65535",
        "127.0.0.1:1",
        "[::1]:443",
        "0x7f000001:1",
        "user@stock:1",
        "localhost:0",
        "a:65536",
    ];
    let http2 = String::from_utf8_lossy(PREFACE);
    let connect = |host: &str, after: &str| format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n{after}");
    let after = [format!("{http2}\0\0\0\x04\0\0\0\0\0"), "PRI * HTTP/1.1\r\n".to_owned(), String::new()];
    let tunnels = hosts.iter().flat_map(|host| after.iter().map(|after| connect(host, after)));
    let others =
        ["GET / HTTP/1.1\r\n\r\n".to_owned(), format!("GET / HTTP/1.1\r\n\r\n{}", connect("a:1", "x"))];
    let all: Vec<_> = tunnels.chain(others).collect();
    let first = [0, 1, 6];
    first.iter().flat_map(|first| all.iter().map(|text| [&[*first], text.as_bytes()].concat())).collect()
}

/// Runs one case.
pub fn run(data: &[u8]) {
    let Some((first, sent)) = data.split_first() else { return };
    let (is_remote, packet) = (first % 2 == 1, usize::from(first / 2));
    let (served, answer) = answered(is_remote, sent, packet);
    let is_granted = answer.windows(13).any(|part| part.starts_with(b"HTTP/1.") && part.ends_with(b" 200 "));
    assert_eq!(is_granted, !matches!(served, Ok(None)), "{served:?}: {}", String::from_utf8_lossy(&answer));
    let Ok(Some(tunnel)) = served else { return };
    let head = sent.strip_suffix(&*tunnel.passed).unwrap_or_else(|| panic!("{tunnel:?}"));
    assert!(head.ends_with(b"\n\r\n") || head.ends_with(b"\n\n"), "{tunnel:?}");
    assert_eq!(tunnel.is_http2, tunnel.governs != Governs::Nothing && tunnel.passed.starts_with(PREFACE));
    match &tunnel.governs {
        Governs::Listed => {}
        Governs::Nothing => assert!(!is_remote, "{tunnel:?}"),
        Governs::Found(callee) => {
            assert!(!is_remote && !callee.external && callee.tls.is_none(), "{tunnel:?}");
            assert_eq!(callee.to, tunnel.to);
            check_name(&callee.name);
            let (host, port) = tunnel.to.rsplit_once(':').expect("a host and a port");
            assert!(port.parse::<u16>().is_ok() && is_name(host), "{tunnel:?}");
            for host in [format!("{}:{port}", host.to_uppercase()), format!("{host}.:{port}")] {
                let spelt = format!("CONNECT {host} HTTP/1.1\r\n\r\nx");
                let (again, _) = answered(false, spelt.as_bytes(), 0);
                let again = again.ok().flatten().expect("the same host");
                assert_eq!((again.to, again.governs), (tunnel.to.clone(), Governs::Found(callee.clone())));
            }
        }
    }
}

fn is_name(host: &str) -> bool {
    let is_address = host.parse::<IpAddr>().is_ok() || host.starts_with('[') || host.parse::<u64>().is_ok();
    !host.is_empty() && !is_address && host != "localhost" && !host.contains('@') && !host.ends_with('.')
}

fn check_name(name: &str) {
    let is_plain =
        |byte: u8| byte.is_ascii_graphic() && byte != b'*' && byte != b'/' && !byte.is_ascii_uppercase();
    assert!(!name.is_empty() && name.bytes().all(is_plain), "{name:?}");
}

/// Sends these bytes to a listener, in packets of this size (0: one packet). Returns the tunnel and the
/// answer.
fn answered(is_remote: bool, sent: &[u8], packet: usize) -> (io::Result<Option<Tunnel>>, Vec<u8>) {
    let listener = listener(is_remote);
    let (near, far) = tokio::io::duplex(BUFFER);
    play(async { tokio::join!(listener.serve(far), ask(near, sent, packet)) })
}

async fn ask(mut io: DuplexStream, sent: &[u8], packet: usize) -> Vec<u8> {
    let packet = if packet == 0 { sent.len().max(1) } else { packet };
    for part in sent.chunks(packet) {
        if io.write_all(part).await.is_err() {
            break;
        }
        tokio::task::yield_now().await;
    }
    // The proxy may have closed the connection.
    let _ = io.shutdown().await;
    let mut answer = Vec::new();
    let _ = io.read_to_end(&mut answer).await;
    answer
}

fn listener(is_remote: bool) -> Listener {
    let listen = if is_remote { "0.0.0.0:1" } else { "127.0.0.1:1" };
    let [inner, outer] = LISTED;
    let text = format!(
        "service: checkout\nconnect: {{ listen: '{listen}', namespace: shop, callees: [ \
         {{ host: '{inner}', to: '10.0.0.1:1' }}, {{ host: '{outer}', external: true }} ] }}"
    );
    let config = Config::read(&text, ReadConfig { allow_remote: true }).expect("the configuration is valid");
    let connect = config.connect.expect("the configuration has it");
    Listener::new(connect, &Damper::off()).expect("the callees are valid")
}
