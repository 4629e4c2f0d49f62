//! The deployment guide, followed: a guarded server in a folder, with the guide's own settings and commands.
//!
//! The certificate is made here and not by the guide's `openssl`, which not every machine has.

#![allow(clippy::unwrap_used, reason = "a failure in a test's helper is the failure of the test")]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use damper_sdk::{Damper, Options};
use damper_tests::binary::{self, wait_until};
use damper_tests::etcd::Etcd;
use damper_tests::guide::{self, Session};

const GUIDE: &str = include_str!("../../docs/deployment.md");
const DENIED: i32 = 77;
/// Longer than anything takes on a busy machine; reaching it is a failure.
const PATIENCE: Duration = Duration::from_secs(60);

/// `damper serve --config damper.yaml` in a folder; ends with the test.
struct Server {
    child: Child,
    port: String,
}

impl Server {
    /// On this port; 0 is any.
    fn start(folder: &Path, port: &str) -> Self {
        let mut child = Command::new(binary::damper())
            .args(["serve", "--config", "damper.yaml", "--listen", &format!("127.0.0.1:{port}")])
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

/// The commands of the block with this name.
fn block(name: &str) -> Vec<String> {
    let info = format!("sh {name}");
    let block = guide::blocks(GUIDE).into_iter().find(|block| block.info == info).expect("the guide has it");
    guide::commands(&format!("```sh\n{}```\n", block.text))
}

/// Waits until doctor finds what there is to decide about the store.
fn wait_for_a_finding(session: &Session, codes: &[&str]) {
    wait_until(&format!("doctor finds one of {codes:?}"), PATIENCE, || {
        let output = session.run("", "damper doctor");
        let found = String::from_utf8_lossy(&output.stdout);
        codes.iter().any(|code| found.contains(code))
    });
}

/// The service `orders` as the guide sets it up.
fn service(session: &Session, server: &Server) -> Damper {
    let options = Options::new([format!("https://localhost:{}", server.port)]).service("orders");
    let folder = session.folder();
    let options = options.ca_file(folder.join("tls/ca.crt")).token_file(folder.join("orders.token"));
    Damper::connect(options).expect("good options")
}

/// Runs commands of the guide; answers with what they printed and said. A server that is started again has the port
/// that it had.
fn follow(
    session: &mut Session,
    server: &mut Option<Server>,
    commands: Vec<String>,
    mut started: impl FnMut(&Session),
) -> String {
    let mut said = String::new();
    for command in commands {
        match command.as_str() {
            "damper serve --config damper.yaml" => {
                // Dropped, so that the port is free.
                let port = server.take().map_or_else(|| "0".to_owned(), |server| server.port.clone());
                let serving = server.insert(Server::start(session.folder(), &port));
                session.export(&format!("export DAMPER_SERVER=https://localhost:{}", serving.port));
                started(session);
            }
            export if export.starts_with("export ") => {
                let port = &server.as_ref().expect("it was started").port;
                session.export(&export.replace("localhost:7600", &format!("localhost:{port}")));
            }
            command => {
                if command.starts_with("damper store accept") || command.starts_with("damper store refill") {
                    wait_for_a_finding(session, &["store_unaccepted", "client_held"]);
                }
                said += &session.succeed("", command);
            }
        }
    }
    said
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_store_is_restored_by_the_commands_of_the_guide() {
    let mut session = Session::of(GUIDE);
    certificate(session.folder());
    let mut server = None;
    follow(&mut session, &mut server, guide::commands(GUIDE), |_| {});
    let orders = service(&session, server.as_ref().unwrap());
    orders.ready(PATIENCE).await.unwrap();
    let before = orders.status();
    assert_eq!(before.rules, 1);
    let old = fs::read_to_string(session.folder().join("ann.token")).unwrap();
    server.as_mut().unwrap().child.kill().unwrap();

    let said = follow(&mut session, &mut server, block("restore"), |_| {});
    for told in ["token bootstrap", "1 created", "clients", "checks: ", "accepted: "] {
        assert!(said.contains(told), "nothing of {told:?} in\n{said}");
    }
    let restored = session.succeed("", "damper rules list -o yaml");
    assert!(restored.contains("callee_service: stock"), "{restored}");
    assert_ne!(fs::read_to_string(session.folder().join("ann.token")).unwrap(), old);
    assert!(!session.folder().join("bootstrap-token").exists());
    wait_until("the service goes on from the restored store", PATIENCE, || {
        let status = orders.status();
        status.connected && status.epoch != before.epoch && status.rules == 1
    });
    orders.shutdown().await;
}

/// First etcd is emptied and refilled from memory, then it goes on from an older snapshot.
#[tokio::test(flavor = "multi_thread")]
async fn an_emptied_etcd_is_mended_by_the_commands_of_the_guide() {
    let mut etcd = Etcd::start().await;
    let mut session = Session::of(GUIDE);
    certificate(session.folder());
    let settings = session.folder().join("damper.yaml");
    let on_etcd = fs::read_to_string(&settings).unwrap();
    let on_etcd = on_etcd.replace("sled:data/store", &format!("etcd://{}/damper", etcd.endpoint()));
    fs::write(settings, on_etcd).unwrap();
    session.export(&format!("export ETCDCTL_API=3 ETCDCTL_ENDPOINTS={}", etcd.endpoint()));
    // Where etcd is named, etcdctl lies in its folder.
    if let Some(folder) = damper_tests::etcd::program().parent().filter(|folder| folder.is_absolute()) {
        session.export(&format!("export PATH={}:$PATH", folder.display()));
    }
    let mut server = None;
    follow(&mut session, &mut server, guide::commands(GUIDE), |_| {});
    let orders = service(&session, server.as_ref().unwrap());
    orders.ready(PATIENCE).await.unwrap();
    let save = "etcdctl snapshot save backup.db";
    assert!(GUIDE.contains(save));
    session.succeed("", save);
    session.succeed("", "damper kill --callee stock --reason 'after the snapshot' --ttl 1h");
    let runs_on = |rules: usize, kills: usize| {
        wait_until(&format!("{rules} rules and {kills} kills"), PATIENCE, || {
            let status = orders.status();
            status.connected && (status.rules, status.kills) == (rules, kills)
        });
    };
    runs_on(1, 1);

    session.succeed("", "etcdctl del --prefix /damper/");
    wait_for_a_finding(&session, &["store_unaccepted"]);
    let said = follow(&mut session, &mut server, block("emptied"), |_| {});
    assert!(said.contains("NOT ACCEPTED"), "{said}");
    assert_eq!((orders.status().rules, orders.status().kills), (1, 1), "nothing is taken away");
    let said = follow(&mut session, &mut server, block("refill"), |_| {});
    assert!(said.contains("accepted: epoch") && said.contains("after the snapshot"), "{said}");
    assert!(session.succeed("", "etcdctl get --prefix --keys-only /damper/").lines().count() > 3);
    runs_on(1, 1);

    session.succeed("", "damper rules delete orders '*' stock '*' --reason 'after the snapshot too'");
    runs_on(0, 1);
    etcd.kill();
    for command in block("snapshot") {
        if command == "etcd --data-dir etcd-restored" {
            etcd.restart_on(&session.folder().join("etcd-restored")).await;
            wait_for_a_finding(&session, &["store_unaccepted"]);
        } else {
            follow(&mut session, &mut server, vec![command], |_| {});
        }
    }
    runs_on(1, 0);
    orders.shutdown().await;
}

#[test]
fn a_guarded_server_in_a_folder_is_had_by_the_commands_of_the_guide() {
    let mut session = Session::of(GUIDE);
    certificate(session.folder());
    let bootstrap = session.folder().join("bootstrap-token");
    let mut server: Option<Server> = None;
    let mut first = String::new();
    let said = follow(&mut session, &mut server, guide::commands(GUIDE), |session| {
        let bootstrap = session.folder().join("bootstrap-token");
        assert_eq!(fs::metadata(&bootstrap).unwrap().permissions().mode() & 0o777, 0o600);
        first = fs::read_to_string(&bootstrap).unwrap();
    });
    for told in ["the configuration is valid", "token bootstrap", "ann", "bob", "orders"] {
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
fn the_guides_authority_signs_certificates_that_work() {
    let mut session = Session::of(GUIDE);
    let recipe = guide::blocks(GUIDE).into_iter().find(|block| block.info == "sh authority").unwrap();
    let said = session.succeed("", &format!("set -e\n{}", recipe.text));
    assert_eq!(said.matches("tls/tls.crt: OK").count(), 2, "for both uses: {said}");
    let server = Server::start(session.folder(), "0");
    session.export(&format!("export DAMPER_SERVER=https://localhost:{}", server.port));
    session.export("export DAMPER_CA_FILE=$PWD/tls/ca.crt DAMPER_TOKEN_FILE=$PWD/bootstrap-token");
    assert!(session.succeed("", "damper whoami").contains("token bootstrap"));
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
