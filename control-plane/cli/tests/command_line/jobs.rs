//! Jobs on the command line: submitted by a service, seen, changed and replayed by an operator.

use damper_proto::v1::jobs_client::JobsClient;
use damper_proto::v1::{self, from_worker, settle, to_worker};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::harness::Serving;

const CANCELLED: &str = "1 job of queue stock-later cancelled\n";
const DELETED: &str = "1 job of queue stock-later deleted\n";
const QUEUE: &str = "kind: Queue\nname: stock-later\nowner: team-orders\npolicy: { mode: enforce }\n";

fn identity() -> Option<v1::Identity> {
    let (service, cluster, instance) = ("orders".to_owned(), "default".to_owned(), "orders-1".to_owned());
    Some(v1::Identity { service, cluster, instance })
}

fn job(key: &str) -> v1::NewJob {
    v1::NewJob {
        queue: "stock-later".to_owned(),
        key: key.to_owned(),
        callee_service: "stock".to_owned(),
        callee_method: "shop.v1.Stock/Take".to_owned(),
        body: format!("body of {key}").into_bytes(),
        ..Default::default()
    }
}

/// Submits a job, once the server has the queue, and returns its id.
async fn submit(server: &Serving, key: &str) -> String {
    let mut jobs = JobsClient::connect(server.address.clone()).await.unwrap();
    loop {
        let request = v1::SubmitRequest { identity: identity(), jobs: vec![job(key)] };
        let submitted = jobs.submit(request).await.unwrap().into_inner().jobs.remove(0);
        match submitted.rejected {
            None => return submitted.job_id,
            Some(rejected) => assert_eq!(rejected.code, v1::Code::NotFound as i32, "{rejected:?}"),
        }
    }
}

/// Takes one job as a worker does, and gives it up.
async fn give_up_one(server: &Serving) {
    let from = |kind| v1::FromWorker { kind: Some(kind) };
    let (out, outgoing) = mpsc::channel(4);
    let queues = vec![v1::Credits { queue: "stock-later".to_owned(), more: 1 }];
    let hello = v1::WorkerHello { identity: identity(), queues, leases: Vec::new() };
    out.send(from(from_worker::Kind::Hello(hello))).await.unwrap();
    let mut jobs = JobsClient::connect(server.address.clone()).await.unwrap();
    let mut messages = jobs.work(ReceiverStream::new(outgoing)).await.unwrap().into_inner();
    loop {
        match messages.message().await.unwrap().unwrap().kind.unwrap() {
            to_worker::Kind::Delivery(delivery) => {
                let how = settle::How::Dead(v1::Dead { reason: "no such article".to_owned() });
                let settle = v1::Settle { lease: delivery.lease, how: Some(how) };
                out.send(from(from_worker::Kind::Settle(settle))).await.unwrap();
            }
            to_worker::Kind::Settled(settled) => return assert!(!settled.lost),
            _ => {}
        }
    }
}

#[test]
fn jobs_are_listed_shown_run_and_cancelled() {
    let server = Serving::start();
    server.apply(QUEUE);
    let id = Runtime::new().unwrap().block_on(submit(&server, "order-17"));
    let listed = server.run(&["jobs", "list", "stock-later"]).ok();
    for part in [id.as_str(), "waiting", "orders", "shop.v1.Stock/Take", "order-17", "no_worker"] {
        assert!(listed.contains(part), "{part}: {listed}");
    }
    let none = server.run(&["jobs", "list", "stock-later", "--state", "dead", "-o", "json"]).json();
    assert_eq!(none["jobs"].as_array().map_or(0, Vec::len), 0, "{none}");
    let shown = server.run(&["jobs", "get", &id]).ok();
    assert!(shown.contains("waiting, held: no_worker") && shown.contains("16 bytes"), "{shown}");
    assert_eq!(server.run(&["jobs", "body", &id, "--reason", "INC-1"]).ok(), "body of order-17");
    // Statistics are at most a second old.
    let stats = || server.run(&["queues", "stats", "stock-later"]).ok();
    let shown = (0..200).map(|_| stats()).find(|text| text.contains("no_worker")).unwrap_or_else(stats);
    assert!(shown.contains("shop.v1.Stock/Take"), "{shown}");

    server.run(&["jobs", "run", "stock-later", &id]).ok();
    let counted = server.run(&["jobs", "cancel", "stock-later", "--dry-run"]);
    assert!(counted.err.contains("dry run: nothing was changed"), "{counted:?}");
    let refused = server.run(&["queues", "delete", "stock-later"]).failed(75);
    assert!(refused.contains("has jobs that have not ended (1)"), "{refused}");
    assert_eq!(server.run(&["jobs", "cancel", "stock-later", &id]).ok(), CANCELLED);
    assert!(server.run(&["jobs", "get", &id]).ok().contains("cancelled"));
    server.run(&["jobs", "get", "0190"]).failed(65);
    server.run(&["jobs", "get", &"0".repeat(32)]).failed(66);
}

