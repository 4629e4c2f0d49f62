//! Wakes a call at the instant its engine asked for. Nothing is allocated until it asks.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use damper_core::Time;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::clock::Clock;

#[derive(Debug, Default)]
pub(crate) struct Timer {
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Timer {
    /// Ready at `until`; never without one.
    pub(crate) fn poll(&mut self, until: Option<Time>, clock: Clock, cx: &mut Context<'_>) -> Poll<()> {
        match until.and_then(|until| clock.instant(until)) {
            Some(until) => self.at(until).poll(cx),
            None => Poll::Pending,
        }
    }

    fn at(&mut self, until: Instant) -> Pin<&mut Sleep> {
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(until)));
        if sleep.deadline() != until {
            sleep.as_mut().reset(until);
        }
        sleep.as_mut()
    }
}
