//! A relay between a store and its database, which can cut a connection at a statement.
//!
//! So a test has a commit whose outcome the store does not know: the statement was executed and its answer is
//! lost, or it never arrived. It also counts what the database sends.

use std::ops::Range;
use std::str::FromStr as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_postgres::Config;
use tokio_postgres::config::Host;

/// Where a connection is cut.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cut {
    /// The database does not receive the statement.
    Before(&'static str),
    /// The database executes the statement; its answer is lost.
    After(&'static str),
}

/// The relay. Dropped, it accepts no further connections.
pub(crate) struct Relay {
    /// URL of the database through the relay.
    pub(crate) url: String,
    cut: Arc<Mutex<Option<Cut>>>,
    received: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Relay {
    pub(crate) async fn start(url: &str) -> Self {
        let config = Config::from_str(url).unwrap();
        let (Host::Tcp(host), Some(port)) = (&config.get_hosts()[0], config.get_ports().first()) else {
            panic!("{url}: no host and port")
        };
        let database = format!("{host}:{port}");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = url.replace(&database, &listener.local_addr().unwrap().to_string());
        let (cut, received) = (Arc::new(Mutex::new(None)), Arc::<AtomicU64>::default());
        let task = tokio::spawn({
            let (cut, received) = (cut.clone(), received.clone());
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    let server = TcpStream::connect(&database).await.unwrap();
                    tokio::spawn(relay(client, server, cut.clone(), received.clone()));
                }
            }
        });
        Self { url, cut, received, task }
    }

    /// Returns how many bytes the database has sent.
    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::SeqCst)
    }

    /// Cuts the next connection that sends this statement, once.
    pub(crate) fn cut(&self, cut: Cut) {
        let earlier = self.cut.lock().unwrap().replace(cut);
        assert!(earlier.is_none(), "{earlier:?} did not occur");
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Copies both ways until one side ends or the connection is cut. Statements without parameters are one short
/// message each, among others.
async fn relay(
    mut client: TcpStream,
    mut server: TcpStream,
    cut: Arc<Mutex<Option<Cut>>>,
    total: Arc<AtomicU64>,
) {
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let (mut sent, mut received) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        tokio::select! {
            Ok(count @ 1..) = from_client.read(&mut sent) => {
                let messages = &sent[..count];
                match take(&cut, messages) {
                    Some((Cut::Before(_), place)) => {
                        to_server.write_all(&messages[..place.start]).await.unwrap();
                        return;
                    }
                    Some((Cut::After(statement), place)) => {
                        to_server.write_all(&messages[..place.end]).await.unwrap();
                        let answer = [b'Z', 0, 0, 0, 5, if statement == "commit" { b'I' } else { b'T' }];
                        let mut all = Vec::new();
                        while !all.ends_with(&answer) {
                            let count = from_server.read(&mut received).await.unwrap();
                            assert!(count > 0, "an answer");
                            all.extend_from_slice(&received[..count]);
                        }
                        return;
                    }
                    None if to_server.write_all(messages).await.is_err() => return,
                    None => {}
                }
            }
            Ok(count @ 1..) = from_server.read(&mut received) => {
                total.fetch_add(count as u64, Ordering::SeqCst);
                if to_client.write_all(&received[..count]).await.is_err() {
                    return;
                }
            }
            else => return,
        }
    }
}

/// Takes the cut if its statement is among the messages, with the statement's place.
fn take(cut: &Mutex<Option<Cut>>, messages: &[u8]) -> Option<(Cut, Range<usize>)> {
    let mut cut = cut.lock().unwrap();
    let (Cut::Before(statement) | Cut::After(statement)) = (*cut)?;
    let length = u32::try_from(statement.len() + 5).unwrap().to_be_bytes();
    let message = [b"Q", &length[..], statement.as_bytes(), b"\0"].concat();
    let start = messages.windows(message.len()).position(|window| window == message)?;
    cut.take().map(|cut| (cut, start..start + message.len()))
}
