//! Files below the database: syncs them and reserves room for urgent writes.
//!
//! Sled's `flush` hands its bytes to the operating system. It does not sync the file's length or the disk's
//! cache, nor the folder `blobs` of large values. So the files are synced here after each flush, and before
//! sled opens them: what sled reads then is the base of a snapshot that sled does sync.
//!
//! Sled does not survive a failed write. So a write is accepted only with room for several times its size.
//! The file `reserve` keeps room: when the disk is full it is removed, so that kills, removals and compaction
//! can still be written. Until it is restored, other changes are refused.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Reserved bytes: some thousand kills.
const RESERVE_BYTES: u64 = 16 << 20;

/// Room that sled may take for a write, plus three times its bytes, since it rewrites neighbours too.
const LEAST_ROOM: u64 = 6 << 20;

/// Files of a store.
pub(crate) struct Disk {
    path: PathBuf,
    /// Large values that are durable.
    blobs: HashSet<OsString>,
    /// True if the disk was full at the last check.
    is_full: bool,
}

impl Disk {
    /// Creates the folder if it is missing, and syncs its contents.
    pub(crate) fn prepare(path: &Path) -> io::Result<Self> {
        create_folder(path)?;
        let mut disk = Self { path: path.to_owned(), blobs: HashSet::new(), is_full: false };
        disk.sync_all()?;
        Ok(disk)
    }

    /// Syncs all files and their folder.
    pub(crate) fn sync_all(&mut self) -> io::Result<()> {
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            if entry.file_type()?.is_file() && entry.file_name() != "reserve" {
                File::open(entry.path())?.sync_all()?;
            }
        }
        self.blobs.clear();
        self.sync_blobs()?;
        sync_folder(&self.path)
    }

    /// Syncs the writes of sled since the last sync.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        self.sync_blobs()?;
        File::open(self.path.join("db"))?.sync_data()
    }

    /// Syncs large values, each in an immutable file of its own.
    fn sync_blobs(&mut self) -> io::Result<()> {
        let folder = self.path.join("blobs");
        let entries = match fs::read_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        let mut there = HashSet::new();
        for entry in entries {
            let entry = entry?;
            if !self.blobs.contains(&entry.file_name()) {
                match File::open(entry.path()) {
                    // Sled removes what is no longer needed.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    blob => blob?.sync_all()?,
                }
            }
            there.insert(entry.file_name());
        }
        if there.iter().any(|name| !self.blobs.contains(name)) || self.blobs.is_empty() {
            sync_folder(&folder)?;
        }
        self.blobs = there;
        Ok(())
    }

    fn reserve(&self) -> PathBuf {
        reserve(&self.path)
    }

    /// Returns true if a write has room. Urgent writes may use the reserve.
    pub(crate) fn has_room(&mut self, bytes: u64, is_urgent: bool) -> io::Result<bool> {
        let needed = needed(bytes);
        let mut has_room = self.keep_reserve(needed) && fs2::available_space(&self.path)? >= needed;
        self.note(!has_room);
        if !has_room && is_urgent {
            has_room = fs2::available_space(&self.path)? >= needed || self.give_room()?;
        }
        Ok(has_room)
    }

    /// Creates the reserve if there is room for it and `more`; true if it exists.
    fn keep_reserve(&self, more: u64) -> bool {
        let path = self.reserve();
        if is_kept(&path) {
            return true;
        }
        if fs2::available_space(&self.path).is_ok_and(|room| room < RESERVE_BYTES + more) {
            return false;
        }
        // Writes zeros, since a file system may overcommit.
        let written = File::create(&path)
            .and_then(|mut file| (0..RESERVE_BYTES >> 16).try_for_each(|_| file.write_all(&[0; 1 << 16])));
        if let Err(error) = &written {
            tracing::warn!(%error, "cannot write the file that reserves disk space for kill switches");
            // The partial file takes room.
            let _ = fs::remove_file(&path);
        }
        written.is_ok()
    }

    /// Removes the reserve; true if there was one.
    pub(crate) fn give_room(&mut self) -> io::Result<bool> {
        self.note(true);
        match fs::remove_file(self.reserve()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            removed => removed.map(|()| true),
        }
    }

    fn note(&mut self, is_full: bool) {
        match (self.is_full, is_full) {
            (false, true) => {
                tracing::error!(
                    "the store's disk is full; only kill switches can be set and ended, and entries deleted"
                );
            }
            (true, false) => tracing::info!("the store's disk has room again"),
            _ => {}
        }
        self.is_full = is_full;
    }
}

fn reserve(folder: &Path) -> PathBuf {
    folder.join("reserve")
}

fn is_kept(reserve: &Path) -> bool {
    fs::metadata(reserve).is_ok_and(|found| found.len() >= RESERVE_BYTES)
}

/// Returns the room that a write may take.
fn needed(bytes: u64) -> u64 {
    bytes.saturating_mul(3).saturating_add(LEAST_ROOM)
}

/// Returns true if an ordinary write of `bytes` has no room in a store's folder.
pub(crate) fn is_full(folder: &Path, bytes: u64) -> bool {
    let missing = if is_kept(&reserve(folder)) { 0 } else { RESERVE_BYTES };
    fs2::available_space(folder).is_ok_and(|room| room < needed(bytes).saturating_add(missing))
}

/// Creates the folder and its missing parents durably, for the user alone: it holds token hashes and the
/// cluster key, in files that sled makes readable to all who may enter. Existing folders stay as they are.
fn create_folder(path: &Path) -> io::Result<()> {
    let missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
    let above: Vec<&Path> = path.ancestors().take_while(missing).filter_map(Path::parent).collect();
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)?;
    above.into_iter().try_for_each(sync_folder)
}

/// Syncs the entries of a folder.
fn sync_folder(path: &Path) -> io::Result<()> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
}
