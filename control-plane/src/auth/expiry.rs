//! Credentials end, and with them what was opened by them.
//!
//! Each credential that something long was opened with has a life: it is over when the token is no longer in the
//! table, or the time of the token or session is. Bodies that go on for long are wrapped; when the life is over an
//! answer ends with UNAUTHENTICATED and a request fails, whatever the service behind it does. A reader that takes
//! nothing can not even be told; its connection is cut.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use axum::body::Body;
use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::auth::AuthContext;
use crate::auth::caller::Caller;
use crate::state::error::denied::AccessDenied;
use crate::state::snapshot::Snapshot;
use crate::state::tokens::secret::TokenId;
use damper_net::connection::ConnectionInfo;

/// The longest time in which nobody looks at the clock.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long after the end of its credential a body that nobody reads may stay.
const CUT_AFTER: Duration = Duration::from_secs(3);

/// Which credential.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    /// With the end of the session that stood for it.
    Token(TokenId, Option<SystemTime>),
    Certificate(String, SystemTime),
}

impl Key {
    /// None where what a caller showed has no end.
    fn of(caller: &Caller) -> Option<Self> {
        match caller {
            Caller::Token(shown) => Some(Self::Token(shown.token.id.clone(), shown.session)),
            Caller::Certificate(certificate) => {
                Some(Self::Certificate(certificate.name().to_owned(), certificate.expires_at()?))
            }
            Caller::Nobody | Caller::Anybody | Caller::Replica => None,
        }
    }
}

/// The lives of credentials by which something is open.
#[derive(Debug, Default)]
pub(crate) struct OpenCredentials {
    open: Mutex<HashMap<Key, Arc<CredentialExpiry>>>,
}

/// How long what a credential opened may go on.
#[derive(Debug)]
struct CredentialExpiry {
    caller: Caller,
    over: CancellationToken,
    held: Mutex<OpenConnections>,
}

/// The connections of what is open.
#[derive(Debug, Default)]
struct OpenConnections {
    next: u64,
    peers: HashMap<u64, ConnectionInfo>,
    /// Since when it should be gone.
    over_since: Option<Instant>,
}

impl OpenCredentials {
    /// The life of what a caller showed; none where that has no end.
    fn of(&self, caller: &Caller) -> Option<Arc<CredentialExpiry>> {
        let key = Key::of(caller)?;
        let new = || {
            Arc::new(CredentialExpiry {
                caller: caller.clone(),
                over: CancellationToken::new(),
                held: Mutex::default(),
            })
        };
        Some(self.open().entry(key).or_insert_with(new).clone())
    }

    /// Ends the lives that are over, and forgets those by which nothing is open any more.
    fn look(&self, table: &Snapshot, now: SystemTime) {
        self.open().retain(|_, life| {
            if !life.over.is_cancelled() && life.caller.check_in_force(table, now).is_err() {
                life.over.cancel();
                life.held().over_since = Some(Instant::now());
            }
            life.cut_off_who_stays();
            Arc::strong_count(life) > 1
        });
    }

    fn open(&self) -> MutexGuard<'_, HashMap<Key, Arc<CredentialExpiry>>> {
        self.open.lock().expect("no holder of the lock panics")
    }
}

impl CredentialExpiry {
    fn held(&self) -> MutexGuard<'_, OpenConnections> {
        self.held.lock().expect("no holder of the lock panics")
    }

    fn cut_off_who_stays(&self) {
        let held = self.held();
        if held.over_since.is_some_and(|since| since.elapsed() >= CUT_AFTER) {
            held.peers.values().for_each(ConnectionInfo::cut_off);
        }
    }
}

/// Ends what must end, for ever.
pub(crate) async fn run(auth: Arc<AuthContext>) {
    let mut table = auth.state.table.clone();
    loop {
        let view = table.borrow_and_update().clone();
        auth.access.lives.look(&view, SystemTime::now());
        let next_look = Instant::now() + LOOK_EVERY;
        if let Ok(Err(_)) = timeout_at(next_look, table.changed()).await {
            // The server is ending, and this task with it.
            std::future::pending::<()>().await;
        }
    }
}

/// Which way a body goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BodyDirection {
    Request,
    Answer,
}

/// The body, ended when the credential is over.
pub(crate) fn until_over(
    body: Body,
    way: BodyDirection,
    lives: &OpenCredentials,
    caller: &Caller,
    peer: Option<&ConnectionInfo>,
) -> Body {
    let Some(life) = lives.of(caller) else { return body };
    let over = Box::pin(life.over.clone().cancelled_owned());
    let place = peer.map(|peer| {
        let mut held = life.held();
        held.next += 1;
        let place = held.next;
        held.peers.insert(place, peer.clone());
        place
    });
    Body::new(ExpiringBody { inner: Some(body), way, over, _open: Open { life, place } })
}

struct ExpiringBody {
    /// None once it was ended.
    inner: Option<Body>,
    way: BodyDirection,
    over: Pin<Box<WaitForCancellationFutureOwned>>,
    _open: Open,
}

/// A body that is there.
struct Open {
    life: Arc<CredentialExpiry>,
    place: Option<u64>,
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.life.held().peers.remove(&place);
        }
    }
}

impl http_body::Body for ExpiringBody {
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        let Some(inner) = &mut this.inner else { return Poll::Ready(None) };
        if this.over.as_mut().poll(context).is_ready() {
            this.inner = None;
            let status = AccessDenied::Ended.status();
            return Poll::Ready(Some(match this.way {
                BodyDirection::Request => Err(status.into()),
                BodyDirection::Answer => {
                    let mut trailers = HeaderMap::new();
                    status.add_header(&mut trailers).map(|()| Frame::trailers(trailers)).map_err(Into::into)
                }
            }));
        }
        Pin::new(inner).poll_frame(context).map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(http_body::Body::is_end_stream)
    }
}
