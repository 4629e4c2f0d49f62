//! Errors of API requests, and their gRPC status.
//!
//! Details follow google.rpc: a BadRequest with a violation per fault, a PreconditionFailure with the current
//! resource, a RetryInfo if a retry can succeed. Details travel in one header, and HTTP/2 clients
//! commonly refuse headers over 16 KiB, so lists are cut with the number of omitted items.

pub(crate) mod denied;

use std::collections::{BTreeSet, HashMap};
use std::future::Future;
use std::time::Duration;

use damper_core::Faults;
use damper_proto::v1;
use prost::Message as _;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, FieldViolation, StatusExt as _, pb};

use crate::state::error::denied::AccessDenied;
use crate::state::resource_key::{GUARDS, KILLS, QUEUES, ResourceKey};
use crate::state::snapshot::Snapshot;
use crate::state::tokens::TOKENS;
use damper_net::limits::{Limit, LimitExceeded, naming};
use damper_store::Entry;
use damper_store::writer::ProposeError;

/// Maximum bytes of details, before encoding.
const DETAIL_BYTES: usize = 6 << 10;
const MESSAGE_BYTES: usize = 1 << 10;
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Reason of a failed request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    #[error("{0}")]
    Faults(Faults),
    #[error("{0}")]
    NotFound(String),
    /// The caller lacks a credential or permission.
    #[error(transparent)]
    Denied(#[from] AccessDenied),
    /// A precondition is not met.
    #[error("{0}")]
    Unmet(String),
    #[error("{subject} {}", conflict(.current.as_ref()))]
    Conflict { subject: String, current: Option<Current> },
    /// An apply would change settings of other owners.
    #[error("{}", owned(.0))]
    Owned(v1::Conflicts),
    /// The planner of a proposal rejects these entries; its sender translates them.
    #[error("the caller may not change {count} of the entries in this request", count = .0.len())]
    PlannerRejected(Vec<(String, Option<Entry>)>),
    /// The store is not at the expected revision.
    #[error(
        "the store has changed: it is at revision {head}, not at the expected one; read it again, then repeat the change"
    )]
    Moved { head: u64 },
    #[error("the history no longer contains revision {asked}; it reaches back to revision {oldest}")]
    NoLongerKept { asked: u64, oldest: u64 },
    #[error("request id {0:?} was used for another request within the last 24 h: use a new id")]
    RequestIdReused(String),
    #[error(transparent)]
    LimitExceeded(#[from] LimitExceeded),
    /// The job store has too little room or resources; nothing was stored.
    #[error("{0}")]
    JobStoreFull(String),
    #[error("{reason}")]
    Unavailable { reason: String, outcome_known: bool },
    #[error(
        "the control plane did not complete the request within {seconds} s; a change may still take effect: \
         check before you repeat it",
        seconds = .0.as_secs()
    )]
    TooLate(Duration),
    #[error("{0}")]
    Damaged(String),
    /// The request could not be read.
    #[error("{}", .0.message())]
    Unread(Status),
}

/// Stored resource in place of the expected one.
#[derive(Debug)]
pub(crate) enum Current {
    Rule(Box<v1::Rule>),
    Guard(Box<v1::Guard>),
    Kill(Box<v1::KillSwitch>),
    Queue(Box<v1::Queue>),
}

impl Current {
    fn revision(&self) -> u64 {
        match self {
            Self::Rule(rule) => rule.revision,
            Self::Guard(guard) => guard.revision,
            Self::Kill(kill) => kill.revision,
            Self::Queue(queue) => queue.revision,
        }
    }

    /// Returns the owner; empty: none.
    pub(crate) fn owner(&self) -> &str {
        match self {
            Self::Rule(rule) => &rule.owner,
            Self::Guard(guard) => &guard.owner,
            Self::Kill(_) => "",
            Self::Queue(queue) => &queue.owner,
        }
    }

    /// Returns the message's name and bytes.
    fn packed(&self) -> (&'static str, Vec<u8>) {
        match self {
            Self::Rule(rule) => ("damper.v1.Rule", rule.encode_to_vec()),
            Self::Guard(guard) => ("damper.v1.Guard", guard.encode_to_vec()),
            Self::Kill(kill) => ("damper.v1.KillSwitch", kill.encode_to_vec()),
            Self::Queue(queue) => ("damper.v1.Queue", queue.encode_to_vec()),
        }
    }

