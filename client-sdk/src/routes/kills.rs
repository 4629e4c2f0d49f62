//! The kills that concern this process, and how they reach calls.
//!
//! Calls read only the kill state of their route, see `damper_core::kill`. The list is used in rare cases: a
//! new route, the response to a rejected call, the status. Only a call that waits between attempts has a
//! [`KillWaker`].

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use arc_swap::{ArcSwap, Guard};
use damper_core::kill::{self, TimedKill};
use damper_core::{MethodPart, Route, Time};
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

/// Notifies waiting calls of changed kills. Shared by all routes; a call that has nothing to do waits on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bell(Arc<Notify>);

/// All kills; some may have expired.
#[derive(Debug, Default)]
pub(crate) struct ActiveKills {
    held: ArcSwap<Vec<TimedKill>>,
    bell: Bell,
}

impl ActiveKills {
    /// Replaces all kills. The routes are updated next, then [`ActiveKills::wake`] is called.
    pub(crate) fn replace(&self, kills: Vec<TimedKill>) {
        self.held.store(Arc::new(kills));
    }

    /// Wakes every call that waits between attempts.
    pub(crate) fn wake(&self) {
        self.bell.0.notify_waiters();
    }

    pub(crate) fn bell(&self) -> &Bell {
        &self.bell
    }

    /// Updates a route's kill state.
    pub(crate) fn update(&self, route: &Route, callee: &str, method: &str) {
        let held = self.held.load();
        route.switch().obey(matching(&held, callee, method));
    }

    /// Returns true if a kill for particular methods rejects calls of this method: a method counted together
    /// with others has no route of its own.
    pub(crate) fn single_out(&self, callee: &str, method: &str) -> bool {
        let held = self.held.load();
        let alone = |kill: &kill::Kill| kill.calls() && kill.pattern().callee_method != MethodPart::Any;
        matching(&held, callee, method).any(|held| alone(&held.kill))
    }

    /// Returns the kill that rejects calls of a method.
    pub(crate) fn refusing(&self, callee: &str, method: &str, now: Time) -> Option<TimedKill> {
        let held = self.held.load();
        kill::refusing(matching(&held, callee, method), now).cloned()
    }

    /// Returns the kills that have not expired.
    pub(crate) fn in_force(&self, now: Time) -> Vec<TimedKill> {
        self.held.load().iter().filter(|held| held.until > now).cloned().collect()
    }
}

fn matching<'a>(
    held: &'a Guard<Arc<Vec<TimedKill>>>,
    callee: &'a str,
    method: &'a str,
) -> impl Iterator<Item = &'a TimedKill> {
    held.iter().filter(move |held| held.kill.pattern().matches_callee(callee, method))
}

/// Wakes a call that waits between attempts when kills change. Allocates on first use.
#[derive(Debug, Default)]
pub(crate) struct KillWaker {
    notified: Option<Pin<Box<OwnedNotified>>>,
}

impl KillWaker {
    /// Subscribes. Must be called before the next step is taken, so that no change is missed.
    pub(crate) fn listen(&mut self, bell: &Bell, is_between_attempts: bool) {
        if is_between_attempts {
            self.notified.get_or_insert_with(|| Box::pin(Arc::clone(&bell.0).notified_owned()));
        } else {
            self.notified = None;
        }
    }

    /// Ready after a change: the call must take its next step again.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(notified) = &mut self.notified else { return Poll::Pending };
        let rung = notified.as_mut().poll(cx);
        if rung.is_ready() {
            self.notified = None;
        }
        rung
    }
}
