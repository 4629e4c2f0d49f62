//! A way between two replicas that a test can cut.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Where it leads; dropping the sender ends what was passed on.
type Target = Arc<Mutex<Option<(String, watch::Sender<()>)>>>;

/// Passes connections on; whoever drops it cuts it.
pub(crate) struct Proxy {
    address: SocketAddr,
    target: Target,
    accepting: tokio::task::JoinHandle<()>,
}

impl Proxy {
    /// Listens on a free port and leads nowhere yet.
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let target = Target::default();
        let known = target.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((mut from, _)) = listener.accept().await {
                let way =
                    known.lock().expect("no panic").as_ref().map(|(to, open)| (to.clone(), open.subscribe()));
                let Some((target, mut open)) = way else { continue };
                tokio::spawn(async move {
                    let Ok(mut to) = TcpStream::connect(target).await else { return };
                    tokio::select! {
                        _ = open.changed() => {}
                        _ = tokio::io::copy_bidirectional(&mut from, &mut to) => {}
                    }
                });
            }
        });
        Self { address, target, accepting }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Leads to a server from now on.
    pub(crate) fn lead_to(&self, url: &str) {
        let target = url.trim_start_matches("http://").to_owned();
        *self.target.lock().expect("no panic") = Some((target, watch::Sender::new(())));
    }

    /// Ends all connections and accepts none that leads anywhere.
    pub(crate) fn cut(&self) {
        drop(self.target.lock().expect("no panic").take());
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.cut();
        self.accepting.abort();
    }
}
