//! Services that lose each answer of a failed call. No flag comes up, so the one that goes down must bound
//! the requests alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use damper_sdk::Damper;
use h2::Reason;

use crate::peers::{Client, Server, grpc, status, within};
use crate::{TRACE, inbound, outbound, run};

/// A lost answer is INTERNAL at its caller.
const RULE: &str = "
kind: Rule
key: { caller_service: '*', caller_cluster: '*', callee_service: '*', callee_method: '*' }
policy:
  mode: enforce
  retry: { max_attempts: 3, codes: { allow: [INTERNAL] }, backoff: { none: {} } }
  retry_breaker: { enabled: false }
";

/// Loses the answer to each request, after a call for it if there is a callee.
async fn lose(mut service: Server, mut callee: Option<Client>, seen: Arc<AtomicU32>) {
    loop {
        let mut arrival = service.next().await;
        seen.fetch_add(1, Ordering::SeqCst);
        let mut called = None;
        if let Some(callee) = &mut callee {
            let copied = ["traceparent", "tracestate", "baggage"].map(|name| (name, arrival.field(name)));
            let head = copied.into_iter().filter_map(|(name, value)| Some((name, value?)));
            let head = head.fold(grpc(), |head, (name, value)| head.header(name, value));
            called = Some(callee.begin(head.body(()).unwrap(), true).await.0);
        }
        tokio::spawn(async move {
            if let Some(called) = called {
                // Failed in any way.
                _ = within(called).await;
            }
            arrival.respond.send_reset(Reason::INTERNAL_ERROR);
        });
    }
}

/// Of r = 3 attempts, hop i carries at most i x r - (i - 1) requests.
#[tokio::test]
async fn lost_answers_on_each_of_four_hops_add_up() {
    let bottom = Server::start().await;
    let mut address = bottom.address;
    let mut seen = vec![Arc::<AtomicU32>::default()];
    tokio::spawn(lose(bottom, None, Arc::clone(&seen[0])));
    let mut kept = Vec::new();
    for name in ["d", "c", "b"] {
        let (service, count) = (Server::start().await, Arc::default());
        let running =
            run(Damper::fixed(name, RULE).unwrap(), &(inbound(service.address) + &outbound(address))).await;
        let callee = Client::connect(running.addresses.outbound[0]).await;
        tokio::spawn(lose(service, Some(callee), Arc::clone(&count)));
        address = running.addresses.inbound.unwrap();
        kept.push(running);
        seen.push(count);
    }
    let first = run(Damper::fixed("a", RULE).unwrap(), &outbound(address)).await;
    let mut client = Client::connect(first.addresses.outbound[0]).await;
    let (response, _) = client.begin(grpc().header("traceparent", TRACE).body(()).unwrap(), true).await;
    assert_eq!(status(&within(response).await.unwrap()), Some("13"));
    let seen: Vec<_> = seen.iter().rev().map(|count| count.load(Ordering::SeqCst)).collect();
    assert_eq!(seen, [3, 5, 7, 9]);
}
