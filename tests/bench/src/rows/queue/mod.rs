//! Durable queues: how many jobs, how late, and at what cost, compared with asynq, River and JetStream.
//!
//! Damper is `damper serve` with submitters and a worker of the SDK, over redb and over PostgreSQL. Every
//! contender syncs a job before it acknowledges it, obeys the same orders (`crate::queue`) and takes its turn
//! in each round.

mod contender;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use damper_tests::spread::{Spread, quantile};

use self::contender::{Alone, Ours, Peer, Store};
use super::Size;
use crate::figure::{Figure, Row, Target};
use crate::queue::{BODY_BYTES, CONCURRENCY, Load, Order, Postgres, What, postgres};

/// Routes of the jobs that wait.
const LANES: usize = 999;
/// Jobs at once in a store that its content passes through.
const PASSING: usize = 500;
/// How often its content passes through.
const TIMES: usize = 10;

/// How much is measured.
struct Sizes {
    rounds: usize,
    /// Jobs that wait meanwhile.
    waiting: usize,
    /// Jobs submitted one at a time by many, by one, and in batches; whole lives.
    counts: [usize; 4],
    due: usize,
    first: usize,
    churned: usize,
    before_idle: Duration,
    idle: Duration,
}

/// The orders of a round.
const ORDERS: usize = 6;

impl Sizes {
    fn of(size: Size) -> Self {
        Self {
            rounds: size.pick(1, 3, 9),
            waiting: size.pick(200, 20_000, 200_000),
            counts: size.pick([64, 2, 200, 200], [3_200, 300, 5_000, 5_000], [6_400, 1_000, 20_000, 20_000]),
            due: size.pick(20, 1_000, 5_000),
            first: size.pick(2, 15, 50),
            churned: size.pick(50, 5_000, 50_000),
            before_idle: Duration::from_secs(size.pick(0, 11, 11)),
            idle: Duration::from_secs(size.pick(1, 5, 20)),
        }
    }

    fn orders(&self) -> [Order; ORDERS] {
        let [many, one, batched, lives] = self.counts;
        let submit = Order { what: What::Submit, submitters: 1, batch: 1, ..Order::default() };
        [
            Order { count: many, submitters: 64, ..submit },
            Order { count: one, ..submit },
            Order { count: batched, submitters: 4, batch: 100, ..submit },
            Order { what: What::Lives, count: lives, submitters: 4, batch: 100, ..submit },
            Order { what: What::Late, count: self.due, per_second: 1_000, batch: 100, ..submit },
            Order { what: What::First, count: self.first, ..submit },
        ]
    }
}

/// Those who take part.
struct Field {
    ours: Vec<Ours>,
    alone: Vec<Alone>,
    peers: Vec<Peer>,
}

pub(super) async fn measure(size: Size) -> Result<(usize, Row)> {
    let sizes = Sizes::of(size);
    let cluster = Arc::new(postgres().await?);
    let mut field = Field::start(&cluster, size).await?;
    let row = Row::new("queue", "Durable queue: submit, deliver, settle").note(format!(
        "Jobs of {BODY_BYTES} bytes, {CONCURRENCY} handled at once by one worker process, {} waiting in each queue. All sync \
         a job before they acknowledge it: redb and PostgreSQL by default, Redis with `appendfsync always`, JetStream with \
         `sync_interval: always`. Servers, stores, workers and submitters share the cores; without TLS. The stores alone \
         are driven by one task: each commit has what all submitters send at once, or is a third submits, a third leases, \
         a third settlements.",
        sizes.waiting
    ));
    let row = row.note(
        "Peers have their defaults, River those of `river bench`: asynq looks for jobs every second and for due ones every \
         5 s. asynq has no batches: 100 jobs are 100 calls at once. Due jobs of JetStream are message schedules.",
    );
    let row = row.with_all(field.wait(&sizes).await?);
    let row = row.with_all(field.rounds(&sizes).await?);
    let row = if size == Size::Smallest { row } else { row.with_all(field.lose_workers().await?) };
    // Their processor time is not the next measurement's.
    drop(field);
    let mut row = row;
    for store in Store::ALL {
        row = row.with(churn(store, &cluster, &sizes).await?);
    }
    Ok((sizes.rounds, row))
}

impl Field {
    async fn start(cluster: &Arc<Postgres>, size: Size) -> Result<Self> {
        let (mut ours, mut alone) = (Vec::new(), Vec::new());
        for store in Store::ALL {
            ours.push(Ours::start(store, cluster, "damper", "1h").await?);
            alone.push(Alone::start(store, cluster).await?);
        }
        let peers = if size == Size::Smallest { Vec::new() } else { Peer::start(cluster).await? };
        Ok(Self { ours, alone, peers })
    }

