//! `damper proxy` and `damper-proxy` as processes, and what they print for Kubernetes.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{damper, damper_proxy, run, text};

/// A proxy of nothing: neither its service nor its callee nor a control plane exists.
const NOTHING: &str = "
service: checkout
outbound: [{ callee: inventory, listen: '127.0.0.1:0', to: '127.0.0.1:1' }]
admin: 127.0.0.1:0
drain: 1s
";

struct Proxy {
    child: Child,
    admin: String,
    outbound: String,
    _folder: TempDir,
}

impl Proxy {
    fn start(config: &str) -> Self {
        let mut command = damper();
        command.arg("proxy");
        Self::start_by(command, config)
    }

    fn start_by(mut command: Command, config: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("proxy.yaml");
        std::fs::write(&file, config).unwrap();
        command.args(["-f", text(&file)]).env("DAMPER_SERVER", "http://127.0.0.1:1");
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let line = lines.find(|line| line.contains("admin on ")).expect("it starts");
        std::thread::spawn(move || lines.for_each(drop));
        let after = |word: &str| {
            let rest = line.split_once(word).unwrap().1;
            rest.split(',').next().unwrap().trim().to_owned()
        };
        let (admin, outbound) = (after("admin on "), after("outbound on "));
        Self { child, admin, outbound, _folder: folder }
    }

    fn ask(&self, command: &str) -> crate::harness::Ended {
        run(damper().args(["proxy", command, "--admin", &self.admin]))
    }

    fn metrics(&self) -> String {
        let mut stream = TcpStream::connect(&self.admin).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[cfg(unix)]
fn proxy_drains_and_ends_with_sigterm() {
    drains_and_ends(Proxy::start(NOTHING));
}

#[test]
#[cfg(unix)]
fn damper_proxy_drains_and_ends_with_sigterm() {
    drains_and_ends(Proxy::start_by(damper_proxy(), NOTHING));
}

#[cfg(unix)]
fn drains_and_ends(mut proxy: Proxy) {
    while proxy.ask("ready").code != 0 {}
    assert!(proxy.ask("drain").ok().is_empty());
    assert!(proxy.ask("ready").failed(69).contains("draining"));
    kill("TERM", &proxy.child.id().to_string());
    assert_eq!(proxy.child.wait().unwrap().code(), Some(0));
    assert!(proxy.ask("drain").failed(69).contains(&proxy.admin));
}

#[test]
fn damper_proxy_answers_like_damper_proxy_of_damper() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let file = folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        file.display().to_string()
    };
    let (valid, invalid) = (write("valid.yaml", NOTHING), write("invalid.yaml", "drain: 1y"));
    let workload = write("deployment.yaml", WORKLOAD);
    for (arguments, code) in [
        (vec!["--help"], 0),
        (vec!["try", "--help"], 0),
        (vec!["manifest", "--help"], 0),
        (vec!["check", "-f", &valid], 0),
        (vec!["check", "-f", &invalid], 78),
        (vec!["-f", &invalid], 78),
        (vec!["-f", "/no/such/file"], 74),
        (vec!["manifest", "-f", &workload, "--callee", "stock:7000"], 0),
        (vec!["manifest", "-f", &valid], 65),
        (vec!["ready", "--admin", "127.0.0.1:1"], 69),
        (vec!["drain", "--admin", "127.0.0.1:1"], 69),
        (vec!["try", "--service", "a", "--callee", "stock", "--", "true"], 64),
        (vec!["no-such-command"], 64),
        (vec!["check"], 64),
        (vec![], 64),
    ] {
        let both = run(damper().arg("proxy").args(&arguments));
        let alone = run(damper_proxy().args(&arguments));
        assert_eq!((both.code, alone.code), (code, code), "{arguments:?}: {alone:?}");
        let same = |text: String| text.replace("  -V, --version\n          Print version\n\n", "");
        assert_eq!(same(alone.out), both.out.replace("damper proxy", "damper-proxy"), "{arguments:?}");
        assert_eq!(same(alone.err), both.err.replace("damper proxy", "damper-proxy"), "{arguments:?}");
    }
}

