//! The references that are made from the code: written by `cargo xtask docs`, compared by `cargo xtask test`.

use std::fs;

use anyhow::{Context as _, Result, bail};

use crate::command::{Command, root};
use crate::tools;

/// A text made from the code, and where it goes.
struct Made {
    path: &'static str,
    /// The part of the file between `<!-- NAME: ... -->` and `<!-- end -->`; none = the whole file.
    part: Option<&'static str>,
    text: String,
}

/// All of them, made by what the tests have built, so that nothing is built twice.
fn made() -> Result<Vec<Made>> {
    Command::cargo()?.args(["test", "--quiet", "--workspace", "--all-features", "--no-run"]).run()?;
    let built = tools::target().join("debug");
    let example = |name: &str| Command::new(built.join("examples").join(name));
    let settings = |part| -> Result<Made> {
        let text = example("settings_reference").arg(part).output()?;
        Ok(Made { path: "docs/policy.md", part: Some(part), text })
    };
    let commands = Command::new(built.join("damper")).arg("reference").output()?;
    Ok(vec![
        Made { path: "docs/api.md", part: None, text: example("api_reference").output()? },
        Made { path: "docs/commands.md", part: None, text: commands },
        settings("rule")?,
        settings("guard")?,
        settings("queue")?,
    ])
}

impl Made {
    /// The file as it should be.
    fn file(&self, now: &str) -> Result<String> {
        let Some(part) = self.part else { return Ok(self.text.clone()) };
        let begin = format!("<!-- {part}: made by cargo xtask docs -->\n");
        let place =
            now.split_once(&begin).and_then(|(head, rest)| Some((head, rest.split_once("<!-- end -->")?.1)));
        let (head, tail) = place.with_context(|| format!("{} has no place for {part}", self.path))?;
        Ok(format!("{head}{begin}{}<!-- end -->{tail}", self.text))
    }
}

/// Writes them.
pub(crate) fn write() -> Result<()> {
    for made in made()? {
        let path = root().join(made.path);
        let now = fs::read_to_string(&path).unwrap_or_default();
        fs::write(&path, made.file(&now)?).with_context(|| made.path.to_owned())?;
        eprintln!("wrote {}", made.path);
    }
    Ok(())
}

/// Fails where one is not what the code says.
pub(crate) fn check() -> Result<()> {
    for made in made()? {
        let now = fs::read_to_string(root().join(made.path)).with_context(|| made.path.to_owned())?;
        if made.file(&now)? != now {
            bail!("{} is not what the code says: run `cargo xtask docs`", made.path);
        }
    }
    Ok(())
}
