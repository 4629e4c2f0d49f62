//! The writer over a store whose commits the test ends.

use std::sync::Arc;

use damper_core::RouteKey;
use damper_core::job::{Job, Wall};
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, join_all};
use tokio::sync::{mpsc, oneshot};

use super::{Waker, Wakeups, Writer, wakeups};
use crate::store::{
    After, Batch, Beat, Body, Change, ChangeTo, Committed, Error, Filter, JobId, Lane, LaneCounts,
    LeaseRequest, NextDue, Overdue, Page, Record, ServerId, Settled, SettledBy, Settlement, State, Store,
    Submitted,
};

/// A commit in flight.
struct InFlight {
    batch: Batch,
    end: oneshot::Sender<Result<Committed, Error>>,
}

impl InFlight {
    fn succeed(self) {
        let Batch { settlements, claims, leases, submissions, changes } = &self.batch;
        let committed = Committed {
            settlements: settlements.iter().map(|_| Settled::Applied).collect(),
            claims: claims.iter().map(|_| None).collect(),
            leases: leases.iter().map(|request| vec![job(request.seed); request.count as usize]).collect(),
            submissions: submissions.iter().map(|_| Submitted::Stored(State::Waiting)).collect(),
            changes: changes.iter().map(|_| true).collect(),
            due: submissions.iter().map(|(job, _)| (job.lane.clone(), job.at)).collect(),
            next_due: leases.iter().map(|_| NextDue::default()).collect(),
            refused: Vec::new(),
        };
        self.end.send(Ok(committed)).unwrap();
    }

    fn fail(self, error: Error) {
        self.end.send(Err(error)).unwrap();
    }

    fn operations(&self) -> usize {
        let Batch { settlements, claims, leases: _, submissions, changes } = &self.batch;
        settlements.len() + claims.len() + submissions.len() + changes.len()
    }
}

/// Hands each commit to the test.
struct Scripted(mpsc::UnboundedSender<InFlight>);

impl Store for Scripted {
    fn commit(&self, batch: Batch) -> BoxFuture<'_, Result<Committed, Error>> {
        let (end, result) = oneshot::channel();
        self.0.send(InFlight { batch, end }).unwrap();
        async { result.await.expect("the test ends each commit") }.boxed()
    }

    fn lanes(&self) -> BoxFuture<'_, Result<Vec<LaneCounts>, Error>> {
        unreachable!("a writer only writes")
    }

    fn get(&self, _: JobId) -> BoxFuture<'_, Result<Option<Record>, Error>> {
        unreachable!("a writer only writes")
    }

    fn body(&self, _: JobId) -> BoxFuture<'_, Result<Option<Body>, Error>> {
        unreachable!("a writer only writes")
    }

    fn list(&self, _: Filter, _: Option<JobId>, _: usize) -> BoxFuture<'_, Result<Page, Error>> {
        unreachable!("a writer only writes")
    }

    fn leases_of(&self, _: ServerId) -> BoxFuture<'_, Result<Vec<Record>, Error>> {
        unreachable!("a writer only writes")
    }

    fn overdue(&self, _: Vec<Overdue>, _: usize) -> BoxFuture<'_, Result<Vec<Vec<JobId>>, Error>> {
        unreachable!("a writer only writes")
    }

    fn beat(&self, _: Vec<u8>) -> BoxFuture<'_, Result<Beat, Error>> {
        unreachable!("a writer only writes")
    }

    fn woken(&self) -> BoxFuture<'_, ()> {
        unreachable!("a writer only writes")
    }

    fn check(&self) -> BoxFuture<'_, Result<Vec<String>, Error>> {
        unreachable!("a writer only writes")
    }

    fn id(&self) -> u64 {
        1
    }
}

fn start() -> (Writer, mpsc::UnboundedReceiver<InFlight>, Wakeups) {
    let (commits, in_flight) = mpsc::unbounded_channel();
    let (waker, woken): (Waker, _) = wakeups();
    (Writer::start(Arc::new(Scripted(commits)), waker), in_flight, woken)
}

fn counters() -> Job {
    Job {
        deliveries: 0,
        attempts: 0,
        sends_before: 0,
        lost: 0,
        waits: damper_core::backoff::Sequence::default(),
        began: Wall(0),
        expires: Wall(9),
    }
}

fn lane() -> Arc<Lane> {
    let route = RouteKey::new("web", "eu", "stock", "stock.Stock/Reserve").unwrap();
    Arc::new(Lane { queue: "orders".to_owned(), route })
}

