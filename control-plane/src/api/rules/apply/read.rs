//! Reads a set of changes: the stream of an apply, or what a what-if has in one message.
//!
//! A stream is counted while it arrives, alone and with all others, so that what is too large is refused before it fills
//! the memory. Every change is read at once; what is wrong anywhere is told together at the end.

use std::collections::HashMap;
use std::time::Duration;

use damper_core::Faults;
use damper_proto::v1::{self, apply_rules_request, rule_change};
use prost::Message as _;
use tonic::{Request, Streaming};

use crate::api::rules::apply::Apply;
use crate::api::rules::apply::quota::{ApplyQuota, ApplyReservation};
use crate::auth::limits::identity;
use crate::state::error::ApiError;
use crate::state::resource_key::ResourceKey;
use crate::write::Writes;
use crate::write::change_set::{ChangeSet, ResourceChange, Written};
use crate::write::claim::OwnershipClaim;
use crate::write::digest::Digest;
use crate::write::request::{Requester, WriteRequest, check_options, read_key};
use crate::write::resource::{NewGuard, NewRule};
use damper_net::connection::ConnectionInfo;
use damper_net::limits::Limit;

/// How long the next message of a set may take.
const NEXT_WITHIN: Duration = Duration::from_secs(30);
/// How long the whole set may take.
const WHOLE_WITHIN: Duration = Duration::from_secs(300);
/// Reading goes on after faults, so that all are told; but not for ever.
const MAX_FAULTS: usize = 1000;
const MAX_WHAT_IF_CHANGES: usize = 1000;

pub(crate) type ApplyStream = Streaming<v1::ApplyRulesRequest>;

/// Reads a whole set.
pub(crate) async fn read<'r>(
    writes: &Writes,
    rooms: &'r ApplyQuota,
    request: Request<ApplyStream>,
) -> Result<(Apply, ApplyReservation<'r>), ApiError> {
    tokio::time::timeout(WHOLE_WITHIN, whole(writes, rooms, request))
        .await
        .unwrap_or(Err(ApiError::TooLate(WHOLE_WITHIN)))
}

async fn whole<'r>(
    writes: &Writes,
    rooms: &'r ApplyQuota,
    request: Request<ApplyStream>,
) -> Result<(Apply, ApplyReservation<'r>), ApiError> {
    let by = Requester::of(&request);
    let peer = request.extensions().get::<ConnectionInfo>();
    let mut room = rooms.open(peer.map(|peer| identity(&by.caller, peer)).unwrap_or_default())?;
    let mut requests = request.into_inner();
    let first = next(&mut requests).await?;
    let Some(apply_rules_request::Kind::Header(options)) = first.and_then(|request| request.kind) else {
        return Err(ApiError::fault("header", "must be the first message"));
    };
    let mut reading = ApplyReader::new("header", &options);
    let mut digest = Digest::new();
    digest.add(b"apply");
    digest.add(&options.encode_to_vec());
    let (mut bytes, mut rules, mut guards) = (0, 0, 0);
    while let Some(request) = next(&mut requests).await? {
        let encoded = request.encode_to_vec();
        bytes += encoded.len();
        digest.add(&encoded);
        let limit = writes.limits.max_apply_bytes;
        if bytes > limit {
            return Err(ApiError::too_large(
                Limit::ApplyBytes,
                format!("the set has more than {limit} bytes"),
            ));
        }
        room.grow(encoded.len())?;
        let (limit, count, most) = match is_of_guard(&request) {
            true => (Limit::Guards, &mut guards, writes.limits.max_guards),
            false => (Limit::Rules, &mut rules, writes.limits.max_rules),
        };
        *count += 1;
        if *count > most {
            let text = format!("the set has more than {most} changes of {}", limit.name());
            return Err(ApiError::too_large(limit, text));
        }
        match request.kind {
            Some(apply_rules_request::Kind::Change(change)) => {
                if let Some(subject) = reading.take(change) {
                    // Nobody sends much of what they may not change.
                    by.caller.permit_write(subject)?;
                }
            }
            Some(apply_rules_request::Kind::Header(_)) => {
                reading.refuse("a header may only be the first message");
            }
            None => reading.refuse("must be given"),
        }
        if reading.faults.len() >= MAX_FAULTS {
            break;
        }
    }
    let (claim, set) = reading.done()?;
    Ok((Apply { asked: WriteRequest::of_parts(options, digest, by), claim, set }, room))
}

/// Reads the set of a what-if.
pub(crate) fn read_what_if(request: Request<v1::WhatIfRequest>) -> Result<Apply, ApiError> {
    let (asked, request) = WriteRequest::read("what_if", request, |request| request.options.clone());
    let mut reading = ApplyReader::new("options", &asked.options);
    let count = request.changes.len();
    if count > MAX_WHAT_IF_CHANGES {
        let problem = format!("has {count} entries, at most {MAX_WHAT_IF_CHANGES} are allowed");
        reading.faults.add("changes", problem);
    }
    for change in request.changes.into_iter().take(MAX_WHAT_IF_CHANGES) {
        reading.take(change);
    }
    let (claim, set) = reading.done()?;
    Ok(Apply { asked, claim, set })
}

