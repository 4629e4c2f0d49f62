//! HTTP CONNECT: what is governed, what passes as bytes, what is refused.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::peers::{Client, Server, grpc, message, read, status, within};
use crate::{Running, proxy};

/// A proxy that governs `inventory.test:50051`, which is at this address.
async fn connecting(to: SocketAddr) -> Running {
    let callee = format!("{{ host: 'inventory.test:50051', to: '{to}', external: false }}");
    proxy("shop", &format!("connect: {{ listen: '127.0.0.1:0', callees: [{callee}] }}\n")).await
}

/// Sends a request to the listener, and returns the status with the connection.
async fn ask(running: &Running, request: &str) -> (u16, TcpStream) {
    let mut stream = TcpStream::connect(running.addresses.connect.unwrap()).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream.write_all(format!("{request} HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(within(stream.read_u8()).await.unwrap());
    }
    let code = String::from_utf8(head).unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    (code, stream)
}

/// Accepts connections until one begins so, and sends the same bytes back.
async fn echo(listener: TcpListener, wanted: [u8; 5]) {
    let mut others = Vec::new();
    loop {
        let mut stream = within(listener.accept()).await.unwrap().0;
        let mut bytes = [0; 5];
        within(stream.read_exact(&mut bytes)).await.unwrap();
        if bytes == wanted {
            stream.write_all(&bytes).await.unwrap();
            return;
        }
        // The proxy connects to its callees on its own too.
        others.push(stream);
    }
}

#[tokio::test]
async fn call_by_connect_is_governed() {
    let mut server = Server::start().await;
    let running = connecting(server.address).await;
    let (code, stream) = ask(&running, "CONNECT Inventory.test:50051").await;
    assert_eq!(code, 200);
    let mut client = Client::over(stream).await;
    let (response, _) = client.begin(grpc().body(()).unwrap(), true).await;
    for attempt in 0..3 {
        let mut arrival = server.next().await;
        assert_eq!(arrival.head.uri.authority().unwrap(), "callee.test");
        assert_eq!(arrival.field("damper-retry").is_some(), attempt > 0);
        arrival.refuse(14);
    }
    assert_eq!(status(&within(response).await.unwrap()), Some("14"));
    assert_eq!((running.counters)().governed_tunnels, 1);
}

#[tokio::test]
async fn beginning_in_pieces_is_recognized() {
    let mut server = Server::start().await;
    let running = connecting(server.address).await;
    let (_, mut stream) = ask(&running, "CONNECT inventory.test:50051").await;
    let (mut near, far) = tokio::io::duplex(1 << 16);
    let mut client = Client::over(far).await;
    // The preface, byte by byte.
    for _ in 0..24 {
        stream.write_u8(within(near.read_u8()).await.unwrap()).await.unwrap();
        tokio::task::yield_now().await;
    }
    tokio::spawn(async move { tokio::io::copy_bidirectional(&mut near, &mut stream).await });
    let (response, _) = client.begin(grpc().body(()).unwrap(), true).await;
    server.next().await.serve(b"stock");
    let body = within(response).await.unwrap().into_body();
    assert_eq!(read(&mut { body }).await.unwrap(), message(b"stock"));
}

#[tokio::test]
async fn host_that_is_not_listed_passes_as_bytes() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let running = connecting(([127, 0, 0, 1], 1).into()).await;
    // The far side could speak first: nothing is awaited of the service.
    let (code, mut stream) = ask(&running, &format!("CONNECT {address}")).await;
    assert_eq!(code, 200);
    let echoed = tokio::spawn(echo(listener, *b"PRI *"));
    stream.write_all(b"PRI *").await.unwrap();
    let mut back = [0; 5];
    within(stream.read_exact(&mut back)).await.unwrap();
    assert_eq!(&back, b"PRI *");
    echoed.await.unwrap();
    let counted = (running.counters)();
    assert_eq!((counted.governed_tunnels, counted.byte_tunnels), (0, 1));
}

#[tokio::test]
async fn tls_to_a_listed_host_passes_as_bytes() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let running = connecting(listener.local_addr().unwrap()).await;
    let (_, mut stream) = ask(&running, "CONNECT inventory.test:50051").await;
    let hello = [0x16, 3, 1, 2, 0];
    let echoed = tokio::spawn(echo(listener, hello));
    stream.write_all(&hello).await.unwrap();
    let mut back = [0; 5];
    within(stream.read_exact(&mut back)).await.unwrap();
    assert_eq!(back, hello);
    echoed.await.unwrap();
    assert_eq!((running.counters)().byte_tunnels, 1);
}