fn id(number: u64) -> JobId {
    JobId(u128::from(number).to_be_bytes())
}

fn job(number: u64) -> (Record, Body) {
    let record = Record {
        id: id(number),
        lane: lane(),
        state: State::Waiting,
        at: Wall(number),
        submitted: Wall(0),
        job: counters(),
        booked: None,
        key: number.to_string(),
        digest: [0; 32],
        order_key: None,
        call_id: String::new(),
        body_key_id: String::new(),
        body_bytes: 0,
        ended: String::new(),
        failures: Vec::new(),
    };
    (record, Body::default())
}

fn settlement(number: u64) -> Settlement {
    Settlement {
        id: id(number),
        delivery: 1,
        token: 7,
        by: SettledBy::Worker,
        to: After::Done,
        at: Wall(0),
        job: counters(),
        ended: String::new(),
        failure: None,
        evidence: None,
    }
}

fn change(number: u64) -> Change {
    Change { id: id(number), to: ChangeTo::Due, now: Wall(0) }
}

fn lease(number: u64, count: u32) -> LeaseRequest {
    LeaseRequest {
        lane: lane(),
        count,
        max_bytes: u64::MAX,
        first_only: false,
        bounds: None,
        server: ServerId(1),
        now: Wall(0),
        seed: number,
    }
}

/// Submits a job in a commit that stays in flight, so that what follows waits.
async fn occupy(writer: &Writer, commits: &mut mpsc::UnboundedReceiver<InFlight>) -> InFlight {
    let (job, body) = job(0);
    drop(writer.submit(job, body));
    let in_flight = commits.recv().await.unwrap();
    assert_eq!(in_flight.operations(), 1);
    in_flight
}

#[tokio::test]
async fn operations_that_wait_share_the_next_commit() {
    let (writer, mut commits, _woken) = start();
    let first = occupy(&writer, &mut commits).await;
    let submitted: Vec<_> = (1..=100).map(job).map(|(job, body)| writer.submit(job, body)).collect();
    let settled = writer.settle(settlement(1));
    let leased = writer.lease(vec![lease(5, 1), lease(6, 2)]);
    let changed = writer.change(change(3));
    assert!(commits.try_recv().is_err(), "one commit at a time");
    first.succeed();
    let second = commits.recv().await.unwrap();
    assert_eq!((second.batch.submissions.len(), second.operations()), (100, 102));
    second.succeed();
    assert!(join_all(submitted).await.iter().all(|result| *result == Ok(Submitted::Stored(State::Waiting))));
    assert_eq!(settled.await, Ok(Settled::Applied));
    let jobs = leased.await.map(|leased| leased.into_iter().map(|leased| leased.jobs).collect::<Vec<_>>());
    assert_eq!(jobs, Ok(vec![vec![job(5)], vec![job(6), job(6)]]));
    assert_eq!(changed.await, Ok(true));
}

#[tokio::test]
async fn operation_is_answered_only_after_its_commit() {
    let (writer, mut commits, _woken) = start();
    let mut settled = std::pin::pin!(writer.settle(settlement(1)));
    let in_flight = commits.recv().await.unwrap();
    assert!(settled.as_mut().now_or_never().is_none());
    in_flight.succeed();
    assert_eq!(settled.await, Ok(Settled::Applied));
}

#[tokio::test]
async fn commit_has_at_most_512_operations_or_1_mib() {
    let (writer, mut commits, _woken) = start();
    let first = occupy(&writer, &mut commits).await;
    for number in 0..1_000 {
        let (job, body) = job(number);
        drop(writer.submit(job, body));
    }
    for number in 0..8 {
        let (job, _) = job(number);
        drop(writer.submit(job, Body { content: vec![0; 300 << 10], metadata: Vec::new() }));
    }
    let mut sizes = Vec::new();
    first.succeed();
    for _ in 0..4 {
        let commit = commits.recv().await.unwrap();
        sizes.push(commit.operations());
        commit.succeed();
    }
    // 488 small jobs of 1,001 bytes and two large ones; then four large ones.
    assert_eq!(sizes, [512, 490, 4, 2]);
}