    /// Returns the snapshot's resource.
    pub(crate) fn stored(table: &Snapshot, subject: &ResourceKey) -> Option<Self> {
        match subject {
            ResourceKey::Rule(pattern) => table.stored(pattern).map(|stored| stored.wire.clone().into()),
            ResourceKey::Guard(pattern) => {
                table.guards().stored(pattern).map(|stored| stored.wire.clone().into())
            }
            ResourceKey::Kill(pattern) => {
                table.kills().stored(pattern).map(|stored| stored.wire.clone().into())
            }
            ResourceKey::Queue(name) => table.queue(name).map(|stored| stored.wire.clone().into()),
        }
    }

    /// Parses an entry of the store.
    pub(crate) fn read(subject: &ResourceKey, entry: Entry) -> Option<Self> {
        let (key, revision) = (subject.pattern().map(Into::into), entry.revision);
        match subject {
            ResourceKey::Rule(_) => {
                let rule = v1::Rule::decode(entry.value).ok()?;
                Some(v1::Rule { key, revision, ..rule }.into())
            }
            ResourceKey::Guard(_) => {
                let guard = v1::Guard::decode(entry.value).ok()?;
                Some(v1::Guard { key, revision, ..guard }.into())
            }
            ResourceKey::Kill(_) => {
                let kill = v1::KillSwitch::decode(entry.value).ok()?;
                Some(v1::KillSwitch { key, revision, ..kill }.into())
            }
            ResourceKey::Queue(name) => {
                let queue = v1::Queue::decode(entry.value).ok()?;
                Some(v1::Queue { name: name.clone(), revision, ..queue }.into())
            }
        }
    }
}

impl From<v1::Rule> for Current {
    fn from(rule: v1::Rule) -> Self {
        Self::Rule(Box::new(rule))
    }
}

impl From<v1::Guard> for Current {
    fn from(guard: v1::Guard) -> Self {
        Self::Guard(Box::new(guard))
    }
}

impl From<v1::KillSwitch> for Current {
    fn from(kill: v1::KillSwitch) -> Self {
        Self::Kill(Box::new(kill))
    }
}

impl From<v1::Queue> for Current {
    fn from(queue: v1::Queue) -> Self {
        Self::Queue(Box::new(queue))
    }
}

fn owned(conflicts: &v1::Conflicts) -> String {
    let (settings, are) = if conflicts.total == 1 { ("setting", "belongs") } else { ("settings", "belong") };
    let owners: BTreeSet<&str> = conflicts.conflicts.iter().map(|conflict| conflict.owner.as_str()).collect();
    let owners = owners.into_iter().collect::<Vec<_>>().join(", ");
    format!("{} {settings} that the set would change {are} to {owners}", conflicts.total)
}

fn conflict(current: Option<&Current>) -> String {
    match current {
        Some(current) => format!("was changed: now at revision {}; read it again", current.revision()),
        None => "does not exist, but a revision of it was expected".to_owned(),
    }
}

impl ApiError {
    pub(crate) fn unavailable(reason: impl Into<String>) -> Self {
        Self::Unavailable { reason: reason.into(), outcome_known: true }
    }

    /// Creates an error for a request over a size limit.
    pub(crate) fn too_large(limit: Limit, text: impl Into<String>) -> Self {
        LimitExceeded::new(limit, text).into()
    }

    /// Creates an error of one fault.
    pub(crate) fn fault(path: &str, problem: impl Into<String>) -> Self {
        let mut faults = Faults::none();
        faults.add(path, problem);
        Self::Faults(faults)
    }

    /// Creates an error of the faults below a field.
    pub(crate) fn at(path: &str, faults: Faults) -> Self {
        let mut outer = Faults::none();
        outer.nest(path, faults);
        Self::Faults(outer)
    }
}

/// Errors of reads.
impl From<damper_store::StoreError> for ApiError {
    fn from(error: damper_store::StoreError) -> Self {
        match error {
            damper_store::StoreError::Damaged { .. } => Self::Damaged(error.to_string()),
            _ => Self::unavailable(error.to_string()),
        }
    }
}

