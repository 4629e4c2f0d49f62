//! Opens the file: lock, mode, format, identity, free space.
//!
//! The file is created with mode 0600, since it has the bodies of jobs, and its folder is synced, so that the
//! file itself survives a loss of power. A file of which most is free is compacted before it is used.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Bound;
use std::path::Path;

use ::redb::backends::FileBackend;
use ::redb::{BackendError, Builder, Database, ReadableTable as _, StorageBackend};

use super::failure::opening;
use super::rows::{Transaction, load_lanes};
use super::tables::{COUNT, FORMAT, META, counts};
use crate::store::error::Error;
use crate::store::lanes::SharedLanes;

/// Memory for pages.
const CACHE_BYTES: usize = 64 << 20;

/// Size below which a file is never compacted.
const COMPACT_BYTES: u64 = 64 << 20;

/// An open file.
pub(super) struct Opened {
    pub(super) database: Database,
    pub(super) lanes: SharedLanes,
    pub(super) id: u64,
}

/// Opens or creates the file at this path.
pub(super) fn open_file(path: &Path) -> Result<Opened, Error> {
    let place = path.display().to_string();
    let failed = |error: io::Error| Error::Open(format!("{place}: {error}"));
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    fs::create_dir_all(folder).map_err(failed)?;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(path).map_err(failed)?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)?;
    let backend = FileBackend::new(file).map_err(|error| opening(&place, error))?;
    let mut opened = open_backend(backend, &place)?;
    let length = fs::metadata(path).map_err(failed)?.len();
    if length > COMPACT_BYTES && length / 3 > counted_bytes(&opened.database)? {
        tracing::info!(file = %place, bytes = length, "compacting the job store");
        opened.database.compact()?;
    }
    Ok(opened)
}

/// Opens or creates the file behind a backend.
pub(super) fn open_backend(backend: impl StorageBackend, place: &str) -> Result<Opened, Error> {
    let failed = |error: io::Error| Error::Open(format!("{place}: {error}"));
    reset_unfinished(&backend).map_err(failed)?;
    let builder = Builder::new().set_cache_size(CACHE_BYTES).create_with_backend(backend);
    let database = builder.map_err(|error| opening(place, error))?;
    let mut transaction = database.begin_write()?;
    transaction.set_quick_repair(true);
    let id = check_format(&transaction, place)?;
    let lanes = load_lanes(&transaction)?;
    // Creates all tables, so that a reader finds them.
    drop(Transaction::new(&transaction, lanes.clone())?);
    transaction.commit()?;
    Ok(Opened { database, lanes, id })
}

/// Empties a file whose creation was interrupted: redb writes the first bytes last, and would not open it.
/// A file that another process has open stays as it is.
fn reset_unfinished(backend: &impl StorageBackend) -> io::Result<()> {
    const ALL: (Bound<u64>, Bound<u64>) = (Bound::Unbounded, Bound::Unbounded);
    let is_locked = match backend.try_lock_range(ALL.0, ALL.1) {
        Ok(true) => true,
        Ok(false) => return Ok(()),
        // A backend in memory has one user.
        Err(BackendError::Unsupported) => false,
        Err(error) => return Err(io::Error::other(error)),
    };
    let mut first = [0; 9];
    let length = usize::try_from(backend.len()?).unwrap_or(usize::MAX).min(first.len());
    backend.read(0, &mut first[..length])?;
    if length > 0 && first == [0; 9] {
        backend.set_len(0)?;
    }
    if is_locked {
        backend.unlock_range(ALL.0, ALL.1).map_err(io::Error::other)?;
    }
    Ok(())
}

/// Checks format and identity, and writes those of a new file. Returns the identity.
fn check_format(transaction: &::redb::WriteTransaction, place: &str) -> Result<u64, Error> {
    let mut meta = transaction.open_table(META)?;
    let oldest_reader = meta.get("oldest_reader")?.map(|row| row.value());
    if let Some(oldest) = oldest_reader.filter(|oldest| *oldest > FORMAT) {
        return Err(Error::Open(format!(
            "{place} needs a server that reads format {oldest} (this one reads {FORMAT}); use a newer version"
        )));
    }
    let id = meta.get("id")?.map(|row| row.value());
    if let Some(id) = id {
        return Ok(id);
    }
    let id = getrandom::u64().map_err(|error| Error::Open(format!("no random numbers: {error}")))?;
    for (name, value) in [("format", FORMAT), ("oldest_reader", FORMAT), ("id", id), ("next_lane", 0)] {
        meta.insert(name, value)?;
    }
    Ok(id)
}

fn counted_bytes(database: &Database) -> Result<u64, Error> {
    let transaction = database.begin_write()?;
    let mut bytes = 0;
    for row in transaction.open_table(COUNT)?.iter()? {
        bytes += counts(row?.1.value()).bytes.cast_unsigned();
    }
    Ok(bytes)
}