/// One side ends its sending, and the other still answers; to a host that is listed, and to another.
#[tokio::test]
async fn half_closed_tunnel_still_answers() {
    for is_listed in [true, false] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let running = connecting(address).await;
        let host = if is_listed { "inventory.test:50051".to_owned() } else { address.to_string() };
        let (_, mut stream) = ask(&running, &format!("CONNECT {host}")).await;
        let far = tokio::spawn(async move {
            // The proxy connects to its callees on its own too, and begins with HTTP/2 there.
            let mut others = Vec::new();
            loop {
                let mut stream = within(listener.accept()).await.unwrap().0;
                let mut begin = [0; 3];
                within(stream.read_exact(&mut begin)).await.unwrap();
                if &begin != b"ask" {
                    others.push(stream);
                    continue;
                }
                let mut rest = Vec::new();
                within(stream.read_to_end(&mut rest)).await.unwrap();
                // The caller has ended; the answer takes its time.
                for _ in 0..100 {
                    tokio::task::yield_now().await;
                }
                stream.write_all(b"answer to ").await.unwrap();
                stream.write_all(&rest).await.unwrap();
                return;
            }
        });
        stream.write_all(b"ask: all").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut back = Vec::new();
        within(stream.read_to_end(&mut back)).await.unwrap();
        assert_eq!(back, b"answer to : all", "listed: {is_listed}");
        far.await.unwrap();
    }
}

/// Whether it is silent before its CONNECT or after it.
#[tokio::test(start_paused = true)]
async fn silent_connection_is_closed_after_5_s() {
    let server = Server::start().await;
    let running = connecting(server.address).await;
    for speaks in [false, true] {
        let began = tokio::time::Instant::now();
        let mut stream = if speaks {
            ask(&running, "CONNECT inventory.test:50051").await.1
        } else {
            TcpStream::connect(running.addresses.connect.unwrap()).await.unwrap()
        };
        let mut rest = Vec::new();
        // A reset is an end too.
        _ = within(stream.read_to_end(&mut rest)).await;
        let seconds = began.elapsed().as_secs_f64();
        assert!((5.0..6.0).contains(&seconds) && rest.is_empty(), "{seconds} s, {rest:?}, speaks: {speaks}");
    }
    assert_eq!((running.counters)().governed_tunnels, 0);
}

#[tokio::test]
async fn requests_that_are_no_tunnel_are_refused() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = closed.local_addr().unwrap();
    drop(closed);
    let running = connecting(address).await;
    for (request, code) in [
        ("GET /".to_owned(), 405),
        ("CONNECT inventory.test".to_owned(), 405),
        (format!("CONNECT {address}"), 502),
    ] {
        assert_eq!(ask(&running, &request).await.0, code, "{request}");
    }
}

/// Where others on the network reach the listener, it leads only to what is listed.
#[tokio::test]
async fn remote_listener_leads_only_to_listed_hosts() {
    let server = Server::start().await;
    let callee = format!("{{ host: 'inventory.test:50051', to: '{}' }}", server.address);
    let text = format!("admin: 127.0.0.1:0\nconnect: {{ listen: '0.0.0.0:0', callees: [{callee}] }}\n");
    let config = damper_proxy::Config::read(&text, damper_proxy::ReadConfig { allow_remote: true }).unwrap();
    let mut running = crate::start_proxy(damper_sdk::Damper::off(), config).await;
    let port = running.addresses.connect.unwrap().port();
    running.addresses.connect = Some(([127, 0, 0, 1], port).into());
    // A number is an address to resolvers, here 127.0.0.1.
    let as_number = format!("2130706433:{}", server.address.port());
    for host in [server.address.to_string().as_str(), &as_number, "stock:1", "stock.shop.svc:1"] {
        assert_eq!(ask(&running, &format!("CONNECT {host}")).await.0, 403, "{host}");
    }
    for host in ["inventory.test:50051", "Inventory.test.:50051"] {
        assert_eq!(ask(&running, &format!("CONNECT {host}")).await.0, 200, "{host}");
    }
}
