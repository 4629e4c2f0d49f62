//! Bounds of the queues over all servers: `max_in_flight`, `rate`, and hold and pace of each callee.
//!
//! A row per queue and one per callee have the state of which `damper_core::job::SharedFlow` decides; the
//! deliveries in flight are the leases, which the tallies count. An advisory lock per queue is held until the
//! commit, so that servers decide one after the other. All locks of a batch are taken at once, in one order.
//! Times are those of the database's clock.
//!
//! Ends of deliveries count as evidence about the callee in the same transaction. In a queue whose callees
//! succeed at full pace they change nothing, and then no lock is taken.

use std::collections::{BTreeMap, BTreeSet};

use damper_core::Time;
use damper_core::job::{Admit, CalleeParts, HoldReason, QueueParts, SharedFlow};
use futures_util::future::try_join;
use sha2::{Digest as _, Sha256};

use super::connection::Stop;
use super::load::Loader;
use crate::store::batch::{Evidence, LeaseRequest, Refused};
use crate::store::record::Lane;

/// What the end of a delivery on a lane shows.
pub(super) type Shown<'a> = (&'a Lane, &'a Evidence);

/// The flows of the queues of one transaction.
#[derive(Default)]
pub(super) struct Flows {
    now: Time,
    queues: BTreeMap<String, Queue>,
}

struct Queue {
    flow: SharedFlow,
    stored: QueueParts,
    callees: BTreeMap<String, CalleeParts>,
}

/// Locks the flow of a queue. A server that freezes with the lock holds up the others for this time only,
/// which is shorter than the wait of a submission.
const LOCK: &str =
    "select pg_advisory_xact_lock($1), set_config('idle_in_transaction_session_timeout', '3s', true)";

/// Queues with the callees that a batch needs of them.
type Wanted = BTreeMap<String, BTreeSet<String>>;

/// Leases of a queue by callee.
type Leased = BTreeMap<String, BTreeMap<String, u32>>;

