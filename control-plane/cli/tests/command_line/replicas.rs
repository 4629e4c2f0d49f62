//! What commands say of a replica that the one they ask does not hear.

use damper_tests::etcd::Etcd;
use tokio::runtime::Runtime;

use crate::harness::{Serving, manifest};
use crate::reporting::until;

const RULE: &str = "{ mode: observe }";

#[test]
fn missing_replicas_are_reported_once_per_command() {
    let etcd = Runtime::new().unwrap().block_on(Etcd::start());
    let store = format!("etcd://{}", etcd.endpoint());
    // Nobody can follow it.
    let _unreachable = Serving::on(&store, &["--advertise", "http://127.0.0.1:1"]);
    let asked = Serving::on(&store, &[]);
    let id = until("the other replica is known, and not heard", || {
        let listed = asked.run(&["replicas", "-o", "json"]).json();
        let replicas = listed["replicas"].as_array().unwrap().clone();
        let unreachable =
            replicas.iter().find(|replica| replica["problem"].as_str().is_some_and(|it| !it.is_empty()));
        unreachable.map(|replica| replica["id"].as_str().unwrap().to_owned())
    });
    let warning =
        format!("warning: unreachable replicas: {id}; their clients are missing here, see damper replicas");
    let file = asked.file("rule.yaml", manifest("checkout", RULE));
    let file = file.to_str().unwrap();
    for args in [
        ["clients"].as_slice(),
        &["routes"],
        &["chain"],
        &["kills"],
        &["stats"],
        &["kill", "--all", "--reason", "a test"],
        &["kill", "--all", "--reason", "a test", "--wait", "--timeout", "200ms"],
        &["apply", "-f", file, "--wait", "--timeout", "200ms"],
    ] {
        let ended = asked.run(args);
        assert_eq!(ended.err.lines().filter(|line| *line == warning).count(), 1, "{args:?}: {ended:?}");
    }
}
