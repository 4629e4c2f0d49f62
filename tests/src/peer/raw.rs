//! HTTP/2 frames by hand, for what a correct implementation never sends.
//!
//! Header blocks are written as literals that touch no table (RFC 7541 section 6.2.2), so that nothing has to be
//! remembered; those of requests are not decoded. Flow control is left alone: what tests send fits the window.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// The 24 bytes that a client begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const LARGEST_FRAME: usize = 16_384;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;

const MAX_CONCURRENT_STREAMS: u16 = 3;

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// A port that waits for connections.
#[derive(Debug)]
pub struct RawPeer {
    listener: TcpListener,
}

/// One connection whose frames the test writes.
#[derive(Debug)]
pub struct Raw {
    socket: TcpStream,
}

/// A frame as it came.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Its type.
    pub kind: u8,
    /// Its flags.
    pub flags: u8,
    /// Its stream, 0 for the connection.
    pub stream: u32,
    /// What is in it.
    pub payload: Vec<u8>,
}

impl RawPeer {
    /// Listens on a free port of loopback.
    pub async fn listen() -> Self {
        Self { listener: TcpListener::bind("127.0.0.1:0").await.expect("a free port") }
    }

    /// Where.
    pub fn address(&self) -> SocketAddr {
        self.listener.local_addr().expect("it is bound")
    }

    /// Takes the next connection and says hello.
    pub async fn accept(&self) -> Raw {
        let (mut socket, _) = self.listener.accept().await.expect("a connection");
        socket.set_nodelay(true).expect("a socket");
        let mut preface = [0; PREFACE.len()];
        socket.read_exact(&mut preface).await.expect("a client's preface");
        assert_eq!(preface, PREFACE);
        let mut raw = Raw { socket };
        raw.write(SETTINGS, 0, 0, &[]).await;
        raw
    }
}

impl Raw {
    /// Waits for the next request and names its stream; what belongs to the connection is answered.
    pub async fn request(&mut self) -> u32 {
        self.until(|frame| frame.kind == HEADERS).await.stream
    }

    /// Waits until the client resets this stream and says with what number.
    pub async fn reset_of(&mut self, stream: u32) -> u32 {
        let frame = self.until(|frame| frame.kind == RST_STREAM && frame.stream == stream).await;
        u32::from_be_bytes(frame.payload.try_into().expect("four bytes"))
    }

    async fn until(&mut self, wanted: impl Fn(&Frame) -> bool) -> Frame {
        loop {
            let frame = self.next().await.expect("the client keeps the connection");
            if wanted(&frame) {
                return frame;
            }
        }
    }

    /// The next frame; none when the client has closed the connection.
    pub async fn next(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.socket.read_exact(&mut head).await.ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).expect("24 bits")];
        self.socket.read_exact(&mut payload).await.ok()?;
        let stream = u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]);
        let frame = Frame { kind: head[3], flags: head[4], stream, payload };
        if frame.flags & ACK == 0 && matches!(frame.kind, SETTINGS | PING) {
            let echoed = if frame.kind == PING { frame.payload.as_slice() } else { &[] };
            self.write(frame.kind, ACK, 0, echoed).await;
        }
        Some(frame)
    }

    /// HEADERS, and CONTINUATION where they are long.
    pub async fn headers(&mut self, stream: u32, fields: &[(&str, &[u8])], ends: bool) {
        let block = literals(fields);
        let mut parts = block.chunks(LARGEST_FRAME).peekable();
        let mut kind = HEADERS;
        let mut flags = if ends { END_STREAM } else { 0 };
        while let Some(part) = parts.next() {
            if parts.peek().is_none() {
                flags |= END_HEADERS;
            }
            self.write(kind, flags, stream, part).await;
            (kind, flags) = (CONTINUATION, 0);
        }
    }

    /// Sets the number of streams that the client may open; waits until it knows.
    pub async fn allow(&mut self, streams: u32) {
        let setting = [&MAX_CONCURRENT_STREAMS.to_be_bytes()[..], &streams.to_be_bytes()].concat();
        self.write(SETTINGS, 0, 0, &setting).await;
        self.until(|frame| frame.kind == SETTINGS && frame.flags & ACK != 0).await;
    }

    /// A DATA frame.
    pub async fn data(&mut self, stream: u32, data: &[u8], ends: bool) {
        self.write(DATA, if ends { END_STREAM } else { 0 }, stream, data).await;
    }

    /// No stream above `last` will be processed.
    pub async fn go_away(&mut self, last: u32, code: u32) {
        self.write(GOAWAY, 0, 0, &[last.to_be_bytes(), code.to_be_bytes()].concat()).await;
    }

    /// Bytes that need not be a frame.
    pub async fn bytes(&mut self, bytes: &[u8]) {
        let _ = self.socket.write_all(bytes).await;
    }

    /// Any frame. A connection that the client has closed takes it to nowhere.
    pub async fn write(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).expect("a short frame").to_be_bytes();
        let mut frame = length[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        self.bytes(&frame).await;
    }
}

fn literals(fields: &[(&str, &[u8])]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for part in [name.as_bytes(), value] {
            string_length(part.len(), &mut block);
            block.extend(part);
        }
    }
    block
}

/// An integer with a prefix of seven bits (RFC 7541 section 5.1).
fn string_length(length: usize, block: &mut Vec<u8>) {
    const FULL: usize = 0x7f;
    if length < FULL {
        return block.push(u8::try_from(length).expect("seven bits"));
    }
    block.push(0x7f);
    let mut rest = length - FULL;
    while rest >= 0x80 {
        block.push(u8::try_from(rest & FULL).expect("seven bits") | 0x80);
        rest >>= 7;
    }
    block.push(u8::try_from(rest).expect("seven bits"));
}
