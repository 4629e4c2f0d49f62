//! Streams that are larger than all buffers on their way.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use h2::{RecvStream, SendStream};
use http::HeaderMap;
use tokio::task::JoinHandle;

use crate::peers::{Client, Server, begun, grpc, within};
use crate::{inbound, outbound, proxy};

/// Length of a stream, in MiB, unless the variable has another.
const MEBIBYTES: usize = 64;
const LENGTH_VARIABLE: &str = "DAMPER_STREAM_MIB";
const CHUNK: usize = 16 << 10;
/// Windows of both connections of a proxy, and what lies between them.
const ON_THE_WAY: usize = 4 << 20;
/// Calls by which everything that can still move has moved.
const CALLS: usize = 100;
/// The content repeats after this prime, so no frame begins as the one before it.
const PERIOD: usize = 65_521;

/// Returns the length of a stream in bytes.
fn whole() -> usize {
    static WHOLE: LazyLock<usize> = LazyLock::new(|| {
        let set = std::env::var(LENGTH_VARIABLE).ok();
        set.map_or(MEBIBYTES, |number| number.parse().expect("a number of MiB")) << 20
    });
    *WHOLE
}

/// Returns the bytes of a stream at a place.
fn bytes_at(place: usize, length: usize) -> Bytes {
    static CONTENT: LazyLock<Bytes> = LazyLock::new(|| {
        let mut state = 1_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        let content: Vec<u8> = (0..PERIOD).map(|_| next()).collect();
        content.repeat(3).into()
    });
    assert!(length <= 2 * PERIOD);
    CONTENT.slice(place % PERIOD..place % PERIOD + length)
}

/// Sends the stream as fast as its receiver reads.
fn send(mut stream: SendStream<Bytes>, sent: Arc<AtomicUsize>) -> JoinHandle<SendStream<Bytes>> {
    tokio::spawn(async move {
        let mut place = 0;
        while place < whole() {
            stream.reserve_capacity(CHUNK.min(whole() - place));
            let capacity = within(std::future::poll_fn(|cx| stream.poll_capacity(cx))).await;
            let length = capacity.expect("the stream is open").unwrap().min(CHUNK).min(whole() - place);
            stream.send_data(bytes_at(place, length), false).unwrap();
            place += length;
            sent.store(place, Ordering::SeqCst);
        }
        stream
    })
}

/// Reads the stream, and compares each byte.
async fn receive(stream: &mut RecvStream) {
    let mut place = 0;
    while let Some(chunk) = within(stream.data()).await {
        let chunk = chunk.unwrap();
        assert!(chunk == bytes_at(place, chunk.len()), "wrong bytes after {place}");
        place += chunk.len();
        stream.flow_control().release_capacity(chunk.len()).unwrap();
    }
    assert_eq!(place, whole());
}

/// Other calls through the same proxy, while the stream stands still.
async fn call(client: &mut Client, server: &mut Server) {
    for _ in 0..CALLS {
        let (response, _) = client.begin(grpc().body(()).unwrap(), true).await;
        server.next().await.refuse(5);
        within(response).await.unwrap();
    }
}

async fn passes(server: &mut Server, client: &mut Client) {
    // Up.
    let (response, up) = client.begin(grpc().body(()).unwrap(), false).await;
    let mut arrival = server.next().await;
    let sent = Arc::<AtomicUsize>::default();
    let sending = send(up, Arc::clone(&sent));
    call(client, server).await;
    assert!(sent.load(Ordering::SeqCst) <= ON_THE_WAY, "{sent:?} are kept of a request");
    let finishing = tokio::spawn(async move {
        sending.await.unwrap().send_data(Bytes::new(), true).unwrap();
    });
    receive(&mut arrival.body).await;
    finishing.await.unwrap();

    // Down.
    let down = arrival.respond.send_response(begun(), false).unwrap();
    let mut response = within(response).await.unwrap().into_body();
    let sent = Arc::<AtomicUsize>::default();
    let sending = send(down, Arc::clone(&sent));
    call(client, server).await;
    assert!(sent.load(Ordering::SeqCst) <= ON_THE_WAY, "{sent:?} are kept of a response");
    let finishing = tokio::spawn(async move {
        let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), 0.into())]);
        sending.await.unwrap().send_trailers(trailers).unwrap();
    });
    receive(&mut response).await;
    finishing.await.unwrap();
    assert_eq!(within(response.trailers()).await.unwrap().unwrap()["grpc-status"], "0");
}

#[tokio::test]
async fn large_stream_of_a_call_passes_with_back_pressure() {
    let mut server = Server::start().await;
    let running = proxy("shop", &outbound(server.address)).await;
    passes(&mut server, &mut Client::connect(running.addresses.outbound[0]).await).await;
}

#[tokio::test]
async fn large_stream_to_the_service_passes_with_back_pressure() {
    let mut server = Server::start().await;
    let running = proxy("shop", &inbound(server.address)).await;
    passes(&mut server, &mut Client::connect(running.addresses.inbound.unwrap()).await).await;
}

/// Both sides speak in turns: nothing waits for the end of the other's stream.
#[tokio::test]
async fn messages_of_both_sides_pass_in_turns() {
    let mut server = Server::start().await;
    let running = proxy("shop", &outbound(server.address)).await;
    let mut client = Client::connect(running.addresses.outbound[0]).await;
    let (response, mut up) = client.begin(grpc().body(()).unwrap(), false).await;
    let mut arrival = server.next().await;
    let mut down = arrival.respond.send_response(begun(), false).unwrap();
    let mut response = within(response).await.unwrap().into_body();
    for turn in 0..50_u8 {
        up.send_data(Bytes::from(vec![turn; 7]), turn == 49).unwrap();
        assert_eq!(crate::peers::read_some(&mut arrival.body, 7).await, [turn; 7]);
        down.send_data(Bytes::from(vec![turn; 9]), false).unwrap();
        assert_eq!(crate::peers::read_some(&mut response, 9).await, [turn; 9]);
    }
}
