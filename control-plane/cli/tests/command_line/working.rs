//! `damper worker` as a process: calls that a foreign program submits reach a plain gRPC service.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::sync::Arc;

use damper_proto::v1;
use damper_proto::v1::jobs_client::JobsClient;
use damper_tests::hop::{Hop, METHOD};
use prost::Message as _;
use tokio::sync::{Notify, mpsc};
use tonic::{Response, Status};

use crate::harness::{Ended, Serving, damper, run, text};

const QUEUE: &str = "
kind: Queue
name: stock-later
policy: { mode: enforce, retry: { max_attempts: 1000, backoff: { fixed: { delay: 20ms } } } }
hold_after: 2
";

struct Worker {
    child: Child,
    admin: String,
}

impl Worker {
    /// A worker for the jobs of `orders` to `stock`.
    fn start(server: &Serving, stock: &str, drain: &str) -> Self {
        let to = format!("stock={stock}");
        let args = ["worker", "--queue", "stock-later", "--to", &to, "--service", "orders"];
        let mut command = server.command(&args);
        command.args(["--admin", "127.0.0.1:0", "--drain", drain, "--concurrency", "4"]);
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let line = lines.find(|line| line.contains("admin on ")).expect("it starts");
        std::thread::spawn(move || lines.for_each(drop));
        let admin = line.split_once("admin on ").unwrap().1.trim().to_owned();
        Self { child, admin }
    }

    fn ready(&self) -> Ended {
        run(damper().args(["worker", "ready", "--admin", &self.admin]))
    }

