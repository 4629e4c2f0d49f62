//! `damper serve` as a process: its settings, its signals, what keeps it from starting.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use crate::harness::{Serving, damper, manifest, run, text};

#[test]
fn bad_settings_keep_it_from_starting() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("damper.yaml");
    std::fs::write(&file, "listen: 127.0.0.1:0\nlistn: 127.0.0.1:0\n").unwrap();
    let said = run(damper().args(["serve", "--config", text(&file)])).failed(78);
    assert!(said.contains("damper.yaml") && said.contains("listn"), "{said}");

    let said = run(damper().arg("serve").env("DAMPER_STORE", "postgres://x")).failed(78);
    assert!(said.contains("DAMPER_STORE") && said.contains("postgres://x"), "{said}");

    let store = format!("sled:{}", folder.path().join("store").display());
    let said = run(damper().args(["serve", "--listen", "0.0.0.0:0", "--store", &store])).failed(78);
    assert!(said.contains("0.0.0.0") && said.contains("--insecure-allow-plaintext"), "{said}");
}

#[test]
fn taken_address_and_locked_store_are_unavailable() {
    let server = Serving::start();
    let other = format!("sled:{}", server.folder.path().join("other").display());
    let taken = server.address.trim_start_matches("http://");
    let said = run(damper().args(["serve", "--listen", taken, "--store", &other])).failed(69);
    assert!(said.contains(taken), "{said}");
    let same = format!("sled:{}", server.folder.path().join("store").display());
    let said = run(damper().args(["serve", "--listen", "127.0.0.1:0", "--store", &same])).failed(69);
    assert!(said.contains("in use"), "{said}");
}

#[test]
#[cfg(unix)]
fn sigterm_ends_it_and_writes_stay() {
    let mut server = Serving::start();
    server.apply(&manifest("checkout", "{ mode: observe }"));
    assert_eq!(server.restart(), Some(0));
    let there = server.run_key(&["rules", "get", "-o", "json"]).json();
    assert_eq!(there[0]["policy"]["mode"], "observe");
}

#[test]
fn json_logs_are_json_including_the_address_line() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sled:{}", folder.path().join("store").display());
    let args = ["serve", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--store", &store];
    let mut serve = damper();
    serve.args(args).args(["--log", "json"]).stderr(Stdio::piped()).stdout(Stdio::null());
    let mut child = serve.spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let listening = lines.find_map(|line| {
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        let message = line["fields"]["message"].as_str()?.to_owned();
        message.starts_with("listening on 127.0.0.1:").then_some(message)
    });
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(listening.unwrap().contains(", metrics on 127.0.0.1:"));
}