impl From<ProposeError> for ApiError {
    fn from(refusal: ProposeError) -> Self {
        let text = refusal.to_string();
        match refusal {
            ProposeError::Conflict { key, current } => {
                let named = ResourceKey::of_key(&key);
                let subject = named.as_ref().map_or(key, ResourceKey::to_string);
                let current = named.zip(current).and_then(|(named, entry)| Current::read(&named, entry));
                Self::Conflict { subject, current }
            }
            ProposeError::PlannerRejected { entries } => Self::PlannerRejected(entries),
            ProposeError::Moved { head } => Self::Moved { head },
            ProposeError::RequestIdReused { request_id } => Self::RequestIdReused(request_id),
            ProposeError::Unavailable { .. } => Self::Unavailable { reason: text, outcome_known: true },
            ProposeError::Uncertain { .. } => Self::Unavailable { reason: text, outcome_known: false },
            ProposeError::TooLarge { .. } => Self::too_large(Limit::ApplyBytes, text),
            ProposeError::TooManyEntries { prefix, .. } | ProposeError::TooManyBytes { prefix, .. } => {
                let limit = match prefix.as_str() {
                    GUARDS => Limit::Guards,
                    KILLS => Limit::Kills,
                    QUEUES => Limit::Queues,
                    TOKENS => Limit::Tokens,
                    _ => Limit::Rules,
                };
                Self::too_large(limit, text)
            }
            ProposeError::Invalid { reason } => Self::fault("", reason),
            ProposeError::Damaged { .. } => Self::Damaged(text),
        }
    }
}

impl From<ApiError> for Status {
    fn from(error: ApiError) -> Self {
        let text = shortened(&error.to_string());
        match error {
            ApiError::Faults(faults) => {
                let details = ErrorDetails::with_bad_request(violations(&faults));
                Self::with_error_details(Code::InvalidArgument, text, details)
            }
            ApiError::NotFound(_) => Self::not_found(text),
            ApiError::Denied(denied) => denied.status(),
            ApiError::Unmet(_) => Self::failed_precondition(text),
            ApiError::Conflict { subject, current } => conflict_status(text, &subject, current.as_ref()),
            ApiError::Owned(conflicts) => aborted(text, vec![owned_detail(conflicts)]),
            ApiError::PlannerRejected(_) => aborted(text, Vec::new()),
            ApiError::Moved { .. } => conflict_status(text, "store", None),
            ApiError::NoLongerKept { oldest, .. } => {
                let oldest = HashMap::from([("oldest".to_owned(), oldest.to_string())]);
                let details = ErrorDetails::with_error_info("NO_LONGER_KEPT", "damper.v1", oldest);
                Self::with_error_details(Code::OutOfRange, text, details)
            }
            ApiError::RequestIdReused(_) => Self::already_exists(text),
            ApiError::LimitExceeded(exceeded) => LimitExceeded { text, ..exceeded }.into(),
            ApiError::JobStoreFull(_) => {
                let details = ErrorDetails::with_retry_info(Some(RETRY_AFTER));
                Self::with_error_details(Code::ResourceExhausted, text, details)
            }
            ApiError::Unavailable { outcome_known, .. } => {
                let mut details = ErrorDetails::with_retry_info(Some(RETRY_AFTER));
                if !outcome_known {
                    let none = HashMap::new();
                    details.set_error_info("OUTCOME_UNKNOWN", "damper.v1", none);
                }
                Self::with_error_details(Code::Unavailable, text, details)
            }
            ApiError::TooLate(_) => naming(Limit::UnaryDeadline, Self::deadline_exceeded(text)),
            ApiError::Damaged(_) => Self::data_loss(text),
            ApiError::Unread(status) if status.code() == Code::OutOfRange => {
                LimitExceeded::new(Limit::MessageBytes, text).into()
            }
            ApiError::Unread(status) if status.code() == Code::Internal => Self::invalid_argument(text),
            ApiError::Unread(status) => status,
        }
    }
}

fn violations(faults: &Faults) -> Vec<FieldViolation> {
    let mut room = DETAIL_BYTES;
    let mut all = Vec::new();
    for fault in faults.iter() {
        let problem = shortened(&fault.problem);
        let path = shortened(&fault.path);
        let Some(left) = room.checked_sub(path.len() + problem.len() + 8) else {
            let more = faults.len() - all.len();
            all.push(FieldViolation::new("", format!("and {more} more faults")));
            break;
        };
        room = left;
        all.push(FieldViolation::new(path, problem));
    }
    all
}

