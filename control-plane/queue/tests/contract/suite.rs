//! Random batches against the model; after each one results, reads and invariants are compared.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;

use damper_core::job::Wall;
use damper_queue::store::{
    Batch, Committed, Filter, JobId, Lane, LeaseRequest, Overdue, OverdueKind, Record, State, Store,
    Submitted,
};

use crate::model::Model;
use crate::operations::{QUEUES, SERVERS, World};

/// A store under test, which can be opened again on what it kept.
pub(crate) trait Bench {
    /// Opens the store.
    fn open(&mut self) -> impl Future<Output = Arc<dyn Store>>;
}

/// Runs a number of batches from a seed.
pub(crate) async fn run(bench: &mut impl Bench, seed: u64, batches: usize) {
    let mut store = bench.open().await;
    let id = store.id();
    let mut world = World::new(seed);
    let mut model = Model::default();
    let mut met = BTreeSet::new();
    for number in 0..batches {
        let place = format!("seed {seed}, batch {number}");
        let operations = world.rng.usize(1..9);
        let batch = world.batch(&model, operations);
        let before = model.clone();
        let committed = store.commit(batch.clone()).await.unwrap_or_else(|error| panic!("{place}: {error}"));
        let expected = model.commit(&batch, &committed.leases);
        let same = compare(&committed, &expected, &before, &model);
        same.unwrap_or_else(|why| panic!("{place}: {why}\n{batch:#?}"));
        note(&committed, &mut met);
        world.leased(&committed.leases);
        if number % 40 == 39 {
            drop(store);
            store = bench.open().await;
            assert_eq!(store.id(), id, "{place}: identity after opening again");
        }
        reads(&*store, &model, &mut world, &place).await;
        assert_eq!(store.check().await.unwrap(), Vec::<String>::new(), "{place}\n{batch:#?}");
    }
    assert_eq!(missing(&met), Vec::<&str>::new(), "seed {seed} does not reach all results");
}

/// A lane full of due jobs hides none of another lane, in whatever order they are requested.
pub(crate) async fn scarce_lane(bench: &mut impl Bench) {
    const MANY: u64 = 2_000;
    let store = bench.open().await;
    let mut world = World::new(1);
    let (full, scarce) = (world.lanes[0].clone(), world.lanes[3].clone());
    let mut due = |number: u64, lane: &Arc<Lane>, at: Wall| {
        let (mut job, body) = world.submission(&Model::default());
        (job.id, job.key) = (JobId(u128::from(number).to_be_bytes()), number.to_string());
        (job.lane, job.order_key, job.at) = (lane.clone(), None, at);
        (job, body)
    };
    let submissions: Vec<_> = (0..MANY).map(|number| due(number, &full, Wall(number))).collect();
    for chunk in submissions.chunks(500) {
        store.commit(Batch { submissions: chunk.to_vec(), ..Batch::default() }).await.unwrap();
    }
    let request = |lane: &Arc<Lane>, seed| LeaseRequest {
        lane: lane.clone(),
        count: 50,
        max_bytes: 1 << 20,
        first_only: false,
        bounds: None,
        server: SERVERS[0],
        now: Wall(MANY + 1),
        seed,
    };
    for round in 0..6 {
        let last = due(MANY + round, &scarce, Wall(MANY));
        let id = last.0.id;
        store.commit(Batch { submissions: vec![last], ..Batch::default() }).await.unwrap();
        let mut leases = vec![request(&full, 2 * round), request(&scarce, 2 * round + 1)];
        leases.rotate_left(usize::from(round % 2 == 1));
        let mut leased = store.commit(Batch { leases, ..Batch::default() }).await.unwrap().leases;
        leased.rotate_left(usize::from(round % 2 == 1));
        let ids = |part: usize| leased[part].iter().map(|(job, _)| job.id).collect::<Vec<_>>();
        let first = 50 * round;
        let expected = (first..first + 50).map(|number| JobId(u128::from(number).to_be_bytes()));
        assert_eq!((ids(0), ids(1)), (expected.collect(), vec![id]), "round {round}");
    }
}

fn compare(got: &Committed, expected: &Committed, before: &Model, after: &Model) -> Result<(), String> {
    let same = |what: &str, got: String, expected: String| {
        if got == expected { Ok(()) } else { Err(format!("{what}\n   got {got}\nwanted {expected}")) }
    };
    same("settlements", format!("{:?}", got.settlements), format!("{:?}", expected.settlements))?;
    same("claims", format!("{:?}", got.claims), format!("{:?}", expected.claims))?;
    same("leases", format!("{:?}", got.leases), format!("{:?}", expected.leases))?;
    same("next due", format!("{:?}", got.next_due), format!("{:?}", expected.next_due))?;
    same("submissions", format!("{:?}", got.submissions), format!("{:?}", expected.submissions))?;
    same("changes", format!("{:?}", got.changes), format!("{:?}", expected.changes))?;
    for (job, _) in after.jobs.values().filter(|(job, _)| job.state == State::Waiting) {
        let known =
            before.jobs.get(&job.id).is_some_and(|(old, _)| old.state == job.state && old.at == job.at);
        let woken = got.due.iter().any(|(lane, at)| *lane == job.lane && *at <= job.at);
        if !known && !woken {
            return Err(format!("no wake-up for {job:?}, only {:?}", got.due));
        }
    }
    Ok(())
}

