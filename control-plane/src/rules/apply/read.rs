//! Reads the stream of an apply into a set of changes.
//!
//! The set is counted while it arrives, alone and with all others, so that what is too large is refused before it fills
//! the memory. Every change is read at once; what is wrong anywhere is told together at the end.

use std::collections::HashMap;
use std::time::Duration;

use damper_core::Faults;
use damper_proto::v1::{self, apply_rules_request, rule_change};
use prost::Message as _;
use tonic::{Request, Streaming};

use super::Apply;
use super::claim::Claim;
use super::room::{Room, Rooms};
use crate::connection::Peer;
use crate::errors::Error;
use crate::limits::Limit;
use crate::limits::layer::identity;
use crate::paging::Digest;
use crate::requests::{Asked, Asker, check_options, read_key};
use crate::set::{Change, Set, Written};
use crate::shared::Shared;
use crate::table::Subject;
use crate::written::{WrittenGuard, WrittenRule};

/// How long the next message of a set may take.
const NEXT_WITHIN: Duration = Duration::from_secs(30);
/// How long the whole set may take.
const WHOLE_WITHIN: Duration = Duration::from_secs(300);
/// Reading goes on after faults, so that all are told; but not for ever.
const MAX_FAULTS: usize = 1000;

pub(super) type Requests = Streaming<v1::ApplyRulesRequest>;

/// Reads a whole set.
pub(super) async fn read<'r>(
    shared: &Shared,
    rooms: &'r Rooms,
    request: Request<Requests>,
) -> Result<(Apply, Room<'r>), Error> {
    tokio::time::timeout(WHOLE_WITHIN, whole(shared, rooms, request))
        .await
        .unwrap_or(Err(Error::TooLate(WHOLE_WITHIN)))
}

async fn whole<'r>(
    shared: &Shared,
    rooms: &'r Rooms,
    request: Request<Requests>,
) -> Result<(Apply, Room<'r>), Error> {
    let by = Asker::of(&request);
    let peer = request.extensions().get::<Peer>();
    let mut room = rooms.open(peer.map(|peer| identity(&by.caller, peer)).unwrap_or_default())?;
    let mut requests = request.into_inner();
    let first = next(&mut requests).await?;
    let Some(apply_rules_request::Kind::Header(options)) = first.and_then(|request| request.kind) else {
        return Err(Error::fault("header", "must be the first message"));
    };
    let mut reading = Reading { faults: Faults::none(), seen: HashMap::new(), too_large: None };
    check_options("header", &options, &mut reading.faults);
    let claim = Claim::read("header", &options, &mut reading.faults);
    let mut digest = Digest::new();
    digest.add(b"apply");
    digest.add(&options.encode_to_vec());
    let (mut changes, mut bytes, mut place) = (Vec::new(), 0, 0);
    let (mut rules, mut guards) = (0, 0);
    while let Some(request) = next(&mut requests).await? {
        let encoded = request.encode_to_vec();
        bytes += encoded.len();
        digest.add(&encoded);
        let limit = shared.settings.max_apply_bytes;
        if bytes > limit {
            return Err(Error::too_large(Limit::ApplyBytes, format!("the set has more than {limit} bytes")));
        }
        room.grow(encoded.len())?;
        let (limit, count, most) = match is_of_guard(&request) {
            true => (Limit::Guards, &mut guards, shared.settings.max_guards),
            false => (Limit::Rules, &mut rules, shared.settings.max_rules),
        };
        *count += 1;
        if *count > most {
            let text = format!("the set has more than {most} changes of {}", limit.name());
            return Err(Error::too_large(limit, text));
        }
        if let Some(change) = reading.change(place, request.kind, &claim) {
            // Nobody sends much of what they may not change.
            by.caller.permit_write(&change.subject)?;
            changes.push(change);
        }
        place += 1;
        if reading.faults.len() >= MAX_FAULTS {
            break;
        }
    }
    if !reading.faults.is_empty() {
        return Err(Error::Faults(reading.faults));
    }
    match reading.too_large {
        Some(error) => Err(error),
        None => Ok((Apply { asked: Asked::of_parts(options, digest, by), claim, set: Set(changes) }, room)),
    }
}

