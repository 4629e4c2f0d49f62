//! What the guide to automation tells a team to type works, in the order in which it stands there, with a service
//! connected that its rules concern.

use std::time::Duration;

use damper_sdk::{Damper, Options};
use damper_tests::binary;
use damper_tests::control_plane::ControlPlane;
use damper_tests::guide::{self, Session};
use prost_reflect::{DescriptorPool, DynamicMessage};

const GUIDE: &str = include_str!("../../docs/automation.md");

/// What a command printed, of a server that answers on another thread.
fn damper(server: &ControlPlane, arguments: &[&str]) -> String {
    let output = tokio::task::block_in_place(|| binary::run(server.url(), arguments));
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn every_command_of_the_guide_works_as_it_stands() {
    let server = ControlPlane::start().await;
    let service = Damper::connect(Options::new([server.url()]).service("checkout")).expect("good options");
    service.ready(Duration::from_secs(20)).await.expect("it has a table");
    let mut session = Session::of(GUIDE);
    let mut ran = 0;
    for command in guide::commands(GUIDE) {
        match command.strip_prefix("export ") {
            Some(_) => session.export(&command),
            None => {
                tokio::task::block_in_place(|| session.succeed(server.url(), &command));
                ran += 1;
            }
        }
    }
    assert!(ran >= 20, "only {ran} commands were found");
    let left = damper(&server, &["rules", "list", "--owner", "team-checkout"]);
    assert_eq!(left.lines().count(), 2, "one rule is left of two: {left}");
    let told = damper(&server, &["history", "--by", "ann"]);
    assert_eq!(told.lines().count(), 2, "the repeated step wrote nothing: {told}");
}

#[test]
fn every_call_in_the_guide_is_one_that_reflection_knows() {
    let pool = DescriptorPool::decode(damper_proto::DESCRIPTORS).expect("the descriptors are good");
    let shown = guide::blocks(GUIDE).into_iter().filter(|block| block.info == "console");
    let lines: Vec<String> =
        shown.flat_map(|block| block.text.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
    assert_eq!(lines.len(), 3);
    for line in lines {
        let parts: Vec<&str> = line.split('\'').collect();
        let [_, json, target] = parts.as_slice() else { panic!("one message in quotes: {line}") };
        let (service, method) =
            target.split_whitespace().last().expect("a method").split_once('/').expect("a path");
        let service = pool.get_service_by_name(service).unwrap_or_else(|| panic!("{service}"));
        let method = service.methods().find(|one| one.name() == method).unwrap_or_else(|| panic!("{line}"));
        let mut json = serde_json::Deserializer::from_str(json);
        DynamicMessage::deserialize(method.input(), &mut json)
            .unwrap_or_else(|error| panic!("{error}: {line}"));
        json.end().unwrap_or_else(|error| panic!("{error}: {line}"));
    }
}

#[test]
fn every_link_of_the_guide_leads_somewhere() {
    let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let targets = GUIDE.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    for target in targets.filter(|target| !target.contains("://")) {
        let file = target.split('#').next().unwrap_or_default();
        assert!(docs.join(file).exists(), "the guide links {target}");
    }
}
