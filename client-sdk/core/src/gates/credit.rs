//! Credit: every retry is paid for.
//!
//! A successful first attempt earns `earn` of a token (0.02: fifty pay for one retry). A retry reserves a
//! whole token when it is admitted. If it succeeds, the token returns; if it fails, the token is spent; if it
//! is not sent or is dropped, the token is refunded. Savings are capped at `earn` times the calls of the
//! window, so an outage costs that much, once, and retries only follow successes.
//!
//! Credit plus reserved tokens rises only by first successes, and a reservation is a compare-and-swap. So
//! under any interleaving, in any time span,
//!
//! ```text
//! failed + unfinished retries <= credit and retries in flight when it begins + earn x first successes
//! ```
//!
//! If the cap is a fixed number of tokens, ten successes in a row earn a token too: otherwise a caller with
//! one call every three seconds would wait minutes for its first retry after an outage.
//!
//! Sources: the token buckets of the AWS SDKs' standard retry mode and of gRPC's retry throttling (gRFC A6).
//! The cap that follows the traffic, which makes the cost of an outage the same share at any rate, is
//! Damper's.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::fault::Ratio;

/// One token, in units of credit.
const TOKEN: u64 = 10_000;
/// Successes in a row that earn a token if [`Terms::row`] is set.
const ROW: u64 = 10;
/// Step of stored caps: a sixteenth of a token.
const CAP_STEP: u64 = TOKEN / 16;

const OWED_BITS: u32 = 6;
const ROW_BITS: u32 = 4;
const CAP_BITS: u32 = 20;
const OWED_MAX: u64 = (1 << OWED_BITS) - 1;
const ROW_MAX: u64 = (1 << ROW_BITS) - 1;
const CAP_MAX: u64 = (1 << CAP_BITS) - 1;

/// Income and cap of a purse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    cap: u64,
    /// Income of a successful first attempt.
    earn: u64,
    /// Ten successes in a row earn a token.
    row: bool,
}

impl Terms {
    /// Returns terms capped at the income of one window's calls; see [`Purse::set_cap`].
    pub(crate) fn of_traffic(purse: &Purse, earn: Ratio) -> Self {
        Self { cap: purse.load().cap, earn: u64::from(earn.bp()), row: false }
    }

    /// Returns terms capped at one token, earned by first successes or ten in a row.
    pub(crate) fn floor(earn: Ratio) -> Self {
        Self { earn: u64::from(earn.bp()), ..Self::tokens(1) }
    }

    /// Returns terms capped at `tokens`, each earned by ten successes in a row.
    pub(crate) fn tokens(tokens: u32) -> Self {
        Self { cap: u64::from(tokens) * TOKEN, earn: 0, row: true }
    }

    /// Returns true if the cap is at least one token.
    pub(crate) fn hold_a_token(self) -> bool {
        self.cap >= TOKEN
    }
}

/// Saved tokens: one atomic word, so that no interleaving overspends. Starts empty.
#[derive(Debug, Default)]
pub(crate) struct Purse(AtomicU64);

impl Purse {
    /// Caps savings at the income of this many calls.
    pub(crate) fn set_cap(&self, earn: Ratio, calls: u64) {
        let cap = (u64::from(earn.bp()).saturating_mul(calls) / CAP_STEP).min(CAP_MAX) * CAP_STEP;
        if self.load().cap != cap {
            self.change(|held| Some(Held { cap, ..held }));
        }
    }

    /// Credits a successful first attempt. Usually one relaxed load: nothing was spent.
    pub(crate) fn earn(&self, terms: Terms) {
        let held = self.load();
        if held.credit < terms.cap || held.owed > 0 {
            self.change(|held| Some(held.earned(terms)));
        }
    }

    /// Records a failed attempt.
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

    /// Returns true if there is a token.
    pub(crate) fn has_token(&self, terms: Terms) -> bool {
        self.load().credit.min(terms.cap) >= TOKEN
    }

    /// Returns a reserved token: its retry succeeded, or was not sent.
    pub(crate) fn give_back(&self, terms: Terms) {
        self.change(|held| Some(Held { credit: (held.credit + TOKEN).min(terms.cap), ..held }));
    }

    /// Observe mode: records a paid retry that is not sent. It ends as the next first attempt does.
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
    /// Successes in a row.
    row: u64,
    /// Retries paid for in observe mode whose end is not known yet.
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
