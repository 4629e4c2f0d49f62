//! Services in other languages that know nothing of Damper, and proxies of the `damper` binary next to them.
//!
//! Their programs are in `tests/foreign`, one folder for each language. Each is built once for a run of the
//! tests, with the build tool of its language.

pub mod chain;
pub mod consumers;
mod interop;

use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::json;

use crate::binary;

pub use interop::Interop;

/// A language and its gRPC library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// grpc-go with otelgrpc.
    Go,
    /// grpc-java under OpenTelemetry's agent.
    Java,
    /// grpc-js with OpenTelemetry's instrumentation.
    Node,
    /// grpcio under OpenTelemetry's auto-instrumentation.
    Python,
}

/// How a service treats the calls that it sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Habit {
    /// Its OpenTelemetry copies the context of a request to its calls.
    Propagates,
    /// It copies nothing; of Go alone, whose default this is.
    PropagatesNothing,
    /// Its gRPC client makes three attempts, all of them within a time if there is one.
    OwnRetries(Option<Duration>),
}

/// A process that ends with the test.
#[derive(Debug)]
pub struct Process {
    child: Child,
}

impl Process {
    /// Starts a service that listens on an address and sends calls to a callee; waits until it listens.
    pub fn service(language: Language, listen: SocketAddr, callee: SocketAddr, habit: Habit) -> Self {
        Self::listening(language.command(listen, &callee.to_string(), habit), listen)
    }

    /// Starts a program; waits until it prints the address on which it listens.
    fn listening(mut command: Command, listen: SocketAddr) -> Self {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let mut process = Self { child };
        process.until_listening(listen);
        process
    }

    fn until_listening(&mut self, listen: SocketAddr) {
        let mut lines = BufReader::new(self.child.stdout.take().expect("stdout is piped")).lines();
        let address = listen.to_string();
        // An agent may print lines of its own first.
        let listens = lines.by_ref().map_while(Result::ok).any(|line| line == address);
        assert!(listens, "a program ended before it listened");
        std::thread::spawn(move || lines.for_each(drop));
    }

    /// Starts a proxy with this configuration; returns its addresses once it listens.
    pub fn proxy(control_plane: &str, config: &str, folder: &Path) -> (Self, ProxyAddresses) {
        let file = folder.join("proxy.yaml");
        std::fs::write(&file, config).expect("the folder is writable");
        let mut command = Command::new(binary::damper());
        command.arg("proxy").arg("--file").arg(&file).env("DAMPER_SERVER", control_plane);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let mut process = Self { child: child.expect("damper can be started") };
        let addresses = process.until_addresses();
        (process, addresses)
    }

    /// Starts a service under `damper proxy try`, which it knows by a variable alone; returns where its
    /// callers dial. `callee`: the name and port that it dials, and the callee's address.
    pub fn tried(
        control_plane: &str,
        name: &str,
        language: Language,
        listen: SocketAddr,
        callee: (&str, SocketAddr),
    ) -> (Self, SocketAddr) {
        let service = language.command(listen, callee.0, Habit::Propagates);
        let mut command = Command::new(binary::damper());
        command.args(["proxy", "try", "--service", name]);
        command.args(["--callee", &format!("{}={}", callee.0, callee.1)]);
        command.args(["--inbound", &format!("127.0.0.1:0={listen}"), "--"]);
        command.arg(service.get_program()).args(service.get_args()).env("DAMPER_SERVER", control_plane);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = Self { child: command.spawn().expect("damper can be started") };
        let addresses = process.until_addresses();
        process.until_listening(listen);
        (process, addresses.inbound())
    }

    /// Waits until a proxy has printed its addresses.
    fn until_addresses(&mut self) -> ProxyAddresses {
        let mut lines = BufReader::new(self.child.stderr.take().expect("stderr is piped")).lines();
        let mut printed = Vec::new();
        let addresses = lines.by_ref().map_while(Result::ok).find_map(|line| {
            let addresses = ProxyAddresses::parse(&line);
            printed.push(line);
            addresses
        });
        let addresses = addresses.unwrap_or_else(|| panic!("damper proxy ended: {}", printed.join("\n")));
        std::thread::spawn(move || lines.for_each(drop));
        addresses
    }

