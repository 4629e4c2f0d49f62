//! Damper's submitters and worker: the SDK, in a process of its own.

use std::io::BufRead as _;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, anyhow, ensure};
use damper_sdk::queue::{Delivery, HandlerError, NewJob, WorkerHandle};
use damper_sdk::{Damper, Options};
use tokio::time::{Instant, sleep};

use super::{Answer, BODY_BYTES, CONCURRENCY, Order, What};
use crate::patience::within;
use crate::process::answer;

/// As long as jobs wait that only have to wait.
const LATER: Duration = Duration::from_secs(3_600);
/// From the submission of jobs with a due time until the first is due.
const AHEAD: Duration = Duration::from_secs(2);
/// Due after the server was killed.
const SOON: Duration = Duration::from_millis(500);
/// Between two jobs on an idle queue.
const REST: Duration = Duration::from_millis(50);
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Longer than any order takes.
const PATIENCE: Duration = Duration::from_secs(380);

/// Which queue.
#[derive(Clone, Debug, clap::Args)]
pub struct Player {
    /// Where the control plane is
    #[arg(long)]
    url: String,
    /// Its queue
    #[arg(long, default_value = "bench")]
    queue: String,
    /// The handlers do not end
    #[arg(long)]
    stuck: bool,
}

/// What the handlers saw.
#[derive(Debug, Default)]
struct Seen {
    /// Lateness of each job since the order began.
    milliseconds: Vec<f64>,
    count: usize,
}

struct Play {
    damper: Damper,
    queue: String,
    worker: WorkerHandle,
    seen: Arc<Mutex<Seen>>,
    /// No two jobs have the same key.
    keys: AtomicU64,
}

/// Obeys orders, one in each line, until the end of the input.
///
/// # Errors
/// The control plane is gone, or refuses a job.
pub async fn play(player: Player) -> Result<()> {
    let options = Options::new([player.url]).service("bench").environment(|_| None);
    let damper = Damper::connect(options)?;
    let seen: Arc<Mutex<Seen>> = Arc::default();
    let handler = {
        let seen = Arc::clone(&seen);
        move |delivery| handle(Arc::clone(&seen), player.stuck, delivery)
    };
    let worker = damper.worker(&player.queue).handle(handler).concurrency(CONCURRENCY).start()?;
    within(PATIENCE, "a worker", async {
        while !worker.stats().connected {
            sleep(LOOK_EVERY).await;
        }
    })
    .await?;
    // Other processes use the same queue.
    let keys = AtomicU64::new(u64::from(std::process::id()) << 32);
    let play = Play { damper, queue: player.queue, worker, seen, keys };
    answer("\"ready\"")?;
    for order in std::io::stdin().lock().lines() {
        let order: Order = serde_json::from_str(&order?)?;
        let came = within(PATIENCE, "an order", play.order(&order)).await??;
        answer(&serde_json::to_string(&came)?)?;
    }
    Ok(())
}

async fn handle(seen: Arc<Mutex<Seen>>, is_stuck: bool, delivery: Delivery) -> Result<(), HandlerError> {
    let now = unix_nanos(Duration::ZERO);
    let text = std::str::from_utf8(delivery.body()).unwrap_or_default();
    let due: i128 = text.split(' ').next().and_then(|due| due.parse().ok()).unwrap_or_default();
    {
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.milliseconds.push((now - due) as f64 / 1e6);
        seen.count += 1;
    }
    if is_stuck {
        std::future::pending::<()>().await;
    }
    Ok(())
}

fn unix_nanos(after: Duration) -> i128 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i128::try_from((now + after).as_nanos()).unwrap_or(i128::MAX)
}

impl Play {
    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn order(&self, order: &Order) -> Result<Answer> {
        let before = {
            let mut seen = self.seen();
            seen.milliseconds.clear();
            seen.count
        };
        let begun = Instant::now();
        match order.what {
            What::Submit => self.submit(order, LATER).await?,
            What::Soon => self.submit(order, SOON).await?,
            What::Lives => {
                self.submit(order, Duration::ZERO).await?;
                self.settled(before + order.count).await;
            }
            What::Late => self.late(order, before, begun).await?,
            What::First => {
                for number in 1..=order.count {
                    sleep(REST).await;
                    self.send(vec![self.job(Duration::ZERO, 0)]).await?;
                    self.settled(before + number).await;
                }
            }
            What::Wait => self.handled(order.count).await,
            What::Begin => {
                self.send(vec![self.job(Duration::ZERO, 0)]).await?;
                self.handled(before + 1).await;
            }
        }
        let seconds = begun.elapsed().as_secs_f64();
        Ok(Answer { seconds, milliseconds: Some(self.seen().milliseconds.clone()) })
    }

    async fn late(&self, order: &Order, before: usize, begun: Instant) -> Result<()> {
        let due =
            |number: usize| AHEAD + Duration::from_secs_f64(number as f64 / order.per_second.max(1) as f64);
        let jobs: Vec<_> =
            (0..order.count).map(|number| self.job(due(number).saturating_sub(begun.elapsed()), 0)).collect();
        for batch in jobs.chunks(order.batch.max(1)) {
            self.send(batch.to_vec()).await?;
        }
        self.settled(before + order.count).await;
        Ok(())
    }

    /// All submitters at once, until the jobs of the order are stored.
    async fn submit(&self, order: &Order, after: Duration) -> Result<()> {
        let left = AtomicUsize::new(order.count);
        let submitter = async || -> Result<()> {
            loop {
                let taken = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                    (left > 0).then(|| left.saturating_sub(order.batch))
                });
                let Ok(before) = taken else { return Ok(()) };
                let jobs = (0..order.batch.min(before))
                    .map(|place| self.job(after, (before - place) % order.lanes.max(1)))
                    .collect();
                self.send(jobs).await?;
            }
        };
        futures_util::future::try_join_all((0..order.submitters).map(|_| submitter())).await?;
        Ok(())
    }

    fn job(&self, after: Duration, lane: usize) -> NewJob {
        let key = self.keys.fetch_add(1, Ordering::Relaxed).to_string();
        let body = format!("{:<BODY_BYTES$}", format!("{} ", unix_nanos(after)));
        NewJob::new(&self.queue, key, "callee", format!("bench.Jobs/Do{lane}")).body(body).after(after)
    }

    async fn send(&self, jobs: Vec<NewJob>) -> Result<()> {
        for submitted in self.damper.jobs().within(PATIENCE).submit_all(jobs).await {
            let submitted = submitted.map_err(|error| anyhow!(error))?;
            ensure!(!submitted.existing, "job {} exists", submitted.job_id);
        }
        Ok(())
    }

    /// Waits until the handlers have seen this many jobs in all.
    async fn handled(&self, count: usize) {
        while self.seen().count < count {
            sleep(LOOK_EVERY).await;
        }
    }

    /// Waits also until the server has confirmed how they ended.
    async fn settled(&self, count: usize) {
        self.handled(count).await;
        // The figures of a worker are those of its last turn: twice in a row is after it.
        let mut looks = 0;
        while looks < 2 {
            let stats = self.worker.stats();
            looks = if stats.running + stats.unconfirmed == 0 { looks + 1 } else { 0 };
            sleep(LOOK_EVERY).await;
        }
    }
}
