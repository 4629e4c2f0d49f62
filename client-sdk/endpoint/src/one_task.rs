//! Runs all parts of a connection in one task.
//!
//! A request is passed to its connection through a tokio channel. If the connection ends on one thread while
//! another sends, the request can arrive after the channel was drained. It is then neither returned nor
//! dropped while the sender lives, so its caller waits although no connection is left. Pings do not detect
//! that. Clients with a rejected certificate are affected most: with TLS 1.3 the connection ends when the
//! first request is sent. If a GOAWAY arrives at that moment, hyper has taken the request and cannot return
//! it. A single task runs these parts in sequence, which excludes both races.

use std::pin::Pin;
use std::sync::{Mutex, PoisonError};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use hyper::rt::Executor;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

type Part = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Spawns its task with the first part, on the current runtime. The task ends when no part is left and no
/// more can be added.
#[derive(Debug, Default)]
pub struct OneTask(Mutex<Option<UnboundedSender<Part>>>);

impl Executor<Part> for OneTask {
    fn execute(&self, part: Part) {
        let mut task = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let untaken = match &*task {
            Some(task) => task.send(part).err().map(|refused| refused.0),
            None => Some(part),
        };
        // Also if the task ended early, with its runtime.
        if let Some(part) = untaken {
            let (more, arriving) = unbounded_channel();
            tokio::spawn(run(part, arriving));
            *task = Some(more);
        }
    }
}

async fn run(first: Part, mut arriving: UnboundedReceiver<Part>) {
    let mut parts = FuturesUnordered::from_iter([first]);
    loop {
        tokio::select! {
            Some(part) = arriving.recv() => parts.push(part),
            Some(()) = parts.next() => {}
            else => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::Duration;

    use tokio::runtime::Handle;
    use tokio::task::yield_now;
    use tonic::transport::Uri;

    use crate::{Access, Opening};

    const PATIENCE: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn a_connection_is_one_task_and_ends_with_its_last_handle() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let uri: Uri = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let Opening { endpoint, .. } = Access::default().open(&uri).unwrap();
        let tasks = || Handle::current().metrics().num_alive_tasks();
        assert_eq!(tasks(), 0);
        let channel = endpoint.connect().await.unwrap();
        assert_eq!(tasks(), 1);
        drop((channel, endpoint));
        let ended = async {
            while tasks() > 0 {
                yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, ended).await.expect("the task ends");
    }
}
