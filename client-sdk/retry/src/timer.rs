//! Wakes a call at the time that its engine asks for. Allocates on first use.
//!
//! Uses the timer of the tokio runtime that polls the call. If the call is polled outside tokio, a thread of
//! this process drives a timer; it starts with the first such call.

use std::future::Future;
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context, Poll};
use std::{future, thread};

use damper_core::Time;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::clock::Clock;

/// A timer of one call.
#[derive(Debug, Default)]
pub struct Timer {
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Timer {
    /// Ready at `until`; pending forever without one.
    pub fn poll(&mut self, until: Option<Time>, clock: Clock, cx: &mut Context<'_>) -> Poll<()> {
        match until.and_then(|until| clock.instant(until)) {
            Some(until) => self.at(until).poll(cx),
            None => Poll::Pending,
        }
    }

    fn at(&mut self, until: Instant) -> Pin<&mut Sleep> {
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep(until)));
        if sleep.deadline() != until {
            sleep.as_mut().reset(until);
        }
        sleep.as_mut()
    }
}

fn sleep(until: Instant) -> Sleep {
    if Handle::try_current().is_ok() {
        return sleep_until(until);
    }
    let _within = own_runtime().enter();
    sleep_until(until)
}

/// Returns a runtime that only drives timers, on its own thread.
fn own_runtime() -> &'static Runtime {
    static OWN: OnceLock<&Runtime> = OnceLock::new();
    OWN.get_or_init(|| {
        let runtime = Builder::new_current_thread().enable_time().build().expect("timers need no resource");
        let runtime: &Runtime = Box::leak(Box::new(runtime));
        let drive = || runtime.block_on(future::pending::<()>());
        if let Err(error) = thread::Builder::new().name("damper-timers".to_owned()).spawn(drive) {
            tracing::error!(%error, "cannot start the timer thread; calls outside a tokio runtime have no time limits");
        }
        runtime
    })
}
