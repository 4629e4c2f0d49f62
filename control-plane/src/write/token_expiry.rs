//! Clears away tokens whose time has been over for a day.
//!
//! Nothing waits for it: who reads tokens looks at the clock. Until then a list shows what has ended lately. Every
//! replica does it; who comes second finds it done.
//!
//! What one replica clears away is gone for all, so none does it by its wall clock alone: a token must have been over
//! by that clock, at every look, for a day by the steady clock. A clock that was wrong when the machine started, and is
//! set right within the day, removes nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use damper_proto::v1;
use tokio::time::sleep;

use crate::state::error::ApiError;
use crate::state::tokens::{StoredToken, token_key};
use crate::write::Writes;
use crate::write::request::{WriteRequest, write};
use damper_store::writer::ProposedEdit;

/// How long a token stays after its end.
const KEPT_FOR: Duration = Duration::from_secs(24 * 3600);
const LOOK_EVERY: Duration = Duration::from_secs(60);

const AUTHOR: &str = "damper";
const REASON: &str = "expired";

/// Clears away for ever.
pub(crate) async fn run(writes: Arc<Writes>) {
    let mut over = Over::default();
    loop {
        // Not all replicas at once.
        sleep(LOOK_EVERY.mul_f64(0.5 + fastrand::f64())).await;
        if let Err(error) = clear(&writes, &mut over, SystemTime::now(), Instant::now()).await {
            tracing::warn!(%error, "tokens that are over could not be cleared away; trying again later");
        }
    }
}

/// Tokens that are over, by id and end, and since when that was seen by the steady clock.
#[derive(Default)]
struct Over {
    since: HashMap<(String, Option<SystemTime>), Instant>,
}

impl Over {
    /// Those of the tokens that have been over for long enough.
    fn due<'t>(
        &mut self,
        tokens: impl Iterator<Item = &'t Arc<StoredToken>>,
        now: SystemTime,
        steady: Instant,
    ) -> Vec<&'t Arc<StoredToken>> {
        let mut since = HashMap::new();
        let mut due = Vec::new();
        for token in tokens.filter(|token| token.is_over(now)) {
            let key = (token.id.to_string(), token.expires_at);
            let seen = self.since.get(&key).copied().unwrap_or(steady);
            since.insert(key, seen);
            if is_due(token, now) && steady.saturating_duration_since(seen) >= KEPT_FOR {
                due.push(token);
            }
        }
        self.since = since;
        due
    }
}

async fn clear(writes: &Writes, over: &mut Over, now: SystemTime, steady: Instant) -> Result<(), ApiError> {
    let table = writes.fleet.table();
    let over = over.due(table.tokens().all(), now, steady);
    let removal = |token: &Arc<StoredToken>| {
        let expected = Some(token.wire.revision);
        ProposedEdit { key: token_key(&token.id), value: None, expected }
    };
    let edits: Vec<ProposedEdit> = over.into_iter().map(removal).collect();
    if edits.is_empty() {
        return Ok(());
    }
    let options =
        v1::WriteOptions { author: AUTHOR.to_owned(), reason: REASON.to_owned(), ..Default::default() };
    match write(writes, &WriteRequest::by_itself(options), &table, now, edits).await {
        // Another replica was faster: the table will show it.
        Ok(_) | Err(ApiError::Conflict { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

fn is_due(token: &StoredToken, now: SystemTime) -> bool {
    token.expires_at.and_then(|end| end.checked_add(KEPT_FOR)).is_some_and(|due| due <= now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tokens::secret::BearerToken;

    #[test]
    fn clock_that_is_wrong_for_less_than_a_day_removes_no_token() {
        let start = Instant::now();
        let end = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let wire = v1::Token { role: 1, expires_at: Some(end.into()), ..Default::default() };
        let bearer = BearerToken::draw();
        let token = StoredToken::read(&bearer.id, &StoredToken::value(&wire, &bearer.hash()), 1).unwrap();
        let tokens = [Arc::new(token)];
        let mut over = Over::default();
        let mut due = |wall: SystemTime, hours: u64| {
            over.due(tokens.iter(), wall, start + Duration::from_secs(hours * 3600)).len()
        };
        let (right, wrong) = (end - KEPT_FOR, end + 1_000 * KEPT_FOR);
        assert_eq!([due(wrong, 0), due(wrong, 23), due(right, 25), due(wrong, 26), due(wrong, 49)], [0; 5]);
        assert_eq!(due(wrong, 50), 1, "it was over for a day at every look");
    }

    #[test]
    fn a_token_is_cleared_away_a_day_after_its_end_and_one_without_an_end_never() {
        let end = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        let bearer = BearerToken::draw();
        let token = |expires_at: Option<SystemTime>| {
            let wire = v1::Token { role: 1, expires_at: expires_at.map(Into::into), ..Default::default() };
            StoredToken::read(&bearer.id, &StoredToken::value(&wire, &bearer.hash()), 1).unwrap()
        };
        let day_later = end + KEPT_FOR;
        assert!(!is_due(&token(Some(end)), day_later - Duration::from_secs(1)));
        assert!(is_due(&token(Some(end)), day_later));
        assert!(!is_due(&token(None), day_later + 1_000 * KEPT_FOR));
    }
}