    /// Submits the jobs that wait, and measures what they take.
    async fn wait(&mut self, sizes: &Sizes) -> Result<Vec<Figure>> {
        let waiting = sizes.waiting as f64;
        let order = Order {
            what: What::Submit,
            count: sizes.waiting,
            submitters: 8,
            batch: 100,
            lanes: LANES,
            ..Order::default()
        };
        let mut peers = Vec::new();
        for peer in &mut self.peers {
            let (memory, disk) = (peer.memory_kib()?, peer.disk_kib().await?);
            peer.load.order(&order).await?;
            let memory = peer.memory_kib()?.zip(memory).map(|(after, before)| (after - before) / 1024.0);
            peers.push((peer.name, memory, (peer.disk_kib().await? - disk) / waiting));
        }
        for alone in &mut self.alone {
            alone.load.order(&order).await?;
        }
        let mut figures = Vec::new();
        for ours in &mut self.ours {
            figures.extend(waiting_figures(ours, &order, &peers, sizes).await?);
        }
        Ok(figures)
    }

    /// All orders, each carried out by all in turn.
    async fn rounds(&mut self, sizes: &Sizes) -> Result<Vec<Figure>> {
        let mut figures = Vec::new();
        for (place, order) in sizes.orders().iter().enumerate() {
            let measured = self.measured(order, sizes.rounds).await?;
            figures.extend(Store::ALL.into_iter().flat_map(|store| match order.what {
                What::Late => late(&measured, store),
                What::First => first(&measured, store),
                _ => rates(&measured, store, place),
            }));
        }
        Ok(figures)
    }

    async fn measured(&mut self, order: &Order, rounds: usize) -> Result<Measured> {
        let with_stores = !matches!(order.what, What::Late | What::First);
        let ours = self.ours.iter_mut().map(|ours| (Who::Ours(ours.store), &mut ours.load));
        let alone = self.alone.iter_mut().map(|alone| (Who::Alone(alone.store), &mut alone.load));
        let peers = self.peers.iter_mut().map(|peer| (Who::Peer(peer.name), &mut peer.load));
        let mut all: Vec<(Who, &mut Load)> = ours.chain(alone.filter(|_| with_stores)).chain(peers).collect();
        let mut measured: Vec<_> = all.iter().map(|(who, _)| (*who, Rounds::default())).collect();
        for round in 0..rounds {
            for place in 0..all.len() {
                let index = (round + place) % all.len();
                let (Some((_, load)), Some((_, rounds))) = (all.get_mut(index), measured.get_mut(index))
                else {
                    continue;
                };
                let came = load.order(order).await?;
                let mut late = came.milliseconds.unwrap_or_default();
                late.sort_by(f64::total_cmp);
                rounds.rate.push(order.count as f64 / came.seconds);
                rounds.median.push(quantile(&late, 0.5));
                rounds.p99.push(quantile(&late, 0.99));
            }
        }
        Ok(Measured(measured))
    }

