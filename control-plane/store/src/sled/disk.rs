//! The files below the database: what makes them durable, and the room that is kept for the most important writes.
//!
//! Sled's `flush` hands its bytes to the system. It asks for neither the file's length nor the disk's cache to be
//! written, and syncs nothing in the folder `blobs`, where large values lie. So after each flush the files are
//! synced here, and before sled opens them too: what sled reads then is the base of a snapshot that sled does sync.
//!
//! Sled does not survive a write that finds no room. So nothing is written to it without room for several times as
//! much. A file `reserve` takes up room of its own: when the disk is full it is removed, so that kills, removals and
//! compaction can still be written. While it cannot be made again, other changes are refused.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Room for some thousand kills.
const RESERVE_BYTES: u64 = 16 << 20;

/// How much room sled may take for a write: this and three times its bytes, since it writes neighbours too.
const LEAST_ROOM: u64 = 6 << 20;

/// The files of one store.
pub(crate) struct Disk {
    path: PathBuf,
    /// The large values that are durable.
    blobs: HashSet<OsString>,
    /// Whether the disk was full when it was last looked at.
    is_full: bool,
}

impl Disk {
    /// Makes the folder where there is none, and makes durable what is in it.
    pub(crate) fn prepare(path: &Path) -> io::Result<Self> {
        create_folder(path)?;
        let mut disk = Self { path: path.to_owned(), blobs: HashSet::new(), is_full: false };
        disk.sync_all()?;
        Ok(disk)
    }

    /// Makes everything durable: the files, and that they are there.
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

    /// Makes durable what sled has written since.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        self.sync_blobs()?;
        File::open(self.path.join("db"))?.sync_data()
    }

    /// A large value is a file of its own, which is never changed.
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

    /// Whether a write of so many bytes has room. An urgent one gets the room that is kept, others leave it.
    pub(crate) fn has_room(&mut self, bytes: u64, is_urgent: bool) -> io::Result<bool> {
        let needed = needed(bytes);
        let mut has_room = self.keep_reserve(needed) && fs2::available_space(&self.path)? >= needed;
        self.note(!has_room);
        if !has_room && is_urgent {
            has_room = fs2::available_space(&self.path)? >= needed || self.give_room()?;
        }
        Ok(has_room)
    }

    /// Makes the reserve where there is room for it and for more; whether it is there.
    fn keep_reserve(&self, more: u64) -> bool {
        let path = self.reserve();
        if is_kept(&path) {
            return true;
        }
        if fs2::available_space(&self.path).is_ok_and(|room| room < RESERVE_BYTES + more) {
            return false;
        }
        // Zeros are written, since a file system may promise room that it does not have.
        let written = File::create(&path)
            .and_then(|mut file| (0..RESERVE_BYTES >> 16).try_for_each(|_| file.write_all(&[0; 1 << 16])));
        if let Err(error) = &written {
            tracing::warn!(%error, "the store's reserve cannot be written");
            // What is there of it takes up room.
            let _ = fs::remove_file(&path);
        }
        written.is_ok()
    }

    /// Gives up the room that is kept; whether there was some.
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
                tracing::error!("the disk of the store is full: only kills and removals are written");
            }
            (true, false) => tracing::info!("the disk of the store has room again"),
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

/// How much room a write of so many bytes may take.
fn needed(bytes: u64) -> u64 {
    bytes.saturating_mul(3).saturating_add(LEAST_ROOM)
}

/// Whether a write of so many bytes that is not urgent has no room in a store's folder.
pub(crate) fn is_full(folder: &Path, bytes: u64) -> bool {
    let missing = if is_kept(&reserve(folder)) { 0 } else { RESERVE_BYTES };
    fs2::available_space(folder).is_ok_and(|room| room < needed(bytes).saturating_add(missing))
}

/// Makes the folder and what is missing above it durably, for the user alone: the hashes of tokens and the cluster key
/// lie in it, in files that sled makes readable to all who may enter. What is there stays as it is.
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

/// Makes durable which files are in a folder.
fn sync_folder(path: &Path) -> io::Result<()> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
}
