//! A rule or guard as it was at a revision.

use damper_proto::v1;

use super::object;
use super::past::{table_at, touched};
use crate::errors::{Current, Error};
use crate::shared::Shared;

pub(super) async fn get(shared: &Shared, request: v1::GetObjectRequest) -> Result<v1::Object, Error> {
    let subject = object::subject(request.key).map_err(Error::Faults)?;
    let table = table_at(shared, "revision", request.revision.unwrap_or(0)).await?;
    let revision = request.revision.unwrap_or(table.revision());
    let mut since = touched(&*shared.store, revision, table.revision(), |other| *other == subject).await?;
    let then = match since.remove(&subject) {
        Some(touched) => touched.before.map(|entry| object::read(&subject, entry)),
        None => Current::stored(&table, &subject).map(Into::into),
    };
    then.ok_or_else(|| Error::NotFound(format!("there was no {subject} at revision {revision}")))
}
