//! Consumers of translated rules that are libraries of Go and Java: the schemas of Kubernetes objects, and a
//! channel that reads a service config.
//!
//! The schemas are those that Istio and the Gateway API publish in their Go modules. Objects are checked with
//! the code of an API server, in tests/foreign/consumers.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::{Language, class_path, go, sources};

pub(super) const FOLDER: &str = "consumers";
/// Halves the time to build the libraries of Kubernetes.
pub(super) const UNOPTIMISED: &str = "-gcflags=all=-N -l -dwarf=false";
const ISTIO: &str = "istio.io/api";
const GATEWAY: &str = "sigs.k8s.io/gateway-api";

/// Published definitions of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Definitions {
    /// Istio's.
    Istio,
    /// The Gateway API's stable fields.
    Standard,
    /// The Gateway API's stable fields and those that may still change.
    Experimental,
}

/// An object, and what an API server with the definitions finds wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Kind and name.
    pub object: String,
    /// Reasons to refuse it.
    pub refused: Vec<String>,
}

impl Definitions {
    /// Checks each object of a text in YAML.
    ///
    /// # Errors
    /// The text is not YAML, or a document of it is no object.
    pub fn check(self, text: &str) -> Result<Vec<Checked>, String> {
        static BUILT: OnceLock<PathBuf> = OnceLock::new();
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), text).expect("a file");
        let mut command = Command::new(BUILT.get_or_init(|| Language::Go.build(FOLDER)));
        command.args(self.files()).arg("--").arg(file.path());
        let done = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        if !done.status.success() {
            return Err(String::from_utf8_lossy(&done.stderr).into_owned());
        }
        let lines = String::from_utf8(done.stdout).expect("a text");
        Ok(lines.lines().map(Checked::parse).collect())
    }

    fn files(self) -> Vec<PathBuf> {
        match self {
            Self::Istio => vec![module(ISTIO).join("kubernetes/customresourcedefinitions.gen.yaml")],
            Self::Standard => routes("standard"),
            Self::Experimental => routes("experimental"),
        }
    }
}

impl Checked {
    fn parse(line: &str) -> Self {
        let mut fields = line.split('\t').map(str::to_owned);
        Self { object: fields.next().unwrap_or_default(), refused: fields.collect() }
    }
}

fn routes(channel: &str) -> Vec<PathBuf> {
    let folder = module(GATEWAY).join("config/crd").join(channel);
    ["grpcroutes", "httproutes"]
        .map(|kind| folder.join(format!("gateway.networking.k8s.io_{kind}.yaml")))
        .into()
}

/// Returns where Go keeps a module that the program was built with.
fn module(name: &str) -> PathBuf {
    let mut command = go();
    command.args(["list", "-m", "-f", "{{.Dir}}", name]).current_dir(sources(FOLDER));
    let done = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(done.status.success(), "{name}: {}", String::from_utf8_lossy(&done.stderr));
    PathBuf::from(String::from_utf8(done.stdout).expect("a path").trim())
}

/// Gives service configs to channels of grpc-java; returns the file and reason of each that is refused.
pub fn refused_by_grpc_java(files: &[PathBuf]) -> String {
    let classes: &Path = Language::Java.built();
    let mut command = Command::new("java");
    command.args(["-cp", &class_path(classes), "ServiceConfig"]).args(files);
    let done = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let refused = String::from_utf8(done.stderr).expect("a text");
    assert_eq!(done.status.success(), refused.is_empty(), "{refused}");
    refused
}
