//! The kill switch, the proof of delivery and the list of clients as an operator has them. The services are played by
//! hand, so that one can be silent, refuse, lack a feature or leave.

use damper_proto::v1::distribution_client::DistributionClient;
use damper_proto::v1::{self, client_message, server_message};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;

use crate::harness::{KEY, Serving, manifest};
use crate::reporting::{Reporting, report, until};

const RULE: &str = "{ mode: enforce, retry: { max_attempts: 3 } }";

/// What a service does with what it is sent after the first response.
#[derive(Clone, Copy, PartialEq)]
enum Answers {
    Everything,
    Nothing,
    /// Refuses every rule.
    Refuses,
}

/// Services of one test.
struct Services {
    runtime: Runtime,
    address: String,
}

/// Disconnects when it is dropped.
struct Service {
    task: JoinHandle<()>,
}

impl Drop for Service {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Services {
    fn of(server: &Serving) -> Self {
        Self { runtime: Runtime::new().unwrap(), address: server.address.clone() }
    }

    /// A process of `checkout` with all features that has acknowledged its first response.
    fn start(&self, instance: &str, answers: Answers) -> Service {
        self.start_with(instance, answers, damper_core::feature::ALL)
    }

    fn start_with(&self, instance: &str, answers: Answers, features: &[&str]) -> Service {
        let identity = v1::Identity {
            service: "checkout".to_owned(),
            cluster: "default".to_owned(),
            instance: instance.to_owned(),
        };
        let features = features.iter().map(|feature| (*feature).to_owned()).collect();
        let hello = v1::Hello { identity: Some(identity), features, ..Default::default() };
        let (ready, is_ready) = oneshot::channel();
        let task = self.runtime.spawn(serve(self.address.clone(), hello, answers, ready));
        self.runtime.block_on(is_ready).expect("the service connects");
        Service { task }
    }
}

fn say(kind: client_message::Kind) -> v1::ClientMessage {
    v1::ClientMessage { kind: Some(kind) }
}

async fn serve(address: String, hello: v1::Hello, answers: Answers, ready: oneshot::Sender<()>) {
    let mut ready = Some(ready);
    let (messages, outgoing) = mpsc::channel(16);
    messages.send(say(client_message::Kind::Hello(hello))).await.unwrap();
    let mut client = DistributionClient::connect(address).await.unwrap();
    let mut incoming = client.subscribe(ReceiverStream::new(outgoing)).await.unwrap().into_inner();
    while let Ok(Some(message)) = incoming.message().await {
        if message.nonce == 0 || ready.is_none() && answers == Answers::Nothing {
            continue;
        }
        let refusal = |rule: &v1::DistributedRule| v1::Refusal {
            key: rule.key.clone(),
            revision: rule.revision,
            reason: "policy.retry: is more than I like".to_owned(),
            ..Default::default()
        };
        let refused = match &message.kind {
            Some(server_message::Kind::Delta(delta)) if answers == Answers::Refuses => {
                delta.changed.iter().map(refusal).collect()
            }
            _ => Vec::new(),
        };
        let ack = v1::Ack { nonce: message.nonce, revision: message.revision, refused };
        messages.send(say(client_message::Kind::Ack(ack))).await.unwrap();
        if let Some(ready) = ready.take() {
            let _ = ready.send(());
        }
    }
}

const KILL: [&str; 5] = ["kill", "--callee", "inventory", "--reason", "INC-7: overload"];

fn kill<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&KILL[..], more].concat()
}

