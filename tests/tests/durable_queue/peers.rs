//! Producers and workers as processes, and the record of what they did.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use tokio::sync::watch;

/// What happened to a job, by its key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Id of the acknowledged job.
    pub(crate) job_id: Option<String>,
    /// Handlers that began.
    pub(crate) begun: u32,
    /// Handlers that succeeded.
    pub(crate) handled: u32,
}

/// What all processes have reported. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    jobs: Arc<Mutex<HashMap<String, Seen>>>,
    acknowledged: watch::Sender<u64>,
    lines: watch::Sender<u64>,
}

impl Record {
    pub(crate) fn new() -> Self {
        Self { jobs: Arc::default(), acknowledged: watch::Sender::new(0), lines: watch::Sender::new(0) }
    }

    pub(crate) fn jobs(&self) -> MutexGuard<'_, HashMap<String, Seen>> {
        self.jobs.lock().unwrap()
    }

    /// Returns after this many further events, and this many further acknowledged jobs.
    pub(crate) async fn further(&self, lines: u64, acknowledged: u64) {
        let (seen, known) = (*self.lines.borrow(), *self.acknowledged.borrow());
        self.lines.subscribe().wait_for(|now| *now >= seen + lines).await.unwrap();
        self.acknowledged.subscribe().wait_for(|now| *now >= known + acknowledged).await.unwrap();
    }

    fn read(&self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["acknowledged", key, job_id] => {
                self.jobs().entry(key.to_owned()).or_default().job_id = Some(job_id.to_owned());
                self.acknowledged.send_modify(|count| *count += 1);
            }
            ["begun", key] => self.jobs().entry(key.to_owned()).or_default().begun += 1,
            ["handled", key] => self.jobs().entry(key.to_owned()).or_default().handled += 1,
            ["failed", _] => {}
            _ => panic!("an unknown event: {line:?}"),
        }
        self.lines.send_modify(|count| *count += 1);
    }
}

/// A producer or a worker; killed with SIGKILL when it is dropped.
#[derive(Debug)]
pub(crate) struct Peer {
    child: Child,
    reader: Option<JoinHandle<()>>,
}

impl Peer {
    pub(crate) fn start(role: &str, control_planes: &str, name: &str, record: &Record) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_queue_peer"))
            .args([role, control_planes, name])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let record = record.clone();
        let reader = std::thread::spawn(move || {
            let mut line = String::new();
            // A killed process may leave a part of a line, which did not happen.
            while stdout.read_line(&mut line).unwrap() > 0 && line.ends_with('\n') {
                record.read(line.trim_end());
                line.clear();
            }
        });
        Self { child, reader: Some(reader) }
    }

    /// SIGKILL. Returns when all that it reported is recorded.
    pub(crate) fn kill(&mut self) {
        if let Some(reader) = self.reader.take() {
            self.child.kill().unwrap();
            self.child.wait().unwrap();
            reader.join().unwrap();
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
