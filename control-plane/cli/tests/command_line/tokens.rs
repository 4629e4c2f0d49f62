//! Tokens on the command line, and that no secret gets into a log.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use tempfile::TempDir;

use crate::harness::{Ended, damper, run};

/// A server that asks for tokens and logs all that it can.
struct Guarded {
    child: Child,
    address: String,
    folder: TempDir,
}

impl Guarded {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = format!("sled:{}", folder.path().join("store").display());
        let log = File::create(folder.path().join("log")).unwrap();
        let mut serve = damper();
        serve.args(["serve", "--listen", "127.0.0.1:0", "--log-level", "trace,h2=trace", "--store", &store]);
        serve.args(["--auth", "tokens", "--bootstrap-token-file"]).arg(folder.path().join("first"));
        let mut child = serve.stderr(log).stdout(Stdio::null()).spawn().unwrap();
        let address = loop {
            assert!(child.try_wait().unwrap().is_none(), "{}", Self::read(&folder));
            let log = Self::read(&folder);
            if let Some((_, rest)) = log.split_once("listening on ")
                && let Some((line, _)) = rest.split_once('\n')
            {
                let address = line.strip_suffix(" (http, tokens)").expect("how the port is guarded");
                break format!("http://{}", address.trim());
            }
            std::thread::yield_now();
        };
        Self { child, address, folder }
    }

    fn read(folder: &TempDir) -> String {
        String::from_utf8_lossy(&std::fs::read(folder.path().join("log")).unwrap()).into_owned()
    }

    fn first(&self) -> PathBuf {
        self.folder.path().join("first")
    }

    fn run_as(&self, token_file: &PathBuf, args: &[&str]) -> Ended {
        let mut command = damper();
        command.args(args).env("DAMPER_SERVER", &self.address).env("DAMPER_TOKEN_FILE", token_file);
        run(&mut command)
    }

    fn admin(&self, args: &[&str]) -> Ended {
        self.run_as(&self.first(), args)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_token_is_made_shown_used_and_revoked() {
    let server = Guarded::start();
    let args = ["token", "create", "ci", "--role", "editor", "--caller", "checkout", "--ttl", "2h"];
    let made = server.admin(&args);
    let (out, err) = (made.out.clone(), made.err.clone());
    let secret = made.ok();
    let id =
        secret.trim().strip_prefix("damper_").and_then(|rest| rest.split_once('_')).unwrap().0.to_owned();
    assert_eq!(out.lines().count(), 1, "the token alone: {out}");
    assert!(err.contains(&id) && !err.contains(secret.trim()), "{err}");
    let file = server.folder.path().join("ci");
    std::fs::write(&file, &secret).unwrap();

    let who = server.run_as(&file, &["whoami"]).ok();
    assert!(who.starts_with(&format!("token ci ({id})\nrole: editor\nscope: callers checkout\n")), "{who}");
    server.run_as(&file, &["rules", "list"]).ok();
    let denied = server.run_as(&file, &["token", "list"]).failed(77);
    assert!(denied.contains("admin"), "{denied}");
    let denied = server.run_as(&file, &["kill", "--all", "--reason", "x"]).failed(77);
    assert!(denied.contains("operator"), "{denied}");
    let denied = server.run_as(&file, &["queues", "delete", "later", "--purge"]).failed(77);
    assert!(denied.contains("operator"), "{denied}");
    run(damper().args(["rules", "list"]).env("DAMPER_SERVER", &server.address)).failed(77);

    let listed = server.admin(&["token", "list", "-o", "json"]).json();
    assert_eq!(listed["tokens"].as_array().unwrap().len(), 2, "{listed}");
    server.admin(&["token", "revoke", &id, "--reason", "done"]).ok();
    server.run_as(&file, &["whoami"]).failed(77);
    server.admin(&["token", "revoke", &id]).failed(66);
    let history = server.admin(&["history", "--kind", "token"]).ok();
    assert!(history.contains("deleted") && history.contains("ci") && history.contains("done"), "{history}");
    let last = server.admin(&["token", "list"]).ok();
    let first = last.lines().nth(1).unwrap().split_whitespace().next().unwrap();
    server.admin(&["token", "revoke", first]).failed(75);

    // What went over the wire and into the store, searched for in all that the server has logged.
    let admin = std::fs::read_to_string(server.first()).unwrap();
    let log = Guarded::read(&server.folder);
    assert!(log.contains("TRACE"), "it was to log all that it can");
    for token in [admin.trim(), secret.trim()] {
        let kept = token.rsplit('_').next().unwrap();
        assert!(!log.contains(kept), "a secret is in the log");
        assert!(!log.contains(&kept[..16]), "a part of a secret is in the log");
    }
}

#[cfg(unix)]
#[test]
fn token_file_is_readable_by_its_owner_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let server = Guarded::start();
    let file = server.folder.path().join("deploy");
    let path = file.to_str().unwrap().to_owned();
    let create = |args: &[&str]| {
        server.admin(&[&["token", "create", "deploy", "--role", "agent", "--file", &path], args].concat())
    };
    create(&["--ttl", "1s"]).failed(65);
    create(&["--dry-run"]).ok();
    assert!(!file.exists(), "there is no token for it");
    let made = create(&["-o", "json"]);
    assert!(made.err.contains("any service"), "{}", made.err);
    let shown = made.json();
    let token = std::fs::read_to_string(&file).unwrap();
    assert!(token.starts_with("damper_") && !shown.to_string().contains(token.trim()), "{shown}");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert!(create(&[]).failed(74).contains("already exists; --replace overwrites it"));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), token);
    let listed = server.admin(&["token", "list", "-o", "json"]).json();
    assert_eq!(listed["tokens"].as_array().unwrap().len(), 2, "what could not be written down was not made");

    create(&["--replace"]).ok();
    let second = std::fs::read_to_string(&file).unwrap();
    assert!(second.starts_with("damper_") && second != token);
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);

    // A whole token is no id, and is not told back.
    let told = server.admin(&["token", "revoke", token.trim()]).failed(64);
    let id = token.split('_').nth(1).unwrap();
    assert!(told.contains(id) && !told.contains(token.trim().rsplit('_').next().unwrap()), "{told}");
    let admin = server.admin(&["token", "create", "own", "--role", "admin", "--ttl", "1h"]).ok();
    let own = server.folder.path().join("own");
    std::fs::write(&own, &admin).unwrap();
    let ended = server.run_as(&own, &["token", "revoke", admin.split('_').nth(1).unwrap()]);
    assert!(ended.err.contains("this command uses the revoked token"), "{}", ended.err);
    ended.ok();
}

