//! The services that were turned away of late, for the log and for a diagnosis.
//!
//! A service whose token or certificate does not let it in tries again and again, and goes on without Damper meanwhile:
//! nobody who looks at the fleet sees it. So each is told of in the log, at most once a minute, and remembered for a
//! while. Of those that showed nothing good only the address is known, and anybody can send those: they have places of
//! their own, so that they can not push the others out.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use crate::auth::caller::Caller;
use crate::state::error::denied::AccessDenied;
use damper_net::connection::ConnectionInfo;
use damper_net::limits::Limiter;
use damper_net::limits::Line;

/// How many are remembered of those who are known, and of those who are not.
const MOST: usize = 50;
const LOG_EVERY: Duration = Duration::from_secs(60);
const REMEMBERED_FOR: Duration = Duration::from_secs(600);

/// One that was turned away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RejectedClient {
    /// The principal, or the address where there is none.
    pub(crate) who: String,
    /// The service that it wanted to be; empty where it did not come to say so.
    pub(crate) service: String,
    pub(crate) why: String,
    pub(crate) times: u64,
    pub(crate) last: SystemTime,
    is_known: bool,
    logged: SystemTime,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct RejectedClients(Mutex<Vec<RejectedClient>>);

impl RejectedClients {
    /// Remembers one and tells the log of it, unless that was done a moment ago.
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
            tracing::warn!(who, address, service, reason, %why, left_out, "a service was turned away");
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

    /// Those of the last 10 minutes.
    pub(crate) fn of_late(&self, now: SystemTime) -> Vec<RejectedClient> {
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
    fn each_is_told_once_a_minute_and_remembered_for_ten() {
        let (away, at) = (RejectedClients::default(), SystemTime::UNIX_EPOCH + 100 * MINUTE);
        assert!(away.is_news(true, "token a", "shop", "no", at));
        assert!(!away.is_news(true, "token a", "shop", "no", at + MINUTE / 2));
        assert!(away.is_news(true, "token a", "cart", "no", at));
        assert!(away.is_news(true, "token a", "shop", "still no", at + MINUTE));
        let told = away.of_late(at + MINUTE);
        assert_eq!(told.len(), 2);
        let shop = told.iter().find(|refusal| refusal.service == "shop").unwrap();
        assert_eq!((shop.times, shop.why.as_str(), shop.last), (3, "still no", at + MINUTE));
        assert_eq!(away.of_late(at + 10 * MINUTE).len(), 1);
        assert!(away.of_late(at + 11 * MINUTE).is_empty());
    }

    #[test]
    fn strangers_can_not_push_out_those_who_are_known_and_neither_are_remembered_without_end() {
        let (away, at) = (RejectedClients::default(), SystemTime::UNIX_EPOCH);
        for n in 0..200 {
            let now = at + Duration::from_millis(n);
            away.is_news(true, &format!("token {n}"), "shop", "no", now);
            for stranger in 0..10 {
                away.is_news(false, &format!("address {n}.{stranger}"), "", "no", now);
            }
        }
        let told = away.of_late(at + MINUTE);
        let known: Vec<_> = told.iter().filter(|refusal| refusal.is_known).collect();
        assert_eq!((known.len(), told.len()), (MOST, 2 * MOST));
        assert!(known.iter().any(|refusal| refusal.who == "token 199"));
        assert!(!known.iter().any(|refusal| refusal.who == "token 100"));
    }
}
