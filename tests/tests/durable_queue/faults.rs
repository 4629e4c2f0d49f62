//! Faults around the server binary: the policy store is away, the disk is full, fails, or loses its power.

use std::time::Duration;

use damper_proto::v1;
use damper_proto::v1::kills_client::KillsClient;
use damper_proto::v1::queues_client::QueuesClient;
use damper_sdk::queue::{Delivery, HandlerError, NewJob, SubmitError, Submitted};
use damper_sdk::{Damper, Options};
use damper_tests::binary::{Served, damper, run};
use damper_tests::disk::Disk;
use damper_tests::etcd::Etcd;

const PATIENCE: Duration = Duration::from_secs(120);

const QUEUE: &str = "
kind: Queue
name: later
policy:
  mode: enforce
  retry: { backoff: { fixed: { delay: 10ms } } }
workers: [orders]
";

fn apply(url: &str) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("queue.yaml");
    std::fs::write(&file, QUEUE).unwrap();
    let applied = run(url, &["apply", "-f", file.to_str().unwrap()]);
    assert!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
}

fn connect(url: &str) -> Damper {
    Damper::connect(Options::new([url]).service("orders").environment(|_| None)).unwrap()
}

async fn submit(damper: &Damper, key: &str, callee: &str, bytes: usize) -> Result<Submitted, SubmitError> {
    let body: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(bytes).collect();
    damper.jobs().submit(NewJob::new("later", key, callee, "test.Hop/Call").body(body)).await
}

/// Handles every delivery.
async fn handle(_: Delivery) -> Result<(), HandlerError> {
    Ok(())
}

/// Submits a job until the server answers that it has stopped. No submission may succeed.
async fn has_stopped(damper: &Damper, job: &NewJob) {
    let jobs = damper.jobs().within(Duration::from_secs(1));
    let stopping = async {
        loop {
            let error = jobs.submit(job.clone()).await.expect_err("nothing is believed");
            if error.to_string().contains("restart the server") {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, stopping).await.expect("the server stops");
}

/// Waits until a job is in this state.
async fn becomes(url: &str, job_id: &str, state: v1::JobState) {
    let mut queues = QueuesClient::connect(url.to_owned()).await.unwrap();
    let waiting = async {
        loop {
            let request = v1::GetJobRequest { job_id: job_id.to_owned() };
            if queues.get_job(request).await.unwrap().into_inner().state() == state {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("the job becomes so");
}

/// Waits until the lane of a callee is held for this reason.
async fn held(url: &str, callee: &str, why: &str) {
    let mut queues = QueuesClient::connect(url.to_owned()).await.unwrap();
    let waiting = async {
        loop {
            let request = v1::GetQueueStatsRequest { queue: "later".to_owned() };
            let stats = queues.get_queue_stats(request).await.unwrap().into_inner().queues.remove(0);
            let of = |lane: &v1::LaneStats| {
                lane.route.as_ref().is_some_and(|route| route.callee_service == callee)
            };
            if stats.lanes.iter().any(|lane| of(lane) && lane.held == why) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("the lane is held");
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_and_kills_stay_while_the_policy_store_is_away() {
    let mut etcd = Etcd::start().await;
    let folder = tempfile::tempdir().unwrap();
    let store = format!("etcd://{}", etcd.endpoint());
    let queues = format!("redb:{}", folder.path().join("jobs.redb").display());
    let server = Served::start_with(&[
        "--listen",
        "127.0.0.1:0",
        "--store",
        &store,
        "--queues",
        &queues,
        "--single-server",
    ]);
    apply(server.url());
    let any = || "*".to_owned();
    let key = v1::Pattern {
        caller_service: any(),
        caller_cluster: any(),
        callee_service: "bank".to_owned(),
        callee_method: any(),
    };
    let options = Some(v1::WriteOptions { reason: "INC-7".to_owned(), ..Default::default() });
    let kill = v1::KillRequest { key: Some(key), calls: true, options, ..Default::default() };
    KillsClient::connect(server.url().to_owned()).await.unwrap().kill(kill).await.unwrap();
    let orders = connect(server.url());
    let before = submit(&orders, "before", "bank", 10).await.unwrap().job_id;
    held(server.url(), "bank", "killed").await;

    etcd.kill();
    let worker = orders.worker("later").handle(handle).start().unwrap();
    for key in ["1", "2", "3"] {
        let job = submit(&orders, key, "stock", 10).await.unwrap().job_id;
        becomes(server.url(), &job, v1::JobState::Done).await;
    }
    becomes(server.url(), &before, v1::JobState::Waiting).await;
    held(server.url(), "bank", "killed").await;
    worker.stop().await;
}

/// A server whose stores are on a disk.
fn serve(disk: &Disk, listen: &str) -> Served {
    let store = format!("sled:{}", disk.root().join("store").display());
    Served::start_by(disk.command(damper()), &["--listen", listen, "--store", &store])
}

#[tokio::test(flavor = "multi_thread")]
async fn full_disk_refuses_jobs_and_ends_those_it_has() {
    let disk = Disk::new();
    let server = serve(&disk, "127.0.0.1:0");
    apply(server.url());
    // Submissions need 512 MiB of free disk.
    disk.hold_at_most(disk.used() + (552 << 20));
    let orders = connect(server.url());
    let mut jobs = Vec::new();
    let refused = loop {
        match submit(&orders, &jobs.len().to_string(), "stock", 200 << 10).await {
            Ok(submitted) => jobs.push(submitted.job_id),
            Err(refused) => break refused,
        }
    };
    assert!(refused.to_string().contains("free on its disk"), "{refused}");
    assert!(jobs.len() > 10, "{}", jobs.len());
    let worker = orders.worker("later").handle(handle).start().unwrap();
    for job in &jobs {
        becomes(server.url(), job, v1::JobState::Done).await;
    }
    disk.hold_at_most(u64::MAX);
    let job = submit(&orders, "again", "stock", 10).await.expect("there is room").job_id;
    becomes(server.url(), &job, v1::JobState::Done).await;
    worker.stop().await;
}

/// After a failed commit nothing is believed until a restart; before it the power fails too.
#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_jobs_survive_failing_disks_and_loss_of_power() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut disk = Disk::new();
    // On a host of its own: no other socket takes the port while the server is down.
    let mut server = serve(&disk, "127.0.77.51:0");
    let (url, listen) = (server.url().to_owned(), server.address().to_owned());
    apply(&url);
    let orders = connect(&url);
    let mut jobs = Vec::new();
    for round in 0..3 {
        for number in 0..8 {
            jobs.push(submit(&orders, &format!("{round}.{number}"), "stock", 300).await.unwrap().job_id);
        }
        let job = NewJob::new("later", format!("failed {round}"), "stock", "test.Hop/Call");
        disk.fail_writes(true);
        has_stopped(&orders, &job).await;
        disk.fail_writes(false);
        has_stopped(&orders, &job).await;
        server.kill();
        disk.lose_power(|| random.bool());
        server = serve(&disk, &listen);
        for job in &jobs {
            becomes(&url, job, v1::JobState::Waiting).await;
        }
    }
    let worker = orders.worker("later").handle(handle).start().unwrap();
    for job in &jobs {
        becomes(&url, job, v1::JobState::Done).await;
    }
    worker.stop().await;
}