#[test]
fn a_token_that_ends_soon_is_a_finding() {
    let server = Guarded::start();
    let create = |name: &str, ttl: &str| {
        server.admin(&["token", "create", name, "--role", "agent", "--caller", name, "--ttl", ttl]).ok()
    };
    // An hour's token is renewed by a program.
    for (name, ttl) in [("orders", "10d"), ("far", "30d"), ("never", "never"), ("hourly", "1h")] {
        create(name, ttl);
    }
    let ending = |args: &[&str]| {
        let ended = server.admin(&[&["doctor", "-o", "json"], args].concat());
        let found: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
        let found = found["findings"].as_array().cloned().unwrap_or_default();
        found.into_iter().filter(|finding| finding["code"] == "token_ends").collect::<Vec<_>>()
    };
    let found = ending(&[]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0]["subject"].as_str().unwrap().starts_with("orders ("), "{found:?}");
    assert!(found[0]["message"].as_str().unwrap().starts_with("role agent, expires in 9 days"), "{found:?}");
    assert_eq!((ending(&["--service", "orders"]).len(), ending(&["--service", "far"]).len()), (1, 0));
}

#[test]
fn invalid_arguments_name_their_options() {
    let server = Guarded::start();
    let told = server.admin(&["token", "create", "x", "--role", "viewer", "--caller", "a"]).failed(65);
    assert!(told.contains("--caller"), "{told}");
    let told = server
        .admin(&["token", "create", "x", "--role", "editor", "--caller", "a*b", "--ttl", "1s"])
        .failed(65);
    assert!(told.contains("--caller [0]") && told.contains("--ttl"), "{told}");
    server.admin(&["token", "create", "x", "--role", "king"]).failed(64);
    server.admin(&["token", "create", "x"]).failed(64);
}

#[test]
fn a_server_that_asks_for_tokens_and_has_none_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sled:{}", folder.path().join("store").display());
    let serve = ["serve", "--listen", "127.0.0.1:0", "--store", &store, "--auth", "tokens"];
    let told = run(damper().args(serve)).failed(78);
    assert!(told.contains("--bootstrap-token-file"), "{told}");
    let file = folder.path().join("first");
    std::fs::write(&file, "damper_secret").unwrap();
    let told = run(damper().args(serve).arg("--bootstrap-token-file").arg(&file)).failed(78);
    assert!(told.contains("contains no token") && !told.contains("damper_secret"), "{told}");
}
