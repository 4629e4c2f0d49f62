//! The references that are made from the code: written by `cargo xtask docs`, compared by `cargo xtask test`.

use std::fs;

use anyhow::{Context as _, Result, bail};

use crate::command::{Command, root};
use crate::tools;

/// Where each goes, and its text. They are made by what the tests have built, so that nothing is built twice.
fn references() -> Result<[(&'static str, String); 2]> {
    Command::cargo()?.args(["test", "--quiet", "--workspace", "--all-features", "--no-run"]).run()?;
    let built = tools::target().join("debug");
    Ok([
        ("docs/api.md", Command::new(built.join("examples/api_reference")).output()?),
        ("docs/commands.md", Command::new(built.join("damper")).arg("reference").output()?),
    ])
}

/// Writes them.
pub(crate) fn write() -> Result<()> {
    for (path, text) in references()? {
        fs::write(root().join(path), text).with_context(|| path.to_owned())?;
        eprintln!("wrote {path}");
    }
    Ok(())
}

/// Fails where one is not what the code says.
pub(crate) fn check() -> Result<()> {
    for (path, text) in references()? {
        if fs::read_to_string(root().join(path)).with_context(|| path.to_owned())? != text {
            bail!("{path} is not what the code says: run `cargo xtask docs`");
        }
    }
    Ok(())
}