#[tokio::test]
async fn settlements_go_before_submissions_and_changes() {
    let (writer, mut commits, _woken) = start();
    let first = occupy(&writer, &mut commits).await;
    for number in 0..600 {
        drop(writer.change(change(number)));
        let (job, body) = job(number);
        drop(writer.submit(job, body));
        drop(writer.settle(settlement(number)));
    }
    first.succeed();
    let mut parts = Vec::new();
    for _ in 0..4 {
        let commit = commits.recv().await.unwrap();
        let Batch { settlements, submissions, changes, .. } = &commit.batch;
        parts.push((settlements.len(), submissions.len(), changes.len()));
        commit.succeed();
    }
    assert_eq!(parts, [(480, 0, 32), (120, 360, 32), (0, 240, 256), (0, 0, 256)]);
}

#[tokio::test]
async fn leases_count_by_the_jobs_they_ask_for() {
    let (writer, mut commits, _woken) = start();
    let first = occupy(&writer, &mut commits).await;
    for number in 0..3 {
        drop(writer.lease(vec![lease(number, 300)]));
    }
    first.succeed();
    let mut requests = Vec::new();
    for _ in 0..2 {
        let commit = commits.recv().await.unwrap();
        requests.push(commit.batch.leases.len());
        commit.succeed();
    }
    assert_eq!(requests, [2, 1]);
}

#[tokio::test]
async fn submissions_beyond_the_room_are_refused_at_once() {
    let (writer, mut commits, _woken) = start();
    let first = occupy(&writer, &mut commits).await;
    let mut waiting = Vec::new();
    for number in 0..10_000 {
        let (job, body) = job(number);
        waiting.push(writer.submit(job, body));
    }
    let (one_more, body) = job(10_000);
    let refused = writer.submit(one_more, body).now_or_never().expect("without waiting");
    assert!(matches!(refused, Err(Error::Full(_))), "{refused:?}");
    let settled = writer.settle(settlement(1));
    first.succeed();
    let second = commits.recv().await.unwrap();
    assert_eq!(second.batch.settlements.len(), 1, "a settlement is never refused");
    second.succeed();
    assert_eq!(settled.await, Ok(Settled::Applied));
    let (again, body) = job(10_000);
    assert!(writer.submit(again, body).now_or_never().is_none(), "there is room again");
}

#[tokio::test]
async fn submissions_beyond_64_mib_are_refused_at_once() {
    let (writer, mut commits, _woken) = start();
    let _first = occupy(&writer, &mut commits).await;
    let large = || Body { content: vec![0; 768 << 10], metadata: Vec::new() };
    let submit = |number| writer.submit(job(number).0, large()).now_or_never();
    let accepted = (0..100).take_while(|number| submit(*number).is_none()).count();
    assert_eq!(accepted, 85, "85 x 768 KiB are less than 64 MiB");
    assert!(matches!(submit(101), Some(Err(Error::Full(_)))));
}

#[tokio::test]
async fn error_of_a_commit_reaches_all_its_operations() {
    let (writer, mut commits, _woken) = start();
    let first = occupy(&writer, &mut commits).await;
    let (job, body) = job(1);
    let submitted = writer.submit(job, body);
    let settled = writer.settle(settlement(1));
    let leased = writer.lease(vec![lease(1, 1)]);
    let changed = writer.change(change(1));
    first.succeed();
    let error = Error::Unavailable("power".to_owned());
    commits.recv().await.unwrap().fail(error.clone());
    assert_eq!(submitted.await, Err(error.clone()));
    assert_eq!(settled.await, Err(error.clone()));
    assert_eq!(leased.await, Err(error.clone()));
    assert_eq!(changed.await, Err(error));
    let later = writer.settle(settlement(2));
    commits.recv().await.unwrap().succeed();
    assert_eq!(later.await, Ok(Settled::Applied));
}

#[tokio::test]
async fn settlements_go_on_without_submissions_that_lack_room() {
    let (writer, mut commits, _woken) = start();
    let first = occupy(&writer, &mut commits).await;
    let (job, body) = job(1);
    let submitted = writer.submit(job, body);
    let settled = writer.settle(settlement(1));
    first.succeed();
    let full = Error::Full("no disk space left".to_owned());
    commits.recv().await.unwrap().fail(full.clone());
    assert_eq!(submitted.await, Err(full.clone()));
    let again = commits.recv().await.unwrap();
    assert_eq!((again.batch.submissions.len(), again.batch.settlements.len()), (0, 1));
    again.succeed();
    assert_eq!(settled.await, Ok(Settled::Applied));
    // Not again without an end: a settlement that lacks room itself fails.
    let settled = writer.settle(settlement(2));
    commits.recv().await.unwrap().fail(full.clone());
    assert_eq!(settled.await, Err(full));
}

