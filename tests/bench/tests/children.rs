//! What the benchmarks start ends with them, and says why where it fails.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use damper_tests::binary::{self, wait_until};

const SOON: Duration = Duration::from_secs(30);

fn bench(row: &str, out: &tempfile::TempDir) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bench"));
    command.args(["run", "--size", "short", "--only", row, "--out"]).arg(out.path());
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// The processes that this one has started, with their command lines.
fn children(of: &Child) -> Vec<(String, String)> {
    let listed = fs::read_to_string(format!("/proc/{0}/task/{0}/children", of.id())).unwrap_or_default();
    let line = |id: &str| fs::read_to_string(format!("/proc/{id}/cmdline")).unwrap_or_default();
    listed.split_whitespace().map(|id| (id.to_owned(), line(id).replace('\0', " "))).collect()
}

/// True when it is gone, or only waits for somebody to note that it is.
fn has_ended(id: &str) -> bool {
    fs::read_to_string(format!("/proc/{id}/stat")).map_or(true, |stat| stat.contains(") Z "))
}

#[test]
fn servers_and_etcd_end_when_the_benchmarks_are_killed() {
    for signal in ["TERM", "KILL"] {
        let out = tempfile::tempdir().expect("a temporary folder");
        let mut running = bench("change", &out)
            .env("DAMPER_BINARY", binary::damper())
            .stderr(Stdio::null())
            .spawn()
            .expect("the benchmarks can be started");
        let mut started = Vec::new();
        wait_until("two servers and an etcd run", SOON, || {
            started = children(&running);
            let named = |name: &str| started.iter().filter(|(_, line)| line.contains(name)).count();
            // Before they are what they are to be, they are this program in the role `tethered`.
            named("tethered") == 0 && named(" serve ") == 2 && named("--data-dir") == 1
        });
        let id = running.id().to_string();
        let sent = Command::new("kill").args([&format!("-{signal}"), &id]).status();
        assert!(sent.expect("kill can be started").success(), "SIG{signal} was not delivered");
        running.wait().expect("a child can be waited for");
        for (id, line) in started {
            wait_until(&format!("{line} has ended after SIG{signal}"), SOON, || has_ended(&id));
        }
    }
}

#[test]
fn a_server_that_fails_is_told_of_with_its_own_words() {
    let out = tempfile::tempdir().expect("a temporary folder");
    let broken = out.path().join("broken");
    fs::write(&broken, "#!/bin/sh\necho 'the store is on fire' >&2\nexit 3\n").expect("a file");
    fs::set_permissions(&broken, fs::Permissions::from_mode(0o755)).expect("a file of ours");
    let output = bench("layer", &out).env("DAMPER_BINARY", &broken).output().expect("it can be started");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    for part in ["the row \"layer\"", "damper serve ended with exit status: 3", "the store is on fire"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}
