//! Reads the stream limit of a peer from its SETTINGS frames (RFC 9113, 6.5).
//!
//! hyper knows the limit, but sends no signal when settings arrive. A connection counts as open with the
//! first ones, as in gRPC: before, the limit is unknown, and a peer that does not speak HTTP/2 looks as one
//! that does. Frames other than SETTINGS are skipped by their length.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Notify, oneshot};

const HEADER_BYTES: usize = 9;
const SETTING_BYTES: usize = 6;
/// Type of a SETTINGS frame.
const SETTINGS: u8 = 4;
/// Flag of a SETTINGS frame without settings, which confirms the other side's.
const ACK: u8 = 1;
const MAX_CONCURRENT_STREAMS: u16 = 3;

/// Streams that a peer allows on a connection. Without a limit: [`u32::MAX`].
#[derive(Clone, Debug)]
pub(super) struct Limit(Arc<State>);

#[derive(Debug)]
struct State {
    now: AtomicU32,
    /// Wakes requests that wait for a stream, once the connection has requests.
    changed: OnceLock<Arc<Notify>>,
}

impl Limit {
    pub(super) fn now(&self) -> u32 {
        self.0.now.load(Ordering::Relaxed)
    }

    /// Wakes those that wait here with each further change.
    pub(super) fn wakes(&self, changed: Arc<Notify>) {
        _ = self.0.changed.set(changed);
    }

    fn set(&self, limit: u32) {
        self.0.now.store(limit, Ordering::Relaxed);
        if let Some(changed) = self.0.changed.get() {
            changed.notify_waiters();
        }
    }
}

/// A stream of bytes whose SETTINGS are read as they pass.
pub(super) struct Watched<T> {
    inner: T,
    frames: Frames,
}

/// The frames that have arrived.
struct Frames {
    limit: Limit,
    /// Sent with the first settings.
    first: Option<oneshot::Sender<()>>,
    /// Begin of a frame's header, or of a setting.
    part: [u8; HEADER_BYTES],
    filled: usize,
    /// Bytes of the current frame that are still to come.
    left: usize,
    is_settings: bool,
}

/// Returns the stream, its limit, and a receiver of the first settings.
pub(super) fn watch<T>(inner: T) -> (Watched<T>, Limit, oneshot::Receiver<()>) {
    let limit = Limit(Arc::new(State { now: AtomicU32::new(u32::MAX), changed: OnceLock::new() }));
    let (first, arrived) = oneshot::channel();
    let frames = Frames {
        limit: limit.clone(),
        first: Some(first),
        part: [0; HEADER_BYTES],
        filled: 0,
        left: 0,
        is_settings: false,
    };
    (Watched { inner, frames }, limit, arrived)
}

impl Frames {
    fn read(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.left == 0 {
                if self.fill(&mut bytes, HEADER_BYTES) {
                    let [long, mid, short, kind, flags, ..] = self.part;
                    self.left = u32::from_be_bytes([0, long, mid, short]) as usize;
                    self.is_settings = kind == SETTINGS && flags & ACK == 0;
                    self.ended_if_none_left();
                }
                continue;
            }
            let before = bytes.len();
            if self.is_settings {
                let wanted = SETTING_BYTES.min(self.filled + self.left);
                if self.fill(&mut bytes, wanted) && wanted == SETTING_BYTES {
                    self.setting();
                }
            } else {
                bytes = &bytes[self.left.min(before)..];
            }
            self.left -= before - bytes.len();
            self.ended_if_none_left();
        }
    }

    /// Takes a setting, the first bytes of the part.
    fn setting(&mut self) {
        let [high, low, value @ .., _, _, _] = self.part;
        if u16::from_be_bytes([high, low]) == MAX_CONCURRENT_STREAMS {
            self.limit.set(u32::from_be_bytes(value));
        }
    }

    /// Moves bytes to the part, up to this number. Returns true once it has them.
    fn fill(&mut self, bytes: &mut &[u8], wanted: usize) -> bool {
        let (taken, rest) = bytes.split_at(bytes.len().min(wanted - self.filled));
        self.part[self.filled..][..taken.len()].copy_from_slice(taken);
        (self.filled, *bytes) = (self.filled + taken.len(), rest);
        let is_whole = self.filled == wanted;
        if is_whole {
            self.filled = 0;
        }
        is_whole
    }

    fn ended_if_none_left(&mut self) {
        if self.left == 0
            && self.is_settings
            && let Some(first) = self.first.take()
        {
            // The receiver is gone if the connection took too long.
            _ = first.send(());
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Watched<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buffer))?;
        self.frames.read(&buffer.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Watched<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 0], payload].concat()
    }

    fn setting(id: u16, value: u32) -> Vec<u8> {
        [&id.to_be_bytes()[..], &value.to_be_bytes()].concat()
    }

    /// Reads these bytes in pieces; returns the limit, and if the first settings have arrived.
    fn read(bytes: &[u8], piece: usize) -> (u32, bool) {
        let (mut watched, limit, mut first) = watch(());
        bytes.chunks(piece).for_each(|piece| watched.frames.read(piece));
        (limit.now(), first.try_recv().is_ok())
    }

    #[test]
    fn limit_is_read_however_the_bytes_arrive() {
        let settings = [setting(4, 65_535), setting(MAX_CONCURRENT_STREAMS, 7), setting(6, 1 << 20)].concat();
        let first = frame(SETTINGS, 0, &settings);
        // A frame of data whose content looks like settings.
        let data = frame(0, 0, &frame(SETTINGS, 0, &setting(MAX_CONCURRENT_STREAMS, 1)));
        let ack = frame(SETTINGS, ACK, &[]);
        let later = frame(SETTINGS, 0, &setting(MAX_CONCURRENT_STREAMS, 300));
        let all = [&first[..], &ack, &data, &frame(0, 1, &[]), &later].concat();
        for piece in 1..all.len() {
            assert_eq!(read(&first, piece), (7, true), "{piece}");
            assert_eq!(read(&[&first[..], &ack, &data].concat(), piece), (7, true), "{piece}");
            assert_eq!(read(&all, piece), (300, true), "{piece}");
            assert!(!read(&first[..first.len() - 1], piece).1, "{piece}");
        }
    }

    #[test]
    fn peer_without_a_limit_allows_any_number() {
        assert_eq!(read(&frame(SETTINGS, 0, &[]), 4), (u32::MAX, true));
        assert_eq!(read(&frame(SETTINGS, 0, &setting(4, 1)), 4), (u32::MAX, true));
        assert_eq!(read(&frame(SETTINGS, ACK, &[]), 4), (u32::MAX, false));
        // A frame of a wrong length does not shift the ones behind it.
        let wrong = frame(SETTINGS, 0, &[0; 8]);
        let right = frame(SETTINGS, 0, &setting(MAX_CONCURRENT_STREAMS, 2));
        assert_eq!(read(&[wrong, right].concat(), 5), (2, true));
    }

    #[test]
    fn bytes_that_are_no_frames_are_no_settings() {
        assert!(!read(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n", 7).1);
    }
}
