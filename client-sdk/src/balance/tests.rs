use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::pin;

use damper_core::endpoints::{Endpoint as _, MAX_ENDPOINTS};
use futures_util::FutureExt as _;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio_stream::iter;
use tower::discover::Change;

use super::*;

/// Local addresses without a listener.
fn nowhere(number: usize) -> SocketAddr {
    let [.., third, fourth] = (number as u32).to_be_bytes();
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 1, third, fourth)), 9)
}

/// Waits until the channel has `count` endpoints.
async fn endpoints(channel: &Balanced, count: usize) -> Vec<Arc<endpoint::Endpoint>> {
    let mut changes = channel.shared.changes();
    loop {
        let set = channel.shared.set();
        if set.endpoints().len() == count {
            return set.endpoints().to_vec();
        }
        changes.changed().await.unwrap();
    }
}

#[tokio::test]
async fn endpoints_are_bounded() {
    let all = (0..=MAX_ENDPOINTS).map(|number| Ok::<_, String>(Change::Insert(number, nowhere(number))));
    let channel = balanced(Targets::new("http://stock").discover(iter(all))).unwrap();
    let endpoints = endpoints(&channel, MAX_ENDPOINTS).await;
    assert!(endpoints.iter().all(|endpoint| endpoint.place.address != nowhere(MAX_ENDPOINTS)));
    let mut slots: Vec<_> = endpoints.iter().map(|endpoint| endpoint.slot()).collect();
    slots.sort_unstable();
    slots.dedup();
    assert_eq!(slots.len(), MAX_ENDPOINTS, "each slot is unique");
}

/// Sends settings with this limit of streams, and lets the other side read them.
async fn allow(streams: u8, peer: &mut DuplexStream, watched: &mut limit::Watched<DuplexStream>) {
    let frame = [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, streams];
    peer.write_all(&frame).await.unwrap();
    watched.read_exact(&mut [0; 15]).await.unwrap();
}

#[tokio::test]
async fn raised_limit_wakes_a_request_that_waits() {
    let (mut peer, ours) = duplex(64);
    let (mut watched, limit, _) = limit::watch(ours);
    allow(1, &mut peer, &mut watched).await;
    let (_far, near) = duplex(1 << 10);
    let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(near));
    let (sender, _connection) = handshake.await.unwrap();
    let place = targets::Place { address: nowhere(0), zone: None };
    let endpoint = endpoint::Endpoint::new(place, 0);
    endpoint.connected(sender, limit, true);
    endpoint.room().can_grow(true);
    let _taken = endpoint.take().unwrap();
    let mut waiting = pin!(endpoint.wait());
    assert!(waiting.as_mut().now_or_never().is_none());
    allow(2, &mut peer, &mut watched).await;
    // It looks again only once it was woken.
    assert!(waiting.now_or_never().flatten().is_some());
}
