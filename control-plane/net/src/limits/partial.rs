//! Quota of incomplete messages: bytes and time.
//!
//! A message waits in memory until its last byte, in a buffer of its declared length. So the length of
//! incomplete messages is counted per identity and in total, and each message must be complete within
//! [`WITHIN`]. Complete messages are not counted; the service takes them at once.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use bytes::{Buf as _, Bytes};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::Status;

use crate::limits::{Limit, LimitExceeded};

/// Bytes of incomplete messages per identity.
pub(super) const MOST_OF_ONE: usize = 4 << 20;
/// Bytes of incomplete messages in total.
pub const MOST: usize = 16 << 20;
/// Time from the first to the last byte of a message.
const WITHIN: Duration = Duration::from_secs(30);
/// Length of a gRPC message's head: a flag and the length.
const HEAD: usize = 5;

/// Held bytes of incomplete messages. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Partial(Arc<Mutex<Held>>);

#[derive(Debug, Default)]
struct Held {
    all: usize,
    of: HashMap<String, usize>,
}

impl Partial {
    /// Wraps the body of a request to measure its messages.
    pub fn measured(&self, body: Body, identity: String) -> Body {
        let share = Share { partial: self.clone(), identity, bytes: 0 };
        Body::new(Measured { body, share, message: Message::default(), due: None })
    }
}

/// Bytes that one request holds.
struct Share {
    partial: Partial,
    identity: String,
    bytes: usize,
}

impl Share {
    /// Sets the held bytes; false if they exceed the limit.
    fn set(&mut self, bytes: usize) -> bool {
        if bytes == self.bytes {
            return true;
        }
        let mut held = self.partial.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Held { all, of } = &mut *held;
        let own = match of.get_mut(&self.identity) {
            Some(own) => own,
            None => of.entry(self.identity.clone()).or_default(),
        };
        let (all_then, own_then) = (*all - self.bytes + bytes, *own - self.bytes + bytes);
        if bytes > self.bytes && (all_then > MOST || own_then > MOST_OF_ONE) {
            return false;
        }
        (*all, *own, self.bytes) = (all_then, own_then, bytes);
        if own_then == 0 {
            of.remove(&self.identity);
        }
        true
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Position of a body within its messages.
#[derive(Debug, Default)]
struct Message {
    head: [u8; HEAD],
    /// Bytes of the message that have come, its head included.
    came: usize,
}

impl Message {
    /// Returns the memory that the current message takes. A reader rejects a far too long one without
    /// buffering it.
    fn held(&self) -> usize {
        match self.came {
            HEAD.. => Some(self.whole()).filter(|whole| *whole <= MOST_OF_ONE).unwrap_or(self.came),
            came => came,
        }
    }

    /// Returns the message's length once its head is complete.
    fn whole(&self) -> usize {
        let [_, length @ ..] = self.head;
        HEAD + u32::from_be_bytes(length) as usize
    }

    /// Advances by some bytes; true if they end or begin a message.
    fn go_on(&mut self, mut bytes: &[u8]) -> bool {
        let mut turns = self.came == 0;
        while bytes.has_remaining() {
            if self.came < HEAD {
                let part = bytes.len().min(HEAD - self.came);
                bytes.copy_to_slice(&mut self.head[self.came..self.came + part]);
                self.came += part;
            }
            if self.came >= HEAD {
                let whole = self.whole();
                let part = bytes.len().min(whole - self.came);
                bytes.advance(part);
                self.came += part;
                if self.came == whole {
                    (self.came, turns) = (0, true);
                }
            }
        }
        turns
    }
}

struct Measured {
    body: Body,
    share: Share,
    message: Message,
    /// Deadline of the current message.
    due: Option<Pin<Box<Sleep>>>,
}

fn over(text: String) -> axum::Error {
    let limit = Limit::PartialMessages;
    axum::Error::new(Status::from(LimitExceeded::new(limit, text)))
}

impl HttpBody for Measured {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Some(due) = &mut self.due
            && due.as_mut().poll(context).is_ready()
        {
            let text = format!("a message was not whole within {} s", WITHIN.as_secs());
            return Poll::Ready(Some(Err(over(text))));
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let data = frame.as_ref().and_then(|frame| frame.as_ref().ok()).and_then(Frame::data_ref);
        if let Some(data) = data.cloned() {
            let turns = self.message.go_on(&data);
            let held = self.message.held();
            if !self.share.set(held) {
                let text = format!("{} sends too many messages in part at once", self.share.identity);
                return Poll::Ready(Some(Err(over(text))));
            }
            if turns {
                self.due = (held > 0).then(|| Box::pin(sleep_until(Instant::now() + WITHIN)));
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(partial: &Partial, identity: &str) -> Share {
        Share { partial: partial.clone(), identity: identity.to_owned(), bytes: 0 }
    }

    #[test]
    fn bytes_of_whole_messages_are_not_held() {
        let mut message = Message::default();
        let mut bytes = vec![0, 0, 0, 0, 3, 1, 2, 3, 0, 0, 0, 0, 0, 1, 0, 0, 1];
        assert!(message.go_on(&bytes));
        assert_eq!(message.held(), 4, "a part of the third head");
        assert!(!message.go_on(&[4, 7, 7]));
        assert_eq!((message.came, message.held()), (HEAD + 2, HEAD + 0x104), "as long as it declares");
        bytes.resize(0x104 - 2, 0);
        assert!(message.go_on(&bytes));
        assert_eq!(message.held(), 0);
    }

    #[test]
    fn messages_in_part_are_bounded_per_identity_and_in_all() {
        let partial = Partial::default();
        let mut held: Vec<Share> = Vec::new();
        for identity in ["a", "b", "c", "d"] {
            let mut half = share(&partial, identity);
            assert!(half.set(MOST_OF_ONE / 2));
            let mut rest = share(&partial, identity);
            assert!(!rest.set(MOST_OF_ONE / 2 + 1), "{identity} has its own bound");
            assert!(rest.set(MOST_OF_ONE / 2));
            held.extend([half, rest]);
        }
        let mut last = share(&partial, "e");
        assert!(!last.set(1), "all together have one");
        held.truncate(1);
        assert!(last.set(MOST_OF_ONE));
        drop((held, last));
        let held = partial.0.lock().unwrap();
        assert!(held.all == 0 && held.of.is_empty());
    }
}
