//! From writing a rule until it is in force in an SDK, beside what etcd alone takes from a put to the watch event.
//!
//! The server is a process of its own, over etcd and over sled, the SDK is in this one. Time runs from sending the write
//! until the SDK says that it runs on a newer revision, which a thread asks it every 20 µs. Etcd's time runs from sending
//! a put of the same rule until a watch on another connection tells of it.
//!
//! The control plane shows a change at once if none was shown just before, and gathers those that follow at its heels.
//! So everything that is measured comes after a rest, etcd's puts too, and beside it the second of two changes.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use damper_proto::v1::rules_client::RulesClient;
use damper_sdk::Damper;
use damper_tests::etcd::Etcd;
use damper_tests::spread::quantile;
use etcd_client::{Client, WatchStream};
use prost::Message as _;
use tokio::time::sleep;
use tonic::transport::Channel;

use super::Size;
use crate::calls::{self, CALLEE};
use crate::figure::{Figure, Row, Target};
use crate::fleet::{Server, Settings, put_request, rule};
use crate::patience::{PATIENCE, within};
use crate::process::tethered;

const LOOK_EVERY: Duration = Duration::from_micros(20);
const KEY: &str = "bench/change";
/// Longer than the control plane gathers.
pub(super) const REST: Duration = Duration::from_millis(40);

/// An SDK and the control plane that it follows.
struct Followed {
    server: Server,
    rules: RulesClient<Channel>,
    damper: Damper,
}

pub(super) async fn measure(size: Size) -> Result<(usize, Row)> {
    let (rounds, shots) = size.pick((1, 2), (15, 20), (31, 20));
    let etcd = Etcd::start_by(tethered).await;
    let over_etcd = Followed::start(Some(format!("etcd://{}/damper", etcd.endpoint()))).await?;
    let over_sled = Followed::start(None).await?;
    let mut raw = Raw::start(&etcd).await?;
    let (mut ours, mut second, mut sled, mut theirs) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 0..=rounds {
        let mut of = [const { Vec::new() }; 4];
        for _ in 0..shots {
            sleep(REST).await;
            of[0].push(over_etcd.change().await?);
            of[1].push(over_etcd.change().await?);
            sleep(REST).await;
            of[2].push(over_sled.change().await?);
            sleep(REST).await;
            of[3].push(raw.put().await?);
        }
        // The first round is to warm up.
        if round > 0 {
            for (all, of) in [&mut ours, &mut second, &mut sled, &mut theirs].into_iter().zip(of) {
                all.push(of);
            }
        }
    }
    let of = |rounds: &[Vec<f64>], share: f64| -> Vec<f64> {
        let at = |shots: &Vec<f64>| {
            let mut shots = shots.clone();
            shots.sort_by(f64::total_cmp);
            quantile(&shots, share)
        };
        rounds.iter().map(at).collect()
    };
    let beside = |what: &str, ours: &[Vec<f64>], share| {
        Figure::beside(what, "ms", &of(ours, share), "etcd: put to watch event", &of(&theirs, share))
    };
    let row = Row::new("change", "Change to applied, in one SDK")
        .note(format!(
            "A round is {shots} changes of each kind in turn, each after a rest of {} ms; without TLS. The second of two \
             changes is sent as soon as the first has arrived, and gathered with whatever follows within 20 ms.",
            REST.as_millis()
        ))
        .with(beside("median of a round, over etcd", &ours, 0.5).aim(Target::RatioAtMost(2.0)))
        .with(beside("slowest of a round, over etcd", &ours, 1.0))
        .with(beside("median of a round, over sled", &sled, 0.5))
        .with(beside("median of a round, the second of two over etcd", &second, 0.5));
    Ok((rounds, row))
}

impl Followed {
    async fn start(store: Option<String>) -> Result<Self> {
        let server = Server::start(Settings { store, plaintext: true, ..Settings::default() }).await?;
        let rules = RulesClient::new(server.door().channel().await?);
        let damper = calls::service(server.url()).await?;
        Ok(Self { server, rules, damper })
    }

    /// How long a change takes, in milliseconds.
    async fn change(&self) -> Result<f64> {
        let before = self.damper.status().revision;
        let damper = self.damper.clone();
        let applied = tokio::task::spawn_blocking(move || {
            let begun = Instant::now();
            while damper.status().revision <= before && begun.elapsed() < PATIENCE {
                std::thread::sleep(LOOK_EVERY);
            }
            Instant::now()
        });
        let request = put_request(self.server.door(), CALLEE)?;
        let begun = Instant::now();
        within(PATIENCE, "the write of a rule", self.rules.clone().put_rule(request)).await??;
        let took = applied.await?.saturating_duration_since(begun);
        ensure!(took < PATIENCE, "the change does not arrive");
        Ok(took.as_secs_f64() * 1e3)
    }
}

/// Etcd by itself.
struct Raw {
    writer: Client,
    _watcher: Client,
    events: WatchStream,
    value: Vec<u8>,
}

impl Raw {
    async fn start(etcd: &Etcd) -> Result<Self> {
        let (writer, mut watcher) = (etcd.client().await, etcd.client().await);
        let mut events = watcher.watch(KEY, None).await?;
        within(PATIENCE, "etcd's word that it watches", events.message()).await??;
        Ok(Self { writer, _watcher: watcher, events, value: rule("*", CALLEE)?.encode_to_vec() })
    }

    async fn put(&mut self) -> Result<f64> {
        let begun = Instant::now();
        let written = self.writer.put(KEY, self.value.clone(), None);
        let told = async {
            loop {
                let message = self.events.message().await?.context("the watch goes on")?;
                if !message.events().is_empty() {
                    return Ok::<_, anyhow::Error>(Instant::now());
                }
            }
        };
        let both = async { tokio::join!(written, told) };
        let (written, told) = within(PATIENCE, "a put and its watch event in etcd", both).await?;
        written?;
        Ok(told?.saturating_duration_since(begun).as_secs_f64() * 1e3)
    }
}
