//! Everything that keeps a connection going, run by one task instead of by one each.
//!
//! A request is handed to its connection through a channel of tokio's. Where the connection ends on one thread while
//! another is just sending, the request can come to lie in the channel after it was emptied: it is neither refused
//! nor dropped as long as the sender lives, so its caller waits although nothing is connected any more. No ping finds
//! that out. Who shows a certificate that is refused meets it most: with TLS 1.3 the connection ends just when the
//! first request is sent. And where a GOAWAY comes just when a request is sent, hyper has taken the request and cannot
//! give it back. One task does one thing after another, so that neither can happen.

use std::pin::Pin;
use std::sync::{Mutex, PoisonError};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use hyper::rt::Executor;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

type Part = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Begins its task with the first part, on the runtime that this is done in; the task ends when no part is left and
/// nobody can bring another.
#[derive(Debug, Default)]
pub struct OneTask(Mutex<Option<UnboundedSender<Part>>>);

impl Executor<Part> for OneTask {
    fn execute(&self, part: Part) {
        let mut task = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let untaken = match &*task {
            Some(task) => task.send(part).err().map(|refused| refused.0),
            None => Some(part),
        };
        // Also where the task ended before its time, with its runtime.
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
