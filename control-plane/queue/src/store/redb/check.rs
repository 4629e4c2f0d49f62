//! Reads the whole file and compares its tables.

use std::collections::BTreeSet;

use ::redb::ReadableTable as _;

use super::reads::View;
use super::tables::{
    BEHIND, BODY, COUNT, DUE, EXPIRY, HEAD, JOB, KEY, LEASED, OVER, Place, counts, expiry, id,
};
use crate::store::consistency::Contents;
use crate::store::encoding::{decode, decode_body};
use crate::store::error::Error;

impl View {
    /// Returns what contradicts itself.
    pub(super) fn check(&self) -> Result<Vec<String>, Error> {
        let mut contents = Contents::default();
        let (mut places, mut expiries) = (BTreeSet::new(), BTreeSet::new());
        for row in self.transaction.open_table(JOB)?.iter()? {
            let (key, row) = row?;
            let mut number = 0;
            let job = decode(id(key.value()), row.value(), |lane| {
                number = lane;
                self.lane(lane).ok()
            })?;
            places.insert(Place::of(&job, number));
            expiries.extend(expiry(&job, number));
            contents.jobs.insert(job.id, job);
        }
        self.read_others(&mut contents)?;
        let mut problems = contents.problems();
        let found = self.places()?;
        problems.extend(places.symmetric_difference(&found).map(|place| {
            let only =
                if found.contains(place) { "in an index, not by its record" } else { "not in its index" };
            format!("{place:?}: {only}")
        }));
        let mut found = BTreeSet::new();
        for row in self.transaction.open_table(EXPIRY)?.iter()? {
            found.insert(row?.0.value());
        }
        problems.extend(expiries.symmetric_difference(&found).map(|expiry| format!("expiry {expiry:?}")));
        Ok(problems)
    }

    fn read_others(&self, contents: &mut Contents) -> Result<(), Error> {
        for row in self.transaction.open_table(BODY)?.iter()? {
            let (key, row) = row?;
            let job = id(key.value());
            contents.bodies.insert(job, decode_body(job, row.value())?.bytes());
        }
        for row in self.transaction.open_table(KEY)?.iter()? {
            let (key, row) = row?;
            let (scope, key) = key.value();
            contents.keys.insert((scope, key.to_owned()), id(row.value()));
        }
        for row in self.transaction.open_table(HEAD)?.iter()? {
            let (key, row) = row?;
            let (scope, order_key) = key.value();
            contents.heads.insert((scope, order_key.to_owned()), id(row.value()));
        }
        for row in self.transaction.open_table(COUNT)?.iter()? {
            let (number, row) = row?;
            contents.tallies.insert(self.lane(number.value())?, counts(row.value()));
        }
        Ok(())
    }

    fn places(&self) -> Result<BTreeSet<Place>, Error> {
        let mut places = BTreeSet::new();
        for row in self.transaction.open_table(DUE)?.iter()? {
            places.insert(Place::Due(row?.0.value()));
        }
        for row in self.transaction.open_table(BEHIND)?.iter()? {
            let (key, _) = row?;
            let (scope, order_key, at, id) = key.value();
            places.insert(Place::Behind(scope, order_key.to_owned(), at, id));
        }
        for row in self.transaction.open_table(LEASED)?.iter()? {
            places.insert(Place::Leased(row?.0.value()));
        }
        for row in self.transaction.open_table(OVER)?.iter()? {
            places.insert(Place::Over(row?.0.value()));
        }
        Ok(places)
    }
}
