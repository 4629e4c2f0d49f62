//! The switch that works without the control plane: `DAMPER_MODE` and the override file.
//!
//! Both say one word, `off`, `observe` or `enforce`, and can only reduce what rules do; where both speak the
//! lower one holds. The variable is read once, the file every 5 s by a timer of its own, opened anew each
//! time, so that a mounted ConfigMap, which is replaced by swapping links, is followed. A file that says
//! something else changes nothing: what it said last stays.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use damper_core::Mode;
use tokio::time::MissedTickBehavior;

use super::{Shared, Stop};

/// The variable that holds a mode.
pub(crate) const MODE_VARIABLE: &str = "DAMPER_MODE";
/// The variable that holds the override file's path.
pub(crate) const FILE_VARIABLE: &str = "DAMPER_MODE_FILE";

const POLL: Duration = Duration::from_secs(5);
/// A file that takes longer to read (a network file system that is away) is asked again at the next poll.
const READ_WITHIN: Duration = Duration::from_secs(1);
/// More than any of the words with generous white space.
const MAX_BYTES: u64 = 64;

/// The mode of a word; none if it is empty.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn parse(text: &str) -> Result<Option<Mode>, String> {
    match text.trim() {
        "" => Ok(None),
        "off" => Ok(Some(Mode::Off)),
        "observe" => Ok(Some(Mode::Observe)),
        "enforce" => Ok(Some(Mode::Enforce)),
        other => Err(format!("{other:?} is not known: off, observe or enforce")),
    }
}

/// What is in force: the lower of two modes, and nothing where that reduces nothing.
pub(super) fn lower(one: Option<Mode>, other: Option<Mode>) -> Option<Mode> {
    [one, other].into_iter().flatten().min().filter(|mode| *mode < Mode::Enforce)
}

/// The override file, as last read.
#[derive(Debug)]
pub(super) struct Override {
    path: PathBuf,
    says: Option<Mode>,
    /// What was wrong the last time, so that it is said once.
    complaint: Option<String>,
}

impl Override {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, says: None, complaint: None }
    }

    /// Reads the file again and says what it asks for.
    pub(super) async fn poll(&mut self) -> Option<Mode> {
        let path = self.path.clone();
        let reading = tokio::task::spawn_blocking(move || read(&path));
        let said = match tokio::time::timeout(READ_WITHIN, reading).await {
            Ok(Ok(said)) => said,
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("not read within {READ_WITHIN:?}")),
        };
        self.note(said);
        self.says
    }

    fn note(&mut self, said: Result<Option<Mode>, String>) {
        match said {
            Ok(mode) => {
                self.says = mode;
                self.complaint = None;
            }
            Err(problem) if self.complaint.as_ref() == Some(&problem) => {}
            Err(problem) => {
                let kept = self.says;
                tracing::warn!(file = %self.path.display(), %problem, ?kept, "override file not understood");
                self.complaint = Some(problem);
            }
        }
    }
}

/// Follows the file until the end.
pub(super) async fn follow(shared: &Shared, mut stop: Stop) {
    let Some(path) = shared.settings.override_file.clone() else {
        shared.override_read.send_replace(true);
        return;
    };
    let mut file = Override::new(path);
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

/// A file that is not there says nothing.
fn read(path: &Path) -> Result<Option<Mode>, String> {
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(format!("longer than {MAX_BYTES} bytes; expected off, observe or enforce"));
    }
    let text = String::from_utf8(bytes).map_err(|error| error.to_string())?;
    parse(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_a_mode_and_anything_else_is_named() {
        assert_eq!(parse(" off\n"), Ok(Some(Mode::Off)));
        assert_eq!(parse("observe"), Ok(Some(Mode::Observe)));
        assert_eq!(parse("enforce"), Ok(Some(Mode::Enforce)));
        assert_eq!(parse("\n"), Ok(None));
        assert!(parse("OFF").unwrap_err().contains("\"OFF\""));
    }

    #[test]
    fn the_lower_of_two_wins_and_enforce_reduces_nothing() {
        let (off, observe, enforce) = (Some(Mode::Off), Some(Mode::Observe), Some(Mode::Enforce));
        assert_eq!(lower(off, observe), off);
        assert_eq!(lower(enforce, observe), observe);
        assert_eq!(lower(None, off), off);
        assert_eq!(lower(enforce, None), None);
        assert_eq!(lower(None, None), None);
    }

    #[tokio::test]
    async fn the_last_good_word_stays_while_the_file_says_nonsense() {
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
}
