//! Builds the web UI and writes the table of its files that `src/lib.rs` includes.
//!
//! Everything happens in `OUT_DIR`: sources are copied there, packages are installed there and Vite runs
//! there, so the checkout is never written to. The messages come from protox's descriptor set through
//! protoc-gen-es, so that neither `protoc` nor `buf` is needed and nothing generated is in git.
//!
//! `DAMPER_WEB_UI_DIST=<folder>` uses a web UI built elsewhere; `DAMPER_WEB_UI=off` includes a notice
//! instead. Neither needs Node.

use std::{
    collections::hash_map::DefaultHasher,
    env,
    ffi::OsStr,
    fmt::Write as _,
    fs,
    hash::{Hash as _, Hasher as _},
    io::Write as _,
    path::{Path, PathBuf},
    process::{self, Command},
};

use flate2::{Compression, write::GzEncoder};
use prost::Message as _;

type Result<T> = std::result::Result<T, String>;

const PROTO_ROOT: &str = "../proto/proto";
/// Details of errors, which only the web UI reads.
const OWN_PROTO_ROOT: &str = "proto";

/// Inputs of the build, without tests and their settings.
const INPUTS: [&str; 6] =
    ["package.json", "package-lock.json", ".npmrc", "vite.config.ts", "generate.mjs", "tsconfig.json"];
const SOURCES: &str = "page";
const GENERATED: &str = "gen";

const WAY_OUT: &str = "to build without Node.js set DAMPER_WEB_UI_DIST=<folder of a web UI built elsewhere>, \
     or DAMPER_WEB_UI=off for a server without the web UI";

fn main() {
    if let Err(error) = run() {
        for line in error.lines() {
            println!("cargo::error={line}");
        }
        process::exit(1);
    }
}

fn run() -> Result<()> {
    println!("cargo::rerun-if-env-changed=DAMPER_WEB_UI");
    println!("cargo::rerun-if-env-changed=DAMPER_WEB_UI_DIST");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={PROTO_ROOT}");
    println!("cargo::rerun-if-changed={OWN_PROTO_ROOT}");

    let out = PathBuf::from(variable("OUT_DIR")?);
    let descriptors = out.join("descriptors.bin");
    write(&descriptors, &compile_descriptors()?)?;

    if let Some(folder) = env::var_os("DAMPER_WEB_UI_DIST") {
        let folder = PathBuf::from(folder);
        println!("cargo::rerun-if-changed={}", folder.display());
        return write_table(&out, &folder).map_err(|error| format!("DAMPER_WEB_UI_DIST: {error}"));
    }
    match env::var("DAMPER_WEB_UI").ok().as_deref() {
        Some("off") => write_table(&out, Path::new("notice")),
        None | Some("on" | "") => {
            let work = out.join("page-build");
            copy_inputs(&work)?;
            install_packages(&work)?;
            build_web_ui(&work, &descriptors)?;
            write_table(&out, &work.join("dist"))
        }
        Some(other) => Err(format!("DAMPER_WEB_UI is {other:?}; it may be \"on\" or \"off\"")),
    }
}

fn variable(name: &str) -> Result<String> {
    env::var(name).map_err(|error| format!("{name}: {error}"))
}

/// All messages, with their imports.
fn compile_descriptors() -> Result<Vec<u8>> {
    let mut files: Vec<PathBuf> = walk(Path::new(PROTO_ROOT))?;
    files.extend(walk(Path::new(OWN_PROTO_ROOT))?);
    files.retain(|file| file.extension() == Some(OsStr::new("proto")));
    let set = protox::compile(files, [PROTO_ROOT, OWN_PROTO_ROOT]).map_err(|error| error.to_string())?;
    Ok(set.encode_to_vec())
}

/// The folder of sources is emptied first, so that removed files do not stay.
fn copy_inputs(work: &Path) -> Result<()> {
    for input in INPUTS {
        println!("cargo::rerun-if-changed={input}");
        copy(Path::new(input), &work.join(input))?;
    }
    println!("cargo::rerun-if-changed={SOURCES}");
    remove_folder(&work.join(SOURCES))?;
    for file in walk(Path::new(SOURCES))? {
        copy(&file, &work.join(&file))?;
    }
    Ok(())
}

