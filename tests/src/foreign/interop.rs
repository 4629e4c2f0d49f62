//! The interop cases of gRPC, as its libraries publish them.
//!
//! One program for each library has both sides. A client stops at the first case that fails.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::{Language, Process, class_path};

/// Cases that both libraries have.
const COMMON: [&str; 14] = [
    "empty_unary",
    "large_unary",
    "client_streaming",
    "server_streaming",
    "ping_pong",
    "empty_stream",
    "cancel_after_begin",
    "cancel_after_first_response",
    "timeout_on_sleeping_server",
    "custom_metadata",
    "status_code_and_message",
    "special_status_message",
    "unimplemented_method",
    "unimplemented_service",
];

/// A library with gRPC's interop cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interop {
    /// grpc-go.
    Go,
    /// grpc-java.
    Java,
}

impl Interop {
    /// Starts the server, and waits until it listens.
    pub fn server(self, listen: SocketAddr) -> Process {
        let mut command = self.program();
        match self {
            Self::Go => command.args(["-listen", &listen.to_string()]),
            Self::Java => command.args(["server", &listen.to_string()]),
        };
        Process::listening(command, listen)
    }

    /// The cases of this library.
    pub fn cases(self) -> Vec<&'static str> {
        let compressed: &[_] = match self {
            Self::Go => &["gzip_unary"],
            Self::Java => &[
                "client_compressed_unary",
                "server_compressed_unary",
                "client_compressed_streaming",
                "server_compressed_streaming",
            ],
        };
        [&COMMON, compressed].concat()
    }

    /// Runs all cases of the client against a server; returns those that pass before one fails, and its
    /// error.
    pub fn passed(self, server: SocketAddr) -> (Vec<String>, String) {
        let mut command = self.program();
        match self {
            Self::Go => command.args(["-callee", &server.to_string()]),
            Self::Java => command.args(["client", &server.to_string()]),
        };
        let done = command.args(self.cases()).output();
        let done = done.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let error = if done.status.success() { String::new() } else { text(&done.stderr) };
        (text(&done.stdout).lines().map(str::to_owned).collect(), error)
    }

    fn program(self) -> Command {
        static BUILT: [OnceLock<PathBuf>; 2] = [const { OnceLock::new() }; 2];
        let built = |build: fn() -> PathBuf| -> &'static Path { BUILT[self as usize].get_or_init(build) };
        match self {
            Self::Go => Command::new(built(|| Language::Go.build("go/interop"))),
            Self::Java => {
                let classes = class_path(built(|| Language::Java.build("java/interop")));
                let mut command = Command::new("java");
                command.args(["-cp", &classes, "Interop"]);
                command
            }
        }
    }
}
