//! A scripted HTTP/2 server: what it does with each request is said beforehand, what it saw can be asked.
//!
//! Requests take the replies of the script in the order in which they arrive, over however many connections.
//! It stands on the server half of `h2`, so that whatever HTTP/2 allows can be said frame by frame; what `h2`
//! would refuse to send is written by hand in [`raw`]. It knows nothing of gRPC but how messages are framed.
//!
//! Nothing sleeps but a script's own pauses: tests wait with [`Peer::until`] for what the peer saw.

pub mod raw;
mod script;
mod stream;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::HeaderMap;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::{JoinHandle, JoinSet};
use tonic::transport::{Channel, Endpoint};

pub use script::{Act, Gate, Reply, framed};

/// How long a test waits for what it expects the peer to see.
const PATIENCE: Duration = Duration::from_secs(10);

/// Room for what clients send without being read: large enough that only a stalled reader stops them.
const WINDOW: u32 = 1 << 20;

/// One request as it arrived.
#[derive(Clone, Debug)]
pub struct Seen {
    /// 0 for the first connection, then 1 ...
    pub connection: usize,
    /// The number of its stream.
    pub stream: u32,
    /// When its headers were read.
    pub arrived: Instant,
    /// `:path`
    pub path: String,
    /// `:authority`
    pub authority: String,
    /// The other headers, in the order in which they came.
    pub headers: HeaderMap,
    /// What has been read of its body.
    pub body: Vec<u8>,
    /// The body was read to its end.
    pub whole: bool,
    /// The number in the client's RST_STREAM.
    pub reset: Option<u32>,
    /// Nothing more is to be seen of it: both halves are closed, or the stream was reset.
    pub over: bool,
}

impl Seen {
    /// A header's only value; none if it is not there.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut all = self.headers.get_all(name).iter();
        let value = all.next()?.to_str().expect("visible ASCII");
        assert_eq!(all.next(), None, "{name} is there once");
        Some(value)
    }
}

/// What the peer saw so far; each change wakes who waits.
type Log = watch::Sender<Vec<Seen>>;

/// A server that listens; stops when it is dropped.
#[derive(Debug)]
pub struct Peer {
    address: SocketAddr,
    log: Arc<Log>,
    serving: JoinHandle<()>,
}

impl Peer {
    /// Serves by a script on a free port of loopback. A request beyond its end is answered with UNIMPLEMENTED.
    pub async fn start(script: impl IntoIterator<Item = Reply>) -> Self {
        let script: Vec<_> = script.into_iter().collect();
        let mut script = script.into_iter();
        Self::by(move |_| script.next().unwrap_or_else(|| Reply::error(12))).await
    }

    /// Serves by a function of the request's place, 0 for the first.
    pub async fn by(reply: impl FnMut(usize) -> Reply + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let log = Arc::new(Log::new(Vec::new()));
        let server = Server { log: Arc::clone(&log), reply: Arc::new(Mutex::new(reply)) };
        Self { address, log, serving: tokio::spawn(server.accept(listener)) }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A channel to it, without Damper, that connects when it is first used.
    pub fn channel(&self) -> Channel {
        channel(self.address)
    }

    /// The requests that arrived so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.log.borrow().clone()
    }

    /// Waits until this holds of the requests that arrived.
    pub async fn until(&self, what: &str, holds: impl FnMut(&Vec<Seen>) -> bool) -> Vec<Seen> {
        let mut log = self.log.subscribe();
        let waited = tokio::time::timeout(PATIENCE, log.wait_for(holds)).await;
        match waited {
            Ok(seen) => seen.expect("the log lives as long as the peer").clone(),
            Err(_) => panic!("not within {PATIENCE:?}: {what}; open: {:#?}", self.open()),
        }
    }

    /// The requests whose streams are open, without their bodies.
    fn open(&self) -> Vec<Seen> {
        let mut open = self.seen();
        open.retain(|request| !request.over);
        open.iter_mut().for_each(|request| request.body.clear());
        open
    }

    /// Waits until every stream that was opened is closed: ended on both sides, or reset.
    pub async fn until_all_are_over(&self) -> Vec<Seen> {
        self.until("every stream is over", |seen| seen.iter().all(|request| request.over)).await
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// A channel to this address that connects when it is first used.
pub fn channel(address: SocketAddr) -> Channel {
    Endpoint::from_shared(format!("http://{address}")).expect("a URL").connect_lazy()
}

/// What connections share.
struct Server<F> {
    log: Arc<Log>,
    reply: Arc<Mutex<F>>,
}

impl<F> Clone for Server<F> {
    fn clone(&self) -> Self {
        Self { log: Arc::clone(&self.log), reply: Arc::clone(&self.reply) }
    }
}

impl<F: FnMut(usize) -> Reply + Send + 'static> Server<F> {
    async fn accept(self, listener: TcpListener) {
        let mut connections = JoinSet::new();
        let mut count = 0;
        loop {
            let (socket, _) = listener.accept().await.expect("the listener is open");
            connections.spawn(self.clone().serve(socket, count));
            count += 1;
        }
    }

    /// Serves one connection until the client closes it or a script hangs up.
    async fn serve(self, socket: TcpStream, connection: usize) {
        socket.set_nodelay(true).expect("a socket");
        let mut builder = h2::server::Builder::new();
        builder.initial_window_size(WINDOW).initial_connection_window_size(WINDOW);
        builder.max_concurrent_streams(1_000);
        let Ok(mut requests) = builder.handshake::<_, Bytes>(socket).await else { return };
        let hang_up = Arc::new(Notify::new());
        let mut streams = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                // First, so that all that was said before has left when a script hangs up.
                biased;
                accepted = requests.accept() => accepted,
                () = hang_up.notified() => return,
            };
            let Some(Ok((request, respond))) = accepted else { return };
            let stream = respond.stream_id().as_u32();
            let (place, reply) = self.enter(&request, connection, stream);
            let over = stream::Over::when_dropped(stream::Entry::new(Arc::clone(&self.log), place));
            streams.spawn(stream::run(reply, request.into_body(), respond, over, Arc::clone(&hang_up)));
        }
    }

    fn enter(
        &self,
        request: &http::Request<h2::RecvStream>,
        connection: usize,
        stream: u32,
    ) -> (usize, Reply) {
        let seen = Seen {
            connection,
            stream,
            arrived: Instant::now(),
            path: request.uri().path().to_owned(),
            authority: request.uri().authority().map(ToString::to_string).unwrap_or_default(),
            headers: request.headers().clone(),
            body: Vec::new(),
            whole: false,
            reset: None,
            over: false,
        };
        let mut reply = self.reply.lock().unwrap_or_else(PoisonError::into_inner);
        let mut place = 0;
        self.log.send_modify(|log| {
            place = log.len();
            log.push(seen);
        });
        (place, reply(place))
    }
}