#[test]
fn kill_reports_effect_end_and_undo() {
    let server = Serving::start();
    let services = Services::of(&server);
    let _one = services.start("c-1", Answers::Everything);
    let tried = server.run(&kill(&["--dry-run", "--ttl", "5m"]));
    assert!(tried.out.contains(
        "would be stopped: retries and hedges to inventory, on no known route, sent to 1 connected client"
    ));
    assert!(tried.out.contains("(for 5m)") || tried.out.contains("(for 300s)"), "{tried:?}");
    assert!(tried.err.contains("dry run: nothing was changed"), "{tried:?}");
    tried.ok();
    let none = server.run(&["kills"]);
    assert!(none.err.contains("no kill is in force"), "{none:?}");

    let done = server.run(&kill(&["--calls", "--wait"]));
    assert!(done.out.contains("stopped: every call to inventory"), "{done:?}");
    let undo = "end it early with: damper unkill --callee inventory";
    assert!(done.err.contains(undo), "{done:?}");
    assert!(done.err.contains("acknowledged 1 of 1 within "), "{done:?}");
    assert!(done.err.contains("warning: kill to inventory: no known route matches"), "{done:?}");
    done.ok();
    let table = server.run(&["kills"]).ok();
    let row: Vec<&str> =
        table.lines().nth(1).unwrap().split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
    assert_eq!(row[..6], ["*", "*", "inventory", "*", "calls", "INC-7: overload"], "{table}");
    assert_eq!(row[9], "1/1", "{table}");
    assert_eq!(&row[7][..2], "20", "a time: {table}");
    let listed = server.run(&["kills", "-o", "json"]).json();
    assert_eq!(listed["kills"][0]["reason"], "INC-7: overload");
    assert!(listed["kills"][0]["remaining"].as_str().unwrap().len() > 1, "{listed}");

    // As it was printed.
    let undo: Vec<&str> = done_command(undo);
    let ended = server.run(&undo);
    assert!(ended.out.contains("no longer stopped: to inventory"), "{ended:?}");
    ended.ok();
    let history = server.run(&["history", "--kind", "kill"]).ok();
    let changes: Vec<Vec<&str>> =
        history.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!((changes[0][3], changes[0][4]), ("deleted", "kill"), "{history}");
    assert_eq!((changes[1][3], changes[1][4]), ("created", "kill"), "{history}");
    assert!(history.contains("INC-7: overload"));
    let differs = server.run(&["history", "diff", "0", "1"]);
    assert!(differs.err.contains("kill * * inventory * was set"), "{differs:?}");
}

fn done_command(told: &str) -> Vec<&str> {
    told.split_once("damper ").unwrap().1.split(' ').collect()
}

#[test]
fn kill_requires_routes_reason_and_valid_ttl() {
    let server = Serving::start();
    let said = server.run(&["kill", "--reason", "r"]).failed(64);
    assert!(said.contains("--callee") && said.contains("--all"), "{said}");
    let said = server.run(&["kill", "--callee", "a"]).failed(64);
    assert!(said.contains("--reason: required"), "{said}");
    server.run(&["kill", "--all", "--callee", "a", "--reason", "r"]).failed(64);
    for (ttl, code) in [("0s", 65), ("25h", 65), ("soon", 64)] {
        let said = server.run(&["kill", "--all", "--reason", "r", "--ttl", ttl]).failed(code);
        assert!(said.contains("--ttl"), "{said}");
    }
    let said = server.run(&["kill", "--callee", "a b", "--method", "Take", "--reason", "r"]).failed(65);
    assert!(said.contains("--callee: ") && said.contains("--method: "), "{said}");
    for bad in ["0%", "101%", "most"] {
        let said = server.run(&["kill", "--all", "--reason", "r", "--wait", bad]).failed(64);
        assert!(said.contains("99%"), "{said}");
    }
    server.run(&["kill", "--all", "--reason", "r", "--timeout", "3s"]).failed(64);
    server.run(&["kill", "--all", "--reason", "r", "--wait", "--timeout", "11m"]).failed(64);
    assert!(server.run(&["kills", "-o", "json"]).json()["kills"].as_array().is_none_or(Vec::is_empty));
    server.run(&["kill", "--all", "--reason", "r"]).ok();
    // The selection of a kill can be repeated as it is.
    let everywhere = server.run(&["unkill", "--all", "--calls"]).ok();
    assert!(everywhere.contains("no longer stopped: everywhere"), "{everywhere}");
}

