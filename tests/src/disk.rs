//! A disk for a child process that forgets what was not synced, and that can be full.
//!
//! The child runs with a small library preloaded (`disk/forgetful.c`), which needs a C compiler: the one that cargo
//! links with. After the child was killed, [`Disk::lose_power`] turns its folder into what a loss of power leaves.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::UNIX_EPOCH;

use tempfile::TempDir;

/// The unit in which unsynced bytes survive or not.
const BLOCK: usize = 4096;

/// A folder on a disk that forgets.
pub struct Disk {
    folder: TempDir,
    library: PathBuf,
}

impl Default for Disk {
    fn default() -> Self {
        Self::new()
    }
}

impl Disk {
    /// An empty disk.
    #[must_use]
    pub fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("damper-disk-").tempdir().expect("a temporary folder");
        for name in ["root", "image"] {
            fs::create_dir(folder.path().join(name)).expect("a folder");
        }
        let library = folder.path().join("forgetful.so");
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        let compiled = Command::new(&compiler)
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(&library)
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/disk/forgetful.c"))
            .args(["-ldl", "-lpthread"])
            .status();
        let compiler = compiler.display();
        match compiled {
            Ok(status) => assert!(status.success(), "{compiler} cannot compile the library of the test disk"),
            Err(error) => panic!(
                "a C compiler is needed and {compiler} cannot be started: {error}. Install the Debian package gcc, \
                 or name the program in CC"
            ),
        }
        Self { folder, library }
    }

    /// Where the child writes. The folder itself is durable.
    #[must_use]
    pub fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    fn limit_file(&self) -> PathBuf {
        self.folder.path().join("limit")
    }

    fn fault_file(&self) -> PathBuf {
        self.folder.path().join("fault")
    }

    /// A program on this disk.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env("LD_PRELOAD", &self.library)
            .env("DISK_ROOT", self.root())
            .env("DISK_IMAGE", self.image())
            .env("DISK_LIMIT", self.limit_file())
            .env("DISK_FAULT", self.fault_file());
        command
    }

    /// The bytes that the files of this disk have together.
    #[must_use]
    pub fn used(&self) -> u64 {
        let mut folders = vec![self.root()];
        let mut bytes = 0;
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("a folder of the disk") {
                let entry = entry.expect("an entry");
                // A file may be removed meanwhile.
                let Ok(found) = entry.metadata() else { continue };
                if found.is_dir() { folders.push(entry.path()) } else { bytes += found.len() }
            }
        }
        bytes
    }

    /// Lets the disk hold so many bytes from now on, also for a child that runs.
    pub fn hold_at_most(&self, bytes: u64) {
        let unfinished = self.folder.path().join("limit.unfinished");
        fs::write(&unfinished, bytes.to_string()).expect("a file");
        fs::rename(unfinished, self.limit_file()).expect("a file");
    }

    /// Lets every write fail from now on, or none, also of a child that runs.
    ///
    /// # Panics
    /// When this machine's own disk fails.
    pub fn fail_writes(&self, fail: bool) {
        let file = self.fault_file();
        if fail { fs::write(file, "") } else { fs::remove_file(file) }.expect("a file");
    }

    /// What is left when the power goes: what was synced, and of the rest each block and each name that `survives`
    /// says. The children must have ended.
    pub fn lose_power(&mut self, mut survives: impl FnMut() -> bool) {
        // Without it no child came as far as to write, and what is there was durable before.
        if !self.image().join(id(&self.root())).exists() {
            return;
        }
        let left = self.folder.path().join("left");
        fs::create_dir(&left).expect("a folder");
        restore(&self.image(), &self.root(), &left, &mut survives);
        for gone in [self.root(), self.image()] {
            fs::remove_dir_all(gone).expect("a folder");
        }
        fs::rename(left, self.root()).expect("the folder");
        fs::create_dir(self.image()).expect("a folder");
    }
}

/// Puts together what is left of a folder.
fn restore(image: &Path, from: &Path, to: &Path, survives: &mut impl FnMut() -> bool) {
    let mut names = synced_names(&image.join(id(from)));
    let now: BTreeMap<String, String> = fs::read_dir(from)
        .expect("a folder of the disk")
        .map(|entry| entry.expect("an entry"))
        .map(|entry| (entry.file_name().into_string().expect("a plain name"), id(&entry.path())))
        .collect();
    let gone: Vec<String> = names.keys().filter(|name| !now.contains_key(*name)).cloned().collect();
    for name in gone {
        if survives() {
            names.remove(&name);
        }
    }
    for (name, id) in &now {
        if names.get(name) != Some(id) && survives() {
            names.insert(name.clone(), id.clone());
        }
    }
    for (name, id) in names {
        let current = now.get(&name).filter(|now| **now == id).map(|_| from.join(&name));
        if let Some(folder) = current.as_ref().filter(|path| path.is_dir()) {
            fs::create_dir(to.join(&name)).expect("a folder");
            restore(image, folder, &to.join(&name), survives);
            continue;
        }
        let synced = fs::read(image.join(&id)).unwrap_or_default();
        let unsynced =
            current.map_or_else(|| synced.clone(), |path| fs::read(path).expect("a file of the disk"));
        fs::write(to.join(&name), mixed(synced, &unsynced, survives)).expect("a file");
    }
}

fn synced_names(list: &Path) -> BTreeMap<String, String> {
    let list = fs::read_to_string(list).unwrap_or_default();
    let pair = |line: &str| line.split_once('\t').map(|(id, name)| (name.to_owned(), id.to_owned()));
    list.lines().filter_map(pair).collect()
}

/// The synced bytes, with those blocks of the unsynced ones that survive.
fn mixed(mut synced: Vec<u8>, unsynced: &[u8], survives: &mut impl FnMut() -> bool) -> Vec<u8> {
    if synced == unsynced {
        return synced;
    }
    if survives() {
        synced.resize(unsynced.len(), 0);
    }
    for (old, new) in synced.chunks_mut(BLOCK).zip(unsynced.chunks(BLOCK)) {
        if survives() {
            let length = old.len().min(new.len());
            old[..length].copy_from_slice(&new[..length]);
        }
    }
    synced
}

/// By what the library knows a file.
fn id(path: &Path) -> String {
    let found = fs::symlink_metadata(path).expect("a file of the disk");
    let born = found.created().ok().and_then(|born| born.duration_since(UNIX_EPOCH).ok());
    format!("{}-{}", found.ino(), born.map_or(0, |born| born.as_nanos()))
}
