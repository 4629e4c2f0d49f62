//! Ends streams and long requests when their credential expires.
//!
//! Each credential with an open stream has a [`CredentialExpiry`]. It ends when the token is no longer in the
//! snapshot, or when the token or session expires. Long bodies are wrapped: an answer then ends with
//! UNAUTHENTICATED and a request fails, whatever the service does. A client that does not read cannot receive
//! that; its connection is cut.

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

/// Maximum time between two checks of the clock.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Time after the expiry within which an unread body must end.
const CUT_AFTER: Duration = Duration::from_secs(3);

/// Credential of an open stream.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    /// With the end of its browser session.
    Token(TokenId, Option<SystemTime>),
    Certificate(String, SystemTime),
}

impl Key {
    /// Returns the key; `None` if the credential never expires.
    fn of(caller: &Caller) -> Option<Self> {
        match caller {
            Caller::Token(shown) => Some(Self::Token(shown.token.id.clone(), shown.session)),
            Caller::Certificate(certificate) => {
                Some(Self::Certificate(certificate.name().to_owned(), certificate.expires_at()?))
            }
            Caller::Unauthenticated | Caller::AuthDisabled | Caller::Replica => None,
        }
    }
}

/// Credentials of open streams.
#[derive(Debug, Default)]
pub(crate) struct OpenCredentials {
    open: Mutex<HashMap<Key, Arc<CredentialExpiry>>>,
}

/// Expiry of a credential.
#[derive(Debug)]
struct CredentialExpiry {
    caller: Caller,
    over: CancellationToken,
    held: Mutex<OpenConnections>,
}

/// Connections of its open streams.
#[derive(Debug, Default)]
struct OpenConnections {
    next: u64,
    peers: HashMap<u64, ConnectionInfo>,
    /// Time of the expiry.
    over_since: Option<Instant>,
}

impl OpenCredentials {
    /// Returns the expiry of a caller's credential; `None` if it never expires.
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

    /// Ends expired credentials and forgets those without an open stream.
    fn refresh(&self, table: &Snapshot, now: SystemTime) {
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

/// Ends expired credentials; never returns.
pub(crate) async fn run(auth: Arc<AuthContext>) {
    let mut table = auth.state.table.clone();
    loop {
        let view = table.borrow_and_update().clone();
        auth.access.lives.refresh(&view, SystemTime::now());
        let next_look = Instant::now() + LOOK_EVERY;
        if let Ok(Err(_)) = timeout_at(next_look, table.changed()).await {
            // The server is stopping, and this task with it.
            std::future::pending::<()>().await;
        }
    }
}

/// Direction of a body.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BodyDirection {
    Request,
    Answer,
}

/// Wraps a body so that it ends when the credential expires.
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
    /// `None` once it was ended.
    inner: Option<Body>,
    way: BodyDirection,
    over: Pin<Box<WaitForCancellationFutureOwned>>,
    _open: Open,
}

/// An open body.
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