#[test]
fn mistyped_unkill_lists_kills_in_force() {
    let server = Serving::start();
    let said = server.run(&["unkill", "--callee", "inventroy"]).failed(66);
    assert!(said.contains("no kill with --callee inventroy") && said.contains("no kill is in force"));
    server.run(&kill(&["--method", "inventory.v1.Inventory/*"])).ok();
    let said = server.run(&["unkill", "--callee", "inventroy"]).failed(66);
    let command = "damper unkill --callee inventory --method 'inventory.v1.Inventory/*' (INC-7: overload)";
    assert!(said.contains(command), "{said}");
    server.run(&["unkill"]).failed(64);
    let stale = [
        "unkill",
        "--callee",
        "inventory",
        "--method",
        "inventory.v1.Inventory/*",
        "--expected-revision",
        "7",
    ];
    let stale = server.run(&stale).failed(75);
    assert!(
        stale.contains("kill * * inventory inventory.v1.Inventory/* is at revision 1 now, changed by kim"),
        "{stale}"
    );
}

#[test]
fn tables_warn_of_kills_in_force() {
    let server = Serving::start();
    server.apply(&manifest("checkout", RULE));
    for table in [&["routes"][..], &["stats"], &["rules", "list"]] {
        assert!(!server.run(table).err.contains("in force"), "{table:?}");
    }
    server.run(&kill(&[])).ok();
    for table in [&["routes"][..], &["stats"], &["rules", "list"]] {
        let told = server.run(table);
        let warning = "warning: 1 kill is in force: retries stopped to inventory for ";
        assert!(told.err.contains(warning), "{table:?}: {told:?}");
        assert!(told.err.contains("m more (INC-7: overload)"), "{table:?}: {told:?}");
        told.ok();
    }
    // Programs read what they asked for and nothing else.
    assert!(!server.run(&["rules", "list", "-o", "json"]).err.contains("in force"));
    let explained = server.run(&["explain", "checkout", "default", KEY[2], KEY[3]]).ok();
    assert!(explained.contains("overrides every rule: no call is retried or hedged"), "{explained}");
}

#[test]
fn empty_tables_have_a_message() {
    let server = Serving::start();
    for (table, words) in [
        (&["routes"][..], "no route"),
        (&["stats"], "no route"),
        (&["clients"], "no client is connected"),
        (&["kills"], "no kill is in force"),
    ] {
        let told = server.run(table);
        assert!(told.err.contains(words), "{table:?}: {told:?}");
        told.ok();
    }
}

