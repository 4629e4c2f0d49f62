//! Starts servers and runs commands against them.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use tempfile::TempDir;

pub(crate) const KEY: [&str; 4] = ["checkout", "*", "inventory", "inventory.v1.Inventory/Reserve"];

/// The command, free of settings that the surroundings may have.
pub(crate) fn damper() -> Command {
    program(env!("CARGO_BIN_EXE_damper"))
}

/// The command with the proxy alone.
pub(crate) fn damper_proxy() -> Command {
    program(env!("CARGO_BIN_EXE_damper-proxy"))
}

fn program(path: &str) -> Command {
    let mut command = Command::new(path);
    for (name, _) in std::env::vars() {
        if name.starts_with("DAMPER_") {
            command.env_remove(name);
        }
    }
    command.env("USER", "kim").stdin(Stdio::null());
    command
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Ended {
    fn from(Output { status, stdout, stderr }: Output) -> Self {
        Self {
            code: status.code().unwrap_or(-1),
            out: String::from_utf8(stdout).unwrap(),
            err: String::from_utf8(stderr).unwrap(),
        }
    }
}

impl Ended {
    /// What it printed, if it ended well.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.out
    }

    #[track_caller]
    pub(crate) fn json(self) -> serde_json::Value {
        serde_json::from_str(&self.ok()).unwrap()
    }

    /// What it said, if it ended with this status.
    #[track_caller]
    pub(crate) fn failed(self, code: i32) -> String {
        assert_eq!(self.code, code, "{self:?}");
        assert!(!self.err.contains("panicked"), "{self:?}");
        self.err
    }
}

pub(crate) fn run(command: &mut Command) -> Ended {
    command.output().unwrap().into()
}

/// A server on a store of its own; ended with its value.
pub(crate) struct Serving {
    child: Child,
    pub(crate) address: String,
    pub(crate) folder: TempDir,
}

impl Serving {
    pub(crate) fn start() -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), &[])
    }

    /// The same with further settings, whose files may be in the folder.
    pub(crate) fn start_in(folder: TempDir, settings: &[&str]) -> Self {
        let (child, address) = serve(&folder, settings);
        Self { child, address, folder }
    }

    /// A server on this store.
    pub(crate) fn on(store: &str, settings: &[&str]) -> Self {
        let (child, address) = serve_on(store, settings);
        Self { child, address, folder: tempfile::tempdir().unwrap() }
    }

    /// Asks the process to end, starts another one on the same store and tells how the first one ended.
    #[cfg(unix)]
    pub(crate) fn restart(&mut self) -> Option<i32> {
        let killed = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(killed.success());
        let code = self.child.wait().unwrap().code();
        (self.child, self.address) = serve(&self.folder, &[]);
        code
    }

    /// The command with these arguments, for this server.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = damper();
        command.args(args).env("DAMPER_SERVER", &self.address);
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ended {
        run(&mut self.command(args))
    }

    /// The command with the rule's key as its last words.
    pub(crate) fn run_key(&self, args: &[&str]) -> Ended {
        self.run(&[args, &KEY].concat())
    }

    /// The command with this text on its standard input.
    pub(crate) fn run_with(&self, args: &[&str], input: &[u8]) -> Ended {
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(input).unwrap();
        drop(stdin);
        child.wait_with_output().unwrap().into()
    }

    pub(crate) fn file(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn apply(&self, text: &str) {
        self.run_with(&["apply", "-f", "-"], text.as_bytes()).ok();
    }

    /// How many rules there are.
    pub(crate) fn rules(&self) -> usize {
        self.run(&["rules", "list", "-o", "json"]).json().as_array().unwrap().len()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn serve(folder: &TempDir, settings: &[&str]) -> (Child, String) {
    serve_on(&format!("sled:{}", folder.path().join("store").display()), settings)
}

fn serve_on(store: &str, settings: &[&str]) -> (Child, String) {
    let mut serve = damper();
    serve.args(["serve", "--listen", "127.0.0.1:0", "--log-level", "warn", "--store", store]).args(settings);
    let mut child = serve.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let address = address_of(&mut child);
    (child, address)
}

/// Waits for the line that says where it listens; what it logs later is read, so that it never blocks.
fn address_of(child: &mut Child) -> String {
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut before = String::new();
    loop {
        let line = lines.next().unwrap_or_else(|| panic!("the server ended: {before}")).unwrap();
        if let Some((_, address)) = line.split_once("listening on ") {
            let address = address.split([',', ' ', '"']).next().unwrap();
            let address = format!("http://{}", address.trim());
            std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
            return address;
        }
        before.push_str(&line);
    }
}

/// A manifest of the rule with this caller.
pub(crate) fn manifest(caller: &str, policy: &str) -> String {
    format!(
        "kind: Rule\nkey: {{ caller_service: {caller}, caller_cluster: \"*\", callee_service: inventory, \
         callee_method: inventory.v1.Inventory/Reserve }}\npolicy: {policy}\n"
    )
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