impl Flows {
    /// Locks and loads the queues of requests with bounds, and those of which the evidence changes something,
    /// and counts the evidence.
    pub(super) async fn open(
        loader: &Loader,
        requests: &[LeaseRequest],
        shown: &[Shown<'_>],
    ) -> Result<Self, Stop> {
        let mut wanted = Wanted::new();
        for request in requests.iter().filter(|request| request.bounds.is_some()) {
            add(&mut wanted, &request.lane);
        }
        let mut others = Wanted::new();
        for (lane, _) in shown {
            let is_wanted = wanted.contains_key(&lane.queue);
            add(if is_wanted { &mut wanted } else { &mut others }, lane);
        }
        if !others.is_empty() {
            let mut unlocked = Self::load(loader, &others, false).await?;
            unlocked.show(shown);
            others.retain(|queue, _| unlocked.is_changed(queue));
            wanted.append(&mut others);
        }
        if wanted.is_empty() {
            return Ok(Self::default());
        }
        let locks: BTreeSet<i64> = wanted.keys().map(|queue| lock(queue)).collect();
        for lock in locks {
            loader.connection.query(LOCK, &[&lock]).await?;
        }
        // Its snapshot must be later than the locks.
        let mut flows = Self::load(loader, &wanted, !requests.is_empty()).await?;
        flows.show(shown);
        Ok(flows)
    }

    /// Loads the flows of queues. The leases are counted for requests alone: evidence does not need them.
    async fn load(loader: &Loader, wanted: &Wanted, counts: bool) -> Result<Self, Stop> {
        let sql = "select q.queue, store_time(), b.next_delivery, b.line_servers, b.line_until from \
                   unnest($1::text[]) q (queue) left join queue_flow b on b.queue = q.queue";
        let queues: Vec<&str> = wanted.keys().map(String::as_str).collect();
        let rows = async { loader.connection.query(sql, &[&queues]).await };
        let leased = async { if counts { count_leases(loader, &queues).await } else { Ok(Leased::new()) } };
        // One connection sends both without waiting in between.
        let (rows, leased) = try_join(rows, leased).await?;
        let mut flows = Self::default();
        for row in &rows {
            flows.now = time(row.try_get(1)?);
        }
        for row in &rows {
            let numbers = |column| row.try_get::<_, Option<Vec<i64>>>(column).map(Option::unwrap_or_default);
            let line = numbers(3)?.into_iter().zip(numbers(4)?);
            let stored = QueueParts {
                next_delivery: row.try_get::<_, Option<i64>>(2)?.map_or(Time::ZERO, time),
                line: line.map(|(server, until)| (server.cast_unsigned(), time(until))).collect(),
            };
            let name: String = row.try_get(0)?;
            let in_flight = leased.get(&name).into_iter().flat_map(BTreeMap::values);
            let in_flight = in_flight.copied().fold(0, u32::saturating_add);
            let flow = SharedFlow::new(stored.clone(), in_flight, flows.now);
            flows.queues.insert(name, Queue { flow, stored, callees: BTreeMap::new() });
        }
        flows.load_callees(loader, wanted, &leased).await?;
        Ok(flows)
    }

    async fn load_callees(&mut self, loader: &Loader, wanted: &Wanted, leased: &Leased) -> Result<(), Stop> {
        let sql = "select w.queue, w.callee, c.failures, c.probe_at, c.pace, c.halved_at from \
                   unnest($1::text[], $2::text[]) w (queue, callee) left join callee_flow c using (queue, callee)";
        let pairs =
            wanted.iter().flat_map(|(queue, callees)| callees.iter().map(move |callee| (queue, callee)));
        let (queues, callees): (Vec<&String>, Vec<&String>) = pairs.unzip();
        for row in loader.connection.query(sql, &[&queues, &callees]).await? {
            let (queue, callee): (&str, String) = (row.try_get(0)?, row.try_get(1)?);
            let in_flight = leased.get(queue).and_then(|callees| callees.get(&callee)).copied();
            let Some(queue) = self.queues.get_mut(queue) else { continue };
            let stored = match row.try_get::<_, Option<i64>>(2)? {
                None => CalleeParts::default(),
                Some(failures) => CalleeParts {
                    failures: small(failures),
                    probe_at: time(row.try_get(3)?),
                    pace: small(row.try_get(4)?),
                    halved_at: row.try_get::<_, Option<i64>>(5)?.map(time),
                },
            };
            queue.flow.add(&callee, stored, in_flight.unwrap_or_default());
            queue.callees.insert(callee, stored);
        }
        Ok(())
    }

    /// Counts evidence about callees of the queues that are loaded.
    fn show(&mut self, shown: &[Shown<'_>]) {
        for (lane, Evidence { bounds, outcome }) in shown {
            if let Some(queue) = self.queues.get_mut(&lane.queue) {
                queue.flow.shows(bounds, lane.route.callee_service(), outcome);
            }
        }
    }

    /// Returns how many jobs a request may get, or why none.
    pub(super) fn room(&self, request: &LeaseRequest) -> Result<u32, Refused> {
        let Some((bounds, queue)) = request.bounds.as_ref().zip(self.queues.get(&request.lane.queue)) else {
            return Ok(request.count);
        };
        match queue.flow.admit(bounds, request.lane.route.callee_service(), request.server.0) {
            Admit::Deliver(room) => Ok(room.min(request.count)),
            Admit::Probe => Ok(request.count.min(1)),
            Admit::Hold { until, why } => {
                Err(Refused { why, wait: until.map(|until| until.since(self.now)) })
            }
        }
    }

    /// Counts a job that a request gets.
    pub(super) fn begins(&mut self, request: &LeaseRequest) {
        if let Some((bounds, queue)) = request.bounds.as_ref().zip(self.queues.get_mut(&request.lane.queue)) {
            queue.flow.begins(bounds, request.lane.route.callee_service(), request.server.0);
        }
    }

    /// Notes that a request did not get all jobs that it asked for.
    pub(super) fn refused(&mut self, request: &LeaseRequest, why: HoldReason) {
        if let Some(queue) = self.queues.get_mut(&request.lane.queue) {
            queue.flow.refused(request.server.0, why);
        }
    }

    fn is_changed(&self, queue: &str) -> bool {
        self.queues.get(queue).is_some_and(|queue| {
            queue.flow.parts() != queue.stored || queue.changed_callees().next().is_some()
        })
    }

    /// Writes what has changed. Returns true if something has.
    pub(super) async fn save(&self, loader: &Loader) -> Result<bool, Stop> {
        let mut is_changed = false;
        for (name, queue) in &self.queues {
            let parts = queue.flow.parts();
            if parts != queue.stored {
                save_queue(loader, name, &parts).await?;
                is_changed = true;
            }
        }
        let callees = self.queues.iter().flat_map(|(name, queue)| {
            queue.changed_callees().map(move |(callee, parts)| (name, callee, parts))
        });
        let callees: Vec<(&String, &String, CalleeParts)> = callees.collect();
        if !callees.is_empty() {
            save_callees(loader, &callees).await?;
        }
        Ok(is_changed || !callees.is_empty())
    }
}

impl Queue {
    fn changed_callees(&self) -> impl Iterator<Item = (&String, CalleeParts)> {
        self.callees.iter().filter_map(|(callee, stored)| {
            let now = self.flow.callee_parts(callee);
            (*stored != now).then_some((callee, now))
        })
    }
}

async fn save_queue(loader: &Loader, queue: &String, parts: &QueueParts) -> Result<(), Stop> {
    let sql = "insert into queue_flow values ($1, $2, $3, $4) on conflict (queue) do update set next_delivery = \
               excluded.next_delivery, line_servers = excluded.line_servers, line_until = excluded.line_until";
    let servers: Vec<i64> = parts.line.iter().map(|(server, _)| server.cast_signed()).collect();
    let until: Vec<i64> = parts.line.iter().map(|(_, until)| micros(*until)).collect();
    loader.connection.execute(sql, &[queue, &micros(parts.next_delivery), &servers, &until]).await?;
    Ok(())
}

async fn save_callees(loader: &Loader, callees: &[(&String, &String, CalleeParts)]) -> Result<(), Stop> {
    let sql = "insert into callee_flow (queue, callee, failures, probe_at, pace, halved_at) select * from \
               unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[]) on conflict \
               (queue, callee) do update set failures = excluded.failures, probe_at = excluded.probe_at, pace = \
               excluded.pace, halved_at = excluded.halved_at";
    let queues: Vec<&String> = callees.iter().map(|(queue, ..)| *queue).collect();
    let names: Vec<&String> = callees.iter().map(|(_, callee, _)| *callee).collect();
    let column = |part: fn(&CalleeParts) -> i64| callees.iter().map(|(.., parts)| part(parts)).collect();
    let failures: Vec<i64> = column(|parts| i64::from(parts.failures));
    let probe_at: Vec<i64> = column(|parts| micros(parts.probe_at));
    let pace: Vec<i64> = column(|parts| i64::from(parts.pace));
    let halved_at: Vec<Option<i64>> = callees.iter().map(|(.., parts)| parts.halved_at.map(micros)).collect();
    loader.connection.execute(sql, &[&queues, &names, &failures, &probe_at, &pace, &halved_at]).await?;
    Ok(())
}

fn add(wanted: &mut Wanted, lane: &Lane) {
    let callees = wanted.entry(lane.queue.clone()).or_default();
    callees.insert(lane.route.callee_service().to_owned());
}

/// Returns the number of the advisory lock of a queue.
fn lock(queue: &str) -> i64 {
    let digest: [u8; 32] = Sha256::digest(format!("damper queue {queue}")).into();
    i64::from_be_bytes(*digest.first_chunk().expect("a SHA-256 has 32 bytes"))
}

fn time(us: i64) -> Time {
    Time::from_micros(us.try_into().unwrap_or_default())
}

fn micros(time: Time) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

fn small(number: i64) -> u32 {
    u32::try_from(number.max(0)).unwrap_or(u32::MAX)
}

/// Counts the leases of queues by callee, as the tallies of all servers have them.
async fn count_leases(loader: &Loader, queues: &[&str]) -> Result<Leased, Stop> {
    let sql = "select queue, callee_service, sum(leased)::bigint from tally join lane on lane.id = tally.lane \
               where queue = any($1) group by 1, 2";
    let mut leased = Leased::new();
    for row in loader.connection.query(sql, &[&queues]).await? {
        let callees = leased.entry(row.try_get(0)?).or_default();
        callees.insert(row.try_get(1)?, small(row.try_get(2)?));
    }
    Ok(leased)
}