fn is_of_guard(request: &v1::ApplyRulesRequest) -> bool {
    use rule_change::Kind::{DeleteGuard, PutGuard};
    let Some(apply_rules_request::Kind::Change(change)) = &request.kind else { return false };
    matches!(change.kind, Some(PutGuard(_) | DeleteGuard(_)))
}

/// What was found while reading.
struct Reading {
    faults: Faults,
    /// Where each key was first.
    seen: HashMap<Subject, usize>,
    too_large: Option<Error>,
}

impl Reading {
    fn change(
        &mut self,
        place: usize,
        kind: Option<apply_rules_request::Kind>,
        claim: &Claim,
    ) -> Option<Change> {
        let path = format!("changes[{place}]");
        let change = match kind {
            Some(apply_rules_request::Kind::Change(change)) => change,
            Some(apply_rules_request::Kind::Header(_)) => {
                self.faults.add(path, "a header may only be the first message");
                return None;
            }
            None => {
                self.faults.add(path, "must be given");
                return None;
            }
        };
        let expected = change.expected_revision;
        let read = match change.kind {
            Some(rule_change::Kind::Put(mut rule)) => {
                let path = format!("{path}.put");
                let names_owner = belongs(&mut rule.owner, claim);
                let rule = WrittenRule::read(&path, Some(rule));
                rule.map(|rule| Change { names_owner, ..Change::put(Written::Rule(Box::new(rule)), path) })
            }
            Some(rule_change::Kind::PutGuard(mut guard)) => {
                let path = format!("{path}.put_guard");
                let names_owner = belongs(&mut guard.owner, claim);
                let guard = WrittenGuard::read(&path, Some(guard));
                guard
                    .map(|guard| Change { names_owner, ..Change::put(Written::Guard(Box::new(guard)), path) })
            }
            Some(rule_change::Kind::Delete(key)) => {
                let path = format!("{path}.delete");
                let key = read_key(&path, Some(&key)).map_err(Error::Faults);
                key.map(|key| Change::delete(Subject::Rule(key), path))
            }
            Some(rule_change::Kind::DeleteGuard(key)) => {
                let path = format!("{path}.delete_guard");
                let key = read_key(&path, Some(&key)).map_err(Error::Faults);
                key.map(|key| Change::delete(Subject::Guard(key), path))
            }
            None => Err(Error::fault(&path, "put, delete, put_guard or delete_guard must be given")),
        };
        match read {
            Ok(change) => self.unless_twice(place, &path, Change { expected, ..change }),
            Err(Error::Faults(faults)) => {
                self.faults.nest("", faults);
                None
            }
            Err(error) => {
                self.too_large.get_or_insert(error);
                None
            }
        }
    }

    fn unless_twice(&mut self, place: usize, path: &str, change: Change) -> Option<Change> {
        if let Some(first) = self.seen.insert(change.subject.clone(), place) {
            let problem = format!("{} is also the key of changes[{first}]", change.subject.pattern());
            self.faults.add(path, problem);
            return None;
        }
        Some(change)
    }
}

/// Gives what names no owner the set's; tells whether it names one.
fn belongs(owner: &mut String, claim: &Claim) -> bool {
    let named = !owner.is_empty();
    if !named {
        claim.owner().clone_into(owner);
    }
    named
}

async fn next(requests: &mut Requests) -> Result<Option<v1::ApplyRulesRequest>, Error> {
    match tokio::time::timeout(NEXT_WITHIN, requests.message()).await {
        Ok(message) => message.map_err(Error::Unread),
        Err(_) => Err(Error::TooLate(NEXT_WITHIN)),
    }
}
