//! The file of a configuration, read again until it changes.
//!
//! Contents are compared, not times: a file in a mounted ConfigMap is exchanged by links.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::config::{Config, ReadConfig};

/// The file of a configuration, and what is known of it.
#[derive(Clone, Debug)]
pub struct Follow {
    file: PathBuf,
    how: ReadConfig,
    every: Duration,
    /// What counted last: a text, or why there was none.
    last: Result<String, String>,
    /// What was read last.
    before: Option<Result<String, String>>,
}

impl Follow {
    /// Follows a file whose text the proxy has started with.
    #[must_use]
    pub fn new(file: impl Into<PathBuf>, text: String, how: ReadConfig, every: Duration) -> Self {
        Self { file: file.into(), how, every, last: Ok(text), before: None }
    }

    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// Waits for a change, and returns the configuration, or all faults. A change counts when it was read
    /// twice: a file that is being written is a configuration too. If `once`, it waits for one reading alone,
    /// and returns `None` where nothing has changed.
    pub(crate) async fn changed(&mut self, once: bool) -> Option<Result<Config, String>> {
        loop {
            tokio::time::sleep(self.every).await;
            let read = tokio::fs::read_to_string(&self.file).await.map_err(|error| error.to_string());
            let is_second = self.before.as_ref() == Some(&read);
            self.before = Some(read.clone());
            if read != self.last && is_second {
                self.last = read;
                return Some(match &self.last {
                    Ok(text) => Config::read(text, self.how).map_err(|error| error.to_string()),
                    Err(error) => Err(error.clone()),
                });
            }
            if once {
                return None;
            }
        }
    }
}
