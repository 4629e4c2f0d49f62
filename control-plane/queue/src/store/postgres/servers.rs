//! Live servers, and the leases of dead ones.
//!
//! Each server counts up its own `beat`. One is dead for an observer that has seen its beat unchanged for 15
//! s by its own monotonic clock, while its own beats succeeded: after an outage of the database no server is
//! dead, and clocks need not agree. The row of the dead server is removed in the transaction that moves its
//! leases, so one observer moves them. A server that finds its own row gone takes a new number and has no
//! leases.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::connection::{Connection, Stop};
use super::load::Loader;
use crate::store::encoding::encode;
use crate::store::record::{Record, ServerId, State};

/// The row of another server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Beating {
    pub(super) server: ServerId,
    pub(super) beat: i64,
}

/// What this server has seen of the others.
pub(super) struct Observer {
    dead_after: Duration,
    last: Option<Instant>,
    seen: HashMap<ServerId, (i64, Instant)>,
}

impl Observer {
    pub(super) fn new(dead_after: Duration) -> Self {
        Self { dead_after, last: None, seen: HashMap::new() }
    }

    /// Takes in the rows of the others after a beat of this server has succeeded. Returns the dead ones.
    pub(super) fn observe(&mut self, others: &[Beating], now: Instant) -> Vec<Beating> {
        let was_out = self.last.is_none_or(|last| now - last > self.dead_after * 2 / 3);
        self.last = Some(now);
        self.seen.retain(|server, _| others.iter().any(|other| other.server == *server));
        let mut dead = Vec::new();
        for other in others {
            let (beat, since) = self.seen.entry(other.server).or_insert((other.beat, now));
            if was_out || *beat != other.beat {
                (*beat, *since) = (other.beat, now);
            } else if now - *since >= self.dead_after {
                dead.push(*other);
            }
        }
        dead
    }
}

/// Adds a row for this process.
pub(super) async fn register(connection: &Connection) -> Result<ServerId, Stop> {
    let rows = connection.query("insert into server default values returning id", &[]).await?;
    let id: i64 = rows.first().map_or(Ok(0), |row| row.try_get(0))?;
    Ok(ServerId(id.cast_unsigned()))
}

/// Servers by id with what they publish, and the time of the database in ms since 1970.
pub(super) type Servers = (Vec<(Beating, Vec<u8>)>, u64);

/// Counts up the beat of this server. Returns all servers; `None` if its own row is gone.
pub(super) async fn beat(
    connection: &Connection,
    me: ServerId,
    published: &[u8],
) -> Result<Option<Servers>, Stop> {
    // The rest of the statement sees the rows as they were before.
    let sql = "with mine as (update server set beat = beat + 1, published = $2 where id = $1 returning id, beat, \
               published), seen as (select * from mine union all select id, beat, published from server where id <> \
               $1) select id, beat, published, (extract(epoch from clock_timestamp()) * 1000)::bigint from seen \
               order by id";
    let mut now: i64 = 0;
    let mut servers = Vec::new();
    for row in connection.query(sql, &[&me.0.cast_signed(), &published]).await? {
        let id: i64 = row.try_get(0)?;
        now = row.try_get(3)?;
        let beating = Beating { server: ServerId(id.cast_unsigned()), beat: row.try_get(1)? };
        servers.push((beating, row.try_get(2)?));
    }
    let is_there = servers.iter().any(|(beating, _)| beating.server == me);
    Ok(is_there.then_some((servers, now.cast_unsigned())))
}

/// Moves the leases of a dead server to this one. Returns none if it beats again, or if another server was
/// faster. On an error the transaction is still open.
pub(super) async fn adopt(loader: &Loader, dead: Beating, me: ServerId) -> Result<Vec<Record>, Stop> {
    let (from, to) = (dead.server.0.cast_signed(), me.0.cast_signed());
    let connection = &loader.connection;
    connection.batch("begin").await?;
    let sql = "delete from server where id = $1 and beat = $2";
    if connection.execute(sql, &[&from, &dead.beat]).await? == 0 {
        connection.batch("rollback").await?;
        return Ok(Vec::new());
    }
    let sql = "select id, record from job where server = $1 and state = 'l' order by order_key is not null, id for \
               update";
    let rows = connection.query(sql, &[&from]).await?;
    let mut jobs = loader.records(&rows).await?;
    let (mut ids, mut records) = (Vec::new(), Vec::new());
    for job in &mut jobs {
        if let State::Leased { server, .. } = &mut job.state {
            *server = me;
        }
        let lane = loader.lanes.read().number(&job.lane).expect("lanes are loaded before their jobs");
        ids.push(job.id.0.to_vec());
        records.push(encode(job, lane.number));
    }
    let sql = "update job set server = $1, record = u.record from unnest($2::bytea[], $3::bytea[]) u (id, record) \
               where job.id = u.id";
    connection.execute(sql, &[&to, &ids, &records]).await?;
    // One statement: it waits for a last transaction of the dead server, and moves what that one counted.
    let sql = "with moved as (delete from tally where server = $1 returning *) insert into tally select lane, $2, \
               waiting, behind, leased, dead, ended, bytes from moved on conflict (lane, server) do update set waiting = tally.waiting + excluded.waiting, behind = \
               tally.behind + excluded.behind, leased = tally.leased + excluded.leased, dead = tally.dead + \
               excluded.dead, ended = tally.ended + excluded.ended, bytes = tally.bytes + excluded.bytes";
    connection.execute(sql, &[&from, &to]).await?;
    connection.commit().await?;
    Ok(jobs)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEAD_AFTER: Duration = Duration::from_secs(15);

    fn other(beat: i64) -> [Beating; 1] {
        [Beating { server: ServerId(2), beat }]
    }

    /// Observes a row every 5 s; returns after how many of the observations the server is dead.
    fn observe(observer: &mut Observer, now: &mut Instant, beats: &[i64]) -> Vec<usize> {
        let mut dead = Vec::new();
        for (index, beat) in beats.iter().enumerate() {
            if !observer.observe(&other(*beat), *now).is_empty() {
                dead.push(index);
            }
            *now += Duration::from_secs(5);
        }
        dead
    }

    #[test]
    fn server_is_dead_after_15_s_without_a_beat() {
        let (mut observer, mut now) = (Observer::new(DEAD_AFTER), Instant::now());
        assert_eq!(observe(&mut observer, &mut now, &[1, 2, 3, 3, 3, 4, 4, 4, 4, 4]), [8, 9]);
    }

    #[test]
    fn outage_of_the_observer_begins_its_watch_again() {
        let (mut observer, mut now) = (Observer::new(DEAD_AFTER), Instant::now());
        assert_eq!(observe(&mut observer, &mut now, &[1, 1, 1]), [0; 0]);
        now += Duration::from_secs(60);
        assert_eq!(observe(&mut observer, &mut now, &[1, 1, 1, 1]), [3]);
    }

    #[test]
    fn server_that_left_is_not_dead() {
        let (mut observer, mut now) = (Observer::new(DEAD_AFTER), Instant::now());
        observe(&mut observer, &mut now, &[1, 1, 1]);
        assert_eq!(observer.observe(&[], now), []);
        assert_eq!(observer.observe(&other(1), now), []);
    }
}
