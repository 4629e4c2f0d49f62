//! A process of many callers: identities that call one callee, each over a connection of its own, with counts, and with
//! Damper also a stream and rules, of its own. One is what elsewhere is a process.
//!
//! Some may end and begin anew, as processes that are deployed or scaled all the time: they take turns, and the old
//! identity goes on until its calls have ended. `lab-go` is the same for strategies that are libraries of Go.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use damper_sdk::Damper;
use futures_util::future::try_join_all;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval_at, sleep_until, timeout_at};
use tower::ServiceExt as _;

use super::layer::{self, connect, say};
use super::stub::{self, Next};

/// What a process of callers is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// What each of its identities is: the layer above the callee.
    pub layer: layer::Spec,
    /// How many identities there are.
    pub identities: usize,
    /// Attempts of one call, the first included.
    pub attempts: u32,
    /// The first wait before a repeat and the longest.
    pub waits: (Duration, Duration),
    /// How long a call may take with all its attempts.
    pub patience: Duration,
    /// Each identity ends and begins anew once in so long.
    pub restart: Option<Duration>,
}

/// A call to make: its number, when it is due after the load has begun, in microseconds, and which identity makes it.
pub type Due = (usize, u64, usize);

/// What a process of callers is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Make these calls, from now on.
    Load(Vec<Due>),
}

/// What it answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// All identities are there.
    Ready,
    /// How the calls ended, in their order: after how many microseconds from when it was due, and whether well.
    Ended(Vec<(u64, bool)>),
}

/// Makes the calls that it is told to until its input ends.
///
/// # Errors
/// It can not start, or was told what it does not understand.
pub async fn run(spec: Spec) -> anyhow::Result<()> {
    let begun = (0..spec.identities).map(|_| Identity::begin(&spec.layer));
    let seats = try_join_all(begun).await?.into_iter().map(Seat::new);
    let fleet = Arc::new(Fleet { seats: seats.collect(), spec });
    say(&Answer::Ready)?;
    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = orders.next_line().await? {
        let Order::Load(load) = serde_json::from_str(&line).with_context(|| format!("no order: {line}"))?;
        say(&Answer::Ended(fleet.play(&load).await?))?;
    }
    Ok(())
}

/// One caller.
struct Identity {
    next: Next,
    /// Ends with the last call of the identity.
    _damper: Option<Damper>,
}

impl Identity {
    async fn begin(spec: &layer::Spec) -> anyhow::Result<Self> {
        let damper = connect(spec).await?;
        let next = stub::next(spec, damper.as_ref())?.context("there is a callee")?;
        Ok(Self { next, _damper: damper })
    }
}

/// The place of an identity, and of those that come after it.
struct Seat(Mutex<Arc<Identity>>);

impl Seat {
    fn new(identity: Identity) -> Self {
        Self(Mutex::new(Arc::new(identity)))
    }

    fn taken(&self) -> MutexGuard<'_, Arc<Identity>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Fleet {
    spec: Spec,
    seats: Vec<Seat>,
}

impl Fleet {
    async fn play(self: &Arc<Self>, load: &[Due]) -> anyhow::Result<Vec<(u64, bool)>> {
        let begin = Instant::now();
        tokio::select! {
            ended = self.calls(load, begin) => Ok(ended),
            failed = self.restarts(begin) => failed,
        }
    }

    async fn calls(&self, load: &[Due], begin: Instant) -> Vec<(u64, bool)> {
        let mut under_way = JoinSet::new();
        for (place, (number, due_us, identity)) in load.iter().enumerate() {
            let due = begin + Duration::from_micros(*due_us);
            sleep_until(due).await;
            let identity = Arc::clone(&self.seats[*identity].taken());
            let (text, last) = (number.to_string(), due + self.spec.patience);
            under_way.spawn(async move {
                let answer = timeout_at(last, identity.next.clone().oneshot(text)).await;
                let took = u64::try_from(due.elapsed().as_micros()).unwrap_or(u64::MAX);
                (place, (took, matches!(answer, Ok(Ok(())))))
            });
        }
        let mut ended = under_way.join_all().await;
        ended.sort_unstable_by_key(|(place, _)| *place);
        ended.into_iter().map(|(_, ended)| ended).collect()
    }

    /// Lets identities end and begin anew, for ever; without restarts it waits.
    async fn restarts<T>(&self, begin: Instant) -> anyhow::Result<T> {
        let Some(every) = self.spec.restart else { return std::future::pending().await };
        let turn = |place: usize| every * (place as u32 + 1) / self.seats.len() as u32;
        let seats = self.seats.iter().enumerate();
        try_join_all(seats.map(|(place, seat)| self.restart(seat, begin + turn(place), every))).await?;
        std::future::pending().await
    }

    async fn restart(&self, seat: &Seat, first: Instant, every: Duration) -> anyhow::Result<()> {
        let mut turns = interval_at(first, every);
        loop {
            turns.tick().await;
            let identity = Identity::begin(&self.spec.layer).await?;
            *seat.taken() = Arc::new(identity);
        }
    }
}
