//! Embedded store: one file, one process, nothing to install.
//!
//! One thread writes; each batch is one transaction of redb, synced before it is answered. Reads run on
//! blocking threads, each of one state of the file, and do not wait for the writer.
//!
//! After a failed commit the content of the file is unknown: the store stops, and answers everything with
//! [`Error::Unavailable`] until it is opened again. It does not open itself again, since the operating system
//! may show pages that a failed sync has not written.
//!
//! The file belongs to one process, so all leases are those of one server, always with the same number.

mod check;
mod commit;
mod failure;

mod open;
mod reads;
mod room;
mod rows;
mod tables;

use std::path::Path;
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::JoinHandle;

use ::redb::{Database, ReadableDatabase as _, StorageBackend};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

use self::open::Opened;
use self::reads::View;
use self::room::Room;
use super::batch::{Batch, Committed};
use super::clock::now;
use super::error::Error;
use super::interface::{Beat, Filter, LaneCounts, Overdue, Page, Store};
use super::lanes::SharedLanes;
use super::record::{Body, JobId, Record, ServerId};

/// The only server of a file.
const SERVER: ServerId = ServerId(1);

/// A store in one file of this machine.
pub struct RedbStore {
    shared: Arc<Shared>,
    /// `None` only while it is dropped.
    batches: Option<mpsc::Sender<(Batch, Answer)>>,
    writer: Option<JoinHandle<()>>,
    id: u64,
}

type Answer = oneshot::Sender<Result<Committed, Error>>;

struct Shared {
    database: Database,
    lanes: SharedLanes,
    room: Room,
    /// Why the store has stopped.
    stopped: OnceLock<String>,
}

impl RedbStore {
    /// Opens the file at this path, or creates it.
    ///
    /// # Errors
    /// [`Error::Open`] if another process has it open, if it needs a newer version, or if it cannot be read
    /// or written; [`Error::Damaged`] if it is no sound store.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref().to_owned();
        let folder = path.parent().map(|folder| folder.join("."));
        let opened = tokio::task::spawn_blocking(move || open::open_file(&path)).await;
        Self::start(opened.unwrap_or_else(|error| Err(ended(&error)))?, Room { folder })
    }

    /// Opens a store on a backend of redb, for tests: in memory, or one with faults.
    ///
    /// # Errors
    /// As [`RedbStore::open`].
    pub async fn open_backend(backend: impl StorageBackend) -> Result<Self, Error> {
        let opened = tokio::task::spawn_blocking(move || open::open_backend(backend, "the backend")).await;
        Self::start(opened.unwrap_or_else(|error| Err(ended(&error)))?, Room { folder: None })
    }

    fn start(opened: Opened, room: Room) -> Result<Self, Error> {
        let Opened { database, lanes, id } = opened;
        let shared = Arc::new(Shared { database, lanes, room, stopped: OnceLock::new() });
        let (batches, received) = mpsc::channel();
        let writer = std::thread::Builder::new().name("damper-jobs".to_owned()).spawn({
            let shared = shared.clone();
            move || shared.write(&received)
        });
        let writer = writer.map_err(|error| Error::Open(format!("no thread for the writer: {error}")))?;
        Ok(Self { shared, batches: Some(batches), writer: Some(writer), id })
    }

    async fn write(&self, batch: Batch) -> Result<Committed, Error> {
        let (answer, result) = oneshot::channel();
        let sent = self.batches.as_ref().is_some_and(|batches| batches.send((batch, answer)).is_ok());
        match result.await {
            Ok(result) if sent => result,
            _ => {
                let why = || "the writer's thread has ended; restart the server".to_owned();
                Err(Error::Unavailable(self.shared.stopped.get_or_init(why).clone()))
            }
        }
    }

    /// Runs a read on a thread that may block on the disk.
    fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&View) -> Result<T, Error> + Send + 'static,
    ) -> BoxFuture<'_, Result<T, Error>> {
        let shared = self.shared.clone();
        let read = move || {
            shared.check_running()?;
            let transaction = shared.database.begin_read()?;
            read(&View { transaction, lanes: shared.lanes.clone() })
        };
        tokio::task::spawn_blocking(read).map(|read| read.unwrap_or_else(|error| Err(ended(&error)))).boxed()
    }
}

impl Shared {
    fn check_running(&self) -> Result<(), Error> {
        self.stopped.get().map_or(Ok(()), |why| Err(Error::Unavailable(why.clone())))
    }

    /// Commits batches until the store is dropped.
    fn write(&self, batches: &mpsc::Receiver<(Batch, Answer)>) {
        while let Ok((batch, answer)) = batches.recv() {
            let result = self.commit(&batch);
            if let Err(error) = &result
                && self.stopped.get().is_none()
            {
                tracing::error!(%error, "job store stopped after a failed commit");
                let why = || format!("stopped after a failed commit ({error}); restart the server");
                self.stopped.get_or_init(why);
            }
            // The caller may have gone; the batch is committed all the same.
            let _ = answer.send(result);
        }
    }

    fn commit(&self, batch: &Batch) -> Result<Committed, Error> {
        self.check_running()?;
        let full = if batch.submissions.is_empty() { None } else { self.room.problem() };
        commit::commit(&self.database, &self.lanes, batch, full.as_deref())
    }
}

impl Store for RedbStore {
    fn commit(&self, batch: Batch) -> BoxFuture<'_, Result<Committed, Error>> {
        self.write(batch).boxed()
    }

    fn lanes(&self) -> BoxFuture<'_, Result<Vec<LaneCounts>, Error>> {
        self.read(View::lanes)
    }

    fn get(&self, id: JobId) -> BoxFuture<'_, Result<Option<Record>, Error>> {
        self.read(move |view| view.get(id))
    }

    fn body(&self, id: JobId) -> BoxFuture<'_, Result<Option<Body>, Error>> {
        self.read(move |view| view.body(id))
    }

    fn list(&self, filter: Filter, after: Option<JobId>, limit: usize) -> BoxFuture<'_, Result<Page, Error>> {
        self.read(move |view| view.list(&filter, after, limit))
    }

    fn leases_of(&self, server: ServerId) -> BoxFuture<'_, Result<Vec<Record>, Error>> {
        self.read(move |view| view.leases_of(server))
    }

    fn overdue(&self, asked: Vec<Overdue>, limit: usize) -> BoxFuture<'_, Result<Vec<Vec<JobId>>, Error>> {
        self.read(move |view| asked.iter().map(|asked| view.overdue(asked, limit)).collect())
    }

    fn beat(&self, published: Vec<u8>) -> BoxFuture<'_, Result<Beat, Error>> {
        let beat = self.shared.check_running().map(|()| Beat {
            server: SERVER,
            servers: vec![(SERVER, published)],
            adopted: Vec::new(),
            now: now(),
        });
        std::future::ready(beat).boxed()
    }

    fn woken(&self) -> BoxFuture<'_, ()> {
        std::future::pending().boxed()
    }

    fn check(&self) -> BoxFuture<'_, Result<Vec<String>, Error>> {
        self.read(View::check)
    }

    fn id(&self) -> u64 {
        self.id
    }
}

impl Drop for RedbStore {
    /// Waits for the commit in flight: then the file can be opened again.
    fn drop(&mut self) {
        drop(self.batches.take());
        if let Some(writer) = self.writer.take() {
            // A writer that panicked has nothing left to do.
            let _ = writer.join();
        }
    }
}

fn ended(error: &tokio::task::JoinError) -> Error {
    Error::Unavailable(format!("a thread of the store has failed: {error}"))
}
