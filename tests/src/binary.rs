//! The `damper` binary, and processes of it that end with the test.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The binary: the one that `DAMPER_BINARY` names, as the test command does, else one built from the present
/// sources.
pub fn damper() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| std::env::var_os("DAMPER_BINARY").map_or_else(build, PathBuf::from))
}

/// The path of `damper-proxy`, which is built with `damper`.
pub fn damper_proxy() -> PathBuf {
    damper().with_file_name("damper-proxy")
}

fn build() -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let profile = profile_folder();
    let optimised = profile.ends_with("release").then_some("--release");
    let arguments = ["build", "--quiet", "--package", "damper-cli", "--bins"];
    let built = Command::new(cargo).args(arguments).args(optimised).status().expect("cargo can be started");
    assert!(built.success(), "the damper binary must build");
    profile.join(format!("damper{}", std::env::consts::EXE_SUFFIX))
}

/// Returns <target>/<profile>, which has the running binary, or the running test in its folder `deps`.
pub(crate) fn profile_folder() -> PathBuf {
    let own = std::env::current_exe().expect("a program has a path");
    let folder = own.parent().expect("a program lies in a folder");
    let folder = if folder.ends_with("deps") { folder.parent().unwrap_or(folder) } else { folder };
    folder.to_owned()
}

/// Runs a `damper` command to its end against a server.
pub fn run(server: &str, arguments: &[&str]) -> std::process::Output {
    let mut command = Command::new(damper());
    command.args(arguments).env("DAMPER_SERVER", server).stdin(Stdio::null());
    command.output().expect("damper can be started")
}

/// A `damper serve` process; killed with SIGKILL when it is dropped.
#[derive(Debug)]
pub struct Served {
    child: Child,
    url: String,
}

impl Served {
    /// Starts a server on a free port and waits until it says that it listens.
    pub fn start(store: &str) -> Self {
        Self::start_on("127.0.0.1:0", store)
    }

    /// Starts a server on an address and waits until it says that it listens.
    pub fn start_on(listen: &str, store: &str) -> Self {
        Self::start_with(&["--listen", listen, "--store", store])
    }

    /// Starts a server with these arguments and waits until it says that it listens.
    pub fn start_with(arguments: &[&str]) -> Self {
        Self::start_by(Command::new(damper()), arguments)
    }

    /// Starts a server by this command of the binary, and waits until it says that it listens.
    pub fn start_by(mut command: Command, arguments: &[&str]) -> Self {
        let mut child = command
            .arg("serve")
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("damper can be started");
        let stderr = child.stderr.take().expect("stderr is piped");
        let mut lines = BufReader::new(stderr).lines();
        let mut said = Vec::new();
        let url = loop {
            let Some(Ok(line)) = lines.next() else { panic!("damper serve ended: {}", said.join("\n")) };
            if let Some((_, listening)) = line.split_once("listening on ") {
                let address = listening.split([',', ' ']).next().unwrap_or_default();
                break if address.contains("://") { address.to_owned() } else { format!("http://{address}") };
            }
            said.push(line);
        };
        // Keep reading, or the server would block on a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, url }
    }

    /// Where it listens: `http://127.0.0.1:PORT`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The address without the scheme.
    pub fn address(&self) -> &str {
        self.url.trim_start_matches("http://").trim_start_matches("https://")
    }

    /// The most memory that the process has had at once (`VmHWM`), in MiB.
    pub fn memory_peak_mib(&self) -> u64 {
        memory_kib(&self.child, "VmHWM:") / 1024
    }

    /// SIGTERM, and waits until it has ended well.
    pub fn terminate(&mut self) {
        let process = self.child.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &process]).status().expect("kill can be started");
        assert!(sent.success(), "SIGTERM was not delivered");
        let ended = self.child.wait().expect("a child can be waited for");
        assert!(ended.success(), "{ended}");
    }

    /// SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a killed child ends");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a figure of a process's memory, in KiB.
pub(crate) fn memory_kib(process: &Child, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).expect("it runs");
    let figure = status.lines().find_map(|line| line.strip_prefix(name)).expect("Linux counts it");
    figure.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Asks until the answer is yes; fails after the time with what was waited for.
#[track_caller]
pub fn wait_until(what: &str, within: Duration, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < within, "not within {within:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