/// Code is recognized by the names of functions, which the release keeps too.
#[test]
#[cfg(target_os = "linux")]
fn damper_proxy_has_no_code_of_the_server() {
    let (both, alone) = (env!("CARGO_BIN_EXE_damper"), env!("CARGO_BIN_EXE_damper-proxy"));
    let has = |program: &str, name: &str| {
        let arguments = ["--quiet", "--text", "--fixed-strings", name, program];
        Command::new("grep").args(arguments).status().unwrap().success()
    };
    assert!(has(alone, "12damper_proxy"));
    for name in [
        "20damper_control_plane",
        "12damper_store",
        "4sled",
        "11etcd_client",
        "13damper_web_ui",
        "10damper_sim",
    ] {
        assert!(has(both, name), "{name}");
        assert!(!has(alone, name), "{name}");
    }
}

#[tokio::test]
async fn metrics_of_the_proxy_include_those_of_the_sdk() {
    let proxy = Proxy::start(NOTHING);
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", proxy.outbound)).unwrap();
    let mut client = damper_proto::v1::fleet_client::FleetClient::new(channel.connect_lazy());
    client.list_clients(damper_proto::v1::ListClientsRequest::default()).await.unwrap_err();
    let metrics = proxy.metrics();
    for line in [
        "damper_proxy_context_total{by=\"none\"} 1",
        "damper_call_duration_count{grpc_target=\"inventory\"} 1",
    ] {
        assert!(metrics.lines().any(|known| known == line), "{line} is not in\n{metrics}");
    }
}

#[test]
#[cfg(unix)]
fn tried_command_has_the_variables_and_gives_its_status() {
    let print = "echo $HTTPS_PROXY; echo $grpc_proxy; echo $JAVA_TOOL_OPTIONS; exit 3";
    let mut command = damper();
    command.args(["proxy", "try", "--service", "shop", "--callee", "stock:50051=127.0.0.1:1", "--"]);
    command
        .args(["sh", "-c", print])
        .env("DAMPER_SERVER", "http://127.0.0.1:1")
        .env("JAVA_TOOL_OPTIONS", "-Xa");
    let ended = run(&mut command);
    assert_eq!(ended.code, 3, "{ended:?}");
    let (_, connect) = ended.err.lines().find_map(|line| line.split_once("connect on ")).unwrap();
    let (host, port) = connect.split_once(':').unwrap();
    let expected = [
        format!("http://{connect}"),
        format!("http://{connect}"),
        format!("-Xa -Dhttps.proxyHost={host} -Dhttps.proxyPort={port}"),
    ];
    assert_eq!(ended.out.lines().collect::<Vec<_>>(), expected);
}

/// Returns `env` with an action for signals, which does not depend on the surroundings then.
#[cfg(target_os = "linux")]
fn env(signals: &str) -> Command {
    let mut command = Command::new("env");
    for (name, value) in damper().get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.arg(signals).stdin(Stdio::null());
    command
}

