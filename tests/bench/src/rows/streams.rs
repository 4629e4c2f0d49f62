//! Many streams: how fast a change reaches all clients and is answered, and what a stream takes of the server, beside a
//! tonic server that has the same streams and nothing else.
//!
//! Four processes share the cores: each of the two servers, and each server's clients. A client is a connection with a
//! stream of Damper's protocol. Time runs from sending the write (which Damper stores first, and the peer does not) until
//! the client has handed its answer to the stream. Memory is what the server holds more than without any client, without
//! the code that it did not need before, divided by the clients.

use std::time::Duration;

use anyhow::{Context as _, Result};
use damper_tests::spread::{Spread, quantile};
use tempfile::TempDir;

use super::Size;
use crate::figure::{Chart, Figure, Point, Row, Series, Target};
use crate::fleet::{Door, HeldFleet, Server, Settings, certificate, put_late};
use crate::process::{Conversation, Usage};

const RAW: &str = "a tonic server with the same streams";
/// Parts of the idle time, each measured by itself.
const PARTS: u32 = 5;

pub(super) async fn measure(size: Size) -> Result<(usize, Row)> {
    let rounds = size.pick(2, 15, 21);
    // Time for what connecting left behind to settle, and then to be idle.
    let [settle, idle] = size.pick([200, 500], [3_000, 10_000], [3_000, 20_000]).map(Duration::from_millis);
    let plain: &[usize] = size.pick(&[20], &[1_000], &[1_000, 10_000]);
    let guarded: &[usize] = size.pick(&[20], &[1_000], &[1_000, 10_000, 18_000]);
    let mut row = Row::new("streams", "Change to answer from many streams").note(
        "Both servers and the clients of both are processes on the same cores, so times are those of a machine that is the \
         load generator too. The clients' SDK is not in it: the load speaks the protocol.",
    );
    let mut lines = [Vec::new(), Vec::new()];
    for (plaintext, all) in [(true, plain), (false, guarded)] {
        for &clients in all {
            let mut both = Both::start(clients, plaintext).await?;
            tokio::time::sleep(settle).await;
            let measured = both.measure(rounds, idle).await?;
            row = row.with_all(measured.figures(clients, plaintext));
            if !plaintext {
                lines.iter_mut().zip(measured.points(clients)).for_each(|(line, point)| line.push(point));
            }
        }
    }
    Ok((rounds, row.draw(chart(lines))))
}

fn chart(lines: [Vec<Point>; 2]) -> Chart {
    let [ours, raws] = lines;
    let series = |name: &str, points| Series { name: name.to_owned(), points };
    Chart {
        name: "streams".to_owned(),
        title: "From a change until 99 % of the clients have answered (TLS)".to_owned(),
        x: Some("clients".to_owned()),
        y: "s".to_owned(),
        series: vec![series("Damper", ours), series(RAW, raws)],
    }
}

/// Both servers with their clients.
struct Both {
    server: Server,
    raw: Conversation,
    clients: usize,
    fleets: [HeldFleet; 2],
    empty: [Usage; 2],
    _folder: TempDir,
}

/// What came of it, ours and the raw server's: rounds, or parts of the idle time.
#[derive(Default)]
struct Measured {
    p99_ms: [Vec<f64>; 2],
    stream_kib: [Vec<f64>; 2],
    idle_percent: [Vec<f64>; 2],
}

impl Both {
    async fn start(clients: usize, plaintext: bool) -> Result<Self> {
        let server = Server::start(Settings { plaintext, ..Settings::default() }).await?;
        put_late(server.door()).await?;
        let folder = tempfile::tempdir()?;
        let place = folder.path().display().to_string();
        let authority = if plaintext { None } else { Some(certificate(folder.path())?) };
        let arguments: &[&str] =
            if plaintext { &["serve-streams"] } else { &["serve-streams", "--folder", &place] };
        let mut raw = Conversation::start(arguments, [])?;
        let address = raw.read("the address of the raw server").await?;
        let scheme = if plaintext { "http" } else { "https" };
        let door = Door::new(&format!("{scheme}://{address}"), authority)?;
        let empty = [server.usage()?, raw.usage()?];
        let fleets = [
            HeldFleet::start(server.door(), false, clients).await?,
            HeldFleet::start(&door, true, clients).await?,
        ];
        Ok(Self { server, raw, clients, fleets, empty, _folder: folder })
    }

    fn usage(&self) -> Result<[Usage; 2]> {
        Ok([self.server.usage()?, self.raw.usage()?])
    }

    async fn measure(&mut self, rounds: usize, idle: Duration) -> Result<Measured> {
        let mut measured = Measured::default();
        for _ in 0..PARTS {
            self.idle(idle / PARTS, &mut measured).await?;
        }
        for round in 0..=rounds {
            for (fleet, p99_ms) in self.fleets.iter_mut().zip(&mut measured.p99_ms) {
                let arrived = fleet.change().await?;
                // The first is to warm up.
                p99_ms.extend((round > 0).then(|| quantile(&arrived, 0.99) * 1e3));
            }
        }
        Ok(measured)
    }

    async fn idle(&self, time: Duration, measured: &mut Measured) -> Result<()> {
        let before = self.usage()?;
        tokio::time::sleep(time).await;
        let after = self.usage()?;
        for (index, (after, before)) in after.iter().zip(&before).enumerate() {
            let empty = self.empty.get(index).context("both")?.own_kib;
            let held = after.own_kib.saturating_sub(empty) as f64 / self.clients as f64;
            measured.stream_kib.get_mut(index).context("both")?.push(held);
            let used = after.processor_since(before).as_secs_f64() / time.as_secs_f64();
            measured.idle_percent.get_mut(index).context("both")?.push(used * 100.0);
        }
        Ok(())
    }
}

impl Measured {
    fn points(&self, clients: usize) -> [Point; 2] {
        let y = |rounds: &Vec<f64>| Spread::of(rounds.iter().map(|ms| ms / 1e3));
        self.p99_ms.each_ref().map(|rounds| Point { name: String::new(), x: clients as f64, y: y(rounds) })
    }

    fn figures(&self, clients: usize, plaintext: bool) -> [Figure; 3] {
        let how = if plaintext { "without TLS" } else { "TLS and tokens; the peer: TLS" };
        let beside = |what, unit, [ours, raws]: &[Vec<f64>; 2]| {
            Figure::beside(format!("{what}, {clients} streams, {how}"), unit, ours, RAW, raws)
        };
        [
            beside("p99 from change to answer", "ms", &self.p99_ms).aim(Target::RatioAtMost(2.0)),
            beside("memory per stream", "KiB", &self.stream_kib).aim(Target::RatioAtMost(1.5)),
            beside("processor while nothing happens", "% of a core", &self.idle_percent)
                .aim(Target::AtMost(10.0)),
        ]
    }
}
