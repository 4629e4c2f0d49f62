//! Reads a set of changes, from the stream of an apply or from the message of a what-if.
//!
//! The bytes of a stream are counted on arrival, alone and with all others, so a set that is too large is
//! rejected before it fills the memory. Every change is parsed on arrival; all faults are reported together
//! at the end.

use std::collections::HashMap;
use std::time::Duration;

use damper_core::Faults;
use damper_net::connection::ConnectionInfo;
use damper_net::limits::Limit;
use damper_proto::v1::{self, apply_rules_request, rule_change};
use prost::Message as _;
use tonic::{Request, Streaming};

use crate::api::rules::apply::Apply;
use crate::api::rules::apply::quota::{ApplyQuota, ApplyReservation};
use crate::auth::limits::identity;
use crate::state::error::ApiError;
use crate::state::resource_key::ResourceKey;
use crate::write::change_set::{ChangeSet, ResourceChange, Written};
use crate::write::claim::OwnershipClaim;
use crate::write::digest::Digest;
use crate::write::request::{Requester, WriteRequest, check_options, read_key, read_queue_name};
use crate::write::resource::{NewGuard, NewQueue, NewRule};
use crate::write::{MAX_QUEUES, Writes};

/// Longest wait for the next message of a set.
const NEXT_WITHIN: Duration = Duration::from_secs(30);
/// Longest time for the whole set.
const WHOLE_WITHIN: Duration = Duration::from_secs(300);
/// The most faults before reading stops. Up to then reading continues, so that all faults are reported.
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
    let by = Requester::from_request(&request);
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
    let (mut bytes, mut rules, mut guards, mut queues) = (0, 0, 0, 0);
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
        let limit = limit_of(&request);
        let (count, most) = match limit {
            Limit::Guards => (&mut guards, writes.limits.max_guards),
            Limit::Queues => (&mut queues, MAX_QUEUES),
            _ => (&mut rules, writes.limits.max_rules),
        };
        *count += 1;
        if *count > most {
            let text = format!("the set has more than {most} changes of {}", limit.name());
            return Err(ApiError::too_large(limit, text));
        }
        match request.kind {
            Some(apply_rules_request::Kind::Change(change)) => {
                if let Some(subject) = reading.take(change) {
                    // Rejects a change without permission at once, before more of the set arrives.
                    by.caller.permit_write(subject)?;
                }
            }
            Some(apply_rules_request::Kind::Header(_)) => {
                reading.fault("each message after the first must contain a change; only the first message contains a header");
            }
            None => reading.fault("is required"),
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

/// Returns the limit that the change counts against.
fn limit_of(request: &v1::ApplyRulesRequest) -> Limit {
    use rule_change::Kind::{Delete, DeleteGuard, DeleteQueue, Put, PutGuard, PutQueue};
    let Some(apply_rules_request::Kind::Change(change)) = &request.kind else { return Limit::Rules };
    match change.kind {
        Some(PutGuard(_) | DeleteGuard(_)) => Limit::Guards,
        Some(PutQueue(_) | DeleteQueue(_)) => Limit::Queues,
        Some(Put(_) | Delete(_)) | None => Limit::Rules,
    }
}

/// The part of a set that was read.
struct ApplyReader {
    claim: OwnershipClaim,
    changes: Vec<ResourceChange>,
    /// Number of changes so far, valid or not.
    place: usize,
    faults: Faults,
    /// Index of the first change of each key.
    seen: HashMap<ResourceKey, usize>,
    too_large: Option<ApiError>,
}

impl ApplyReader {
    /// Starts with the options of the set at `path`.
    fn new(path: &str, options: &v1::WriteOptions) -> Self {
        let mut faults = Faults::none();
        check_options(path, options, &mut faults);
        let claim = OwnershipClaim::read(path, options, &mut faults);
        Self { claim, changes: Vec::new(), place: 0, faults, seen: HashMap::new(), too_large: None }
    }

    /// Adds the next change. Returns its subject if it is valid.
    fn take(&mut self, change: v1::RuleChange) -> Option<&ResourceKey> {
        let change = self.change(self.place, change);
        self.place += 1;
        self.changes.push(change?);
        self.changes.last().map(|change| &change.subject)
    }

    /// Adds a fault at the place of the next change.
    fn fault(&mut self, problem: &str) {
        self.faults.add(format!("changes[{}]", self.place), problem);
        self.place += 1;
    }

    /// Returns the set, or all its faults.
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
                let names_owner = set_owner(&mut rule.owner, &self.claim);
                let rule = NewRule::read(&path, Some(rule));
                rule.map(|rule| ResourceChange {
                    names_owner,
                    ..ResourceChange::put(Written::Rule(Box::new(rule)), path)
                })
            }
            Some(rule_change::Kind::PutGuard(mut guard)) => {
                let path = format!("{path}.put_guard");
                let names_owner = set_owner(&mut guard.owner, &self.claim);
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
            Some(rule_change::Kind::PutQueue(mut queue)) => {
                let path = format!("{path}.put_queue");
                let names_owner = set_owner(&mut queue.owner, &self.claim);
                let queue = NewQueue::read(&path, Some(queue));
                queue.map(|queue| ResourceChange {
                    names_owner,
                    ..ResourceChange::put(Written::Queue(Box::new(queue)), path)
                })
            }
            Some(rule_change::Kind::DeleteQueue(name)) => {
                let path = format!("{path}.delete_queue");
                let subject = read_queue_name(&path, &name).map_err(ApiError::Faults);
                subject.map(|subject| ResourceChange::delete(subject, path))
            }
            None => {
                let problem = "put, delete or one of the same for a guard or queue is required";
                Err(ApiError::fault(&path, problem))
            }
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
            let problem = format!("{} is also the key of changes[{first}]", change.subject.words());
            self.faults.add(path, problem);
            return None;
        }
        Some(change)
    }
}

/// Sets the default owner of the set if the resource names none. Returns true if it names one.
fn set_owner(owner: &mut String, claim: &OwnershipClaim) -> bool {
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
