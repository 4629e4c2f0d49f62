//! The kills held: by a clock that needs no control plane, and across a restart.
//!
//! A set names all there are. One that cannot be read is refused alone; if a kill was held under its key, that
//! one stays until its time is over. What a kill has left is counted from when its message came. On disk it has
//! what is left and when it ends by this machine's wall clock: the lesser of the two holds when it is read, so
//! that neither a long stop of the process nor a clock that was set back gives it more time than it had.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use damper_core::kill::{MAX_KILLS, TimedKill};
use damper_core::{Kill, Pattern, Time};
use damper_proto::convert::{self, ActiveKill};
use damper_proto::v1;

use super::entries::short_reason;

/// More than any set of kills that can be read.
const MAX_SET_BYTES: usize = 4 << 20;

/// The present by both clocks.
#[derive(Clone, Copy, Debug)]
pub(in crate::control) struct Present {
    /// The engine's, which only goes forward.
    pub(in crate::control) time: Time,
    /// The wall's, which outlives the process.
    pub(in crate::control) wall: SystemTime,
}

/// All kills as the server said them, and when that was.
#[derive(Debug)]
pub(in crate::control) struct Told {
    pub(in crate::control) set: v1::KillSet,
    pub(in crate::control) at: Time,
}

#[derive(Debug, Default)]
pub(super) struct Kills {
    /// By key, so that no message can make them more than its own.
    held: BTreeMap<Pattern, TimedKill>,
    refused: Vec<v1::Refusal>,
}

impl Told {
    pub(super) fn check_size(&self) -> Result<(), &'static str> {
        use prost::Message as _;
        let count = self.set.kills.len().max(self.set.ended.len());
        match count > MAX_KILLS || self.set.encoded_len() > MAX_SET_BYTES {
            true => Err("more kills than there can be"),
            false => Ok(()),
        }
    }
}

impl Kills {
    pub(super) fn held(&self) -> impl Iterator<Item = &TimedKill> {
        self.held.values()
    }

    /// Those that are refused at present.
    pub(super) fn refused(&self) -> &[v1::Refusal] {
        &self.refused
    }

    /// These are all there are now; or those that are held and not ended stay, as far as there is room.
    pub(super) fn replace(&mut self, Told { set, at }: Told) {
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

    /// Takes up a refusal, also one that was kept.
    pub(super) fn refuse(&mut self, refusal: v1::Refusal) {
        self.refused.push(refusal);
    }

    /// What is to be kept on disk.
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

    /// Takes up what was kept, as far as it can be read and is not over.
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
