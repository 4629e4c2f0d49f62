//! Consumes a queue that delivers a message again if its transaction rolls back. A stateful retry counts the
//! attempts of each message; a message without attempts left goes to the dead letters.

use std::collections::VecDeque;
use std::error::Error;
use std::io;
use std::time::Duration;

use damper_retry::Retry;

#[derive(Debug)]
struct Message {
    id: u64,
    body: &'static str,
}

/// Stands for a database transaction that fails for one message.
async fn store(message: &Message) -> io::Result<()> {
    match message.body {
        "poison" => Err(io::ErrorKind::ConnectionAborted.into()),
        _ => Ok(()),
    }
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<(), Box<dyn Error>> {
    let consume = Retry::named("orders/consume").max_attempts(3).build()?;
    let consume = consume.stateful::<u64, io::Error>(10_000, Duration::from_secs(3600));

    let mut queue = VecDeque::from([
        Message { id: 1, body: "order" },
        Message { id: 2, body: "poison" },
        Message { id: 3, body: "order" },
    ]);
    let (mut stored, mut dead_letters) = (Vec::new(), Vec::new());
    while let Some(message) = queue.pop_front() {
        match consume.call(message.id, async |_| store(&message).await).await {
            Ok(()) => stored.push(message.id),
            // No attempt is left, or the last error is not retried. The body did not run.
            Err(error) if error.is_recovery() => {
                println!("message {} failed {} times", message.id, error.attempts());
                dead_letters.push(message.id);
            }
            // The transaction rolls back, and the queue delivers the message again: the body failed, a gate
            // blocked the attempt, or the store is full.
            Err(_) => queue.push_back(message),
        }
    }
    assert_eq!((stored, dead_letters), (vec![1, 3], vec![2]));
    Ok(())
}
