//! The kills held, counted down without the control plane and across restarts.
//!
//! A set names all kills. One that cannot be read is rejected alone; a kill held under its key stays until it
//! expires. The time left counts from the arrival of the message. The disk holds the time left and the expiry
//! by the wall clock. The smaller one applies when it is read, so neither a long stop nor a clock set back
//! extends a kill.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use damper_core::kill::{MAX_KILLS, TimedKill};
use damper_core::{Kill, Pattern, Time};
use damper_proto::convert::{self, ActiveKill};
use damper_proto::v1;

use super::entries::short_reason;

/// Limit in bytes, above any set that can be read.
const MAX_SET_BYTES: usize = 4 << 20;

/// The current time by both clocks.
#[derive(Clone, Copy, Debug)]
pub(in crate::control) struct Present {
    /// Monotonic, of the engine.
    pub(in crate::control) time: Time,
    /// Wall clock, comparable across processes.
    pub(in crate::control) wall: SystemTime,
}

/// The kills of a message and its time of arrival.
#[derive(Debug)]
pub(in crate::control) struct KillMessage {
    pub(in crate::control) set: v1::KillSet,
    pub(in crate::control) at: Time,
}

#[derive(Debug, Default)]
pub(super) struct ReceivedKills {
    /// By key, which bounds their number.
    held: BTreeMap<Pattern, TimedKill>,
    refused: Vec<v1::Refusal>,
}

impl KillMessage {
    pub(super) fn check_size(&self) -> Result<(), &'static str> {
        use prost::Message as _;
        let count = self.set.kills.len().max(self.set.ended.len());
        match count > MAX_KILLS || self.set.encoded_len() > MAX_SET_BYTES {
            true => Err("too many kills"),
            false => Ok(()),
        }
    }
}

impl ReceivedKills {
    pub(super) fn held(&self) -> impl Iterator<Item = &TimedKill> {
        self.held.values()
    }

    /// Returns the rejected kills.
    pub(super) fn refused(&self) -> &[v1::Refusal] {
        &self.refused
    }

    /// Replaces all kills. If the set only adds, those held and not ended stay, as far as the limit allows.
    pub(super) fn replace(&mut self, KillMessage { set, at }: KillMessage) {
        let mut previous = std::mem::take(self);
        if set.adds {
            for ended in set.ended.iter().filter_map(|key| convert::pattern(key).ok()) {
                previous.held.remove(&ended);
            }
            self.held = std::mem::take(&mut previous.held);
            let room = MAX_KILLS.saturating_sub(set.kills.len());
            while self.held.len() > room {
                self.held.pop_first();
            }
        }
        for sent in set.kills {
            match convert::active_kill(&sent) {
                Ok(ActiveKill { kill, remaining, expires_at: _ }) => self.hold(kill, at + remaining),
                Err(faults) => {
                    let key = sent.key.as_ref().and_then(|key| convert::pattern(key).ok());
                    if let Some((key, before)) = key.and_then(|key| previous.held.remove_entry(&key)) {
                        self.held.entry(key).or_insert(before);
                    }
                    self.refuse(v1::Refusal {
                        key: sent.key,
                        revision: sent.revision,
                        reason: short_reason(&faults),
                        guard: false,
                        kill: true,
                    });
                }
            }
        }
    }

    fn hold(&mut self, kill: Kill, until: Time) {
        self.held.insert(kill.pattern().clone(), TimedKill { kill: Arc::new(kill), until });
    }

    /// Adds a rejection, also one that was stored.
    pub(super) fn refuse(&mut self, refusal: v1::Refusal) {
        self.refused.push(refusal);
    }

    /// Returns the kills to store on disk.
    pub(super) fn kept(&self, Present { time, wall }: Present) -> Vec<v1::ActiveKill> {
        let in_force = self.held().filter(|held| held.until > time);
        in_force
            .map(|held| {
                let remaining = held.remaining(time);
                let active = ActiveKill {
                    kill: (*held.kill).clone(),
                    remaining,
                    expires_at: wall.checked_add(remaining),
                };
                (&active).into()
            })
            .collect()
    }

    /// Restores stored kills that can be read and have not expired.
    pub(super) fn restore(kept: &[v1::ActiveKill], Present { time, wall }: Present) -> Self {
        let mut kills = Self::default();
        for ActiveKill { kill, remaining, expires_at } in
            kept.iter().take(MAX_KILLS).filter_map(|kept| convert::active_kill(kept).ok())
        {
            let by_wall = expires_at.and_then(|at| at.duration_since(wall).ok()).unwrap_or_default();
            let left = by_wall.min(remaining);
            if left > Duration::ZERO {
                kills.hold(kill, time + left);
            }
        }
        kills
    }
}