/// Installs exactly the lock file's packages, unless they are there from an earlier build.
fn install_packages(work: &Path) -> Result<()> {
    let mut hasher = DefaultHasher::new();
    for file in ["package.json", "package-lock.json", ".npmrc"] {
        read(&work.join(file))?.hash(&mut hasher);
    }
    let wanted = format!("{:016x}", hasher.finish());
    let stamp = work.join("installed");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    let _absent_is_fine = fs::remove_file(&stamp);
    let npm = if cfg!(windows) { "npm.cmd" } else { "npm" };
    call(
        Command::new(npm)
            .args(["ci", "--omit=dev", "--ignore-scripts", "--prefer-offline", "--no-audit", "--no-fund"])
            .args(["--loglevel=error", "--fetch-retries=2", "--fetch-retry-mintimeout=1000"])
            .args(["--fetch-retry-maxtimeout=5000", "--fetch-timeout=60000"])
            .current_dir(work),
    )?;
    write(&stamp, wanted.as_bytes())
}

fn build_web_ui(work: &Path, descriptors: &Path) -> Result<()> {
    call(Command::new("node").arg("generate.mjs").arg(GENERATED).arg(descriptors).current_dir(work))?;
    call(
        Command::new("node")
            .args(["node_modules/vite/bin/vite.js", "build", "--logLevel", "warn"])
            .current_dir(work),
    )
}

/// Runs a command without `NODE_ENV`: as `development` it would add Svelte's checks to the web UI, as
/// `production` it changes what npm installs.
fn call(command: &mut Command) -> Result<()> {
    let output = command.env_remove("NODE_ENV").output().map_err(|error| {
        format!("the web UI needs Node.js 20.19 or later with npm: {command:?}: {error}\n{WAY_OUT}")
    })?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!(
        "{command:?} ended with {}\n{}{}\n{WAY_OUT}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    ))
}

/// Writes an entry per file: path, bytes, gzip, content type, whether the name has a content hash, etag.
fn write_table(out: &Path, dist: &Path) -> Result<()> {
    let dist = fs::canonicalize(dist).map_err(|error| format!("{}: {error}", dist.display()))?;
    let packed = out.join("packed");
    remove_folder(&packed)?;
    let mut table = String::from("&[\n");
    let mut index = false;
    for file in walk(&dist)? {
        let path = relative(&file, &dist);
        index |= path == "index.html";
        let bytes = read(&file)?;
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        writeln!(
            table,
            "    ({path:?}, File {{ bytes: {}, gzip: {}, content_type: {:?}, immutable: {}, etag: {:?} }}),",
            included(&file)?,
            gzip(&bytes, &packed.join(&path))?,
            content_type(&path),
            path.starts_with("assets/"),
            format!("W/\"{:016x}\"", hasher.finish()),
        )
        .map_err(|error| error.to_string())?;
    }
    if !index {
        return Err(format!("{}: there is no index.html", dist.display()));
    }
    table.push(']');
    write(&out.join("files.rs"), table.as_bytes())
}

fn included(file: &Path) -> Result<String> {
    let file = file.to_str().ok_or_else(|| format!("{}: the path is not UTF-8", file.display()))?;
    Ok(format!("include_bytes!({file:?})"))
}

/// Compressed here once; `None` if that makes it no smaller, as for pictures and fonts.
fn gzip(bytes: &[u8], file: &Path) -> Result<String> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    let packed = encoder.write_all(bytes).and_then(|()| encoder.finish());
    let packed = packed.map_err(|error| format!("{}: {error}", file.display()))?;
    if packed.len() >= bytes.len() {
        return Ok("None".to_owned());
    }
    write(file, &packed)?;
    Ok(format!("Some({})", included(file)?))
}

fn content_type(path: &str) -> &'static str {
    match path.rsplit_once('.').map_or("", |(_, extension)| extension) {
        "html" => "text/html; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "json" | "map" => "application/json",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "woff2" => "font/woff2",
        "txt" => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

/// With forward slashes on every system.
fn relative(file: &Path, root: &Path) -> String {
    let inner = file.strip_prefix(root).expect("walk yields files under its root");
    inner.components().map(|part| part.as_os_str().to_string_lossy()).collect::<Vec<_>>().join("/")
}

/// All files under a folder, in a fixed order.
fn walk(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in sorted_entries(folder)? {
        if entry.is_dir() {
            files.extend(walk(&entry)?);
        } else {
            files.push(entry);
        }
    }
    Ok(files)
}

fn sorted_entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let failed = |error| format!("{}: {error}", folder.display());
    let mut entries = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        entries.push(entry.map_err(failed)?.path());
    }
    entries.sort();
    Ok(entries)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    write(to, &read(from)?)
}

fn read(file: &Path) -> Result<Vec<u8>> {
    fs::read(file).map_err(|error| format!("{}: {error}", file.display()))
}

fn write(file: &Path, bytes: &[u8]) -> Result<()> {
    let folder = file.parent().expect("files are written into a folder");
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(file, bytes))
        .map_err(|error| format!("{}: {error}", file.display()))
}

fn remove_folder(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("{}: {error}", folder.display()))
        }
        _ => Ok(()),
    }
}
