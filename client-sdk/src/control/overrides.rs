//! Local override without the control plane: `DAMPER_MODE` and the override file.
//!
//! Each holds one word, `off`, `observe` or `enforce`, and can only reduce the mode of rules; the lower one
//! applies. The variable is read once, the file every 5 s. The file is reopened each time, so a mounted
//! ConfigMap, which is replaced by swapping links, is followed. If its content is invalid, the last valid
//! mode stays.
//!
//! A read may hang forever, for example on a network file system or a pipe without writer. It runs on a
//! detached thread, and there is never more than one.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use damper_core::Mode;
use tokio::time::MissedTickBehavior;

use super::{ControlContext, Stop};
use crate::background::worker::TimedThread;
use crate::options::mode_override::parse;

const POLL: Duration = Duration::from_secs(5);
/// Limit of a read; a longer one is waited for at the next poll.
const READ_WITHIN: Duration = Duration::from_secs(1);
/// Limit of the file: a mode with white space.
const MAX_BYTES: u64 = 64;

/// Returns the lower of two modes; `None` if neither reduces anything.
pub(super) fn lower(one: Option<Mode>, other: Option<Mode>) -> Option<Mode> {
    [one, other].into_iter().flatten().min().filter(|mode| *mode < Mode::Enforce)
}

/// Content of the file, or the problem with it.
type OverrideValue = Result<Option<Mode>, String>;

/// The override file as last read.
#[derive(Debug)]
pub(super) struct Override {
    path: Arc<Path>,
    mode: Option<Mode>,
    /// The pending read.
    reading: TimedThread<OverrideValue>,
    /// The last problem, logged once.
    complaint: Option<String>,
}

impl Override {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path: path.into(), mode: None, reading: TimedThread::default(), complaint: None }
    }

    /// Reads the file, unless a read is pending, and returns the mode.
    pub(super) async fn poll(&mut self) -> Option<Mode> {
        let path = Arc::clone(&self.path);
        let value = self.reading.answer_within(READ_WITHIN, move || read(&path)).await;
        self.note(value.and_then(|value| value));
        self.mode
    }

    fn note(&mut self, value: OverrideValue) {
        match value {
            Ok(mode) => {
                self.mode = mode;
                self.complaint = None;
            }
            Err(problem) if self.complaint.as_ref() == Some(&problem) => {}
            Err(problem) => {
                let kept = self.mode;
                tracing::warn!(file = %self.path.display(), %problem, ?kept, "cannot read the override file");
                self.complaint = Some(problem);
            }
        }
    }
}

/// Polls the file until stopped.
pub(super) async fn follow(shared: &ControlContext, mut stop: Stop) {
    // The state outlives this task: the last mode stays if the task restarts.
    let mut file = shared.override_file.lock().await;
    let Some(file) = file.as_mut() else {
        shared.override_read.send_replace(true);
        return;
    };
    let mut ticks = tokio::time::interval(POLL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.stopped() => return,
            _ = ticks.tick() => {
                shared.limit_mode(file.poll().await);
                shared.override_read.send_replace(true);
            }
        }
    }
}

