//! Encrypted bodies, from a submission to the handler.

use bytes::Bytes;
use damper_proto::v1::settle::How;

use super::*;
use crate::client::HandOver;
use crate::queue::{NewJob, WorkerHandle};
use crate::scenarios::peer::{Peer, ok, unavailable};
use crate::scenarios::{call, enforce, engine, governed, request_of};

/// A file of keys: each an id and the digit of its secret.
fn keys(keys: &str) -> Option<BodyKeys> {
    let line = |key: &str| format!("{} {}\n", &key[..1], key[1..].repeat(64));
    Some(BodyKeys::parse(&keys.split(' ').map(line).collect::<String>()).unwrap())
}

/// Submits jobs with these keys of the job and bodies. Returns what the control plane keeps.
async fn submitted<const N: usize>(with: Option<BodyKeys>, jobs: [(&str, &str); N]) -> [v1::NewJob; N] {
    let (mut plane, queues) = Plane::with_keys(&engine(None), with);
    let jobs = jobs
        .map(|(key, body)| NewJob::new(QUEUE, key, "inventory", "inventory.v1.Inventory/Reserve").body(body));
    let submits = queues.jobs();
    let (results, asked) = tokio::join!(submits.submit_all(jobs), plane.store());
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    asked.jobs.try_into().unwrap()
}

fn delivery_of(lease: u8, job: &v1::NewJob) -> v1::Delivery {
    let v1::NewJob { queue, body, body_key_id, job_id, .. } = job.clone();
    let job_id = crate::queue::jobs::hex(&job_id);
    v1::Delivery { job_id, queue, body, body_key_id, ..delivery(lease) }
}

/// A worker with keys that keeps the bodies of its deliveries.
struct Reader {
    stream: WorkStream,
    bodies: mpsc::UnboundedReceiver<Bytes>,
    worker: WorkerHandle,
    _plane: Plane,
    _queues: Queues,
}

impl Reader {
    async fn new(keys: Option<BodyKeys>) -> Self {
        let (mut plane, queues) = Plane::with_keys(&engine(None), keys);
        let (seen, bodies) = mpsc::unbounded_channel();
        let worker = queues.worker(QUEUE).handle(move |delivery| {
            seen.send(delivery.body().clone()).unwrap();
            async { Ok::<_, Status>(()) }
        });
        let worker = worker.concurrency(1).start().unwrap();
        Self { stream: plane.accept().await, bodies, worker, _plane: plane, _queues: queues }
    }

    /// Delivers a job whose handler begins. Returns the body that it sees.
    async fn read(&mut self, delivery: v1::Delivery) -> Bytes {
        let lease = delivery.lease.clone();
        self.stream.send(ToWorker::Delivery(delivery)).await;
        assert_eq!(self.stream.started().await, std::slice::from_ref(&lease));
        assert_eq!(self.stream.settle().await.how, Some(How::Done(v1::Done {})));
        self.stream.confirm(&lease).await;
        self.stream.credits().await;
        self.bodies.try_recv().unwrap()
    }

    /// Delivers a job whose handler does not begin. Returns how the delivery ends.
    async fn refuse(&mut self, delivery: v1::Delivery) -> How {
        let lease = delivery.lease.clone();
        self.stream.send(ToWorker::Delivery(delivery)).await;
        let settle = self.stream.settle().await;
        assert_eq!(settle.lease, lease);
        self.stream.confirm(&lease).await;
        assert_eq!(self.stream.credits().await, 1, "it keeps no slot");
        assert!(self.bodies.try_recv().is_err());
        settle.how.unwrap()
    }
}

fn released() -> How {
    How::Release(v1::Release { why: "body_key".to_owned(), not_before: None })
}

#[tokio::test(start_paused = true)]
async fn control_plane_keeps_ciphertext_with_an_equal_tag() {
    let jobs = [("k", "card 4711"), ("k", "card 4711"), ("k", "card 4712")];
    let [first, again, other] = submitted(keys("a1"), jobs).await;
    for job in [&first, &again, &other] {
        assert_eq!((job.body_key_id.as_str(), job.body_tag.len()), ("a", 32));
        assert!(!format!("{job:?}").contains("card") && !job.body.windows(4).any(|part| part == b"card"));
    }
    assert_ne!(first.body, again.body);
    assert_eq!(first.body_tag, again.body_tag);
    assert_ne!(first.body_tag, other.body_tag);

    let mut reader = Reader::new(keys("a1")).await;
    assert_eq!(reader.read(delivery_of(1, &first)).await, "card 4711");
    assert_eq!(reader.read(delivery_of(2, &other)).await, "card 4712");
    let [plain] = submitted(None, [("k", "card 4711")]).await;
    assert_eq!((plain.body, plain.body_key_id, plain.body_tag), (b"card 4711".into(), String::new(), vec![]));
}