fn is_of_guard(request: &v1::ApplyRulesRequest) -> bool {
    use rule_change::Kind::{DeleteGuard, PutGuard};
    let Some(apply_rules_request::Kind::Change(change)) = &request.kind else { return false };
    matches!(change.kind, Some(PutGuard(_) | DeleteGuard(_)))
}

/// A set as far as it was read.
struct ApplyReader {
    claim: OwnershipClaim,
    changes: Vec<ResourceChange>,
    /// How many changes came, sound or not.
    place: usize,
    faults: Faults,
    /// Where each key was first.
    seen: HashMap<ResourceKey, usize>,
    too_large: Option<ApiError>,
}

impl ApplyReader {
    /// Begins with what the whole set is applied with, which stands at `path`.
    fn new(path: &str, options: &v1::WriteOptions) -> Self {
        let mut faults = Faults::none();
        check_options(path, options, &mut faults);
        let claim = OwnershipClaim::read(path, options, &mut faults);
        Self { claim, changes: Vec::new(), place: 0, faults, seen: HashMap::new(), too_large: None }
    }

    /// Takes the next change; answers what it is about, as far as it is sound.
    fn take(&mut self, change: v1::RuleChange) -> Option<&ResourceKey> {
        let change = self.change(self.place, change);
        self.place += 1;
        self.changes.push(change?);
        self.changes.last().map(|change| &change.subject)
    }

    /// There is something else where the next change should be.
    fn refuse(&mut self, problem: &str) {
        self.faults.add(format!("changes[{}]", self.place), problem);
        self.place += 1;
    }

    /// The set, or all that is wrong with it.
    fn done(self) -> Result<(OwnershipClaim, ChangeSet), ApiError> {
        match self.too_large {
            _ if !self.faults.is_empty() => Err(ApiError::Faults(self.faults)),
            Some(error) => Err(error),
            None => Ok((self.claim, ChangeSet(self.changes))),
        }
    }

    fn change(&mut self, place: usize, change: v1::RuleChange) -> Option<ResourceChange> {
        let path = format!("changes[{place}]");
        let expected = change.expected_revision;
        let read = match change.kind {
            Some(rule_change::Kind::Put(mut rule)) => {
                let path = format!("{path}.put");
                let names_owner = belongs(&mut rule.owner, &self.claim);
                let rule = NewRule::read(&path, Some(rule));
                rule.map(|rule| ResourceChange {
                    names_owner,
                    ..ResourceChange::put(Written::Rule(Box::new(rule)), path)
                })
            }
            Some(rule_change::Kind::PutGuard(mut guard)) => {
                let path = format!("{path}.put_guard");
                let names_owner = belongs(&mut guard.owner, &self.claim);
                let guard = NewGuard::read(&path, Some(guard));
                guard.map(|guard| ResourceChange {
                    names_owner,
                    ..ResourceChange::put(Written::Guard(Box::new(guard)), path)
                })
            }
            Some(rule_change::Kind::Delete(key)) => {
                let path = format!("{path}.delete");
                let key = read_key(&path, Some(&key)).map_err(ApiError::Faults);
                key.map(|key| ResourceChange::delete(ResourceKey::Rule(key), path))
            }
            Some(rule_change::Kind::DeleteGuard(key)) => {
                let path = format!("{path}.delete_guard");
                let key = read_key(&path, Some(&key)).map_err(ApiError::Faults);
                key.map(|key| ResourceChange::delete(ResourceKey::Guard(key), path))
            }
            None => Err(ApiError::fault(&path, "put, delete, put_guard or delete_guard must be given")),
        };
        match read {
            Ok(change) => self.unless_twice(place, &path, ResourceChange { expected, ..change }),
            Err(ApiError::Faults(faults)) => {
                self.faults.nest("", faults);
                None
            }
            Err(error) => {
                self.too_large.get_or_insert(error);
                None
            }
        }
    }

    fn unless_twice(&mut self, place: usize, path: &str, change: ResourceChange) -> Option<ResourceChange> {
        if let Some(first) = self.seen.insert(change.subject.clone(), place) {
            let problem = format!("{} is also the key of changes[{first}]", change.subject.pattern());
            self.faults.add(path, problem);
            return None;
        }
        Some(change)
    }
}

/// Gives what names no owner the set's; tells whether it names one.
fn belongs(owner: &mut String, claim: &OwnershipClaim) -> bool {
    let named = !owner.is_empty();
    if !named {
        claim.owner().clone_into(owner);
    }
    named
}

async fn next(requests: &mut ApplyStream) -> Result<Option<v1::ApplyRulesRequest>, ApiError> {
    match tokio::time::timeout(NEXT_WITHIN, requests.message()).await {
        Ok(message) => message.map_err(ApiError::Unread),
        Err(_) => Err(ApiError::TooLate(NEXT_WITHIN)),
    }
}
