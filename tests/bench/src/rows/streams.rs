//! Many streams: how fast a change reaches all clients and is answered, and what a stream takes of the server, beside a
//! tonic server that has the same streams and nothing else.
//!
//! Four processes share the cores: each of the two servers, and each server's clients. A client is a connection with a
//! stream of Damper's protocol. Time runs from sending the write (which Damper stores first, and the peer does not) until
//! the client has handed its answer to the stream. Memory is what the server holds more than without any client, divided
//! by the clients.

use std::time::Duration;

use anyhow::Result;
use tempfile::TempDir;
use tokio::task::block_in_place;

use super::Size;
use crate::figure::{Chart, Figure, Peer, Point, Row, Series, Target};
use crate::fleet::{Door, HeldFleet, Server, Settings, certificate, put_late};
use crate::process::{Conversation, Usage};
use crate::rounds::{Spread, quantile};

const RAW: &str = "a tonic server with the same streams";
/// Time for what connecting left behind to settle.
const SETTLE: Duration = Duration::from_secs(3);

pub(super) async fn measure(size: Size) -> Result<(usize, Row)> {
    let rounds = size.pick(2, 15, 31);
    let idle = Duration::from_secs(size.pick(1, 10, 30));
    let clients: &[usize] = size.pick(&[20], &[1_000], &[1_000, 10_000, 18_000]);
    let mut row = Row::new("streams", "Change to answer from many streams").note(
        "Both servers and the clients of both are processes on the same cores, so times are those of a machine that is the \
         load generator too. The clients' SDK is not in it: the load speaks the protocol.",
    );
    let (mut ours, mut raws) = (Vec::new(), Vec::new());
    for plaintext in [true, false] {
        for &clients in clients {
            let measured = Both::start(clients, plaintext).await?.measure(rounds, idle).await?;
            if !plaintext {
                let point = |times: &[f64]| {
                    let y = Spread::of(times.iter().map(|ms| ms / 1e3));
                    Point { name: String::new(), x: clients as f64, y }
                };
                ours.push(point(&measured.p99_ms.0));
                raws.push(point(&measured.p99_ms.1));
            }
            row = row.with_all(measured.figures(clients, plaintext));
        }
    }
    let series = |name: &str, points| Series { name: name.to_owned(), points };
    Ok((
        rounds,
        row.draw(Chart {
            name: "streams".to_owned(),
            title: "From a change until 99 % of the clients have answered (TLS)".to_owned(),
            x: Some("clients".to_owned()),
            y: "s".to_owned(),
            series: vec![series("Damper", ours), series(RAW, raws)],
        }),
    ))
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

/// What came of it, ours and the raw server's.
struct Measured {
    p99_ms: (Vec<f64>, Vec<f64>),
    stream_kib: [f64; 2],
    idle_share: [f64; 2],
}

impl Both {
    async fn start(clients: usize, plaintext: bool) -> Result<Self> {
        let server = Server::start(Settings { plaintext, ..Settings::default() }).await?;
        put_late(server.door()).await?;
        let folder = tempfile::tempdir()?;
        let mut arguments = vec!["serve-streams".to_owned()];
        let mut authority = None;
        if !plaintext {
            authority = Some(certificate(folder.path())?);
            arguments.extend(["--folder".to_owned(), folder.path().display().to_string()]);
        }
        let mut raw = Conversation::start(&arguments, [])?;
        let scheme = if plaintext { "http" } else { "https" };
        let door = Door::new(&format!("{scheme}://{}", raw.read()?), authority)?;
        let empty = [server.usage()?, raw.usage()?];
        // They wait for the other processes.
        let fleets = block_in_place(|| -> Result<_> {
            Ok([HeldFleet::start(server.door(), false, clients)?, HeldFleet::start(&door, true, clients)?])
        })?;
        tokio::time::sleep(SETTLE).await;
        Ok(Self { server, raw, clients, fleets, empty, _folder: folder })
    }

    fn usage(&self) -> Result<[Usage; 2]> {
        Ok([self.server.usage()?, self.raw.usage()?])
    }

    async fn measure(&mut self, rounds: usize, idle: Duration) -> Result<Measured> {
        let before = self.usage()?;
        tokio::time::sleep(idle).await;
        let after = self.usage()?;
        let mut p99_ms = [Vec::new(), Vec::new()];
        for round in 0..=rounds {
            for (fleet, p99_ms) in self.fleets.iter_mut().zip(&mut p99_ms) {
                let arrived = block_in_place(|| fleet.change())?;
                // The first is to warm up.
                p99_ms.extend((round > 0).then(|| quantile(&arrived, 0.99) * 1e3));
            }
        }
        let [ours, raws] = p99_ms;
        let each = |of: &dyn Fn(usize) -> Option<f64>| [0, 1].map(|index| of(index).unwrap_or_default());
        Ok(Measured {
            p99_ms: (ours, raws),
            stream_kib: each(&|index| {
                let held = after.get(index)?.memory_kib.saturating_sub(self.empty.get(index)?.memory_kib);
                Some(held as f64 / self.clients as f64)
            }),
            idle_share: each(&|index| {
                let used = after.get(index)?.processor_since(before.get(index)?);
                Some(used.as_secs_f64() / idle.as_secs_f64())
            }),
        })
    }
}

impl Measured {
    fn figures(&self, clients: usize, plaintext: bool) -> [Figure; 3] {
        let how = if plaintext { "without TLS" } else { "TLS and tokens; the peer: TLS" };
        let what = |what: &str| format!("{what}, {clients} streams, {how}");
        let once = |what, unit, [ours, raw]: [f64; 2]| Figure {
            peer: Some(Peer { name: RAW.to_owned(), figure: Spread::exactly(raw) }),
            ratio: Some(Spread::exactly(ours / raw)).filter(|_| raw > 0.0),
            ..Figure::new(what, unit, Spread::exactly(ours))
        };
        let (ours, raws) = &self.p99_ms;
        let idle = self.idle_share.map(|share| share * 100.0);
        [
            Figure::beside(what("p99 from change to answer"), "ms", ours, RAW, raws)
                .aim(Target::RatioAtMost(2.0)),
            once(what("memory per stream"), "KiB", self.stream_kib).aim(Target::RatioAtMost(1.5)),
            once(what("processor while nothing happens"), "% of a core", idle).aim(Target::AtMost(10.0)),
        ]
    }
}
