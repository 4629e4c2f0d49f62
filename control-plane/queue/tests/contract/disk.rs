//! A disk in memory: it keeps a log of writes, forgets what was not synced, and can be full.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use ::redb::StorageBackend;
use fastrand::Rng;

/// What a disk loses at once: a part of a write can survive a loss of power.
const SECTOR: usize = 512;

/// A step of the log.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Write(u64, Vec<u8>),
    SetLen(u64),
    Sync,
    /// The commit with this number was answered.
    Answered(usize),
}

/// A file that its clones share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk(Arc<Mutex<Content>>);

#[derive(Debug, Default)]
struct Content {
    bytes: Vec<u8>,
    log: Option<Vec<Step>>,
    /// Changes that still succeed; `None`: all.
    left: Option<usize>,
    changes: usize,
}

impl Disk {
    pub(crate) fn of(bytes: Vec<u8>) -> Self {
        Self(Arc::new(Mutex::new(Content { bytes, ..Content::default() })))
    }

    /// A disk that keeps a log.
    pub(crate) fn logged() -> Self {
        Self(Arc::new(Mutex::new(Content { log: Some(Vec::new()), ..Content::default() })))
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        self.0.lock().unwrap()
    }

    pub(crate) fn answered(&self, number: usize) {
        self.content().log.as_mut().unwrap().push(Step::Answered(number));
    }

    pub(crate) fn log(&self) -> Vec<Step> {
        self.content().log.clone().unwrap()
    }

    /// After this many further changes (writes, lengths, syncs) the disk is full; `None`: never.
    pub(crate) fn fill_after(&self, changes: Option<usize>) {
        self.content().left = changes;
    }

    /// Number of changes so far.
    pub(crate) fn changes(&self) -> usize {
        self.content().changes
    }

    fn change(&self, step: Step) -> io::Result<()> {
        let mut content = self.content();
        if let Some(left) = &mut content.left {
            *left = left.checked_sub(1).ok_or(io::ErrorKind::StorageFull)?;
        }
        content.changes += 1;
        apply(&mut content.bytes, &step, &mut |_| true);
        if let Some(log) = &mut content.log {
            log.push(step);
        }
        Ok(())
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.content().bytes.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let content = self.content();
        let offset = usize::try_from(offset).unwrap();
        let read = content.bytes.get(offset..offset + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(read);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(Step::SetLen(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.change(Step::Sync)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.change(Step::Write(offset, data.to_vec()))
    }
}

/// Applies a step to a file. `survives` is asked for each sector and each length.
fn apply(bytes: &mut Vec<u8>, step: &Step, survives: &mut impl FnMut(usize) -> bool) {
    match step {
        Step::Write(offset, data) => {
            let offset = usize::try_from(*offset).unwrap();
            for (number, part) in data.chunks(SECTOR).enumerate() {
                let begin = offset + number * SECTOR;
                if survives(begin / SECTOR) {
                    if bytes.len() < begin + part.len() {
                        bytes.resize(begin + part.len(), 0);
                    }
                    bytes[begin..begin + part.len()].copy_from_slice(part);
                }
            }
        }
        Step::SetLen(len) if survives(usize::MAX) => bytes.resize(usize::try_from(*len).unwrap(), 0),
        Step::SetLen(_) | Step::Sync | Step::Answered(_) => {}
    }
}

/// What a disk has after a loss of power, for each place of a log in turn.
pub(crate) struct Survivors {
    synced: Vec<u8>,
    pending: Vec<Step>,
    /// Last answered commit.
    pub(crate) answered: Option<usize>,
}

impl Survivors {
    pub(crate) fn new() -> Self {
        Self { synced: Vec::new(), pending: Vec::new(), answered: None }
    }

    /// Takes in the next step of the log.
    pub(crate) fn step(&mut self, step: &Step) {
        match step {
            Step::Sync => {
                for step in self.pending.drain(..) {
                    apply(&mut self.synced, &step, &mut |_| true);
                }
            }
            Step::Answered(number) => self.answered = Some(*number),
            step => self.pending.push(step.clone()),
        }
    }

    /// Returns the file after a loss of power now: of what was not synced, any part may have survived.
    pub(crate) fn file(&self, rng: &mut Rng) -> Vec<u8> {
        let mut bytes = self.synced.clone();
        let share = [0, 2, 4][rng.usize(0..3)];
        for step in &self.pending {
            apply(&mut bytes, step, &mut |_| rng.u32(0..4) < share);
        }
        bytes
    }
}
