//! A service with one governed operation, for tests in a browser: a statement that fails every other time.
//!
//! `operation CONTROL_PLANE` runs it 50 times a second as the service `shop`, until it is killed.

use std::cell::Cell;
use std::error::Error;
use std::io;
use std::time::Duration;

use damper_sdk::{Damper, Options};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let control_plane = std::env::args().nth(1).ok_or("CONTROL_PLANE")?;
    let damper = Damper::connect(Options::new([control_plane]).service("shop"))?;
    let insert = damper.operation("orders-db", "orders/insert")?;
    let runs = Cell::new(0_u64);
    let mut pace = tokio::time::interval(Duration::from_millis(20));
    loop {
        pace.tick().await;
        let statement = insert.call(async |_| {
            runs.set(runs.get() + 1);
            if runs.get().is_multiple_of(2) {
                Ok(())
            } else {
                Err(io::Error::from(io::ErrorKind::ResourceBusy))
            }
        });
        // Half of the calls fail while nothing is retried.
        drop(statement.await);
    }
}
