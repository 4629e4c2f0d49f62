//! The operator's guide, played: the incident in it, with its own commands, on a real playground.
//!
//! What the guide promises after each step is asserted here: that the storm is seen, stopped, explained and
//! undone.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use damper_tests::binary::{self, wait_until};
use damper_tests::guide::{self, Session};
use serde_json::Value;

const GUIDE: &str = include_str!("../../docs/operations.md");
const PATIENCE: Duration = Duration::from_secs(60);
const ROUTE: [&str; 4] = ["inventory", "default", "stock", "shop.v1.Stock/Take"];

/// `damper demo --playground` on ports of its own; ends with the test.
struct Playground {
    child: Child,
    url: String,
    control: String,
}

impl Playground {
    fn start() -> Self {
        let mut child = Command::new(binary::damper())
            .args(["demo", "--playground", "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("damper can be started");
        let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
        let mut word_after = |before: &str| {
            let line = lines.by_ref().map_while(Result::ok).find(|line| line.contains(before));
            let line = line.expect("the demo says where it is");
            line.split_whitespace().last().expect("a word").trim_end_matches('/').to_owned()
        };
        let url = word_after("Web UI");
        let control = word_after("demo fault");
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, url, control }
    }

    /// The route from inventory to stock as the server tells it.
    fn route(&self) -> Option<Value> {
        let output = binary::run(&self.url, &["routes", "-o", "json"]);
        let routes: Value = serde_json::from_slice(&output.stdout).ok()?;
        let is_route = |route: &&Value| {
            let key = &route["key"];
            [&key["caller_service"], &key["caller_cluster"], &key["callee_service"], &key["callee_method"]]
                == ROUTE
        };
        routes["routes"].as_array()?.iter().find(is_route).cloned()
    }

    /// Waits until the route's amplification is in a range.
    #[track_caller]
    fn until_amplification(&self, what: &str, holds: impl Fn(f64) -> bool) {
        wait_until(what, PATIENCE, || {
            let amplification = self.route().and_then(|route| route["amplification"].as_f64());
            amplification.is_some_and(&holds)
        });
    }
}

impl Drop for Playground {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_incident_in_the_guide_is_found_stopped_explained_and_undone_by_its_commands() {
    let playground = Playground::start();
    let session = Session::of(GUIDE);
    playground.until_amplification("healthy traffic", |amplification| (0.9..1.1).contains(&amplification));
    let mut said = String::new();
    for command in guide::commands(GUIDE) {
        let begun = Instant::now();
        let line = command
            .replace("damper demo fault", &format!("damper demo fault --control {}", playground.control));
        let printed = session.succeed(&playground.url, &line);
        println!("$ {command}   ({} ms)\n{printed}", begun.elapsed().as_millis());
        said += &printed;
        match command.as_str() {
            "damper demo fault 100%" => {
                playground.until_amplification("the storm", |amplification| amplification > 5.0);
            }
            kill if kill.starts_with("damper kill --callee stock") => {
                playground.until_amplification("the storm's end", |amplification| amplification < 1.05);
                let fates = playground.route().expect("the route is known")["fates"].to_string();
                assert!(fates.contains("killed"), "{fates}");
            }
            unkill if unkill.starts_with("damper unkill") => {
                playground.until_amplification("no storm comes back", |amplification| amplification < 1.5);
            }
            _ => {}
        }
    }
    for told in ["bob", "stock is flaky", "INC-1: storm at stock", "INC-1: undo", "INC-1: rolled back"] {
        assert!(said.contains(told), "nothing of {told:?} in\n{said}");
    }
}

#[test]
fn every_link_of_the_guide_leads_somewhere() {
    let anchors = guide::anchors(GUIDE);
    for link in GUIDE.split("](#").skip(1).filter_map(|rest| rest.split(')').next()) {
        assert!(anchors.iter().any(|anchor| anchor == link), "no heading for #{link}");
    }
    let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let targets = GUIDE.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    for target in targets.filter(|target| !target.starts_with('#') && !target.contains("://")) {
        let file = target.split('#').next().unwrap_or_default();
        assert!(docs.join(file).exists(), "the guide links {target}");
    }
}
