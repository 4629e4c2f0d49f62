//! Entries of a response that this SDK refuses, as sent to the server and as logged.

use std::fmt::{self, Write as _};

use damper_proto::v1;
use prost::Message as _;

/// Keeps a hello or acknowledgement below the control plane's limit of 1 MiB per message.
const MAX_REFUSALS: usize = 300;
const MAX_REFUSAL_BYTES: usize = 768 << 10;
/// Limit for texts of a server.
const MAX_PROBLEM_CHARS: usize = 500;

/// Returns the refusals that a message has room for: the server would reject a longer message as a whole.
pub(super) fn at_most<'a>(
    refused: impl IntoIterator<Item = &'a v1::Refusal>,
    count: usize,
) -> Vec<v1::Refusal> {
    let mut bytes = 0;
    let fits = |refusal: &&v1::Refusal| {
        bytes += refusal.encoded_len();
        bytes <= MAX_REFUSAL_BYTES
    };
    let named: Vec<_> = refused.into_iter().take(MAX_REFUSALS).take_while(fits).cloned().collect();
    if named.len() < count {
        tracing::warn!(refused = count, named = named.len(), "too many rejections to name them all");
    }
    named
}

/// Logs refused entries.
pub(super) fn note(refused: &[v1::Refusal]) {
    let Some(v1::Refusal { key, revision, reason, guard, kill }) = refused.first() else { return };
    let (count, first) = (refused.len(), format!("{key:?}"));
    tracing::warn!(count, first = %Short(&first), guard, kill, revision, reason, "rules, guards or kill switches rejected: their previous versions stay in force; with no previous version a rule is off, and a guard or kill switch has no effect");
}

/// The beginning of a peer's text, on one line.
pub(super) struct Short<'a>(pub(super) &'a str);

impl fmt::Display for Short<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for shown in self.0.chars().take(MAX_PROBLEM_CHARS) {
            f.write_char(if shown.is_control() { ' ' } else { shown })?;
        }
        if self.0.chars().nth(MAX_PROBLEM_CHARS).is_some() { f.write_str("...") } else { Ok(()) }
    }
}
