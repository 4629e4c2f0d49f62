//! The requests of one call: one per attempt, alike but for the headers that tell them apart.
//!
//! Every attempt has the application's method, path, metadata (order and duplicates included), extensions
//! and body. Only `grpc-timeout`, `damper-retry` and `grpc-previous-rpc-attempts` differ, as the engine says.

use std::sync::Arc;
use std::time::Duration;

use damper_core::{Mode, Policy, Send, deadline};
use http::{HeaderMap, HeaderValue, Request, request};
use tonic::body::Body;

use super::replay::{self, Captured, Kept, Memory};
use crate::headers;

/// How the requests of a call are made.
pub(crate) struct Requests {
    source: Source,
    replayable: bool,
    own_timeout: Option<Duration>,
    external: bool,
}

enum Source {
    /// One attempt at most: the request as the application made it.
    Once(Option<Request<Body>>),
    /// Any number of attempts.
    Kept { head: request::Parts, body: Arc<Kept> },
}

impl Requests {
    /// Keeps the request if it may have to be sent again. Without a policy it is not touched.
    pub(crate) fn new(
        request: Request<Body>,
        policy: Option<&Policy>,
        memory: &Arc<Memory>,
        external: bool,
    ) -> Self {
        let own_timeout = headers::bytes(request.headers(), &headers::TIMEOUT).and_then(deadline::parse);
        let (source, replayable) = match policy.filter(|policy| policy.repeats().is_some()) {
            None => (Source::Once(Some(request)), false),
            Some(policy) => keep(request, policy, memory),
        };
        Self { source, replayable, own_timeout, external }
    }

    /// The time limit that the application set.
    pub(crate) fn own_timeout(&self) -> Option<Duration> {
        self.own_timeout
    }

    /// True if the request is complete, so that it could be sent again.
    pub(crate) fn are_replayable(&self) -> bool {
        self.replayable
    }

    /// True if there may be more than one.
    pub(crate) fn may_repeat(&self) -> bool {
        matches!(self.source, Source::Kept { .. })
    }

    /// The request of this attempt.
    pub(crate) fn make(&mut self, send: &Send) -> Request<Body> {
        let mut request = match &mut self.source {
            Source::Once(request) => request.take().expect("only a request that is kept is sent twice"),
            Source::Kept { head, body } => Request::from_parts(head.clone(), body.body()),
        };
        self.mark(request.headers_mut(), send);
        request
    }

    fn mark(&self, headers: &mut HeaderMap, send: &Send) {
        // The application's own limit stays as it was written for as long as it says the same.
        if let Some(limit) = send.limit.filter(|limit| self.own_timeout != Some(*limit)) {
            headers.insert(&headers::TIMEOUT, timeout_value(limit));
        }
        if self.external {
            headers.remove(&headers::RETRY);
        } else if let Some(flag) = send.flag {
            headers.insert(&headers::RETRY, flag.into());
        }
        let previous = send.previous_attempts();
        if previous > 0 {
            headers.insert(&headers::PREVIOUS_ATTEMPTS, previous.into());
        }
    }
}

/// In observe mode the request is kept as well, to know whether it could be, and then sent once.
fn keep(request: Request<Body>, policy: &Policy, memory: &Arc<Memory>) -> (Source, bool) {
    let (head, body) = request.into_parts();
    match replay::capture(body, policy.replay_limit, memory) {
        Captured::Whole(body) if policy.mode == Mode::Enforce => (Source::Kept { head, body }, true),
        Captured::Whole(body) => (Source::Once(Some(Request::from_parts(head, body.body()))), true),
        Captured::Once(body) => (Source::Once(Some(Request::from_parts(head, body))), false),
    }
}

fn timeout_value(limit: Duration) -> HeaderValue {
    let text = deadline::HeaderValue::new(limit).to_string();
    HeaderValue::try_from(text).expect("digits and a letter are a header value")
}
