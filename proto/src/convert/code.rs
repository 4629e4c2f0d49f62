//! gRPC status codes: single ones, lists, and allow or deny lists.

use damper_core::{Code, CodeSet, Faults};

use crate::v1;

impl From<Code> for v1::Code {
    fn from(code: Code) -> Self {
        match code {
            Code::Ok => Self::Ok,
            Code::Cancelled => Self::Cancelled,
            Code::Unknown => Self::Unknown,
            Code::InvalidArgument => Self::InvalidArgument,
            Code::DeadlineExceeded => Self::DeadlineExceeded,
            Code::NotFound => Self::NotFound,
            Code::AlreadyExists => Self::AlreadyExists,
            Code::PermissionDenied => Self::PermissionDenied,
            Code::ResourceExhausted => Self::ResourceExhausted,
            Code::FailedPrecondition => Self::FailedPrecondition,
            Code::Aborted => Self::Aborted,
            Code::OutOfRange => Self::OutOfRange,
            Code::Unimplemented => Self::Unimplemented,
            Code::Internal => Self::Internal,
            Code::Unavailable => Self::Unavailable,
            Code::DataLoss => Self::DataLoss,
            Code::Unauthenticated => Self::Unauthenticated,
        }
    }
}

impl From<v1::Code> for Code {
    fn from(code: v1::Code) -> Self {
        match code {
            v1::Code::Ok => Self::Ok,
            v1::Code::Cancelled => Self::Cancelled,
            v1::Code::Unknown => Self::Unknown,
            v1::Code::InvalidArgument => Self::InvalidArgument,
            v1::Code::DeadlineExceeded => Self::DeadlineExceeded,
            v1::Code::NotFound => Self::NotFound,
            v1::Code::AlreadyExists => Self::AlreadyExists,
            v1::Code::PermissionDenied => Self::PermissionDenied,
            v1::Code::ResourceExhausted => Self::ResourceExhausted,
            v1::Code::FailedPrecondition => Self::FailedPrecondition,
            v1::Code::Aborted => Self::Aborted,
            v1::Code::OutOfRange => Self::OutOfRange,
            v1::Code::Unimplemented => Self::Unimplemented,
            v1::Code::Internal => Self::Internal,
            v1::Code::Unavailable => Self::Unavailable,
            v1::Code::DataLoss => Self::DataLoss,
            v1::Code::Unauthenticated => Self::Unauthenticated,
        }
    }
}

/// Reads the retryable codes; `None` was reported.
pub(super) fn codes(wire: &v1::Codes, faults: &mut Faults) -> Option<CodeSet> {
    let v1::Codes { kind } = wire;
    match kind {
        None => {
            faults.add("", "required (allow or deny)");
            None
        }
        Some(v1::codes::Kind::Allow(allowed)) => list("allow", allowed, faults),
        Some(v1::codes::Kind::Deny(denied)) => list("deny", denied, faults).map(CodeSet::all_but),
    }
}

/// Reads the codes of the list at `path`, without OK; `None` was reported.
pub(super) fn list(path: &str, wire: &v1::CodeList, faults: &mut Faults) -> Option<CodeSet> {
    let v1::CodeList { codes } = wire;
    set(path, codes, faults)
}

/// Reads the codes at `path`, as [`list`].
pub(super) fn set(path: &str, codes: &[i32], faults: &mut Faults) -> Option<CodeSet> {
    let mut set = Some(CodeSet::EMPTY);
    for (i, number) in codes.iter().enumerate() {
        match single(*number) {
            Ok(code) => set = set.map(|set| set.union(CodeSet::of(&[code]))),
            Err(problem) => {
                faults.add(format!("{path}[{i}]"), problem);
                set = None;
            }
        }
    }
    set
}

fn single(number: i32) -> Result<Code, String> {
    match v1::Code::try_from(number).map(Code::from) {
        Ok(Code::Ok) => Err("OK is not a failure".to_owned()),
        Ok(code) => Ok(code),
        Err(_) => Err(format!("must be a gRPC status code, not {number}")),
    }
}

impl From<CodeSet> for v1::CodeList {
    fn from(set: CodeSet) -> Self {
        Self { codes: set.iter().map(|code| v1::Code::from(code).into()).collect() }
    }
}

impl From<CodeSet> for v1::Codes {
    /// As `allow`, which has the same meaning for a reader that knows other codes.
    fn from(set: CodeSet) -> Self {
        Self { kind: Some(v1::codes::Kind::Allow(set.into())) }
    }
}
