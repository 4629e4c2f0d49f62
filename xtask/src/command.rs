//! Running a program from the root of the repository, with its output shown as it comes.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, Result, bail};

/// A program with its arguments.
pub(crate) struct Command {
    inner: std::process::Command,
    shown: String,
}

impl Command {
    /// A program found on the path.
    pub(crate) fn new(program: impl AsRef<OsStr>) -> Self {
        let mut inner = std::process::Command::new(&program);
        inner.current_dir(root());
        Self { inner, shown: program.as_ref().to_string_lossy().into_owned() }
    }

    /// The cargo that runs this task, with the path of `protoc`.
    pub(crate) fn cargo() -> Result<Self> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Self::new(cargo).env("PROTOC", protoc()?);
        "cargo".clone_into(&mut command.shown);
        Ok(command)
    }

    pub(crate) fn arg(self, arg: impl AsRef<OsStr>) -> Self {
        self.args([arg])
    }

    pub(crate) fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        for arg in args {
            self.shown = format!("{} {}", self.shown, arg.as_ref().to_string_lossy());
            self.inner.arg(arg);
        }
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.inner.env(name, value);
        self
    }

    pub(crate) fn in_folder(mut self, folder: &str) -> Self {
        self.inner.current_dir(root().join(folder));
        self
    }

    /// Runs it; anything but success is an error.
    pub(crate) fn run(mut self) -> Result<()> {
        let status = self.inner.status().with_context(|| format!("can not start `{}`", self.shown))?;
        if !status.success() {
            bail!("`{}` failed ({status})", self.shown);
        }
        Ok(())
    }

    /// Runs it and answers with what it printed; anything but success is an error.
    pub(crate) fn output(mut self) -> Result<String> {
        let output = self.inner.stderr(Stdio::inherit()).output();
        let output = output.with_context(|| format!("can not start `{}`", self.shown))?;
        if !output.status.success() {
            bail!("`{}` failed ({})", self.shown, output.status);
        }
        String::from_utf8(output.stdout).with_context(|| format!("`{}` printed no text", self.shown))
    }

    /// Becomes the program, so that Ctrl-C is the program's alone; returns only where that is not possible.
    pub(crate) fn replace_this_process(self) -> Result<()> {
        #[cfg(unix)]
        {
            use std::os::unix::process::CommandExt as _;
            let Self { mut inner, shown } = self;
            let error = inner.exec();
            Err(error).with_context(|| format!("can not start `{shown}`"))
        }
        #[cfg(not(unix))]
        self.run()
    }

    /// True if it can be started and succeeds; its output is not shown.
    pub(crate) fn succeeds(mut self) -> bool {
        self.inner.output().is_ok_and(|output| output.status.success())
    }
}

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(PathBuf::new, Path::to_path_buf)
}

/// The protobuf compiler that building the etcd client needs.
pub(crate) fn protoc() -> Result<PathBuf> {
    match std::env::var_os("PROTOC") {
        Some(protoc) => Ok(protoc.into()),
        None => protoc_bin_vendored::protoc_bin_path().context("no protoc for this machine; set PROTOC"),
    }
}
