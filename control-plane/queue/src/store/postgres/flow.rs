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
use sha2::{Digest as _, Sha256};
use tokio_postgres::Row;

use super::connection::Stop;
use super::load::Loader;
use super::pipeline::{Pipeline, Place, Results, parameters};
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

/// Locks the flows of queues, in this order. A server that freezes with the lock holds up the others for this
/// time only, which is shorter than the wait of a submission.
const LOCK: &str = "select pg_advisory_xact_lock(k), set_config('idle_in_transaction_session_timeout', '3s', true) \
     from unnest($1::bigint[]) k";

/// The leases of queues by callee, as the tallies of all servers have them.
const COUNT_LEASES: &str = "select l.queue, l.callee_service, sum(t.leased)::bigint from tally t join lane l on l.id = \
     t.lane where t.leased <> 0 and l.queue = any($1) group by 1, 2";

const CALLEES: &str = "select w.queue, w.callee, c.failures, c.probe_at, c.pace, c.halved_at from unnest($1::text[], \
     $2::text[]) w (queue, callee) left join callee_flow c using (queue, callee)";

const QUEUES: &str = "select q.queue, store_time(), b.next_delivery, b.line_servers, b.line_until from \
     unnest($1::text[]) q (queue) left join queue_flow b on b.queue = q.queue";

/// Queues with the callees that a batch needs of them.
#[derive(Debug, Default)]
pub(super) struct Wanted(BTreeMap<String, BTreeSet<String>>);

/// Where the results have the flows.
pub(super) struct Asked {
    queues: Place,
    leased: Option<Place>,
    callees: Place,
}

/// Leases of a queue by callee.
type Leased = BTreeMap<String, BTreeMap<String, u32>>;

