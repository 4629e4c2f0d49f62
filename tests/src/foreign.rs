//! Services in other languages that know nothing of Damper, and proxies of the `damper` binary next to them.
//!
//! Their programs are in `tests/foreign`, one folder for each language. Each is built once for a run of the
//! tests, with the build tool of its language.

use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use crate::binary;

/// A language and its gRPC library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// grpc-go with otelgrpc.
    Go,
    /// grpc-java under OpenTelemetry's agent.
    Java,
    /// grpc-js with OpenTelemetry's instrumentation.
    Node,
}

/// How a service treats the calls that it sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Habit {
    /// Its OpenTelemetry copies the context of a request to its calls.
    Propagates,
    /// It copies nothing; of Go alone, whose default this is.
    PropagatesNothing,
    /// Its gRPC client makes three attempts.
    OwnRetries,
}

/// A process that ends with the test.
#[derive(Debug)]
pub struct Process {
    child: Child,
}

impl Process {
    /// Starts a service that listens on an address and sends calls to a callee; waits until it listens.
    pub fn service(language: Language, listen: SocketAddr, callee: SocketAddr, habit: Habit) -> Self {
        let mut command = language.command(listen, callee, habit);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
        let address = listen.to_string();
        // An agent may print lines of its own first.
        let listens = lines.by_ref().map_while(Result::ok).any(|line| line == address);
        assert!(listens, "{language:?} ended before it listened");
        std::thread::spawn(move || lines.for_each(drop));
        Self { child }
    }

    /// Starts a proxy with this configuration; returns its addresses once it listens.
    pub fn proxy(control_plane: &str, config: &str, folder: &Path) -> (Self, ProxyAddresses) {
        let file = folder.join("proxy.yaml");
        std::fs::write(&file, config).expect("the folder is writable");
        let mut command = Command::new(binary::damper());
        command.arg("proxy").arg("--file").arg(&file).env("DAMPER_SERVER", control_plane);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let mut child = child.expect("damper can be started");
        let mut lines = BufReader::new(child.stderr.take().expect("stderr is piped")).lines();
        let mut printed = Vec::new();
        let addresses = lines.by_ref().map_while(Result::ok).find_map(|line| {
            let addresses = ProxyAddresses::parse(&line);
            printed.push(line);
            addresses
        });
        let addresses = addresses.unwrap_or_else(|| panic!("damper proxy ended: {}", printed.join("\n")));
        std::thread::spawn(move || lines.for_each(drop));
        (Self { child }, addresses)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where a proxy listens.
#[derive(Clone, Copy, Debug)]
pub struct ProxyAddresses {
    /// The admin port.
    pub admin: SocketAddr,
    /// For callers.
    pub inbound: SocketAddr,
    /// For calls to its only callee.
    pub outbound: SocketAddr,
}

impl ProxyAddresses {
    fn parse(line: &str) -> Option<Self> {
        let address = |name: &str| {
            let (_, rest) = line.split_once(&format!("{name} on "))?;
            rest.split([',', ' ']).next()?.parse().ok()
        };
        Some(Self { admin: address("admin")?, inbound: address("inbound")?, outbound: address("outbound")? })
    }
}

/// Returns an address on which nothing listens. Its host is the caller's own: no other test takes the port
/// before the service does.
pub fn free_address(host: u8) -> SocketAddr {
    let listener = TcpListener::bind((format!("127.0.77.{host}"), 0)).expect("a free port");
    listener.local_addr().expect("it is bound")
}

impl Language {
    fn command(self, listen: SocketAddr, callee: SocketAddr, habit: Habit) -> Command {
        let program = self.built();
        let retries = (habit == Habit::OwnRetries).then_some("own-retries");
        let mut command;
        match self {
            Self::Go => {
                command = Command::new(program);
                command.args(["-listen", &listen.to_string(), "-callee", &callee.to_string()]);
                command.args(retries.map(|_| "-own-retries"));
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
                let own = program.join("classes");
                let classes = format!("{}:{}/*", own.display(), program.join("dependency").display());
                command.args(["-cp", &classes, "Service"]);
            }
            Self::Node => {
                command = Command::new("node");
                command.current_dir(program).args(["--require", "./tracing.js", "service.js"]);
            }
        }
        assert_ne!(habit, Habit::PropagatesNothing, "{self:?} always propagates");
        command.args([listen.to_string(), callee.to_string()]).args(retries);
        command
    }

    /// The program, or the folder that it is started in, built once for a run.
    fn built(self) -> &'static Path {
        static BUILT: [OnceLock<PathBuf>; 3] = [const { OnceLock::new() }; 3];
        BUILT[self as usize].get_or_init(|| self.build())
    }

    fn build(self) -> PathBuf {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("foreign");
        // A test's own binary lies in <target>/<profile>/deps.
        let own = std::env::current_exe().expect("a test has a path");
        let out = own.ancestors().nth(3).expect("a test lies in a build folder").join("foreign");
        std::fs::create_dir_all(&out).expect("the build folder is writable");
        let (mut tool, folder, built) = match self {
            Self::Go => {
                let mut go = Command::new(std::env::var_os("DAMPER_TEST_GO").unwrap_or_else(|| "go".into()));
                let program = out.join("go");
                go.args(["build", "-o"]).arg(&program).arg(".");
                (go, "go", program)
            }
            Self::Java => {
                let mut maven =
                    Command::new(std::env::var_os("DAMPER_TEST_MAVEN").unwrap_or_else(|| "mvn".into()));
                let folder = out.join("java");
                maven.args(["--quiet", "--batch-mode", "package"]).arg(format!("-Dout={}", folder.display()));
                (maven, "java", folder)
            }
            Self::Node => {
                let mut npm = Command::new("npm");
                npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]);
                (npm, "node", sources.join("node"))
            }
        };
        let status = tool.current_dir(sources.join(folder)).stdout(Stdio::null()).status();
        let status = status.unwrap_or_else(|error| panic!("{self:?} needs {tool:?}: {error}"));
        assert!(status.success(), "tests/foreign/{folder} does not build: {status}");
        built
    }
}
