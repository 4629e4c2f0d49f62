//! The embedded store of a process or test that has closed it.
//!
//! Sled closes its files a moment after the last handle to it is gone, and has no event for it.

use std::path::Path;
use std::time::Duration;

use damper_store::OpenError;
use damper_store::sled::SledStore;
use tokio::time::{sleep, timeout};

const PATIENCE: Duration = Duration::from_secs(10);
const AGAIN_AFTER: Duration = Duration::from_millis(5);

/// Opens the store as soon as no other handle has it open.
pub async fn open(path: &Path) -> SledStore {
    let unlocked = async {
        loop {
            match SledStore::open(path).await {
                Err(OpenError::Locked { .. }) => sleep(AGAIN_AFTER).await,
                opened => return opened.expect("the store is sound"),
            }
        }
    };
    timeout(PATIENCE, unlocked).await.expect("the store is let go of")
}