/// Runs a shell script under `damper proxy try`; `act` gets the process and the first line of its output.
#[cfg(target_os = "linux")]
fn tried(signals: &str, script: &str, act: impl FnOnce(u32, &str)) -> (i32, String) {
    let mut command = env(signals);
    command.args([
        env!("CARGO_BIN_EXE_damper"),
        "proxy",
        "try",
        "--service",
        "shop",
        "--",
        "sh",
        "-c",
        script,
    ]);
    command.env("DAMPER_SERVER", "http://127.0.0.1:1");
    let mut child = command.stderr(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    out.read_line(&mut first).unwrap();
    act(child.id(), first.trim());
    let mut rest = String::new();
    // Its end: no process has the output any more.
    out.read_to_string(&mut rest).unwrap();
    (child.wait().unwrap().code().unwrap(), rest)
}

#[cfg(unix)]
fn kill(signal: &str, id: &str) {
    assert!(Command::new("kill").args([&format!("-{signal}"), id]).status().unwrap().success());
}

/// Returns true if a process runs. One that has ended may stay in the table until its parent looks.
#[cfg(target_os = "linux")]
fn runs(id: &str) -> bool {
    let shown = Command::new("ps").args(["-o", "stat=", "-p", id]).output().unwrap();
    let state = String::from_utf8(shown.stdout).unwrap();
    !matches!(state.trim().chars().next(), None | Some('Z'))
}

#[test]
#[cfg(target_os = "linux")]
fn signal_reaches_all_processes_of_a_tried_command() {
    // The shell waits for the process that it has started, which writes nothing when it ends.
    let script = "trap 'echo asked; exit 7' TERM; trap 'echo asked; exit 8' INT; \
        trap 'echo asked; exit 9' HUP; trap 'echo asked; exit 10' QUIT; \
        sh -c 'trap \"exit 0\" INT; sleep 1000 & wait' & echo $!; wait";
    let passes = |signal, code| {
        let mut started = String::new();
        let (status, rest) = tried("--default-signal=HUP", script, |damper, line| {
            assert!(runs(line), "{line:?}");
            started = line.to_owned();
            kill(signal, &damper.to_string());
        });
        assert_eq!((status, rest.as_str()), (code, "asked\n"), "{signal}");
        assert!(!runs(&started), "{signal} left a process");
    };
    std::thread::scope(|scope| {
        for (signal, code) in [("TERM", 7), ("INT", 8), ("HUP", 9), ("QUIT", 10)] {
            scope.spawn(move || passes(signal, code));
        }
    });
}

#[test]
#[cfg(target_os = "linux")]
fn processes_that_a_tried_command_leaves_are_ended() {
    let mut left = String::new();
    let script = "sleep 1000 & echo $!; exit 3";
    let (status, _) = tried("--default-signal=HUP", script, |_, line| left = line.to_owned());
    assert_eq!(status, 3);
    assert!(!runs(&left));
}

#[test]
#[cfg(target_os = "linux")]
fn tried_command_outlives_its_terminal_under_nohup() {
    let script = "kill -HUP $PPID; kill -HUP $$; echo up; exit 3";
    let (status, _) = tried("--ignore-signal=HUP", script, |_, line| assert_eq!(line, "up"));
    assert_eq!(status, 3);
}

/// A program on a terminal, which is ended with its value.
#[cfg(target_os = "linux")]
struct OnTerminal(Child);

#[cfg(target_os = "linux")]
impl OnTerminal {
    /// Starts a script of a shell with job control.
    fn start(script: &str) -> Self {
        let mut command = env("--default-signal=HUP,INT,QUIT");
        command.args(["script", "-qc", &format!("set -m; {script}"), "/dev/null"]).env("SHELL", "/bin/sh");
        command.env("DAMPER", env!("CARGO_BIN_EXE_damper")).env("DAMPER_SERVER", "http://127.0.0.1:1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

#[cfg(target_os = "linux")]
impl Drop for OnTerminal {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[cfg(target_os = "linux")]
fn signals_on_a_terminal_spare_other_commands_of_a_pipeline() {
    let folder = tempfile::tempdir().unwrap();
    let (own, peer) = (folder.path().join("own"), folder.path().join("peer"));
    let handles = "trap 'echo own got INT' INT; trap 'echo own got TERM; exit 7' TERM; echo own up $PPID; \
        while :; do sleep 0.1; done";
    std::fs::write(&own, handles).unwrap();
    let shows = "trap '' INT; trap 'echo peer got TERM' TERM; while read line; do echo \"$line\"; done; \
        echo peer ends";
    std::fs::write(&peer, shows).unwrap();
    let (own, peer) = (text(&own), text(&peer));
    let pipeline = format!("\"$DAMPER\" proxy try --service shop -- sh {own} | sh {peer}");
    let mut terminal = OnTerminal::start(&pipeline);
    let mut keys = terminal.0.stdin.take().unwrap();
    let lines = BufReader::new(terminal.0.stdout.take().unwrap()).lines().map_while(Result::ok);
    // Damper's own lines are on the terminal too, and so are keys.
    let mut lines = lines.filter_map(|line| {
        let line = line.trim().trim_start_matches("^C");
        (line.starts_with("own ") || line.starts_with("peer ")).then(|| line.to_owned())
    });
    let up = lines.next().unwrap();
    let damper = up.strip_prefix("own up ").unwrap();
    for _ in 0..2 {
        keys.write_all(b"\x03").unwrap();
        assert_eq!(lines.next().unwrap(), "own got INT");
    }
    kill("TERM", damper);
    assert_eq!(lines.collect::<Vec<_>>(), ["own got TERM", "peer ends"]);
}

#[test]
fn wrong_callee_of_try_is_a_usage_error() {
    for callee in ["stock", "stock=127.0.0.1:1", "stock:50051=there"] {
        let ended = run(damper().args(["proxy", "try", "--service", "a", "--callee", callee, "--", "true"]));
        assert_eq!(ended.code, 64, "{callee}: {ended:?}");
    }
}

const WORKLOAD: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: { name: checkout, namespace: shop }
spec:
  template:
    metadata: { labels: { app: checkout, tier: back } }
    spec:
      containers:
        - name: checkout
          ports: [{ name: grpc, containerPort: 50051 }]
        - name: logs
          ports: [{ containerPort: 50052 }]
---
apiVersion: v1
kind: Service
metadata: { name: checkout, namespace: shop }
spec:
  selector: { app: checkout }
  ports: [{ port: 80, targetPort: grpc }, { port: 9000 }]
---
apiVersion: v1
kind: Service
metadata: { name: other, namespace: shop }
spec: { selector: { app: other }, ports: [{ port: 50051 }] }
";

/// Returns the documents of `damper proxy manifest`, and its messages.
fn manifest(workload: &str, more: &[&str]) -> (Vec<Value>, String, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file: PathBuf = folder.path().join("deployment.yaml");
    std::fs::write(&file, workload).unwrap();
    let ended = run(damper().args(["proxy", "manifest", "-f", text(&file)]).args(more));
    let notes = ended.err.clone();
    let documents = damper_document::parse(&ended.ok(), |value, _| Some(value)).unwrap();
    (documents.into_iter().map(|document| document.content).collect(), notes, folder)
}

/// The command is in the file's head, for readers.
#[test]
fn sample_of_a_sidecar_is_what_the_command_prints() {
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/kubernetes/examples/sidecar");
    let read = |name: &str| std::fs::read_to_string(sample.join(name)).unwrap();
    let kept = read("proxy.yaml");
    let (head, documents) = kept.split_at(kept.find("\napiVersion:").unwrap() + 1);
    let command = head.lines().find_map(|line| line.strip_prefix("#   damper-proxy ")).unwrap();
    let printed = run(damper_proxy().args(command.split(' ')).current_dir(&sample)).ok();
    assert_eq!(printed, documents, "print it again");

    let documents = damper_document::parse(&kept, |value, _| Some(value)).unwrap();
    let [map, patch, _service] = &documents[..] else { panic!("{documents:?}") };
    let patch = &patch.content;
    checked_config(&map.content, &tempfile::tempdir().unwrap());
    let token = damper_document::parse_one(&read("token.yaml"), |value, _| Some(value)).unwrap();
    let container = |workload: &Value| workload["spec"]["template"]["spec"]["initContainers"][0].clone();
    assert_eq!(token["metadata"], patch["metadata"]);
    assert_eq!(container(&token)["name"], container(patch)["name"]);
    let mount = container(&token)["volumeMounts"][0]["mountPath"].as_str().unwrap().to_owned();
    for variable in container(&token)["env"].as_array().unwrap() {
        assert!(variable["value"].as_str().unwrap().starts_with(&format!("{mount}/")), "{variable}");
    }
}

/// Returns the configuration of the proxy in a ConfigMap, which must be valid.
fn checked_config(map: &Value, folder: &TempDir) -> Value {
    let config = map["data"]["proxy.yaml"].as_str().unwrap();
    let file = folder.path().join("proxy.yaml");
    std::fs::write(&file, config).unwrap();
    run(damper().args(["proxy", "check", "-f", text(&file)])).ok();
    damper_document::parse_one(config, |value, _| Some(value)).unwrap()
}

#[test]
fn manifest_prints_each_part_alone() {
    let kinds = |more: &[&str]| {
        let (documents, notes, _folder) = manifest(WORKLOAD, more);
        let kind = |document: &Value| document["kind"].as_str().unwrap().to_owned();
        (documents.iter().map(kind).collect::<Vec<_>>(), notes)
    };
    assert_eq!(kinds(&[]).0, ["ConfigMap", "Deployment", "Service"]);
    for (part, kind) in [("config", "ConfigMap"), ("workload", "Deployment"), ("services", "Service")] {
        assert_eq!(kinds(&["--part", part]).0, [kind]);
    }
    for (server, is_pod) in
        [("https://localhost:7600", true), ("http://[::1]:7600", true), ("https://damper:7600", false)]
    {
        assert_eq!(kinds(&["--server", server]).1.contains("is the pod itself"), is_pod, "{server}");
    }
}

#[test]
fn manifest_puts_the_proxy_before_the_service() {
    let (documents, notes, folder) = manifest(WORKLOAD, &["--server", "https://a:1", "--image", "proxy:x"]);
    let [map, patch, service] = &documents[..] else { panic!("{documents:?}") };
    assert_eq!(map["metadata"], json!({ "name": "checkout-damper-proxy", "namespace": "shop" }));
    let config = checked_config(map, &folder);
    assert_eq!(config["inbound"], json!({ "listen": "0.0.0.0:50053", "to": "127.0.0.1:50051" }));

    assert_eq!((&patch["kind"], &patch["metadata"]["name"]), (&json!("Deployment"), &json!("checkout")));
    let pod = &patch["spec"]["template"]["spec"];
    let sidecar = &pod["initContainers"][0];
    assert_eq!((&sidecar["restartPolicy"], &sidecar["image"]), (&json!("Always"), &json!("proxy:x")));
    assert_eq!(sidecar["args"], json!(["-f", "/etc/damper/proxy.yaml"]));
    assert_eq!(sidecar["ports"], json!([{ "name": "damper-grpc", "containerPort": 50053 }]));
    assert_eq!(sidecar["env"], json!([{ "name": "DAMPER_SERVER", "value": "https://a:1" }]));
    let command = json!({ "exec": { "command": ["/damper-proxy", "drain"] } });
    assert_eq!(sidecar["lifecycle"]["preStop"], command);
    let sleep = json!({ "preStop": { "sleep": { "seconds": 5 } } });
    assert_eq!(pod["containers"], json!([{ "name": "checkout", "lifecycle": sleep }]));

    assert_eq!(service["metadata"]["name"], "checkout");
    assert_eq!(service["spec"]["ports"], json!([{ "port": 80, "targetPort": "damper-grpc" }]));
    assert!(notes.contains("outbound"), "{notes}");
}

#[test]
fn manifest_leads_callees_to_the_proxy_by_the_hosts_file() {
    let callees = ["stock:50053", "price.shop.svc:7000", "stock:7001", "tax.office.svc.cluster.local:80"];
    let arguments: Vec<_> = callees.iter().flat_map(|callee| ["--callee", callee]).collect();
    let (documents, notes, folder) = manifest(WORKLOAD, &arguments);
    let config = checked_config(&documents[0], &folder);
    let listener =
        |callee: &str, listen: &str, to: &str| json!({ "callee": callee, "listen": listen, "to": to });
    let expected = json!([
        listener("stock", "127.0.0.11:50053", "stock.shop.svc.cluster.local.:50053"),
        listener("price", "127.0.0.12:7000", "price.shop.svc.cluster.local.:7000"),
        listener("stock", "127.0.0.11:7001", "stock.shop.svc.cluster.local.:7001"),
        listener("tax.office", "127.0.0.13:80", "tax.office.svc.cluster.local.:80"),
    ]);
    assert_eq!(config["outbound"], expected);
    assert_eq!(config["inbound"]["listen"], "0.0.0.0:50054", "a callee has 50053");
    let aliases = json!([
        { "ip": "127.0.0.11", "hostnames": ["stock"] },
        { "ip": "127.0.0.12", "hostnames": ["price.shop.svc"] },
        { "ip": "127.0.0.13", "hostnames": ["tax.office.svc.cluster.local"] },
    ]);
    let pod = &documents[1]["spec"]["template"]["spec"];
    assert_eq!(pod["hostAliases"], aliases);
    let any_port = json!({ "name": "net.ipv4.ip_unprivileged_port_start", "value": "0" });
    assert_eq!(pod["securityContext"], json!({ "sysctls": [any_port] }), "the callee tax has 80");
    assert!(!notes.contains("outbound"), "{notes}");
}

#[test]
fn manifest_keeps_settings_of_the_pod_for_a_low_port() {
    let sysctls = "securityContext: { sysctls: [{ name: net.core.somaxconn, value: '9' }] }";
    let workload = WORKLOAD.replace("      containers:\n", &format!("      {sysctls}\n      containers:\n"));
    let context = |callee: &str| {
        let (documents, _, _folder) = manifest(&workload, &["--callee", callee]);
        documents[1]["spec"]["template"]["spec"]["securityContext"].clone()
    };
    let all = json!([
        { "name": "net.core.somaxconn", "value": "9" },
        { "name": "net.ipv4.ip_unprivileged_port_start", "value": "0" },
    ]);
    assert_eq!(context("stock:1023"), json!({ "sysctls": all }));
    assert_eq!(context("stock:1024"), Value::Null);
}

/// Three ports in a row that were free: that of a service, that of a callee, and that of callers. The first
/// and the last are held as service and proxy hold them, the callee's on another address of loopback.
#[cfg(target_os = "linux")]
fn ports_in_a_row() -> (u16, [TcpListener; 3]) {
    loop {
        let service = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = service.local_addr().unwrap().port();
        let Some(last) = port.checked_add(2) else { continue };
        let callee = TcpListener::bind(("127.0.0.1", port + 1));
        let callers = TcpListener::bind(("0.0.0.0", last));
        if let (Ok(callee), Ok(callers)) = (callee, callers) {
            return (port, [service, callee, callers]);
        }
    }
}

#[test]
#[cfg(target_os = "linux")]
fn listeners_of_a_manifest_open_with_the_service() {
    let (port, _held) = ports_in_a_row();
    let workload = WORKLOAD.replace("50051", &port.to_string());
    let callee = format!("stock:{}", port + 1);
    let (documents, _, folder) = manifest(&workload, &["--callee", &callee]);
    let config = checked_config(&documents[0], &folder);
    assert_eq!(config["inbound"]["listen"], format!("0.0.0.0:{}", port + 2), "it is open");
    assert_eq!(config["outbound"][0]["listen"], format!("127.0.0.11:{}", port + 1));
    TcpListener::bind(config["outbound"][0]["listen"].as_str().unwrap()).unwrap();

    let refused = TcpListener::bind(("127.0.0.11", port)).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::AddrInUse, "why a callee cannot have the pod's port");
}

#[test]
fn manifest_moves_the_service_behind_a_headless_name() {
    let workload =
        WORKLOAD.replace("spec:\n  selector: { app", "spec:\n  clusterIP: None\n  selector: { app");
    let (documents, notes, folder) = manifest(&workload, &[]);
    let [map, patch] = &documents[..] else { panic!("{documents:?}") };
    let config = checked_config(map, &folder);
    assert_eq!(config["inbound"], json!({ "listen": "0.0.0.0:50051", "to": "127.0.0.1:50053" }));
    let port = &patch["spec"]["template"]["spec"]["initContainers"][0]["ports"][0]["containerPort"];
    assert_eq!(*port, 50_051);
    assert!(notes.contains("must listen on 127.0.0.1:50053"), "{notes}");
}

#[test]
fn manifest_keeps_a_hook_of_the_service() {
    let hook = "lifecycle: { preStop: { exec: { command: [a] } } }";
    let workload = WORKLOAD.replace("- name: checkout\n", &format!("- name: checkout\n          {hook}\n"));
    let (documents, _, _folder) = manifest(&workload, &[]);
    assert_eq!(documents[1]["spec"]["template"]["spec"]["containers"], Value::Null);
}

#[test]
fn manifest_without_one_workload_or_port_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |workload: &str, more: &[&str], problem: &str| {
        let file = folder.path().join("deployment.yaml");
        std::fs::write(&file, workload).unwrap();
        let error = run(damper().args(["proxy", "manifest", "-f", text(&file)]).args(more)).failed(65);
        assert!(error.contains("deployment.yaml: ") && error.contains(problem), "{error}");
    };
    refused("kind: Service", &[], "must contain one Deployment");
    refused(&format!("{WORKLOAD}---{WORKLOAD}"), &[], "must contain one Deployment");
    refused(WORKLOAD, &["--container", "none"], "no such container");
    refused(
        &WORKLOAD.replace("name: grpc, ", "hostIP: a, ").replace("containerPort: 50051", "x: 1"),
        &[],
        "no port",
    );
    let two = "{ name: grpc, containerPort: 50051 }, { containerPort: 1 }";
    refused(&WORKLOAD.replace("{ name: grpc, containerPort: 50051 }", two), &[], "several ports");
    refused(WORKLOAD, &["--port", "65535"], "no port above 65535 is free");
    refused(WORKLOAD, &["--port", "65534", "--callee", "stock:65535"], "no port above 65534 is free");
    refused(WORKLOAD, &["--port", "7801"], "port 7801, which the proxy needs");
    for port in ["50051", "50052"] {
        let problem = format!("the pod itself has port {port}");
        refused(WORKLOAD, &["--callee", &format!("stock:{port}")], &problem);
        refused(WORKLOAD, &["--callee", &format!("stock:{port}")], "use HTTP CONNECT");
    }
    let before = "initContainers: [{ name: logs, restartPolicy: Always, ports: [{ containerPort: 9 }] }]";
    let sidecar = WORKLOAD.replace("containers:", &format!("{before}\n      containers:"));
    refused(&sidecar, &["--callee", "stock:9"], "the pod itself has port 9");
    let own = sidecar.replace("name: logs, restart", "name: damper-proxy, restart");
    assert_eq!(
        manifest(&own, &["--callee", "stock:9"]).0[0],
        manifest(WORKLOAD, &["--callee", "stock:9"]).0[0]
    );
    refused("kind: [", &[], "line ");
    for (callee, problem) in [
        ("stock", "must be HOST:PORT"),
        ("stock:0", "port from 1 to 65535"),
        ("payments.pay.example.com:443", "must be NAME, NAME.NAMESPACE"),
        ("10.0.0.1:80", "must be the name of a Service"),
        ("stock.:80", "dot at its end"),
    ] {
        refused(WORKLOAD, &["--callee", callee], problem);
    }
    refused(WORKLOAD, &["--callee", "stock:1", "--callee", "stock:1"], "is there twice");
    let nowhere = WORKLOAD.replace(", namespace: shop", "");
    refused(&nowhere, &["--callee", "stock:1"], "has no namespace");
}
