//! The page in a real browser on the real binary with the demo's real traffic.
//!
//! The tests themselves are in `web-ui/e2e`; here the demo is started for them. Chromium is `CHROMIUM` or the
//! system's; where it is missing the tests fail.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use damper_tests::binary;

struct Demo {
    child: Child,
    url: String,
}

impl Demo {
    fn start() -> Self {
        let mut child = Command::new(binary::damper())
            .args(["demo", "--playground", "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("damper can be started");
        let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
        let url = lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| {
                line.split_whitespace().find(|word| word.starts_with("http://")).map(str::to_owned)
            })
            .expect("the demo says where its page is");
        // Keep reading, or the demo would block on a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, url: url.trim_end_matches('/').to_owned() }
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server that asks for tokens.
struct Guarded {
    child: Child,
    url: String,
    token: String,
    _folder: tempfile::TempDir,
}

impl Guarded {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let store = format!("sled:{}", folder.path().join("store").display());
        let first = folder.path().join("first-token");
        let mut child = Command::new(binary::damper())
            .args(["serve", "--listen", "127.0.0.1:0", "--store", &store, "--auth", "tokens"])
            .arg("--bootstrap-token-file")
            .arg(&first)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("damper can be started");
        let mut lines = BufReader::new(child.stderr.take().expect("stderr is piped")).lines();
        let address = lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| {
                let (_, listening) = line.split_once("listening on ")?;
                listening.split([',', ' ']).next().map(str::to_owned)
            })
            .expect("the server says where it listens");
        std::thread::spawn(move || lines.for_each(drop));
        let token = std::fs::read_to_string(first).expect("the first token").trim().to_owned();
        Self { child, url: format!("http://{address}"), token, _folder: folder }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn web_ui() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../web-ui")
}

#[track_caller]
fn npm(arguments: &[&str], servers: &[(&str, &str)]) {
    let status = Command::new("npm")
        .args(arguments)
        .current_dir(web_ui())
        .envs(servers.iter().copied())
        .stdin(Stdio::null())
        .status()
        .expect("npm can be started");
    assert!(status.success(), "npm {}: {status}", arguments.join(" "));
}

#[test]
fn the_page_shows_the_demo_in_a_real_browser() {
    if !web_ui().join("node_modules/@playwright").exists() {
        npm(&["ci", "--ignore-scripts", "--no-audit", "--no-fund"], &[]);
    }
    if !web_ui().join("gen").exists() {
        npm(&["run", "--silent", "generate"], &[]);
    }
    let demo = Demo::start();
    let output = tempfile::tempdir().expect("a temporary folder");
    let output = output.path().to_string_lossy().into_owned();
    let guarded = Guarded::start();
    let binary = binary::damper().to_string_lossy();
    let servers = [
        // Tests whose server is their own start it themselves.
        ("DAMPER_BINARY", &*binary),
        ("DAMPER_OPERATION", env!("CARGO_BIN_EXE_operation")),
        ("DAMPER_URL", demo.url.as_str()),
        ("DAMPER_GUARDED_URL", guarded.url.as_str()),
        ("DAMPER_GUARDED_TOKEN", guarded.token.as_str()),
    ];
    npm(&["run", "--silent", "e2e", "--", "--output", &output], &servers);
}
