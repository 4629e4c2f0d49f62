//! Tables of the file, and the places of a job in its indexes.
//!
//! Integers in keys are compared as numbers, tuples from left to right. Ids are numbers too: big-endian, their
//! order is that of their bytes.

use ::redb::TableDefinition;

use crate::store::error::Error;
use crate::store::record::{JobId, Lane, Record, State};
use crate::store::tally::Tally;

/// Format of this file.
pub(super) const FORMAT: u64 = 1;

/// id -> record
pub(super) const JOB: TableDefinition<'_, u128, &[u8]> = TableDefinition::new("job");
/// id -> body
pub(super) const BODY: TableDefinition<'_, u128, &[u8]> = TableDefinition::new("body");
/// Waiting jobs: lane, 0 if never sent or 1, due time, id.
pub(super) const DUE: TableDefinition<'_, (u32, u8, u64, u128), ()> = TableDefinition::new("due");
/// Jobs behind another: scope, order key, order, id.
pub(super) const BEHIND: TableDefinition<'_, (u128, &str, u64, u128), ()> = TableDefinition::new("behind");
/// Leased jobs: server, id.
pub(super) const LEASED: TableDefinition<'_, (u64, u128), ()> = TableDefinition::new("leased");
/// Dead and ended jobs: lane, 1 if dead, time of the end, id.
pub(super) const OVER: TableDefinition<'_, (u32, u8, u64, u128), ()> = TableDefinition::new("over");
/// Jobs that have not ended: lane, expiry, id.
pub(super) const EXPIRY: TableDefinition<'_, (u32, u64, u128), ()> = TableDefinition::new("expiry");
/// scope, key -> id
pub(super) const KEY: TableDefinition<'_, (u128, &str), u128> = TableDefinition::new("key");
/// scope, order key -> id of the job that has its turn
pub(super) const HEAD: TableDefinition<'_, (u128, &str), u128> = TableDefinition::new("head");
/// number -> queue, caller service, caller cluster, callee service, callee method
pub(super) const LANE: TableDefinition<'_, u32, (&str, &str, &str, &str, &str)> =
    TableDefinition::new("lane");
/// lane -> waiting, behind, leased, dead, ended, bytes
pub(super) const COUNT: TableDefinition<'_, u32, (u64, u64, u64, u64, u64, u64)> =
    TableDefinition::new("count");
/// `format`, `oldest_reader`, `id`, `next_lane`
pub(super) const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");

/// The index in which a job has its state.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    Due((u32, u8, u64, u128)),
    Behind(u128, String, u64, u128),
    Leased((u64, u128)),
    Over((u32, u8, u64, u128)),
}

impl Place {
    pub(super) fn of(record: &Record, lane: u32) -> Self {
        let id = number(record.id);
        match record.state {
            State::Waiting => Self::Due((lane, u8::from(!record.is_first()), record.at.0, id)),
            State::Behind => {
                let order_key = record.order_key.clone().unwrap_or_default();
                Self::Behind(record.lane.scope(), order_key, record.job.began.0, id)
            }
            State::Leased { server, .. } => Self::Leased((server.0, id)),
            State::Dead => Self::Over((lane, 1, record.at.0, id)),
            State::Done | State::Cancelled | State::Expired => Self::Over((lane, 0, record.at.0, id)),
        }
    }
}

/// Returns the place of a job in `EXPIRY`.
pub(super) fn expiry(record: &Record, lane: u32) -> Option<(u32, u64, u128)> {
    record.state.kind().is_live().then(|| (lane, record.job.expires.0, number(record.id)))
}

pub(super) fn number(id: JobId) -> u128 {
    u128::from_be_bytes(id.0)
}

pub(super) fn id(number: u128) -> JobId {
    JobId(number.to_be_bytes())
}

pub(super) fn counts(row: (u64, u64, u64, u64, u64, u64)) -> Tally {
    let (waiting, behind, leased, dead, ended, bytes) = row;
    let [waiting, behind, leased, dead, ended, bytes] =
        [waiting, behind, leased, dead, ended, bytes].map(u64::cast_signed);
    Tally { waiting, behind, leased, dead, ended, bytes }
}

/// Returns the row of these counts. Errors if one is negative.
pub(super) fn count_row(tally: &Tally, lane: &Lane) -> Result<(u64, u64, u64, u64, u64, u64), Error> {
    let Tally { waiting, behind, leased, dead, ended, bytes } = *tally;
    let unsigned = |count| {
        let negative = |_| Error::Damaged(format!("lane {} {}: count of {count}", lane.queue, lane.route));
        u64::try_from(count).map_err(negative)
    };
    Ok((
        unsigned(waiting)?,
        unsigned(behind)?,
        unsigned(leased)?,
        unsigned(dead)?,
        unsigned(ended)?,
        unsigned(bytes)?,
    ))
}
