//! Runs the examples to their end, as `cargo run --example NAME` does.
#![cfg(feature = "tower")]

#[path = "../examples/fetch_loop.rs"]
mod fetch_loop;
#[path = "../examples/queue_consumer.rs"]
mod queue_consumer;
#[path = "../examples/tower_service.rs"]
mod tower_service;

#[test]
fn examples_succeed() -> Result<(), Box<dyn std::error::Error>> {
    fetch_loop::main()?;
    queue_consumer::main()?;
    tower_service::main()
}