/// A missing file sets no mode.
fn read(path: &Path) -> OverrideValue {
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(format!("longer than {MAX_BYTES} bytes; must be off, observe or enforce"));
    }
    let text = String::from_utf8(bytes).map_err(|error| error.to_string())?;
    parse(&text)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use tokio::sync::watch;

    use super::*;
    use crate::options::Options;
    use crate::routes::Runtime;

    #[test]
    fn a_mode_is_parsed_and_an_unknown_one_is_named() {
        assert_eq!(parse(" off\n"), Ok(Some(Mode::Off)));
        assert_eq!(parse("observe"), Ok(Some(Mode::Observe)));
        assert_eq!(parse("enforce"), Ok(Some(Mode::Enforce)));
        assert_eq!(parse("\n"), Ok(None));
        assert!(parse("OFF").unwrap_err().contains("\"OFF\""));
    }

    #[test]
    fn the_lower_mode_wins_and_enforce_reduces_nothing() {
        let (off, observe, enforce) = (Some(Mode::Off), Some(Mode::Observe), Some(Mode::Enforce));
        assert_eq!(lower(off, observe), off);
        assert_eq!(lower(enforce, observe), observe);
        assert_eq!(lower(None, off), off);
        assert_eq!(lower(enforce, None), None);
        assert_eq!(lower(None, None), None);
    }

    #[test]
    fn a_file_is_read_while_all_blocking_threads_are_busy() {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build();
        let runtime = runtime.unwrap();
        let (go_on, wait) = mpsc::channel::<()>();
        let taken = runtime.spawn_blocking(move || wait.recv().is_ok());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mode");
        std::fs::write(&path, "off").unwrap();
        let mut file = Override::new(path);
        let read = runtime.block_on(async {
            // Longer than a read takes on a busy machine; reaching it is a failure.
            tokio::time::timeout(Duration::from_secs(30), file.poll()).await
        });
        drop(go_on);
        assert_eq!(read, Ok(Some(Mode::Off)));
        runtime.block_on(taken).unwrap();
    }

    #[tokio::test]
    async fn the_last_valid_mode_stays_while_the_file_is_invalid() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mode");
        let mut file = Override::new(path.clone());
        assert_eq!(file.poll().await, None, "no file");
        std::fs::write(&path, "observe\n").unwrap();
        assert_eq!(file.poll().await, Some(Mode::Observe));
        for nonsense in [b"of".as_slice(), &[0xff; 3], &[b' '; 100]] {
            std::fs::write(&path, nonsense).unwrap();
            assert_eq!(file.poll().await, Some(Mode::Observe));
            assert!(file.complaint.is_some());
        }
        std::fs::write(&path, "").unwrap();
        assert_eq!(file.poll().await, None);
        std::fs::write(&path, "off").unwrap();
        assert_eq!(file.poll().await, Some(Mode::Off));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(file.poll().await, None);
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_config_map_replaced_by_swapping_links_is_followed() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for (version, word) in [("..v1", "observe"), ("..v2", "off")] {
            std::fs::create_dir(at(version)).unwrap();
            std::fs::write(at(version).join("mode"), word).unwrap();
        }
        symlink(at("..v1"), at("..data")).unwrap();
        symlink(at("..data").join("mode"), at("mode")).unwrap();
        let mut file = Override::new(at("mode"));
        assert_eq!(file.poll().await, Some(Mode::Observe));
        symlink(at("..v2"), at("..data_tmp")).unwrap();
        std::fs::rename(at("..data_tmp"), at("..data")).unwrap();
        assert_eq!(file.poll().await, Some(Mode::Off));
    }

    #[cfg(unix)]
    fn pipe(folder: &tempfile::TempDir) -> PathBuf {
        let path = folder.path().join("mode");
        let made = std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo is installed");
        assert!(made.success());
        path
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_hanging_read_stays_the_only_one_and_its_result_is_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = pipe(&folder);
        let mut file = Override::new(path.clone());
        file.mode = Some(Mode::Observe);
        for _ in 0..3 {
            assert_eq!(file.poll().await, Some(Mode::Observe), "the last mode stays");
            assert_eq!(file.complaint.as_deref(), Some("not done within 1s"));
            // One reference is ours, and each reader has one.
            assert_eq!(Arc::strong_count(&file.path), 2);
        }
        // The reader blocks in opening the pipe, so this write does not.
        std::fs::write(&path, "off").unwrap();
        assert_eq!(file.poll().await, Some(Mode::Off));
        assert_eq!(file.complaint, None);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(file.poll().await, None, "no file");
    }

    #[cfg(unix)]
    #[test]
    fn a_hanging_read_does_not_delay_the_end_of_the_runtime() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = Override::new(pipe(&folder));
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(file.poll());
            let reads = file.reading.is_running();
            drop(runtime);
            sender.send(reads).unwrap();
        });
        let reads = receiver.recv_timeout(Duration::from_secs(60)).expect("the runtime ends");
        assert!(reads, "the read still hangs");
    }

    /// The reader has its own thread, which a paused clock does not control.
    #[tokio::test]
    async fn the_last_mode_stays_when_the_task_restarts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mode");
        std::fs::write(&path, "off").unwrap();
        let options = Options::new(["http://127.0.0.1:1"]).service("orders").override_file(&path);
        let settings = options.environment(|_| None).resolve().unwrap();
        let shared = Arc::new(ControlContext::new(settings, Runtime::new("orders", "default")));
        let (_stop, stopped) = watch::channel(false);
        for _ in 0..2 {
            let (of_task, stopped) = (Arc::clone(&shared), Stop(stopped.clone()));
            let task = tokio::spawn(async move { follow(&of_task, stopped).await });
            shared.override_read.subscribe().wait_for(|read| *read).await.unwrap();
            assert_eq!(shared.status.borrow().override_mode, Some(Mode::Off));
            // As after a panic: the future is dropped.
            task.abort();
            assert!(task.await.unwrap_err().is_cancelled());
            std::fs::write(&path, "nonsense").unwrap();
            shared.override_read.send_replace(false);
        }
    }
}
