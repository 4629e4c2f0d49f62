use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use damper_core::endpoints::{Endpoint as _, MAX_ENDPOINTS};
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
