//! Work that takes the processor for long, away from the runtime.
//!
//! A table of 100,000 rules takes tenths of a second to read and to put in force. On the runtime, which is the
//! application's and may have one thread, calls would wait for it. tokio's threads for blocking work are the
//! application's too and may all be busy, just when rules matter; so this is a thread of its own.

use std::thread;

use tokio::sync::oneshot;

/// Does the work on a thread of its own.
///
/// # Errors
/// The thread could not be had, or the work panicked.
pub(super) async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    let (tell, told) = oneshot::channel();
    let spawned = thread::Builder::new().name("damper-rules".to_owned()).spawn(move || {
        // Nobody is left to tell only when the runtime has ended.
        let _ = tell.send(work());
    });
    spawned.map_err(|error| format!("no thread for the rules: {error}"))?;
    told.await.map_err(|_| "the rules could not be put in force".to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn the_runtime_goes_on_meanwhile() {
        let (go_on, wait) = mpsc::channel();
        let work = aside(move || wait.recv().is_ok());
        let meanwhile = async { go_on.send(()).is_ok() };
        assert_eq!(tokio::join!(work, meanwhile), (Ok(true), true));
    }

    #[tokio::test]
    async fn work_that_panics_is_an_error() {
        assert!(aside(|| -> () { panic!("a panic of the test's own") }).await.is_err());
    }
}
