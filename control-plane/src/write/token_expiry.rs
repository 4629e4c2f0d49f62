//! Deletes tokens a day after their expiry.
//!
//! Nothing waits for the deletion: readers of tokens compare the expiry with the clock. Until then a list
//! shows recently expired tokens. Every replica deletes; the second one finds nothing to do.
//!
//! A deletion applies to the whole fleet, so the wall clock of one replica is not enough. At every check a
//! token must have been expired by that clock, for a day by the monotonic clock. A clock that is wrong at
//! boot and corrected within a day deletes nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use damper_proto::v1;
use damper_store::writer::ProposedEdit;
use tokio::time::sleep;

use crate::state::error::ApiError;
use crate::state::tokens::{StoredToken, token_key};
use crate::write::Writes;
use crate::write::request::{WriteRequest, write};

/// Time that a token stays after its expiry.
const KEPT_FOR: Duration = Duration::from_secs(24 * 3600);
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

const AUTHOR: &str = "damper";
const REASON: &str = "expired";

/// Deletes expired tokens until the server stops.
pub(crate) async fn run(writes: Arc<Writes>) {
    let mut expired = ExpiredTokens::default();
    loop {
        // Jitter, so that replicas rarely collide.
        sleep(CHECK_INTERVAL.mul_f64(0.5 + fastrand::f64())).await;
        if let Err(error) = delete(&writes, &mut expired, SystemTime::now(), Instant::now()).await {
            tracing::warn!(%error, "deleting expired tokens failed; retrying");
        }
    }
}

/// Expired tokens by id and expiry, with the time of the first check that found them expired.
#[derive(Default)]
struct ExpiredTokens {
    since: HashMap<(String, Option<SystemTime>), Instant>,
}

impl ExpiredTokens {
    /// Returns the tokens that have been expired for long enough.
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

async fn delete(
    writes: &Writes,
    expired: &mut ExpiredTokens,
    now: SystemTime,
    steady: Instant,
) -> Result<(), ApiError> {
    let table = writes.fleet.table();
    let due = expired.due(table.tokens().all(), now, steady);
    let deletion = |token: &Arc<StoredToken>| {
        let expected = Some(token.wire.revision);
        ProposedEdit { key: token_key(&token.id), value: None, expected }
    };
    let edits: Vec<ProposedEdit> = due.into_iter().map(deletion).collect();
    if edits.is_empty() {
        return Ok(());
    }
    let options =
        v1::WriteOptions { author: AUTHOR.to_owned(), reason: REASON.to_owned(), ..Default::default() };
    match write(writes, &WriteRequest::internal(options), &table, now, edits).await {
        // Another replica was faster: the snapshot will show it.
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
        let mut expired = ExpiredTokens::default();
        let mut due = |wall: SystemTime, hours: u64| {
            expired.due(tokens.iter(), wall, start + Duration::from_secs(hours * 3600)).len()
        };
        let (right, wrong) = (end - KEPT_FOR, end + 1_000 * KEPT_FOR);
        assert_eq!([due(wrong, 0), due(wrong, 23), due(right, 25), due(wrong, 26), due(wrong, 49)], [0; 5]);
        assert_eq!(due(wrong, 50), 1, "it was expired for a day at every check");
    }

    #[test]
    fn token_is_deleted_a_day_after_its_expiry_or_never() {
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