    fn metrics(&self) -> String {
        let mut stream = TcpStream::connect(&self.admin).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    fn terminate(&self) {
        let id = self.child.id().to_string();
        assert!(std::process::Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn started() -> Serving {
    let server = Serving::start();
    server.apply(QUEUE);
    server
}

/// Submits a job as a program without Damper does, once the server has the queue. Returns its id.
async fn submit(server: &Serving, key: &str) -> String {
    let mut jobs = JobsClient::connect(server.address.clone()).await.unwrap();
    let (service, cluster, instance) = ("orders".to_owned(), "default".to_owned(), "orders-1".to_owned());
    let job = v1::NewJob {
        queue: "stock-later".to_owned(),
        key: key.to_owned(),
        callee_service: "stock".to_owned(),
        callee_method: METHOD.to_owned(),
        body: key.to_owned().encode_to_vec(),
        ..Default::default()
    };
    loop {
        let identity = Some(v1::Identity {
            service: service.clone(),
            cluster: cluster.clone(),
            instance: instance.clone(),
        });
        let request = v1::SubmitRequest { identity, jobs: vec![job.clone()] };
        let submitted = jobs.submit(request).await.unwrap().into_inner().jobs.remove(0);
        match submitted.rejected {
            None => return submitted.job_id,
            Some(rejected) => assert_eq!(rejected.code, v1::Code::NotFound as i32, "{rejected:?}"),
        }
    }
}

/// Returns the job once it is in this state.
fn once(server: &Serving, id: &str, state: &str) -> serde_json::Value {
    loop {
        let job = server.run(&["jobs", "get", id, "-o", "json"]).json();
        assert_ne!(job["state"], "dead", "{job}");
        if job["state"] == state {
            return job;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn job_of_a_foreign_program_is_delivered() {
    let server = started();
    let (seen, mut calls) = mpsc::channel(4);
    let stock = Hop::serve(None, move |request| {
        let seen = seen.clone();
        async move {
            let job = request.metadata().get("damper-job").map(|id| id.to_str().unwrap().to_owned());
            seen.send((job, request.into_inner())).await.unwrap();
            Ok(Response::new(String::new()))
        }
    })
    .await;
    let worker = Worker::start(&server, &stock.url(), "10s");
    while worker.ready().code != 0 {}
    let id = submit(&server, "order-17").await;
    assert_eq!(calls.recv().await.unwrap(), (Some(id.clone()), "order-17".to_owned()));
    let job = once(&server, &id, "done");
    assert_eq!(job["deliveries"], 1, "{job}");
    let metrics = worker.metrics();
    for line in [
        "damper_worker_connected{queue=\"stock-later\"} 1",
        "damper_worker_ended_total{queue=\"stock-later\",how=\"done\"} 1",
        "damper_call_duration_count{grpc_target=\"stock\"} 1",
    ] {
        assert!(metrics.lines().any(|known| known == line), "{line} is not in\n{metrics}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn running_delivery_ends_within_the_drain_time() {
    let server = started();
    let (gate, (seen, mut calls)) = (Arc::new(Notify::new()), mpsc::channel(4));
    let opened = gate.clone();
    let stock = Hop::serve(None, move |_| {
        let (seen, opened) = (seen.clone(), opened.clone());
        async move {
            seen.send(()).await.unwrap();
            opened.notified().await;
            Ok(Response::new(String::new()))
        }
    })
    .await;
    let mut worker = Worker::start(&server, &stock.url(), "1h");
    let id = submit(&server, "order-18").await;
    calls.recv().await.unwrap();
    worker.terminate();
    while !worker.ready().err.contains("draining") {}
    gate.notify_one();
    assert_eq!(worker.child.wait().unwrap().code(), Some(0));
    assert_eq!(once(&server, &id, "done")["deliveries"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn delivery_cut_by_sigterm_goes_to_another_worker() {
    let server = started();
    let (seen, mut calls) = mpsc::channel(4);
    let stuck = Hop::serve(None, move |_| {
        let seen = seen.clone();
        async move {
            seen.send(()).await.unwrap();
            std::future::pending::<Result<Response<String>, Status>>().await
        }
    })
    .await;
    let mut worker = Worker::start(&server, &stuck.url(), "0s");
    let id = submit(&server, "order-19").await;
    calls.recv().await.unwrap();
    worker.terminate();
    assert_eq!(worker.child.wait().unwrap().code(), Some(0));
    once(&server, &id, "waiting");
    let stock = Hop::serve(None, |_| async { Ok(Response::new(String::new())) }).await;
    let _worker = Worker::start(&server, &stock.url(), "10s");
    // It had begun, so it counts.
    let job = once(&server, &id, "done");
    assert_eq!((&job["deliveries"], &job["attempts"]), (&2.into(), &2.into()), "{job}");
}

#[test]
fn unreachable_callee_holds_the_lane() {
    let server = started();
    let _worker = Worker::start(&server, "http://127.0.0.1:1", "10s");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let ids: Vec<String> = (0..8).map(|n| runtime.block_on(submit(&server, &format!("order-{n}")))).collect();
    while !server.run(&["queues", "stats", "stock-later"]).ok().contains("callee_failing") {}
    for id in ids {
        let job = server.run(&["jobs", "get", &id, "-o", "json"]).json();
        assert!(job["state"] == "waiting" || job["state"] == "leased", "{job}");
    }
}

#[test]
fn all_faults_of_a_worker_are_reported_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "2026-11 short\n").unwrap();
    let mut command = damper();
    command.args(["worker", "--queue", "Stock", "--queue", "later", "--queue", "later"]);
    command.args(["--to", "stock", "--to", "a b=http://a:1", "--to", "price=price:1", "--drain", "2h"]);
    command.args(["--concurrency", "0", "--admin", "0.0.0.0:7802", "--body-keys", text(&keys)]);
    command.args(["--server", "http://damper.example:7600", "--token-file", "token"]);
    let faults = run(&mut command).failed(78);
    for part in [
        "--queue: ",
        "--queue: \"later\" is repeated",
        "--to: \"stock\" must be CALLEE=URL",
        "--to: \"a b=http://a:1\": ",
        "--to: \"price=price:1\": target: ",
        "--drain: must be at most",
        "--concurrency: must be 1 to 1000, not 0",
        "--admin: 0.0.0.0:7802 is not on loopback",
        "keys, line 1: ",
        "service: ",
        "endpoints[0]: ",
    ] {
        assert!(faults.contains(part), "{part} is not in\n{faults}");
    }
    run(damper().args(["worker", "--queue", "later"])).failed(64);
    run(damper().args(["worker"])).failed(64);
}