#[tokio::test]
async fn rejected_content_fails_its_operation_alone() {
    let (writer, mut commits, _woken) = start();
    for rejected in [1, 2, 3, 4] {
        let settled = writer.settle(settlement(1));
        let leased = writer.lease(vec![lease(5, 1), lease(6, 2)]);
        let submitted: Vec<_> =
            [2, 3].into_iter().map(job).map(|(job, body)| writer.submit(job, body)).collect();
        let changed = writer.change(change(4));
        let all = async { (settled.await, leased.await, join_all(submitted).await, changed.await) };
        let mut all = std::pin::pin!(all);
        let error = Error::Invalid("content".to_owned());
        let (settled, leased, submitted, changed) = loop {
            tokio::select! {
                all = &mut all => break all,
                Some(commit) = commits.recv() => {
                    let Batch { settlements, submissions, changes, .. } = &commit.batch;
                    let mut ids = settlements.iter().map(|end| end.id).chain(changes.iter().map(|change| change.id));
                    let is_rejected = ids.any(|found| found == id(rejected))
                        || submissions.iter().any(|(job, _)| job.id == id(rejected));
                    if is_rejected { commit.fail(error.clone()) } else { commit.succeed() }
                }
            }
        };
        let fails = |number| (number == rejected).then(|| error.clone());
        assert_eq!([settled.err(), changed.err()], [fails(1), fails(4)]);
        assert_eq!(submitted.into_iter().map(Result::err).collect::<Vec<_>>(), [fails(2), fails(3)]);
        let jobs = leased.map(|leased| leased.into_iter().map(|leased| leased.jobs).collect::<Vec<_>>());
        assert_eq!(jobs, Ok(vec![vec![job(5)], vec![job(6), job(6)]]));
    }
}

#[tokio::test]
async fn refused_submission_is_the_error_of_one_caller() {
    let (writer, mut commits, _woken) = start();
    let (one, body) = job(1);
    let refused = writer.submit(one, body);
    let commit = commits.recv().await.unwrap();
    let error = Error::Invalid("key".to_owned());
    let submissions = vec![Submitted::Refused(error.clone())];
    commit.end.send(Ok(Committed { submissions, ..Committed::default() })).unwrap();
    assert_eq!(refused.await, Err(error));
}

#[tokio::test]
async fn operation_of_a_caller_that_left_is_committed() {
    let (writer, mut commits, _woken) = start();
    drop(writer.settle(settlement(1)));
    let commit = commits.recv().await.unwrap();
    assert_eq!(commit.operations(), 1);
    commit.succeed();
}

#[tokio::test]
async fn wake_ups_keep_the_earliest_time_of_a_lane() {
    let (writer, mut commits, mut woken) = start();
    let first = occupy(&writer, &mut commits).await;
    for number in [9, 5, 7] {
        let (job, body) = job(number);
        drop(writer.submit(job, body));
    }
    first.succeed();
    assert_eq!(woken.next().await, [(lane(), Wall(0))].into());
    commits.recv().await.unwrap().succeed();
    assert_eq!(woken.next().await, [(lane(), Wall(5))].into());
}

#[tokio::test]
async fn closing_commits_what_waits_and_refuses_the_rest() {
    let (writer, mut commits, _woken) = start();
    let first = occupy(&writer, &mut commits).await;
    let settled = writer.settle(settlement(1));
    let mut closed = std::pin::pin!(writer.close());
    assert!(closed.as_mut().now_or_never().is_none());
    let late = writer.settle(settlement(2)).await;
    assert!(matches!(late, Err(Error::Unavailable(_))), "{late:?}");
    first.succeed();
    let second = async { commits.recv().await.unwrap().succeed() };
    let (settled, (), ()) = tokio::join!(settled, closed, second);
    assert_eq!(settled, Ok(Settled::Applied));
}

#[tokio::test]
async fn panic_of_the_store_fails_all_operations() {
    let (writer, mut commits, _woken) = start();
    let first = writer.settle(settlement(1));
    let in_flight = commits.recv().await.unwrap();
    let waiting = writer.settle(settlement(2));
    // The scripted store panics without an end of its commit.
    drop(in_flight);
    assert!(matches!(first.await, Err(Error::Unavailable(_))));
    assert!(matches!(waiting.await, Err(Error::Unavailable(_))));
    assert!(matches!(writer.settle(settlement(3)).await, Err(Error::Unavailable(_))));
}
