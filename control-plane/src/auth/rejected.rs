//! Recently rejected clients, for the log and `damper doctor`.
//!
//! A client with an invalid token or certificate retries forever and runs without Damper meanwhile, invisible
//! in the fleet. So each is logged at most once a minute and kept for a while. Clients without a valid
//! credential are known by address only and can be faked, so they have places of their own and cannot
//! displace the others.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use crate::auth::caller::Caller;
use crate::state::error::denied::AccessDenied;
use damper_net::connection::ConnectionInfo;
use damper_net::limits::Limiter;
use damper_net::limits::Line;

/// Kept clients with a known credential, and without.
const MOST: usize = 50;
const LOG_EVERY: Duration = Duration::from_secs(60);
const REMEMBERED_FOR: Duration = Duration::from_secs(600);

/// Rejected client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RejectedClient {
    /// Principal, or the address without one.
    pub(crate) who: String,
    /// Requested service; empty if the request did not get that far.
    pub(crate) service: String,
    pub(crate) why: String,
    pub(crate) times: u64,
    pub(crate) last: SystemTime,
    is_known: bool,
    logged: SystemTime,
}

/// All rejected clients.
#[derive(Debug, Default)]
pub(crate) struct RejectedClients(Mutex<Vec<RejectedClient>>);

impl RejectedClients {
    /// Records a rejection and logs it, at most once a minute per client.
    pub(crate) fn note(
        &self,
        limiter: &Limiter,
        peer: Option<&ConnectionInfo>,
        caller: &Caller,
        service: &str,
        why: &AccessDenied,
    ) {
        let principal = caller.principal();
        let address = peer.map(|peer| peer.address.ip().to_canonical().to_string()).unwrap_or_default();
        let is_known = !principal.is_empty();
        let who = if is_known { principal } else { format!("address {address}") };
        let line = if is_known { Line::DeniedService } else { Line::DeniedStranger };
        if self.is_news(is_known, &who, service, &why.to_string(), SystemTime::now())
            && let Some(left_out) = limiter.line(line)
        {
            let reason = why.reason();
            tracing::warn!(who, address, service, reason, %why, left_out, "client rejected");
        }
    }

    fn is_news(&self, is_known: bool, who: &str, service: &str, why: &str, now: SystemTime) -> bool {
        let mut all = self.all();
        if let Some(before) = all.iter_mut().find(|before| before.who == who && before.service == service) {
            why.clone_into(&mut before.why);
            (before.times, before.last) = (before.times + 1, now);
            let is_news = now.duration_since(before.logged).is_ok_and(|since| since >= LOG_EVERY);
            if is_news {
                before.logged = now;
            }
            return is_news;
        }
        if all.iter().filter(|other| other.is_known == is_known).count() >= MOST {
            let of_kind = all.iter().enumerate().filter(|(_, other)| other.is_known == is_known);
            if let Some((oldest, _)) = of_kind.min_by_key(|(_, other)| other.last) {
                all.swap_remove(oldest);
            }
        }
        let [who, service, why] = [who, service, why].map(str::to_owned);
        all.push(RejectedClient { who, service, why, times: 1, last: now, is_known, logged: now });
        true
    }

    /// Returns those of the last 10 minutes.
    pub(crate) fn recent(&self, now: SystemTime) -> Vec<RejectedClient> {
        let mut all = self.all();
        all.retain(|refusal| now.duration_since(refusal.last).is_ok_and(|since| since < REMEMBERED_FOR));
        all.clone()
    }

    fn all(&self) -> MutexGuard<'_, Vec<RejectedClient>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn rejection_is_logged_once_a_minute_and_kept_for_ten() {
        let (away, at) = (RejectedClients::default(), SystemTime::UNIX_EPOCH + 100 * MINUTE);
        assert!(away.is_news(true, "token a", "shop", "no", at));
        assert!(!away.is_news(true, "token a", "shop", "no", at + MINUTE / 2));
        assert!(away.is_news(true, "token a", "cart", "no", at));
        assert!(away.is_news(true, "token a", "shop", "still no", at + MINUTE));
        let rejected = away.recent(at + MINUTE);
        assert_eq!(rejected.len(), 2);
        let shop = rejected.iter().find(|refusal| refusal.service == "shop").unwrap();
        assert_eq!((shop.times, shop.why.as_str(), shop.last), (3, "still no", at + MINUTE));
        assert_eq!(away.recent(at + 10 * MINUTE).len(), 1);
        assert!(away.recent(at + 11 * MINUTE).is_empty());
    }

    #[test]
    fn unknown_clients_cannot_displace_known_ones() {
        let (away, at) = (RejectedClients::default(), SystemTime::UNIX_EPOCH);
        for n in 0..200 {
            let now = at + Duration::from_millis(n);
            away.is_news(true, &format!("token {n}"), "shop", "no", now);
            for stranger in 0..10 {
                away.is_news(false, &format!("address {n}.{stranger}"), "", "no", now);
            }
        }
        let rejected = away.recent(at + MINUTE);
        let known: Vec<_> = rejected.iter().filter(|refusal| refusal.is_known).collect();
        assert_eq!((known.len(), rejected.len()), (MOST, 2 * MOST));
        assert!(known.iter().any(|refusal| refusal.who == "token 199"));
        assert!(!known.iter().any(|refusal| refusal.who == "token 100"));
    }
}
