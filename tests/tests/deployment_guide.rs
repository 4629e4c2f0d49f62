//! The deployment guide, followed: a guarded server in a folder, with the guide's own settings and commands.
//!
//! The certificate is made here and not by the guide's `openssl`, which not every machine has.

#![allow(clippy::unwrap_used, reason = "a failure in a test's helper is the failure of the test")]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use damper_tests::binary;
use damper_tests::guide::{self, Session};

const GUIDE: &str = include_str!("../../docs/deployment.md");
const DENIED: i32 = 77;

/// `damper serve --config damper.yaml` in a folder, on a free port; ends with the test.
struct Server {
    child: Child,
    port: String,
}

impl Server {
    fn start(folder: &Path) -> Self {
        let mut child = Command::new(binary::damper())
            .args(["serve", "--config", "damper.yaml", "--listen", "127.0.0.1:0"])
            .current_dir(folder)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("damper can be started");
        let mut lines = BufReader::new(child.stderr.take().expect("stderr is piped")).lines();
        let mut said = Vec::new();
        let port = loop {
            let Some(Ok(line)) = lines.next() else { panic!("damper serve ended: {}", said.join("\n")) };
            if let Some((_, address)) = line.split_once("listening on ") {
                let address = address.split([',', ' ']).next().unwrap_or_default();
                break address.rsplit(':').next().unwrap_or_default().to_owned();
            }
            said.push(line);
        };
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, port }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn certificate(folder: &Path) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    fs::create_dir(folder.join("tls")).unwrap();
    for (name, text) in [
        ("tls.crt", made.cert.pem()),
        ("ca.crt", made.cert.pem()),
        ("tls.key", made.signing_key.serialize_pem()),
    ] {
        fs::write(folder.join("tls").join(name), text).unwrap();
    }
}

#[test]
fn a_guarded_server_in_a_folder_is_had_by_the_commands_of_the_guide() {
    let mut session = Session::of(GUIDE);
    certificate(session.folder());
    let bootstrap = session.folder().join("bootstrap-token");
    let mut server: Option<Server> = None;
    let mut first = String::new();
    let mut said = String::new();
    for command in guide::commands(GUIDE) {
        match command.as_str() {
            "damper serve --config damper.yaml" => {
                server = Some(Server::start(session.folder()));
                assert_eq!(fs::metadata(&bootstrap).unwrap().permissions().mode() & 0o777, 0o600);
                first = fs::read_to_string(&bootstrap).unwrap();
            }
            export if export.starts_with("export ") => {
                let port = &server.as_ref().expect("it was started").port;
                session.export(&export.replace("localhost:7600", &format!("localhost:{port}")));
            }
            command => said += &session.succeed("", command),
        }
    }
    for told in ["the settings are good", "token bootstrap", "ann", "bob", "orders"] {
        assert!(said.contains(told), "nothing of {told:?} in\n{said}");
    }
    assert!(!bootstrap.exists());
    assert!(!said.contains(first.trim()), "a secret is shown only where it is made");

    fs::write(&bootstrap, first).unwrap();
    for (what, lines) in [
        ("the first token is revoked", "DAMPER_TOKEN_FILE=bootstrap-token damper rules list"),
        ("nobody gets in without a token", "DAMPER_TOKEN_FILE= damper rules list"),
        ("a service reads nothing else", "DAMPER_TOKEN_FILE=orders.token damper rules list"),
        ("an operator makes no tokens", "DAMPER_TOKEN_FILE=bob.token damper token list"),
    ] {
        let output = session.run("", lines);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(DENIED), "{what}: {told}");
    }
}

#[test]
fn every_link_of_the_guide_leads_somewhere() {
    let anchors = guide::anchors(GUIDE);
    for link in GUIDE.split("](#").skip(1).filter_map(|rest| rest.split(')').next()) {
        assert!(anchors.iter().any(|anchor| anchor == link), "no heading for #{link}");
    }
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let targets = GUIDE.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    for target in targets.filter(|target| !target.starts_with('#') && !target.contains("://")) {
        let file = target.split('#').next().unwrap_or_default();
        assert!(docs.join(file).exists(), "the guide links {target}");
    }
}

/// Blocks that are for root, a cluster or a container engine are not run here; files that they name are there.
#[test]
fn every_file_that_the_guide_installs_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let words = GUIDE.split([' ', '\n', '`']).filter(|word| word.starts_with("deploy/"));
    let paths: Vec<&str> = words.collect();
    assert!(paths.len() >= 6, "{paths:?}");
    for path in paths {
        assert!(root.join(path).exists(), "{path}");
    }
}
