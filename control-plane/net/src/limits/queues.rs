//! Rate limit of log lines that peers can cause: a few of each kind per period, then only their number.
//!
//! Most of them need no credential, and a log can fill the disk of the store.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The most lines of one kind in a [`WHILE`].
const MOST: u32 = 10;
const WHILE: Duration = Duration::from_secs(60);
/// The most characters of a text that the peer chose.
const TEXT_CHARS: usize = 200;

/// Kind of a log line.
#[derive(Clone, Copy, Debug)]
pub enum Line {
    /// A request without a valid credential.
    Denied,
    /// A cross-origin browser request.
    ForeignSite,
    /// A rejected service with a known credential.
    DeniedService,
    /// A rejected service without a known credential.
    DeniedStranger,
    /// A peer that does not read.
    SlowReader,
    /// A connection that could not be accepted.
    NotAccepted,
    /// A connection whose client certificate is no longer trusted.
    Untrusted,
}

const KINDS: usize = Line::Untrusted as usize + 1;

/// Counts of one server.
#[derive(Debug)]
pub(super) struct Lines([Mutex<Written>; KINDS]);

/// Counts of one kind in the current period.
#[derive(Debug)]
struct Written {
    since: Instant,
    lines: u32,
    left_out: u64,
}

impl Lines {
    pub(super) fn new(now: Instant) -> Self {
        Self([(); KINDS].map(|()| Mutex::new(Written { since: now, lines: 0, left_out: 0 })))
    }

    /// Returns the number of lines that were left out before this one; `None` if this one must be left out
    /// too.
    pub(super) fn due(&self, line: Line, now: Instant) -> Option<u64> {
        let mut written = self.0[line as usize].lock().unwrap_or_else(PoisonError::into_inner);
        if now.saturating_duration_since(written.since) >= WHILE {
            (written.since, written.lines) = (now, 0);
        }
        if written.lines == MOST {
            written.left_out += 1;
            return None;
        }
        written.lines += 1;
        Some(std::mem::take(&mut written.left_out))
    }
}

/// Returns the beginning of a text that a peer chose.
pub fn shortened(text: &str) -> String {
    text.chars().take(TEXT_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_kind_are_few_and_count_the_others() {
        let at = Instant::now();
        let lines = Lines::new(at);
        let flood = |at| (0..1000).filter_map(|_| lines.due(Line::Denied, at)).collect::<Vec<_>>();
        assert_eq!(flood(at), [0; MOST as usize]);
        assert_eq!(lines.due(Line::SlowReader, at), Some(0), "another kind has lines of its own");
        assert!(flood(at + WHILE / 2).is_empty());
        let later = flood(at + WHILE);
        assert_eq!((later.len(), later[0]), (MOST as usize, 1990));
        assert_eq!(shortened(&"é".repeat(16 << 10)).chars().count(), TEXT_CHARS);
    }
}
