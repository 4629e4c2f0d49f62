//! Waiting, but never for ever: a measurement that stands still ends with the name of what did not come.

use std::time::Duration;

use anyhow::{Context as _, Result};

/// How long anything that is not measured may take: many times what it takes on a slow machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for something.
///
/// # Errors
/// It does not come in time.
pub async fn within<T>(time: Duration, what: &str, it: impl Future<Output = T>) -> Result<T> {
    tokio::time::timeout(time, it).await.with_context(|| format!("{what}: not within {time:?}"))
}