#[tokio::test(start_paused = true)]
async fn exchanged_or_damaged_body_makes_its_job_dead() {
    let [mine, other] = submitted(keys("a1"), [("k", "mine"), ("l", "other")]).await;
    let mut reader = Reader::new(keys("a1")).await;
    let with_route = |change: fn(&mut v1::RouteKey)| {
        let mut delivery = delivery_of(1, &mine);
        delivery.route.as_mut().map(change).unwrap();
        delivery
    };
    let mut damaged = delivery_of(1, &mine);
    *damaged.body.last_mut().unwrap() ^= 1;
    let body = mine.body.clone();
    let changed = [
        ("another job's body", v1::Delivery { body: other.body.clone(), ..delivery_of(1, &mine) }),
        ("the body in another job", v1::Delivery { body, ..delivery_of(1, &other) }),
        ("queue", v1::Delivery { queue: "others".to_owned(), ..delivery_of(1, &mine) }),
        ("caller", with_route(|route| route.caller_service = "billing".to_owned())),
        ("cluster", with_route(|route| route.caller_cluster = "eu".to_owned())),
        ("callee", with_route(|route| route.callee_service = "stock".to_owned())),
        ("method", with_route(|route| route.callee_method = "inventory.v1.Inventory/Free".to_owned())),
        ("no route", v1::Delivery { route: None, ..delivery_of(1, &mine) }),
        ("job id", v1::Delivery { job_id: "x".to_owned(), ..delivery_of(1, &mine) }),
        ("a bit", damaged),
        ("no body", v1::Delivery { body: vec![], ..delivery_of(1, &mine) }),
    ];
    let count = changed.len() as u64;
    let reason =
        "the job body cannot be decrypted: it is damaged, or was encrypted for another job, queue or route";
    for (what, delivery) in changed {
        let dead = How::Dead(v1::Dead { reason: reason.to_owned() });
        assert_eq!(reader.refuse(delivery).await, dead, "{what}");
    }
    assert_eq!(reader.read(delivery_of(1, &mine)).await, "mine");
    let stats = reader.worker.stats();
    assert_eq!((stats.dead, stats.unreadable, stats.released, stats.begun), (count, count, 0, 1));
}

#[tokio::test(start_paused = true)]
async fn body_that_another_worker_may_read_is_released() {
    let [mine] = submitted(keys("a1"), [("k", "mine")]).await;
    let mut other_keys = Reader::new(keys("b1")).await;
    assert_eq!(other_keys.refuse(delivery_of(1, &mine)).await, released());
    let mut newer = delivery_of(1, &mine);
    newer.body[0] = 2;
    let mut same_keys = Reader::new(keys("a1")).await;
    assert_eq!(same_keys.refuse(newer).await, released());
    let mut no_keys = Reader::new(None).await;
    assert_eq!(no_keys.refuse(delivery_of(1, &mine)).await, released());
    assert_eq!(no_keys.read(delivery(2)).await, "hello");
    let stats = no_keys.worker.stats();
    assert_eq!((stats.released, stats.unreadable, stats.dead, stats.begun), (1, 1, 0, 1));
}

#[tokio::test(start_paused = true)]
async fn plain_body_in_place_of_an_encrypted_one_is_released() {
    let mut reader = Reader::new(keys("a1")).await;
    assert_eq!(reader.refuse(delivery(1)).await, released());
    let accepting = keys("a1").map(BodyKeys::accept_plain);
    let mut accepting = Reader::new(accepting).await;
    assert_eq!(accepting.read(delivery(1)).await, "hello");
}

#[tokio::test(start_paused = true)]
async fn key_is_replaced_in_three_steps_without_a_release() {
    let steps = ["a1", "a1 b2", "b2 a1", "b2"].map(keys);
    for (before, after) in [(0, 1), (1, 2), (2, 3)] {
        // While a step is rolled out there are processes before and after it.
        for (writer, reader) in [(before, after), (after, before)] {
            let [job] = submitted(steps[writer].clone(), [("k", "mine")]).await;
            let mut reader = Reader::new(steps[reader].clone()).await;
            assert_eq!(reader.read(delivery_of(1, &job)).await, "mine");
        }
    }
    let [old] = submitted(steps[1].clone(), [("k", "mine")]).await;
    let mut too_early = Reader::new(steps[3].clone()).await;
    assert_eq!(too_early.refuse(delivery_of(1, &old)).await, released());
}

#[tokio::test(start_paused = true)]
async fn handed_over_body_is_encrypted_and_forwarded_plain() {
    let engine = engine(enforce());
    let (mut plane, queues) = Plane::with_keys(&engine, keys("a1"));
    let mut request = request_of(&["\0\0\0\0\x05hello"]);
    request.extensions_mut().insert(HandOver::to(QUEUE, "k"));
    let peer = Peer::new([unavailable(), unavailable(), unavailable()]);
    let mut service = governed(&engine, peer);
    let (_, asked) = tokio::join!(call(&mut service, request), plane.store());
    let job = &asked.jobs[0];
    assert!(!job.body.windows(5).any(|part| part == b"hello"));
    assert_eq!((job.body_key_id.as_str(), job.body_tag.len()), ("a", 32));

    let peer = Peer::new([ok()]);
    let _worker = queues.worker(QUEUE).forward("inventory", peer.clone()).start().unwrap();
    let mut stream = plane.accept().await;
    let route = v1::RouteKey {
        callee_service: job.callee_service.clone(),
        callee_method: job.callee_method.clone(),
        ..delivery(1).route.unwrap()
    };
    stream.send(ToWorker::Delivery(v1::Delivery { route: Some(route), ..delivery_of(1, job) })).await;
    stream.started().await;
    assert_eq!(stream.settle().await.how, Some(How::Done(v1::Done {})));
    let [seen] = peer.seen().try_into().unwrap();
    assert_eq!(seen.body.concat(), b"\0\0\0\0\x05hello");
}
