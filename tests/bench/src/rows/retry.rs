//! Time that a library for retries adds to a call of a closure that succeeds at once.
//!
//! `backon` and `tower::retry` make the same calls in the same rounds. `backon` counts and bounds nothing.
//! Allocations are counted by the program `count`.

use std::time::Instant;

use anyhow::{Context as _, Result};
use damper_tests::spread::Spread;

use super::{Size, layer};
use crate::calls::{Closures, Library};
use crate::figure::{Figure, Peer, Row, Target};
use crate::rounds::{interleaved, pairwise};

/// Short enough that most rounds are not interrupted on a busy machine.
const CALLS: usize = 2_000;

pub(super) async fn measure(size: Size) -> Result<(usize, Row)> {
    let rounds = size.pick(2, 201, 501);
    let closures = Closures::new()?;
    let timed = interleaved(rounds, &Library::ALL, |library| {
        closures.calls(library, CALLS / 20);
        let begun = Instant::now();
        closures.calls(library, CALLS);
        Ok::<_, anyhow::Error>(begun.elapsed().as_nanos() as f64 / CALLS as f64)
    })?;
    let [bare, others @ ..] = timed.as_slice() else { anyhow::bail!("there is no bare call") };
    let added = |index: usize| -> Vec<f64> {
        let with = others.get(index).map_or(&[][..], Vec::as_slice);
        pairwise(with, bare, |with, without| with - without).collect()
    };
    let damper = added(0);
    let row = Row::new("retry", "damper-retry on a successful call")
        .note("A closure whose future is ready at once. The time of the bare call is taken off.");
    let row = row.with(
        Figure::beside("time added", "ns", &damper, Library::Backon.name(), &added(1))
            .aim(Target::AtMost(150.0)),
    );
    let row = row.with(Figure::beside("time added", "ns", &damper, Library::Tower.name(), &added(2)));
    let row = row
        .with(Figure::new("time added, under a rule", "ns", Spread::of(added(3))).aim(Target::AtMost(500.0)));
    Ok((rounds, row.with_all(allocations().await?)))
}

async fn allocations() -> Result<Vec<Figure>> {
    let counted = layer::count(&["closures"]).await?;
    let of = |library: Library| -> Result<f64> {
        counted.get(library.name()).and_then(serde_json::Value::as_f64).with_context(|| library.name())
    };
    let ours = Spread::exactly(of(Library::Damper)?);
    let figure = |peer: Library| -> Result<Figure> {
        let peer = Peer { name: peer.name().to_owned(), figure: Spread::exactly(of(peer)?) };
        let figure = Figure::new("allocations per call", "", ours);
        Ok(Figure { peer: Some(peer), ..figure.aim(Target::AtMost(0.0)) })
    };
    let governed =
        Figure::new("allocations per call, under a rule", "", Spread::exactly(of(Library::Governed)?));
    Ok(vec![figure(Library::Backon)?, figure(Library::Tower)?, governed.aim(Target::AtMost(0.0))])
}
