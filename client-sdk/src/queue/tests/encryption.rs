//! Encrypted bodies, from a submission to the handler.

use damper_proto::v1::settle::How;

use super::*;
use crate::client::HandOver;
use crate::queue::NewJob;
use crate::scenarios::peer::{Peer, unavailable};
use crate::scenarios::{call, enforce, engine, governed, request_of};

fn keys(id: &str, digit: &str) -> Option<BodyKeys> {
    Some(BodyKeys::parse(&format!("{id} {}", digit.repeat(64))).unwrap())
}

fn delivery_of(lease: u8, job: v1::NewJob) -> v1::Delivery {
    v1::Delivery {
        lease: vec![lease],
        job_id: crate::queue::jobs::hex(&job.job_id),
        queue: job.queue,
        body: job.body,
        body_key_id: job.body_key_id,
        ..delivery(lease)
    }
}

#[tokio::test(start_paused = true)]
async fn body_is_readable_for_workers_with_the_key_alone() {
    let engine = engine(enforce());
    let (mut plane, queues) = Plane::with_keys(&engine, keys("a", "1"));
    let jobs = queues.jobs();
    let job = || NewJob::new(QUEUE, "k", "inventory", "inventory.v1.Inventory/Reserve").body("card 4711");
    let (one, two, submitted) = tokio::join!(jobs.submit(job()), jobs.submit(job()), async {
        let mut submitted = Vec::new();
        for _ in 0..2 {
            submitted.extend(plane.store().await.jobs);
        }
        submitted
    });
    assert!(one.is_ok() && two.is_ok());
    let [first, second] = submitted.try_into().unwrap();
    assert_eq!((first.body_key_id.as_str(), first.body_tag.len()), ("a", 32));
    assert_eq!(first.body_tag, second.body_tag);
    assert_ne!(first.body, second.body);

    let (seen, mut bodies) = mpsc::unbounded_channel();
    let worker = queues.worker(QUEUE).handle(move |delivery| {
        seen.send(delivery.body().clone()).unwrap();
        async { Ok::<_, Status>(()) }
    });
    let _worker = worker.start().unwrap();
    let mut stream = plane.accept().await;
    stream.send(ToWorker::Delivery(delivery_of(1, first.clone()))).await;
    assert_eq!(stream.started().await, [[1]]);
    assert_eq!(soon(bodies.recv()).await.unwrap(), "card 4711");
    stream.settle().await;
    stream.credits().await;

    // Moved to another job, and without its key: not begun.
    let moved = v1::Delivery { body: second.body, ..delivery_of(2, first.clone()) };
    let unknown = v1::Delivery { body_key_id: "b".to_owned(), ..delivery_of(3, first) };
    for delivery in [moved, unknown] {
        stream.send(ToWorker::Delivery(delivery)).await;
        let not_before = Some(prost_types::Duration { seconds: 60, nanos: 0 });
        let release = v1::Release { why: "body_key".to_owned(), not_before };
        assert_eq!(stream.settle().await.how, Some(How::Release(release)));
        assert_eq!(stream.credits().await, 1);
    }
    assert!(bodies.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn worker_without_keys_reads_plain_bodies_alone() {
    let (mut plane, queues) = Plane::start(&engine(None));
    let _worker = queues.worker(QUEUE).handle(|_| async { Ok::<_, Status>(()) }).start().unwrap();
    let mut stream = plane.accept().await;
    stream.send(ToWorker::Delivery(v1::Delivery { body_key_id: "a".to_owned(), ..delivery(1) })).await;
    assert!(matches!(stream.settle().await.how, Some(How::Release(_))));
    stream.credits().await;
    stream.send(ToWorker::Delivery(delivery(2))).await;
    assert_eq!(stream.started().await, [[2]]);
}

#[tokio::test(start_paused = true)]
async fn handed_over_body_is_encrypted() {
    let engine = engine(enforce());
    let (mut plane, _queues) = Plane::with_keys(&engine, keys("a", "1"));
    let mut request = request_of(&["\0\0\0\0\x05hello"]);
    request.extensions_mut().insert(HandOver::to(QUEUE, "k"));
    let peer = Peer::new([unavailable(), unavailable(), unavailable()]);
    let mut service = governed(&engine, peer);
    let (_, asked) = tokio::join!(call(&mut service, request), plane.store());
    let job = &asked.jobs[0];
    assert!(!job.body.windows(5).any(|part| part == b"hello"));
    assert_eq!((job.body_key_id.as_str(), job.body_tag.len()), ("a", 32));
}
