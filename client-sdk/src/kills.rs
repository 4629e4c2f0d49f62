//! The kills that concern this process, and how calls learn of them.
//!
//! The switch of each route is told what matches it, see `damper_core::kill`; that is all a call looks at. The
//! list is for what is rare: a new route, the message of a refused call, the service's own status. A call that
//! waits between attempts has an [`Alarm`]; no other call does, so none pays for it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use arc_swap::{ArcSwap, Guard};
use damper_core::kill::{self, TimedKill};
use damper_core::{MethodPart, Route, Time};
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

/// Rings when kills change. Every route has it; a call that wakes in vain asks again and waits on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bell(Arc<Notify>);

/// All of them; some may be over.
#[derive(Debug, Default)]
pub(crate) struct Kills {
    held: ArcSwap<Vec<TimedKill>>,
    bell: Bell,
}

impl Kills {
    /// These and no others. The switches are told next, then [`Kills::wake`] is called.
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

    /// Tells a route's switch.
    pub(crate) fn tell(&self, route: &Route, callee: &str, method: &str) {
        let held = self.held.load();
        route.switch().obey(matching(&held, callee, method));
    }

    /// True if calls of this method are refused by a kill that is not for all methods: of a method that is
    /// counted together with others the route does not know that.
    pub(crate) fn single_out(&self, callee: &str, method: &str) -> bool {
        let held = self.held.load();
        let alone = |kill: &kill::Kill| kill.calls() && kill.pattern().callee_method != MethodPart::Any;
        matching(&held, callee, method).any(|held| alone(&held.kill))
    }

    /// The kill that refuses the calls of a method.
    pub(crate) fn refusing(&self, callee: &str, method: &str, now: Time) -> Option<TimedKill> {
        let held = self.held.load();
        kill::refusing(matching(&held, callee, method), now).cloned()
    }

    /// Those whose time is not over.
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

/// Wakes a call that waits between attempts when kills come or go. Nothing is allocated until it waits.
#[derive(Debug, Default)]
pub(crate) struct KillWaker {
    heard: Option<Pin<Box<OwnedNotified>>>,
}

impl KillWaker {
    /// To be called before the call is asked for its next step, so that nothing is missed in between.
    pub(crate) fn listen(&mut self, bell: &Bell, is_between_attempts: bool) {
        if is_between_attempts {
            self.heard.get_or_insert_with(|| Box::pin(Arc::clone(&bell.0).notified_owned()));
        } else {
            self.heard = None;
        }
    }

    /// Ready when something has changed: the call must be asked again.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(heard) = &mut self.heard else { return Poll::Pending };
        let rung = heard.as_mut().poll(cx);
        if rung.is_ready() {
            self.heard = None;
        }
        rung
    }
}