#[test]
fn wait_proves_that_every_kind_of_write_has_arrived() {
    let server = Serving::start();
    let services = Services::of(&server);
    let _services = ["c-1", "c-2"].map(|instance| services.start(instance, Answers::Everything));
    let file = server.file("rule.yaml", manifest("checkout", RULE));
    let file = crate::harness::text(&file);
    let guard = "kind: Guard\nkey: { caller_service: \"*\", caller_cluster: \"*\", callee_service: inventory, \
                 callee_method: \"*\" }\nceiling: { max_attempts: 6 }\n";
    let guard = server.file("guard.yaml", guard);
    let guard = crate::harness::text(&guard);
    let delivered = |args: &[&str]| {
        let done = server.run(args);
        assert!(done.err.contains("acknowledged 2 of 2 within "), "{args:?}: {done:?}");
        done.ok();
    };
    let with_key = |args: &[&'static str]| [args, &KEY, &["--wait", "100%"]].concat();
    delivered(&["apply", "-f", file, "--wait", "99%", "--timeout", "20s"]);
    delivered(&["rules", "put", "-f", file, "--wait"]);
    delivered(&with_key(&["rules", "promote", "--to", "observe"]));
    delivered(&["guards", "put", "-f", guard, "--wait"]);
    delivered(&["guards", "delete", "*", "*", "inventory", "*", "--wait"]);
    delivered(&with_key(&["rules", "delete"]));
    delivered(&with_key(&["rollback", "--to", "1"]));
    delivered(&kill(&["--wait"]));
    delivered(&["unkill", "--callee", "inventory", "--wait"]);
    let nothing = server.run(&["apply", "-f", file, "--wait"]);
    assert!(nothing.err.contains("nothing was written, nothing to wait for"), "{nothing:?}");
    nothing.ok();
}

#[test]
fn laggards_are_named_and_the_write_stands() {
    let server = Serving::start();
    let services = Services::of(&server);
    let _good = services.start("good", Answers::Everything);
    let _silent = services.start("silent", Answers::Nothing);
    let _refusing = services.start("refusing", Answers::Refuses);
    let _old = services.start_with("old", Answers::Everything, &["guards"]);
    let file = server.file("rule.yaml", manifest("checkout", RULE));
    let apply = ["apply", "-f", crate::harness::text(&file), "--wait", "--timeout", "10s"];
    let late = server.run(&apply);
    assert!(late.out.contains("created"), "{late:?}");
    let said = late.failed(1);
    for part in [
        "acknowledged 1 of 4 after 10 s, 1 rejected it, 1 lack a feature",
        "checkout default refusing: rejected rule checkout * inventory inventory.v1.Inventory/Reserve: policy.retry",
        "checkout default old: lacks base",
        "checkout default silent: has not acknowledged, at revision 0",
        "error: revision 1 is written, but was not delivered to 100% of the affected clients in time",
    ] {
        // The elapsed time may be a little more than the time to wait.
        let part = part.replace("10 s, ", "");
        let (before, after) = part.split_once("after ").unwrap_or((&part, ""));
        assert!(said.contains(before) && said.contains(after), "{part}: {said}");
    }
    assert_eq!(server.rules(), 1);
    // A quarter of them is enough for the next.
    let some = server.run(&[&["rules", "delete"][..], &KEY, &["--wait", "25%"]].concat());
    assert!(some.err.contains("acknowledged ") && some.err.contains(" of 4 within "), "{some:?}");
    some.ok();
}

#[test]
fn delivery_fails_without_clients_and_on_disconnect() {
    let server = Serving::start();
    let services = Services::of(&server);
    let nobody = server.run(&kill(&["--wait"]));
    assert!(nobody.out.contains("stopped"), "{nobody:?}");
    let said = nobody.failed(1);
    assert!(said.contains("revision 1 is written, but affects no connected client"), "{said}");
    let leaving = services.start("leaving", Answers::Nothing);
    let mut waiting = server.command(&["unkill", "--callee", "inventory", "--wait", "--timeout", "30s"]);
    let waiting =
        waiting.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    // Written, then left.
    let changes = || server.run(&["history", "-o", "json"]).json()["changes"].as_array().map_or(0, Vec::len);
    while changes() < 2 {}
    while !server.run(&["clients", "--lagging", "-o", "json"]).ok().contains("behind_since") {}
    drop(leaving);
    let ended = crate::harness::Ended::from(waiting.wait_with_output().unwrap());
    let said = ended.failed(1);
    assert!(said.contains("checkout default leaving: disconnected before it acknowledged"), "{said}");
}

#[test]
fn clients_lists_laggards_with_reasons() {
    let server = Serving::start();
    let services = Services::of(&server);
    let _good = services.start("good", Answers::Everything);
    let everybody = server.run(&["clients", "--lagging"]);
    assert!(everybody.err.contains("all connected clients are up to date"), "{everybody:?}");
    let _silent = services.start("silent", Answers::Nothing);
    let _refusing = services.start("refusing", Answers::Refuses);
    let _old = services.start_with("old", Answers::Everything, &["guards"]);
    server.apply(&manifest("checkout", RULE));
    let settled = || {
        let told = server.run(&["clients", "--service", "checkout"]).ok();
        let row = |name: &str| told.lines().find(|line| line.contains(name)).unwrap_or("").to_owned();
        let cells = |name: &str| row(name).split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let acked = |name: &str| cells(name)[6] == "1";
        (acked("good") && acked("refusing") && acked("old")).then_some(told)
    };
    let told = loop {
        if let Some(told) = settled() {
            break told;
        }
    };
    assert!(told.contains("checkout default refusing rejected checkout * inventory"), "{told}");
    assert!(told.contains("of revision 1: policy.retry: is more than I like"), "{told}");
    assert!(told.contains("checkout default old lacks a feature that checkout * inventory"), "{told}");
    assert!(told.lines().find(|line| line.contains(" old ")).unwrap().contains("base,hedge,"), "{told}");
    let lagging = server.run(&["clients", "--lagging", "-o", "json"]).json();
    let names: Vec<&str> = lagging["clients"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["identity"]["instance"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["old", "refusing", "silent"]);
    server.run(&kill(&[])).ok();
    let told = server.run(&["clients", "--lagging"]).ok();
    assert!(
        told.contains(
            "checkout default old ignores the kill switch to inventory: its SDK lacks the feature kill_switch"
        ),
        "{told}"
    );
    assert!(server.run(&["clients", "--cluster", "other"]).err.contains("no matching client"));
    let mut following = server.command(&["clients", "-w", "--interval", "50ms", "-o", "json"]);
    let mut following = following.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(following.stdout.take().unwrap()));
    for line in lines.take(3) {
        let told: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
        assert_eq!(told["clients"].as_array().unwrap().len(), 4);
    }
    following.kill().unwrap();
    following.wait().unwrap();
}

#[test]
fn weaker_kill_needs_replace() {
    let server = Serving::start();
    server.run(&kill(&["--calls", "--ttl", "2h"])).ok();
    for weaker in [&["--ttl", "3h"][..], &["--calls", "--ttl", "1m"]] {
        let said = server.run(&kill(weaker)).failed(75);
        assert!(said.contains("calls stopped for") && said.contains("--replace"), "{said}");
    }
    let longer = server.run(&kill(&["--calls", "--ttl", "3h"]));
    assert!(longer.err.contains("replaces a kill with the same selection: calls stopped"), "{longer:?}");
    longer.ok();
    server.run(&kill(&["--ttl", "1m", "--replace"])).ok();
    assert_eq!(server.run(&["kills", "-o", "json"]).json()["kills"][0]["calls"], serde_json::Value::Null);
}

#[test]
fn kill_of_a_name_like_one_that_is_known_is_a_slip() {
    let server = Serving::start();
    let _shop = Reporting::new(&server, "shop", report("inventory.v1.Inventory/Get", |_| {}));
    until("the route is known", || {
        server.run(&["routes"]).ok().contains("inventory.v1.Inventory/Get").then_some(())
    });
    let slip = ["kill", "--callee", "inventroy", "--reason", "typing in a hurry"];
    let said = server.run(&slip).failed(66);
    assert!(said.contains("nearest: callee_service: inventory") && said.contains("--unseen"), "{said}");
    assert!(server.run(&["kills"]).err.contains("no kill is in force"));
    let set = server.run(&[&slip[..], &["--unseen"]].concat());
    assert!(set.out.contains("on no known route"), "{set:?}");
    set.ok();
}

#[test]
fn unkill_reports_remaining_kills_and_ends_all() {
    let server = Serving::start();
    server.run(&kill(&[])).ok();
    server.run(&["kill", "--all", "--reason", "everything"]).ok();
    let one = server.run(&["unkill", "--all"]);
    assert!(one.err.contains("1 kill is in force: retries stopped to inventory"), "{one:?}");
    one.ok();
    server.run(&["kill", "--all", "--reason", "everything"]).ok();
    let every = server.run(&["unkill", "--every"]).ok();
    assert!(every.contains("no longer stopped: everywhere") && every.contains("to inventory"), "{every}");
    server.run(&["unkill", "--every"]).failed(66);
}