async fn reads(store: &dyn Store, model: &Model, world: &mut World, place: &str) {
    let (mut got, mut expected) = (store.lanes().await.unwrap(), model.lanes());
    for lanes in [&mut got, &mut expected] {
        lanes.sort_by_key(|counts| format!("{:?}", counts.lane));
    }
    assert_eq!(got, expected, "{place}: lanes");
    for queue in QUEUES {
        let filter = Filter { queue: queue.to_owned(), ..Filter::default() };
        assert_eq!(
            store.list(filter.clone(), None, 5_000).await.unwrap().jobs,
            model.list(&filter),
            "{place}"
        );
    }
    let some = world.rng.usize(0..20);
    for (id, (job, body)) in model.jobs.iter().skip(some).step_by(20) {
        assert_eq!(store.get(*id).await.unwrap().as_ref(), Some(job), "{place}");
        assert_eq!(store.body(*id).await.unwrap(), *body, "{place}: body of {id:?}");
    }
    let gone = JobId([0xff; 16]);
    assert_eq!(store.get(gone).await.unwrap(), None, "{place}");
    assert_eq!(store.body(gone).await.unwrap(), None, "{place}");
    for server in SERVERS {
        assert_eq!(store.leases_of(server).await.unwrap(), model.leases_of(server), "{place}: leases");
    }
    for _ in 0..4 {
        let filter = world.filter();
        let limit = world.rng.usize(1..6);
        let (mut listed, mut after) = (Vec::new(), None);
        loop {
            let page = store.list(filter.clone(), after, limit).await.unwrap();
            assert!(page.jobs.len() <= limit, "{place}: page of {} by {filter:?}", page.jobs.len());
            listed.extend(page.jobs);
            assert!(page.next.is_none() || page.next > after, "{place}: pages do not advance");
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(listed, model.list(&filter), "{place}: {filter:?} by {limit}");
    }
    let (now, limit) = (world.time(), world.rng.usize(1..9));
    due_to_end(store, model, now, limit, place).await;
}

/// Compares what a sweeper reads: any `limit` of those that have ended or expired.
async fn due_to_end(store: &dyn Store, model: &Model, now: Wall, limit: usize, place: &str) {
    let check = |got: Vec<JobId>, all: Vec<JobId>, what: &str| {
        let distinct: BTreeSet<&JobId> = got.iter().collect();
        assert!(distinct.len() == got.len() && got.len() == all.len().min(limit), "{place}: {what} {got:?}");
        assert!(got.iter().all(|id| all.contains(id)), "{place}: {what} {got:?} of {all:?}");
    };
    let later = Wall(now.0 + 20_000);
    let kinds = [(OverdueKind::Expired, later), (OverdueKind::Ended, now), (OverdueKind::Dead, now)];
    let ask = |queue: &str, (kind, before)| Overdue { queue: queue.to_owned(), kind, before };
    let asked: Vec<Overdue> = QUEUES.iter().flat_map(|queue| kinds.map(|kind| ask(queue, kind))).collect();
    let found = store.overdue(asked.clone(), limit).await.unwrap();
    assert_eq!(found.len(), asked.len(), "{place}");
    for (asked, got) in asked.into_iter().zip(found) {
        check(got, model.overdue(&asked), &format!("{asked:?}"));
    }
}

/// Notes which results occurred: a run that misses one proves less than it seems to.
fn note(committed: &Committed, met: &mut BTreeSet<String>) {
    let name = |text: String| text.split([' ', '(']).next().unwrap_or_default().to_owned();
    met.extend(committed.settlements.iter().map(|settled| format!("{settled:?}")));
    met.extend(committed.submissions.iter().map(|submitted| name(format!("{submitted:?}"))));
    met.extend(committed.submissions.iter().filter_map(|submitted| match submitted {
        Submitted::Stored(state) => Some(format!("{state:?}")),
        _ => None,
    }));
    met.extend(committed.claims.iter().map(|claim| format!("claimed {}", claim.is_some())));
    met.extend(committed.changes.iter().map(|changed| format!("changed {changed}")));
    if committed.leases.iter().flatten().any(|(job, _): &(Record, _)| job.job.deliveries > 1) {
        met.insert("leased again".to_owned());
    }
}

fn missing(met: &BTreeSet<String>) -> Vec<&'static str> {
    const ALL: [&str; 15] = [
        "Applied",
        "Replaced",
        "Repeated",
        "Lost",
        "Stored",
        "Existing",
        "Conflict",
        "Refused",
        "Waiting",
        "Behind",
        "claimed true",
        "claimed false",
        "changed true",
        "changed false",
        "leased again",
    ];
    ALL.into_iter().filter(|result| !met.contains(*result)).collect()
}
