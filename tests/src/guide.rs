//! A page of documentation as a test reads it: its fenced blocks, and its shell commands as somebody types them.
//!
//! Files shown with a name are written as shown into a folder of the session, where the commands run.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::binary;

/// What `damper diff` exits with where something differs.
const DIFFERS: i32 = 1;
/// What `damper lint` and `damper doctor` exit with where they find something.
const FINDINGS: i32 = 79;

/// A fenced block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The words after the fence.
    pub info: String,
    /// Its lines.
    pub text: String,
}

/// The fenced blocks of a page, in order.
pub fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for line in page.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(info)) => open = Some(Block { info: info.to_owned(), text: String::new() }),
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(block), None) => block.text += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    blocks
}

/// The lines of the blocks marked `sh`, without their comments.
pub fn commands(page: &str) -> Vec<String> {
    let shell = blocks(page).into_iter().filter(|block| block.info == "sh");
    let lines: Vec<String> =
        shell.flat_map(|block| block.text.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
    let bare = lines.iter().map(|line| line.split(" #").next().unwrap_or_default().trim().to_owned());
    bare.filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
}

/// The headings of a page as links name them.
pub fn anchors(page: &str) -> Vec<String> {
    let headings = page.lines().filter_map(|line| line.strip_prefix("## ").or(line.strip_prefix("### ")));
    let plain = |heading: &str| heading.to_lowercase().replace(['`', ',', '.'], "").replace(' ', "-");
    headings.map(plain).collect()
}

/// A shell in a folder of its own that has the files of a page and `damper` on its path.
#[derive(Debug)]
pub struct Session {
    folder: tempfile::TempDir,
    exports: String,
}

impl Session {
    /// Writes the page's named files: blocks such as `yaml stock.yaml`.
    pub fn of(page: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for block in blocks(page) {
            if let Some((_, name)) = block.info.split_once(' ').filter(|(_, name)| name.contains('.')) {
                let path = folder.path().join(name);
                std::fs::create_dir_all(path.parent().expect("a file lies in a folder")).expect("a folder");
                std::fs::write(path, block.text).expect("a file can be written");
            }
        }
        let built_in = binary::damper().parent().expect("the binary lies in a folder");
        std::fs::create_dir(folder.path().join("target")).expect("a folder can be made");
        std::os::unix::fs::symlink(built_in, folder.path().join("target/debug")).expect("a link can be made");
        let exports = format!("export PATH=\"{}:$PATH\"\n", built_in.display());
        Self { folder, exports }
    }

    /// Where its files are.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// What the commands after it find in their environment: `export NAME=VALUE`.
    pub fn export(&mut self, line: &str) {
        self.exports += &format!("{line}\n");
    }

    /// Runs a line against a server.
    pub fn run(&self, server: &str, line: &str) -> Output {
        Command::new("sh")
            .args(["-c", &format!("{}{line}", self.exports)])
            .current_dir(self.folder.path())
            .env("DAMPER_SERVER", server)
            .stdin(Stdio::null())
            .output()
            .expect("a shell")
    }

    /// Runs a line that must succeed; answers with what it printed and said.
    ///
    /// A line with `|| true` is one that tells by its exit status what it found: then only those that mean this
    /// are right.
    #[track_caller]
    pub fn succeed(&self, server: &str, line: &str) -> String {
        let bare = line.strip_suffix("|| true").map(str::trim_end);
        let output = self.run(server, bare.unwrap_or(line));
        let said = String::from_utf8_lossy(&output.stderr);
        let found = if line.contains("diff") { DIFFERS } else { FINDINGS };
        let told = bare.is_some() && output.status.code() == Some(found);
        assert!(output.status.success() || told, "`{line}`: {} {said}", output.status);
        format!("{}{said}", String::from_utf8(output.stdout).expect("text"))
    }
}