    /// Kills it (SIGKILL), and waits until it is gone.
    pub fn kill(&mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a killed child ends");
    }

    /// Returns the memory that it has now (`VmRSS`), in KiB.
    pub fn memory_kib(&self) -> u64 {
        binary::memory_kib(&self.child, "VmRSS:")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where a proxy listens.
#[derive(Clone, Debug)]
pub struct ProxyAddresses {
    admin: SocketAddr,
    inbound: Option<SocketAddr>,
    outbound: Vec<SocketAddr>,
}

impl ProxyAddresses {
    fn parse(line: &str) -> Option<Self> {
        let (admin, listeners) = line.strip_prefix("admin on ")?.split_once(", ")?;
        let mut found = Self { admin: admin.parse().ok()?, inbound: None, outbound: Vec::new() };
        for listener in listeners.split(", ") {
            match listener.split_once(" on ") {
                Some(("inbound", address)) => found.inbound = address.parse().ok(),
                Some(("outbound", address)) => found.outbound.extend(address.parse::<SocketAddr>()),
                _ => {}
            }
        }
        Some(found)
    }

    /// For operators.
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// For callers.
    pub fn inbound(&self) -> SocketAddr {
        self.inbound.expect("the configuration has inbound")
    }

    /// For calls to its first callee.
    pub fn outbound(&self) -> SocketAddr {
        *self.outbound.first().expect("the configuration has outbound")
    }
}

/// Returns an address on which nothing listens. Its host is the caller's own: no other test takes the port
/// before the service does.
pub fn free_address(host: u8) -> SocketAddr {
    let [address] = free_addresses(host);
    address
}

/// Returns several such addresses, all different.
pub fn free_addresses<const N: usize>(host: u8) -> [SocketAddr; N] {
    let bind = |()| TcpListener::bind((format!("127.0.77.{host}"), 0)).expect("a free port");
    // All are bound before the first is released.
    let listeners = [(); N].map(bind);
    listeners.map(|listener| listener.local_addr().expect("it is bound"))
}

impl Language {
    fn command(self, listen: SocketAddr, callee: &str, habit: Habit) -> Command {
        let program = self.built();
        let config = match habit {
            Habit::OwnRetries(timeout) => Some(self.service_config(timeout)),
            _ => None,
        };
        let mut command;
        match self {
            Self::Go => {
                command = Command::new(program);
                command.args(["-listen", &listen.to_string(), "-callee", callee]);
                command.args(config.iter().flat_map(|config| ["-service-config", config]));
                command.args((habit == Habit::PropagatesNothing).then_some("-propagate=false"));
                return command;
            }
            Self::Java => {
                command = Command::new("java");
                let agent = program.join("dependency/opentelemetry-javaagent.jar");
                command.arg(format!("-javaagent:{}", agent.display())).arg("-Dotel.javaagent.logging=none");
                for signal in ["traces", "metrics", "logs"] {
                    command.arg(format!("-Dotel.{signal}.exporter=none"));
                }
                command.args(["-cp", &class_path(program), "Service"]);
            }
            Self::Node => {
                command = Command::new("node");
                command.current_dir(program).args(["--require", "./tracing.js", "service.js"]);
            }
            Self::Python => {
                command = Command::new(program.join("bin/opentelemetry-instrument"));
                command.arg(program.join("bin/python")).arg(sources("python").join("service.py"));
                for signal in ["TRACES", "METRICS", "LOGS"] {
                    command.env(format!("OTEL_{signal}_EXPORTER"), "none");
                }
            }
        }
        assert_ne!(habit, Habit::PropagatesNothing, "{self:?} always propagates");
        command.args([listen.to_string(), callee.to_owned()]).args(config);
        command
    }

    /// Returns a service config of gRPC with three attempts. Its time limit is for the call: gRPC's clients
    /// have none for an attempt.
    fn service_config(self, timeout: Option<Duration>) -> String {
        // With 1 ms a call of grpcio sometimes never ends.
        let wait = if self == Self::Python { "0.01s" } else { "0.001s" };
        let codes = ["UNAVAILABLE", "DEADLINE_EXCEEDED"];
        let policy = json!({
            "maxAttempts": 3, "initialBackoff": wait, "maxBackoff": wait, "backoffMultiplier": 1,
            "retryableStatusCodes": codes,
        });
        let mut method = json!({ "name": [{}], "retryPolicy": policy });
        if let Some(timeout) = timeout {
            method["timeout"] = format!("{}s", timeout.as_secs_f64()).into();
        }
        json!({ "methodConfig": [method] }).to_string()
    }

    /// The program, or the folder that it is started in, built once for a run.
    fn built(self) -> &'static Path {
        static BUILT: [OnceLock<PathBuf>; 4] = [const { OnceLock::new() }; 4];
        let folder = match self {
            Self::Go => "go",
            Self::Java => "java",
            Self::Node => "node",
            Self::Python => "python",
        };
        BUILT[self as usize].get_or_init(|| self.build(folder))
    }

    /// Builds a folder of tests/foreign with the tool of this language.
    fn build(self, folder: &str) -> PathBuf {
        let sources = sources(folder);
        let out = binary::profile_folder().with_file_name("foreign");
        std::fs::create_dir_all(&out).expect("the build folder is writable");
        let out = out.join(folder.replace('/', "-"));
        let (mut tool, built) = match self {
            Self::Go => {
                let mut go = go();
                go.args(["build", "-o"]).arg(&out);
                go.args((folder == consumers::FOLDER).then_some(consumers::UNOPTIMISED)).arg(".");
                (go, out)
            }
            Self::Java => {
                let mut maven =
                    Command::new(std::env::var_os("DAMPER_TEST_MAVEN").unwrap_or_else(|| "mvn".into()));
                maven.args(["--quiet", "--batch-mode", "package"]).arg(format!("-Dout={}", out.display()));
                (maven, out)
            }
            Self::Node => {
                let mut npm = Command::new("npm");
                npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]);
                (npm, sources.clone())
            }
            Self::Python => {
                virtual_environment(&out);
                let mut pip = Command::new(out.join("bin/python"));
                pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]);
                pip.args(["--only-binary", ":all:", "--requirement", "requirements.txt"]);
                (pip, out)
            }
        };
        let status = tool.current_dir(sources).stdout(Stdio::null()).status();
        let status = status.unwrap_or_else(|error| panic!("{self:?} needs {tool:?}: {error}"));
        assert!(status.success(), "tests/foreign/{folder} does not build: {status}");
        built
    }
}

/// Returns the command of Go.
fn go() -> Command {
    Command::new(std::env::var_os("DAMPER_TEST_GO").unwrap_or_else(|| "go".into()))
}

/// Returns a folder of tests/foreign.
fn sources(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("foreign").join(folder)
}

/// Makes a virtual environment of Python, unless there is one.
fn virtual_environment(folder: &Path) {
    if folder.join("bin/pip").exists() {
        return;
    }
    let program = std::env::var_os("DAMPER_TEST_PYTHON").unwrap_or_else(|| "python3".into());
    let made = Command::new(&program).args(["-m", "venv", "--clear"]).arg(folder).status();
    let made = made.unwrap_or_else(|error| panic!("Python needs {program:?}: {error}"));
    assert!(made.success(), "{program:?} makes no virtual environment (Debian package python3-venv): {made}");
}

/// Returns what `java` needs for the classes of a folder that Maven has built.
fn class_path(built: &Path) -> String {
    format!("{}:{}/*", built.join("classes").display(), built.join("dependency").display())
}