    /// A job whose worker is killed.
    async fn lose_workers(&self) -> Result<Vec<Figure>> {
        let mut figures = Vec::new();
        for ours in &self.ours {
            let seconds = Spread::exactly(ours.lose_worker().await?);
            let what = format!("job at another worker after kill -9 of its own, {}", ours.store.name());
            figures.push(Figure::new(what, "s", seconds).aim(Target::AtMost(10.1)));
        }
        Ok(figures)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Ours(Store),
    Alone(Store),
    Peer(&'static str),
}

impl Who {
    /// The name of a peer of Damper over a store.
    fn peer_of(self, store: Store) -> Option<String> {
        match self {
            Self::Alone(of) if of == store => Some(format!("{} alone", store.name())),
            Self::Peer(name) => Some(name.to_owned()),
            Self::Ours(_) | Self::Alone(_) => None,
        }
    }
}

/// What a contender did, round by round.
#[derive(Debug, Default)]
struct Rounds {
    /// Jobs in a second.
    rate: Vec<f64>,
    /// Of the lateness, in milliseconds.
    median: Vec<f64>,
    p99: Vec<f64>,
}

struct Measured(Vec<(Who, Rounds)>);

impl Measured {
    /// Ours with its own target, then compared with each peer with the ratio that it is to have.
    fn figures(
        &self,
        store: Store,
        what: &str,
        unit: &str,
        of: impl Fn(&Rounds) -> &Vec<f64>,
        targets: impl Fn(Option<Who>) -> Option<Target>,
    ) -> Vec<Figure> {
        let what = format!("{what}, {}", store.name());
        let ours = self.0.iter().find(|(who, _)| *who == Who::Ours(store));
        let ours = ours.map(|(_, rounds)| of(rounds).clone()).unwrap_or_default();
        let own = Figure::new(&what, unit, Spread::of(ours.iter().copied()));
        let compared = self.0.iter().filter_map(|(who, rounds)| {
            let peer = who.peer_of(store)?;
            Some(aimed(Figure::beside(&what, unit, &ours, &peer, of(rounds)), targets(Some(*who))))
        });
        std::iter::once(aimed(own, targets(None))).chain(compared).collect()
    }
}

fn aimed(figure: Figure, target: Option<Target>) -> Figure {
    match target {
        Some(target) => figure.aim(target),
        None => figure,
    }
}

/// The order at a place of a round, in jobs per second.
fn rates(measured: &Measured, store: Store, place: usize) -> Vec<Figure> {
    let (what, least, of_store) = match place {
        0 => ("durable submits, 64 submitters of one job each", store.pick(6_000.0, 5_000.0), Some(0.5)),
        1 => ("durable submits, one submitter of one job each", 0.0, None),
        2 => ("durable submits in batches of 100", store.pick(10_000.0, 15_000.0), Some(0.5)),
        _ => ("whole lives", store.pick(2_200.0, 4_000.0), Some(0.45)),
    };
    let is_lives = place == 3;
    measured.figures(
        store,
        what,
        "/s",
        |rounds| &rounds.rate,
        |who| match who {
            None => (least > 0.0).then_some(Target::AtLeast(least)),
            Some(Who::Alone(_)) => of_store.map(Target::RatioAtLeast),
            Some(Who::Peer(name)) if is_lives && name != "JetStream" => Some(Target::RatioAtLeast(1.0)),
            Some(_) => None,
        },
    )
}

fn late(measured: &Measured, store: Store) -> Vec<Figure> {
    let own = |most| move |who: Option<Who>| who.is_none().then_some(Target::AtMost(most));
    let what = |which: &str| format!("lateness of 1,000 jobs due a second, {which}");
    let mut figures = measured.figures(store, &what("median"), "ms", |rounds| &rounds.median, own(10.0));
    figures.extend(measured.figures(store, &what("p99"), "ms", |rounds| &rounds.p99, own(50.0)));
    figures
}

fn first(measured: &Measured, store: Store) -> Vec<Figure> {
    let most = store.pick(15.0, 25.0);
    let own = |who: Option<Who>| who.is_none().then_some(Target::AtMost(most));
    let what = |which: &str| format!("submit to delivery on an idle queue, {which}");
    let mut figures = measured.figures(store, &what("median"), "ms", |rounds| &rounds.median, |_| None);
    figures.extend(measured.figures(store, &what("p99"), "ms", |rounds| &rounds.p99, own));
    figures
}

/// What jobs that wait take, and how soon a killed server with them is back.
async fn waiting_figures(
    ours: &mut Ours,
    order: &Order,
    peers: &[(&'static str, Option<f64>, f64)],
    sizes: &Sizes,
) -> Result<Vec<Figure>> {
    let (store, waiting) = (ours.store, sizes.waiting);
    let (memory, disk) = (ours.memory_kib()?, ours.disk_kib().await?);
    ours.load.order(order).await?;
    let disk = (ours.disk_kib().await? - disk) / waiting as f64;
    let mut opened = Vec::new();
    for _ in 0..sizes.rounds {
        opened.push(ours.reopen().await?);
    }
    let memory = (ours.memory_kib()? - memory) / 1024.0;
    let (processor, transactions) = ours.idle(sizes.before_idle, sizes.idle).await?;
    let what = |what: &str| format!("{what} with {waiting} waiting, {}", store.name());
    let exactly = Spread::exactly;
    let mut figures = vec![
        Figure::new(what("start after kill -9 until the first delivery"), "s", Spread::of(opened))
            .aim(Target::AtMost(2.0)),
        Figure::new(what("memory more"), "MiB", exactly(memory)).aim(Target::AtMost(store.pick(96.0, 16.0))),
        Figure::new(what("disk per job"), "KiB", exactly(disk)).aim(Target::AtMost(2.5)),
        Figure::new(what("processor of the idle server"), "% of a core", exactly(processor))
            .aim(Target::AtMost(1.0)),
    ];
    figures.extend(transactions.map(|transactions| {
        Figure::new(what("transactions of the idle server"), "/s", exactly(transactions))
            .aim(Target::AtMost(3.0))
    }));
    for (name, peers_memory, peers_disk) in peers {
        if let Some(theirs) = peers_memory {
            figures.push(Figure::beside(what("memory more"), "MiB", &[memory], name, &[*theirs]));
        }
        figures.push(Figure::beside(what("disk per job"), "KiB", &[disk], name, &[*peers_disk]));
    }
    Ok(figures)
}

/// The disk of a store that ten times its content has passed through.
async fn churn(store: Store, cluster: &Arc<Postgres>, sizes: &Sizes) -> Result<Figure> {
    let mut ours = Ours::start(store, cluster, "churned", "0s").await?;
    let empty = store.pick(0.0, ours.disk_kib().await?);
    let content =
        Order { what: What::Submit, count: sizes.churned, submitters: 4, batch: 100, ..Order::default() };
    ours.load.order(&content).await?;
    let full = ours.disk_kib().await? - empty;
    let passing = Order { what: What::Lives, count: sizes.churned.min(PASSING), ..content };
    for _ in 0..sizes.churned * TIMES / passing.count {
        ours.load.order(&passing).await?;
    }
    let left = ours.disk_kib().await? - empty;
    let what = format!(
        "disk after {} jobs passed, by that with {} waiting, {}",
        sizes.churned * TIMES,
        sizes.churned,
        store.name()
    );
    Ok(Figure::new(what, "x", Spread::exactly(left / full)).aim(Target::AtMost(store.pick(2.0, 3.0))))
}
