//! The server under attack: by a peer without a token, by one with an agent's token, a viewer's, an editor's. It answers
//! an operator's kills all the time and stays within the memory of the shipped manifests.
//!
//! Each siege lasts 10 s; `DAMPER_SIEGE_SECONDS` says otherwise, and then kills must be answered within a second. All
//! attackers are tasks of the test on loopback and end with it.

mod attacks;
mod wire;
mod world;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use damper_proto::v1::Role;

use self::attacks::Attackers;
use self::world::{Kills, MEMORY_MIB, World};

/// By how much later than a second a kill may be answered on a machine that does other work as well.
const SLACK: u32 = 10;

fn length() -> (Duration, Duration) {
    let second = Duration::from_secs(1);
    match std::env::var("DAMPER_SIEGE_SECONDS") {
        Ok(seconds) => (Duration::from_secs(seconds.parse().expect("a number of seconds")), second),
        Err(_) => (Duration::from_secs(10), second * SLACK),
    }
}

/// Lets them attack for the time; the server must bear it.
async fn besiege(name: &str, world: &World, mut attackers: Attackers) {
    let (length, within) = length();
    let stop = Arc::new(AtomicBool::new(false));
    let siege = async {
        tokio::time::sleep(length).await;
        stop.store(true, Ordering::Relaxed);
    };
    let (kills, ()) = tokio::join!(world.set_kills(stop.clone()), siege);
    attackers.shutdown().await;
    let peak = world.server.memory_peak_mib();
    let Kills { answered, from_memory, worst } = kills;
    println!(
        "{name}: {answered} kills answered, {from_memory} of them from memory, the slowest in {worst:?}; peak memory \
         {peak} MiB"
    );
    assert!(worst <= within, "{name}: a kill took {worst:?}");
    assert!(peak < MEMORY_MIB, "{name}: the server took {peak} MiB");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_are_answered_under_siege_without_token() {
    let world = World::start().await;
    let mut attackers = Attackers::new();
    attacks::without_token(&mut attackers, world.address);
    besiege("no token", &world, attackers).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_are_answered_under_siege_by_an_agent() {
    let world = World::start().await;
    let token = world.token(Role::Agent, "agent").await;
    let mut attackers = Attackers::new();
    attacks::with_agent(&mut attackers, world.address, &token, &world.epoch().await);
    besiege("agent", &world, attackers).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_are_answered_under_siege_by_a_viewer() {
    let world = World::start().await;
    let token = world.token(Role::Viewer, "viewer").await;
    let mut attackers = Attackers::new();
    attacks::with_viewer(&mut attackers, world.address, &token);
    besiege("viewer", &world, attackers).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_are_answered_under_siege_by_editors() {
    let world = World::start().await;
    let mut attackers = Attackers::new();
    for n in 0..2 {
        let token = world.token(Role::Editor, &format!("editor-{n}")).await;
        attacks::with_editor(&mut attackers, world.address, &token);
    }
    besiege("editors", &world, attackers).await;
}

/// Every bound at once: all of them together, with tokens of more than one identity.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_bounds_filled_at_once_fit_the_memory() {
    let world = World::start().await;
    let epoch = world.epoch().await;
    let mut tokens = Vec::new();
    for n in 0..3 {
        let agent = world.token(Role::Agent, &format!("agent-{n}")).await;
        tokens.push((agent, world.token(Role::Viewer, &format!("viewer-{n}")).await));
    }
    let editors = [world.token(Role::Editor, "editor-0").await, world.token(Role::Editor, "editor-1").await];
    let mut attackers = Attackers::new();
    attacks::without_token(&mut attackers, world.address);
    for (agent, viewer) in &tokens {
        attacks::with_agent(&mut attackers, world.address, agent, &epoch);
        attacks::with_viewer(&mut attackers, world.address, viewer);
    }
    for editor in &editors {
        attacks::with_editor(&mut attackers, world.address, editor);
    }
    tokio::time::sleep(length().0).await;
    attackers.shutdown().await;
    let peak = world.server.memory_peak_mib();
    println!("all at once: peak memory {peak} MiB");
    assert!(peak < MEMORY_MIB, "the server took {peak} MiB");
    world.token(Role::Viewer, "afterwards").await;
}
