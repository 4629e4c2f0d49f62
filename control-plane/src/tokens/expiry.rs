//! Clears away tokens whose time has been over for a day.
//!
//! Nothing waits for it: who reads tokens looks at the clock. Until then a list shows what has ended lately. Every
//! replica does it; who comes second finds it done.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use damper_proto::v1;
use tokio::time::sleep;

use crate::errors::Error;
use crate::requests::{Asked, write};
use crate::shared::Shared;
use crate::table::{StoredToken, token_key};
use crate::writer::ProposedEdit;

/// No clock is so far ahead that a token is not over by then.
const KEPT_FOR: Duration = Duration::from_secs(24 * 3600);
const LOOK_EVERY: Duration = Duration::from_secs(60);

const AUTHOR: &str = "damper";
const REASON: &str = "expired";

/// Clears away for ever.
pub(crate) async fn run(shared: Arc<Shared>) {
    loop {
        // Not all replicas at once.
        sleep(LOOK_EVERY.mul_f64(0.5 + fastrand::f64())).await;
        if let Err(error) = clear(&shared, SystemTime::now()).await {
            tracing::warn!(%error, "tokens that are over could not be cleared away; trying again later");
        }
    }
}

async fn clear(shared: &Shared, now: SystemTime) -> Result<(), Error> {
    let table = shared.table();
    let over = table.tokens().all().filter(|token| is_due(token, now));
    let removal = |token: &Arc<StoredToken>| {
        let expected = Some(token.wire.revision);
        ProposedEdit { key: token_key(&token.id), value: None, expected }
    };
    let edits: Vec<ProposedEdit> = over.map(removal).collect();
    if edits.is_empty() {
        return Ok(());
    }
    let options =
        v1::WriteOptions { author: AUTHOR.to_owned(), reason: REASON.to_owned(), ..Default::default() };
    match write(shared, &Asked::by_itself(options), &table, now, edits).await {
        // Another replica was faster: the table will show it.
        Ok(_) | Err(Error::Conflict { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

fn is_due(token: &StoredToken, now: SystemTime) -> bool {
    token.expires_at.and_then(|end| end.checked_add(KEPT_FOR)).is_some_and(|due| due <= now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Bearer;

    #[test]
    fn a_token_is_cleared_away_a_day_after_its_end_and_one_without_an_end_never() {
        let end = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        let bearer = Bearer::draw();
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
