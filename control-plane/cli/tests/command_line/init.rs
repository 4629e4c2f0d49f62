//! From what was measured to a rule in force: `rules init`, `apply`, `lint`, `rules promote`.

use std::process::Command;

use crate::harness::Serving;
use crate::reporting::{Reporting, report, until};

const METHOD: &str = "inventory.v1.Inventory/Get";
const INIT: [&str; 6] = ["rules", "init", "checkout", "*", "inventory", METHOD];

/// The proposal, once it is based on measurements.
fn proposed(server: &Serving) -> String {
    until("it is based on measurements", || {
        Some(server.run(&INIT).ok()).filter(|text| text.contains("calls of the last minute"))
    })
}

#[test]
fn proposal_pipes_into_apply_and_lints_clean() {
    let server = Serving::start();
    let _checkout = Reporting::new(&server, "checkout", report(METHOD, |_| {}));
    let text = proposed(&server);
    let made_from = text.strip_prefix("# based on ").and_then(|rest| rest.split(' ').next()).unwrap();
    assert!(made_from.parse::<u64>().unwrap() >= 20_000, "{text}");
    for setting in ["mode: observe", "max_attempts: 3", "per_attempt_timeout: ", "timeout: ", "UNAVAILABLE"] {
        assert!(text.contains(setting), "{setting}: {text}");
    }
    let pipe = format!("{} rules init checkout '*' inventory {METHOD} | {0} apply -f -", binary());
    let piped =
        Command::new("sh").args(["-c", &pipe]).env("DAMPER_SERVER", &server.address).output().unwrap();
    let said = String::from_utf8_lossy(&piped.stderr);
    assert!(piped.status.success() && said.contains("1 created"), "{said}");
    assert!(!said.contains("warning"), "{said}");
    let again = server.run_with(&["apply", "-f", "-"], proposed(&server).as_bytes());
    assert!(again.err.contains("1 unchanged"), "{again:?}");
    let file = server.file("rule.yaml", &text);
    server.run(&["lint", "-f", file.to_str().unwrap()]).ok();
    let json = server.run(&[&INIT[..], &["-o", "json"]].concat());
    assert!(json.err.contains("policy.retry.codes: UNAVAILABLE"), "{json:?}");
    let applied = server.run_with(&["apply", "-f", "-"], json.out.as_bytes());
    assert!(applied.err.contains("1 unchanged"), "{applied:?}");
}

#[test]
fn without_measurements_defaults_are_proposed() {
    let server = Serving::start();
    let text = server.run(&INIT).ok();
    assert!(text.starts_with("# no process reports a route that the key matches"), "{text}");
    let applied = server.run_with(&["apply", "-f", "-"], text.as_bytes());
    assert!(applied.err.contains("1 created"), "{applied:?}");
    server.run(&["rules", "init", "a b", "*", "c", "*"]).failed(65);
}

#[test]
fn promotion_reports_the_observed_effect() {
    let server = Serving::start();
    let _checkout = Reporting::new(&server, "checkout", report(METHOD, |_| {}));
    server.run_with(&["apply", "-f", "-"], proposed(&server).as_bytes()).ok();
    let promoted = server.run(&["rules", "promote", "checkout", "*", "inventory", METHOD]);
    assert!(
        promoted.err.contains("it would have sent ") && promoted.err.contains("on 1 route"),
        "{promoted:?}"
    );
    assert!(promoted.err.contains("amplification 1.09 at least, now 1.00"), "{promoted:?}");
    assert!(promoted.ok().contains("observe -> enforce"));
}

fn binary() -> &'static str {
    env!("CARGO_BIN_EXE_damper")
}