#[test]
fn dead_jobs_are_replayed_or_deleted() {
    let server = Serving::start();
    server.apply(QUEUE);
    let runtime = Runtime::new().unwrap();
    let id = runtime.block_on(async {
        let id = submit(&server, "order-18").await;
        give_up_one(&server).await;
        id
    });
    let dead = server.run(&["jobs", "list", "stock-later", "--state", "dead"]).ok();
    assert!(dead.contains(&id), "{dead}");
    assert!(server.run(&["jobs", "get", &id]).ok().contains("no such article"));
    let counted = server.run(&["jobs", "replay", "stock-later", "--rate", "10", "--dry-run"]);
    assert!(counted.err.contains("dry run: nothing was changed"), "{counted:?}");
    server.run(&["jobs", "replay", "stock-later", "--rate", "0.05"]).failed(65);
    assert_eq!(server.run(&["jobs", "replay", "stock-later"]).ok(), "1 job of queue stock-later replayed\n");
    assert!(server.run(&["jobs", "get", &id]).ok().contains("waiting"));
    runtime.block_on(give_up_one(&server));
    assert_eq!(server.run(&["jobs", "purge", "stock-later", "--state", "dead"]).ok(), DELETED);
    server.run(&["jobs", "get", &id]).failed(66);
    server.run(&["queues", "delete", "stock-later"]).ok();
}

#[cfg(unix)]
#[test]
fn what_operators_do_with_jobs_is_in_the_history() {
    let mut server = Serving::start();
    server.apply(QUEUE);
    let id = Runtime::new().unwrap().block_on(submit(&server, "order-20"));
    server.run(&["jobs", "body", &id, "--reason", "INC-7"]).ok();
    server.run(&["jobs", "run", "stock-later", "--reason", "INC-8", "--dry-run"]).ok();
    server.run(&["jobs", "run", "stock-later", "--reason", "INC-9"]).ok();
    server.run(&["jobs", "cancel", "stock-later", &id, "--reason", "INC-10"]).ok();
    assert_eq!(server.restart(), Some(0));
    let listed = server.run(&["history", "--kind", "jobs"]).ok();
    let rows: Vec<&str> = listed.lines().skip(1).collect();
    for (row, parts) in rows.iter().zip([
        ["1 cancelled", "stock-later", "INC-10", "kim"],
        ["1 made due", "stock-later", "INC-9", "kim"],
        ["body read", "stock-later", "INC-7", ""],
    ]) {
        assert!(parts.iter().all(|part| row.contains(part)), "{parts:?}: {listed}");
    }
    assert_eq!(rows.len(), 3, "a dry run is no action: {listed}");
    let exported = server.run(&["audit", "export", "--kind", "jobs", "--text", "stock-later"]).ok();
    let last: serde_json::Value = serde_json::from_str(exported.lines().last().unwrap()).unwrap();
    let action = &last["objects"][0]["after"]["jobs"];
    assert_eq!((&action["kind"], &action["filter"]["job_ids"][0]), (&"cancel".into(), &id.into()), "{last}");
    assert!(!exported.contains("body of") && !exported.contains("order-20"), "{exported}");
    assert_eq!(server.run(&["history", "--kind", "jobs", "--text", "other"]).ok().lines().count(), 1);
}

#[test]
fn queue_is_deleted_with_its_jobs_by_purge_alone() {
    let server = Serving::start();
    server.apply(QUEUE);
    let runtime = Runtime::new().unwrap();
    let id = runtime.block_on(submit(&server, "order-21"));
    // At once: the store is asked, not the statistics of the last second.
    server.run(&["queues", "delete", "stock-later"]).failed(75);
    let prune = ["apply", "-f", "-", "--owner", "team-orders", "--prune", "--allow-empty"];
    server.run_with(&prune, b"").failed(75);
    server.run(&["queues", "delete", "stock-later", "--purge", "--dry-run"]).ok();
    server.run(&["jobs", "get", &id]).ok();
    server.run(&["queues", "delete", "stock-later", "--purge", "--expected-revision", "9"]).failed(75);
    server.run(&["jobs", "get", &id]).ok();
    server.run(&["queues", "delete", "stock-later", "--purge", "--reason", "INC-11"]).ok();
    server.run(&["jobs", "get", &id]).failed(66);

    server.apply(QUEUE);
    let id = runtime.block_on(submit(&server, "order-22"));
    let pruned = server.run_with(&[&prune[..], &["--purge"]].concat(), b"");
    assert!(pruned.err.contains("1 deleted"), "{pruned:?}");
    pruned.ok();
    server.run(&["jobs", "get", &id]).failed(66);
    let purged = server.run(&["history", "--kind", "jobs"]).ok();
    assert_eq!(purged.matches("1 purged").count(), 2, "{purged}");
    assert!(purged.contains("INC-11"), "{purged}");
}
