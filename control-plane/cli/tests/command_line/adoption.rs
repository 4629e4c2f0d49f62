//! docs/adoption.md is followed as it stands: every command of its shell blocks, in order, against services that do
//! what the guide's services do.

use std::process::{Command, Stdio};

use damper_proto::v1;

use crate::harness::Serving;
use crate::reporting::{Reporting, report, until};

const GUIDE: &str = include_str!("../../../../docs/adoption.md");
const METHOD: &str = "inventory.v1.Inventory/Get";

/// The commands of the shell blocks, without their comments.
fn commands() -> Vec<String> {
    let mut open = None;
    let mut commands = Vec::new();
    for line in GUIDE.lines() {
        match (line.strip_prefix("```"), open) {
            (Some(info), None) => open = Some(info),
            (Some(_), Some(_)) => open = None,
            (None, Some("sh")) => {
                commands.push(line.split(" #").next().unwrap_or_default().trim().to_owned());
            }
            (None, _) => {}
        }
    }
    commands.retain(|command| !command.is_empty());
    commands
}

#[test]
fn every_command_of_the_guide_works_in_its_order() {
    let server = Serving::start();
    let looping = report(METHOD, |route| route.outer_loop_calls = 200);
    let _checkout = Reporting::new(&server, "checkout", looping);
    let served = v1::ServedReport { method: METHOD.to_owned(), grpc_repeats: 100, ..Default::default() };
    let _inventory =
        Reporting::new(&server, "inventory", v1::Report { served: vec![served], ..Default::default() });
    until("the routes are known", || {
        let table = server.run(&["routes", "--window", "1m"]).ok();
        (table.contains("caller's loop") && table.contains("gRPC")).then_some(())
    });
    let binary = std::path::Path::new(env!("CARGO_BIN_EXE_damper"));
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", binary.parent().unwrap().display());
    let mut printed = String::new();
    let commands = commands();
    for command in &commands {
        let output = Command::new("sh")
            .args(["-c", command])
            .current_dir(server.folder.path())
            .env("PATH", &path)
            .env("DAMPER_SERVER", &server.address)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "`{command}`: {} {said}", output.status);
        printed += &format!("{}{said}", String::from_utf8_lossy(&output.stdout));
    }
    assert!(commands.len() >= 18, "{commands:?}");
    for part in
        ["warning outer_loop", "warning repeats_by_grpc", "would_retry", "it would have sent ", "1 created"]
    {
        assert!(printed.contains(part), "{part}: {printed}");
    }
    let rule = server.run(&["rules", "get", "checkout", "*", "inventory", METHOD, "-o", "json"]).json();
    assert_eq!((&rule[0]["policy"]["mode"], &rule[0]["owner"]), (&"off".into(), &"team-checkout".into()));
}

#[test]
fn the_guide_names_every_heading_that_it_links_to() {
    let anchor = |heading: &str| heading.to_lowercase().replace([',', '.'], "").replace(' ', "-");
    let anchors: Vec<String> =
        GUIDE.lines().filter_map(|line| line.strip_prefix("## ")).map(anchor).collect();
    let links: Vec<&str> = GUIDE.split("](#").skip(1).filter_map(|rest| rest.split(')').next()).collect();
    assert_eq!(links.len(), anchors.len());
    for link in links {
        assert!(anchors.iter().any(|anchor| anchor == link), "no heading for #{link} among {anchors:?}");
    }
}