/// ABORTED with the failed precondition and, if it fits, the current resource.
fn conflict_status(text: String, subject: &str, current: Option<&Current>) -> Status {
    let failure = pb::PreconditionFailure {
        violations: vec![pb::precondition_failure::Violation {
            r#type: "REVISION".to_owned(),
            subject: shortened(subject),
            description: text.clone(),
        }],
    };
    let mut details = vec![any("google.rpc.PreconditionFailure", failure.encode_to_vec())];
    let packed = current.map(Current::packed).filter(|(_, bytes)| bytes.len() <= DETAIL_BYTES);
    details.extend(packed.map(|(name, bytes)| any(name, bytes)));
    aborted(text, details)
}

/// Returns the conflicts that fit; their total is always included.
fn owned_detail(mut conflicts: v1::Conflicts) -> prost_types::Any {
    let mut room = DETAIL_BYTES;
    conflicts.conflicts.retain_mut(|conflict| {
        for text in [&mut conflict.current, &mut conflict.wanted] {
            *text = shortened(text);
        }
        let left = room.checked_sub(conflict.encoded_len() + 4);
        room = left.unwrap_or(0);
        left.is_some()
    });
    any("damper.v1.Conflicts", conflicts.encode_to_vec())
}

fn aborted(text: String, details: Vec<prost_types::Any>) -> Status {
    let status = pb::Status { code: Code::Aborted as i32, message: text.clone(), details };
    Status::with_details(Code::Aborted, text, status.encode_to_vec().into())
}

fn any(name: &str, value: Vec<u8>) -> prost_types::Any {
    prost_types::Any { type_url: format!("type.googleapis.com/{name}"), value }
}

fn shortened(text: &str) -> String {
    if text.len() <= MESSAGE_BYTES {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(MESSAGE_BYTES);
    format!("{}...", &text[..end])
}

/// Runs a unary request within its deadline.
pub(crate) async fn within<T>(
    deadline: Duration,
    work: impl Future<Output = Result<T, ApiError>>,
) -> Result<tonic::Response<T>, Status> {
    match tokio::time::timeout(deadline, work).await {
        Ok(Ok(answer)) => Ok(tonic::Response::new(answer)),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(ApiError::TooLate(deadline).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_a_field_violation() {
        let mut faults = Faults::none();
        faults.add("a.b", "1 is not in 2 to 3");
        faults.add("c", "must be said");
        let status = Status::from(ApiError::at("rule", faults));
        assert_eq!(status.code(), Code::InvalidArgument);
        let violations = status.get_details_bad_request().unwrap().field_violations;
        let listed: Vec<(&str, &str)> =
            violations.iter().map(|listed| (listed.field.as_str(), listed.description.as_str())).collect();
        assert_eq!(listed, [("rule.a.b", "1 is not in 2 to 3"), ("rule.c", "must be said")]);
    }

    #[test]
    fn long_fault_list_fits_a_header_and_counts_the_rest() {
        let mut faults = Faults::none();
        for n in 0..100_000 {
            faults.add(format!("changes[{n}].put.policy.mode"), "must be said");
        }
        let status = Status::from(ApiError::Faults(faults));
        assert!(status.details().len() < 9 << 10, "{}", status.details().len());
        let violations = status.get_details_bad_request().unwrap().field_violations;
        let last = &violations.last().unwrap().description;
        assert_eq!(*last, format!("and {} more faults", 100_000 - (violations.len() - 1)));
    }

    #[test]
    fn a_conflict_carries_the_current_rule() {
        let rule = v1::Rule { revision: 7, ..Default::default() };
        let conflict =
            ApiError::Conflict { subject: "rule x".to_owned(), current: Some(rule.clone().into()) };
        let status = Status::from(conflict);
        assert_eq!(status.code(), Code::Aborted);
        let packed = pb::Status::decode(status.details()).unwrap().details;
        assert_eq!(packed[1].type_url, "type.googleapis.com/damper.v1.Rule");
        assert_eq!(v1::Rule::decode(&*packed[1].value).unwrap(), rule);
        assert_eq!(status.get_details_precondition_failure().unwrap().violations.len(), 1);
    }
}
