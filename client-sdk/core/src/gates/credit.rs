//! The credit: every retry is paid for.
//!
//! A first attempt that succeeds earns `earn` of a token (0.02: fifty pay for one retry). A retry reserves a whole
//! token when it is admitted. If it succeeds it gives the token back; if it fails the token is gone; if it is never
//! sent, or dropped, the token is refunded. Nobody saves more than the cap, `earn` times the calls of the window,
//! so an outage costs that much, once, and a retry can only follow what succeeded.
//!
//! Credit plus reserved tokens rises by first successes alone, and a reservation is a compare-and-swap. So under any
//! interleaving, in any span of time,
//!
//! ```text
//! failed + unfinished retries <= credit and retries in flight when it begins + earn x first successes
//! ```
//!
//! Where the cap is a fixed number of tokens ten successes in a row earn one as well: else a caller
//! with a call every three seconds would wait minutes for its first retry after an outage.
//!
//! Sources: the token buckets of the AWS SDKs' standard retry mode and of gRPC's retry throttling (gRFC A6); a cap
//! that follows the traffic, and so an outage's price that is the same share at any rate, is ours.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::fault::Ratio;

/// A token, in the unit that credit is kept in.
const TOKEN: u64 = 10_000;
/// So many successes in a row earn a token where [`Terms::row`] says so.
const ROW: u64 = 10;
/// Caps are kept in steps of a sixteenth of a token.
const CAP_STEP: u64 = TOKEN / 16;

const OWED_BITS: u32 = 6;
const ROW_BITS: u32 = 4;
const CAP_BITS: u32 = 20;
const OWED_MAX: u64 = (1 << OWED_BITS) - 1;
const ROW_MAX: u64 = (1 << ROW_BITS) - 1;
const CAP_MAX: u64 = (1 << CAP_BITS) - 1;

/// What fills a purse, and up to where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    cap: u64,
    /// What a first attempt that succeeds earns.
    earn: u64,
    /// Whether ten successes in a row earn a token.
    row: bool,
}

impl Terms {
    /// As much as is earned by the calls of a window; see [`Purse::set_cap`].
    pub(crate) fn of_traffic(purse: &Purse, earn: Ratio) -> Self {
        Self { cap: purse.load().cap, earn: u64::from(earn.bp()), row: false }
    }

    /// One token, earned by first successes or by a row of them.
    pub(crate) fn floor(earn: Ratio) -> Self {
        Self { earn: u64::from(earn.bp()), ..Self::tokens(1) }
    }

    /// So many tokens, each earned by a row of successes.
    pub(crate) fn tokens(tokens: u32) -> Self {
        Self { cap: u64::from(tokens) * TOKEN, earn: 0, row: true }
    }

    /// True if a whole token fits.
    pub(crate) fn hold_a_token(self) -> bool {
        self.cap >= TOKEN
    }
}

/// Tokens that were saved: one atomic word, so that no schedule of threads overspends. It starts empty.
#[derive(Debug, Default)]
pub(crate) struct Purse(AtomicU64);

impl Purse {
    /// Nobody saves more than what so many calls earn.
    pub(crate) fn set_cap(&self, earn: Ratio, calls: u64) {
        let cap = (u64::from(earn.bp()).saturating_mul(calls) / CAP_STEP).min(CAP_MAX) * CAP_STEP;
        if self.load().cap != cap {
            self.change(|held| Some(Held { cap, ..held }));
        }
    }

    /// A first attempt succeeded. The usual case is one relaxed load: nothing was spent lately.
    pub(crate) fn earn(&self, terms: Terms) {
        let held = self.load();
        if held.credit < terms.cap || held.owed > 0 {
            self.change(|held| Some(held.earned(terms)));
        }
    }

    /// An attempt failed.
    pub(crate) fn fail(&self) {
        let held = self.load();
        if held.row > 0 || held.owed > 0 {
            self.change(|held| Some(Held { row: 0, owed: held.owed.saturating_sub(1), ..held }));
        }
    }

    /// Reserves a token; false if there is none.
    #[must_use]
    pub(crate) fn pay(&self, terms: Terms) -> bool {
        self.change(|held| {
            let credit = held.credit.min(terms.cap).checked_sub(TOKEN)?;
            Some(Held { credit, ..held })
        })
    }

    /// True if there is a token.
    pub(crate) fn has_token(&self, terms: Terms) -> bool {
        self.load().credit.min(terms.cap) >= TOKEN
    }

    /// A reserved token comes back: its retry succeeded, or was not sent.
    pub(crate) fn give_back(&self, terms: Terms) {
        self.change(|held| Some(Held { credit: (held.credit + TOKEN).min(terms.cap), ..held }));
    }

    /// Observe mode: a retry was paid for that is not sent. It ends as the next first attempt does.
    pub(crate) fn owe(&self) {
        self.change(|held| Some(Held { owed: (held.owed + 1).min(OWED_MAX), ..held }));
    }

    fn load(&self) -> Held {
        Held::unpack(self.0.load(Ordering::Relaxed))
    }

    fn change(&self, change: impl Fn(Held) -> Option<Held>) -> bool {
        let packed = |word| change(Held::unpack(word)).map(Held::pack);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, packed).is_ok()
    }
}

#[derive(Clone, Copy)]
struct Held {
    credit: u64,
    cap: u64,
    /// Successes one after the other.
    row: u64,
    /// Retries that observe mode has paid for, whose end is not known yet.
    owed: u64,
}

impl Held {
    fn earned(self, terms: Terms) -> Self {
        let row = if terms.row { self.row + 1 } else { 0 };
        let of_row = if row >= ROW { TOKEN } else { 0 };
        let settled = if self.owed > 0 { TOKEN } else { 0 };
        Self {
            credit: (self.credit + terms.earn + of_row + settled).min(terms.cap),
            row: row % ROW,
            owed: self.owed.saturating_sub(1),
            ..self
        }
    }

    fn unpack(word: u64) -> Self {
        Self {
            owed: word & OWED_MAX,
            row: word >> OWED_BITS & ROW_MAX,
            cap: (word >> (OWED_BITS + ROW_BITS) & CAP_MAX) * CAP_STEP,
            credit: word >> (OWED_BITS + ROW_BITS + CAP_BITS),
        }
    }

    fn pack(self) -> u64 {
        self.owed
            | self.row << OWED_BITS
            | (self.cap / CAP_STEP) << (OWED_BITS + ROW_BITS)
            | self.credit << (OWED_BITS + ROW_BITS + CAP_BITS)
    }
}

#[cfg(test)]
mod tests;