impl Flows {
    /// Returns the flows to lock: of the queues of requests with bounds, and of those in which the evidence
    /// changes something.
    pub(super) async fn wanted(
        loader: &Loader,
        requests: &[LeaseRequest],
        shown: &[Shown<'_>],
    ) -> Result<Wanted, Stop> {
        let mut wanted = Wanted::default();
        for request in requests.iter().filter(|request| request.bounds.is_some()) {
            wanted.add(&request.lane);
        }
        let mut others = Wanted::default();
        for (lane, _) in shown {
            let is_wanted = wanted.0.contains_key(&lane.queue);
            if is_wanted { &mut wanted } else { &mut others }.add(lane);
        }
        if !others.is_empty() {
            let mut pipeline = Pipeline::default();
            let asked = others.ask(&mut pipeline, false, false);
            let results = pipeline.run(&loader.connection).await?;
            let mut unlocked = Self::loaded(&others, asked, &results)?;
            unlocked.show(shown);
            others.0.retain(|queue, _| unlocked.is_changed(queue));
            wanted.0.append(&mut others.0);
        }
        Ok(wanted)
    }

    /// Locks and loads the flows that evidence alone changes, and counts it.
    pub(super) async fn of_evidence(loader: &Loader, shown: &[Shown<'_>]) -> Result<Self, Stop> {
        let wanted = Self::wanted(loader, &[], shown).await?;
        let mut pipeline = Pipeline::default();
        let asked = wanted.ask(&mut pipeline, true, false);
        let results = pipeline.run(&loader.connection).await?;
        let mut flows = Self::loaded(&wanted, asked, &results)?;
        flows.show(shown);
        Ok(flows)
    }

    /// Returns the flows of the results.
    pub(super) fn loaded(wanted: &Wanted, asked: Option<Asked>, results: &Results) -> Result<Self, Stop> {
        let mut flows = Self::default();
        let Some(Asked { queues, leased, callees }) = asked else { return Ok(flows) };
        let leased = leased.map_or(Ok(Leased::new()), |leased| leases(results.rows(leased)))?;
        let rows = results.rows(queues);
        for row in rows {
            flows.now = time(row.try_get(1)?);
        }
        for row in rows {
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
        debug_assert_eq!(flows.queues.len(), wanted.0.len());
        flows.load_callees(results.rows(callees), &leased)?;
        Ok(flows)
    }

    fn load_callees(&mut self, rows: &[Row], leased: &Leased) -> Result<(), Stop> {
        for row in rows {
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
    pub(super) fn show(&mut self, shown: &[Shown<'_>]) {
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
    pub(super) fn save(&self, pipeline: &mut Pipeline<'_>) -> bool {
        let mut is_changed = false;
        for (name, queue) in &self.queues {
            let parts = queue.flow.parts();
            if parts != queue.stored {
                save_queue(name, &parts, pipeline);
                is_changed = true;
            }
        }
        let callees = self.queues.iter().flat_map(|(name, queue)| {
            queue.changed_callees().map(move |(callee, parts)| (name, callee, parts))
        });
        let callees: Vec<(&String, &String, CalleeParts)> = callees.collect();
        if !callees.is_empty() {
            save_callees(&callees, pipeline);
        }
        is_changed || !callees.is_empty()
    }
}

impl Wanted {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn add(&mut self, lane: &Lane) {
        let callees = self.0.entry(lane.queue.clone()).or_default();
        callees.insert(lane.route.callee_service().to_owned());
    }

    /// Asks for the flows, if there are any. The leases are counted for requests alone: evidence does not
    /// need them.
    pub(super) fn ask(&self, pipeline: &mut Pipeline<'_>, locks: bool, counts: bool) -> Option<Asked> {
        if self.is_empty() {
            return None;
        }
        let queues: Vec<String> = self.0.keys().cloned().collect();
        if locks {
            let locks: BTreeSet<i64> = queues.iter().map(|queue| lock(queue)).collect();
            pipeline.add(LOCK, parameters![locks.into_iter().collect::<Vec<i64>>()]);
        }
        // Their snapshots are later than the locks.
        let leased = counts.then(|| pipeline.add(COUNT_LEASES, parameters![queues.clone()]));
        let pairs =
            self.0.iter().flat_map(|(queue, callees)| callees.iter().map(move |callee| (queue, callee)));
        let (of, callees): (Vec<String>, Vec<String>) =
            pairs.map(|(queue, callee)| (queue.clone(), callee.clone())).unzip();
        let callees = pipeline.add(CALLEES, parameters![of, callees]);
        let queues = pipeline.add(QUEUES, parameters![queues]);
        Some(Asked { queues, leased, callees })
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

fn save_queue(queue: &str, parts: &QueueParts, pipeline: &mut Pipeline<'_>) {
    let sql = "insert into queue_flow values ($1, $2, $3, $4) on conflict (queue) do update set next_delivery = \
               excluded.next_delivery, line_servers = excluded.line_servers, line_until = excluded.line_until";
    let servers: Vec<i64> = parts.line.iter().map(|(server, _)| server.cast_signed()).collect();
    let until: Vec<i64> = parts.line.iter().map(|(_, until)| micros(*until)).collect();
    pipeline.add(sql, parameters![queue.to_owned(), micros(parts.next_delivery), servers, until]);
}

fn save_callees(callees: &[(&String, &String, CalleeParts)], pipeline: &mut Pipeline<'_>) {
    let sql = "insert into callee_flow (queue, callee, failures, probe_at, pace, halved_at) select * from \
               unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[]) on conflict \
               (queue, callee) do update set failures = excluded.failures, probe_at = excluded.probe_at, pace = \
               excluded.pace, halved_at = excluded.halved_at";
    let queues: Vec<String> = callees.iter().map(|(queue, ..)| (*queue).clone()).collect();
    let names: Vec<String> = callees.iter().map(|(_, callee, _)| (*callee).clone()).collect();
    let column = |part: fn(&CalleeParts) -> i64| callees.iter().map(|(.., parts)| part(parts)).collect();
    let failures: Vec<i64> = column(|parts| i64::from(parts.failures));
    let probe_at: Vec<i64> = column(|parts| micros(parts.probe_at));
    let pace: Vec<i64> = column(|parts| i64::from(parts.pace));
    let halved_at: Vec<Option<i64>> = callees.iter().map(|(.., parts)| parts.halved_at.map(micros)).collect();
    pipeline.add(sql, parameters![queues, names, failures, probe_at, pace, halved_at]);
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

/// Returns the leases of queues by callee.
fn leases(rows: &[Row]) -> Result<Leased, Stop> {
    let mut leased = Leased::new();
    for row in rows {
        let callees = leased.entry(row.try_get(0)?).or_default();
        callees.insert(row.try_get(1)?, small(row.try_get(2)?));
    }
    Ok(leased)
}
