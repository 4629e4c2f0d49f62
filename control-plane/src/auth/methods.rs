//! Access levels and kinds of all methods.
//!
//! Those of `damper.v1` come from the option `access` in the .proto files. docs/security.md has the same
//! table, checked by a test. An unknown method is denied to all callers.

use damper_net::connection::AnswerKind;
use damper_net::limits::RequestKind;
use damper_proto::methods::{self, Method};
use damper_proto::v1::access::Level;

use crate::state::tokens::role::Role;

/// Required permission of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessLevel {
    /// None: health.
    Nothing,
    /// A valid token or certificate.
    Known,
    /// At least this role. The write path checks scopes.
    Role(Role),
    /// At least this role, without a scope.
    Unscoped(Role),
    /// Another replica.
    Replica,
    /// Denied to all callers.
    Never,
}

/// Access and limits of a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MethodPolicy {
    pub(crate) need: AccessLevel,
    pub(crate) class: RequestKind,
    /// The request is a stream, cut when its credential expires.
    pub(crate) long_request: bool,
    /// The answer is a stream.
    pub(crate) long_answer: bool,
    /// The caller is a client, counted as one and not as an open request.
    pub(crate) is_client: bool,
    /// True if places among the open requests are reserved for it.
    pub(crate) is_urgent: bool,
}

impl MethodPolicy {
    /// Returns true for one message each way.
    pub(crate) fn is_unary(self) -> bool {
        !self.long_request && !self.long_answer
    }
}

const PACKAGE: &str = "/damper.v1.";
const HEALTH: &str = "/grpc.health.v1.Health/";

/// Returns the policy of a path.
pub(crate) fn of_path(path: &str) -> MethodPolicy {
    if let Some(method) = path.strip_prefix(HEALTH) {
        return long(read(AccessLevel::Nothing), false, method == "Watch");
    }
    match methods::of_path(path) {
        Some(method) => of_method(method),
        None if path.starts_with(PACKAGE) => read(AccessLevel::Never),
        // Reflection, and other services outside damper.v1.
        None => long(read(AccessLevel::Known), true, true),
    }
}

fn of_method(method: &Method) -> MethodPolicy {
    let role = if method.unscoped { AccessLevel::Unscoped } else { AccessLevel::Role };
    let need = match method.level {
        Level::Authenticated => AccessLevel::Known,
        Level::Agent => role(Role::Agent),
        Level::Viewer => role(Role::Viewer),
        Level::Editor => role(Role::Editor),
        Level::Operator => role(Role::Operator),
        Level::Admin => role(Role::Admin),
        Level::Replica => AccessLevel::Replica,
        Level::Unspecified => AccessLevel::Never,
    };
    MethodPolicy {
        need,
        class: class_of(method),
        long_request: method.client_streaming,
        long_answer: method.server_streaming,
        is_client: method.level == Level::Agent && method.client_streaming,
        is_urgent: method.urgent,
    }
}

fn class_of(method: &Method) -> RequestKind {
    match method.level {
        // Submissions and cancellations of jobs.
        Level::Agent if !method.client_streaming => RequestKind::Jobs,
        _ if method.is_write => RequestKind::Write,
        _ => RequestKind::Read,
    }
}

/// Returns how long the answer to a path may last.
pub(crate) fn answer_kind(path: &str) -> AnswerKind {
    let is_method = path.starts_with(PACKAGE) || path.starts_with("/grpc.");
    let method = of_path(path);
    match is_method && !method.is_unary() {
        false => AnswerKind::Unary,
        true if method.need == AccessLevel::Nothing => AnswerKind::OpenStream,
        true => AnswerKind::Stream,
    }
}

const fn read(need: AccessLevel) -> MethodPolicy {
    MethodPolicy {
        need,
        class: RequestKind::Read,
        long_request: false,
        long_answer: false,
        is_client: false,
        is_urgent: false,
    }
}

const fn long(method: MethodPolicy, long_request: bool, long_answer: bool) -> MethodPolicy {
    MethodPolicy { long_request, long_answer, ..method }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_have_the_kinds_of_their_messages() {
        let policy = |path: &str| of_path(&format!("{PACKAGE}{path}"));
        let apply = policy("Rules/ApplyRules");
        assert_eq!((apply.need, apply.class), (AccessLevel::Role(Role::Editor), RequestKind::Write));
        assert!(apply.long_request && !apply.long_answer && !apply.is_urgent && !apply.is_client);
        let subscribe = policy("Distribution/Subscribe");
        assert_eq!(subscribe.class, RequestKind::Read);
        assert!(subscribe.is_client && subscribe.long_request && subscribe.long_answer);
        let (work, submit) = (policy("Jobs/Work"), policy("Jobs/Submit"));
        assert!(work.is_client && !submit.is_client && submit.is_unary());
        assert!(policy("Kills/Kill").is_urgent && policy("Kills/ListKills").is_unary());
        assert_eq!(policy("History/RollbackAll").need, AccessLevel::Unscoped(Role::Operator));
        assert_eq!(policy("Tokens/ListTokens").class, RequestKind::Read);
        assert!(
            methods::ALL.len() > 30
                && methods::ALL.iter().all(|method| of_path(method.path) == of_method(method))
        );
    }

    #[test]
    fn unknown_method_is_denied() {
        for path in [
            "/damper.v1.Rules/Other",
            "/damper.v1.Other/GetRule",
            "/damper.v1.Rules",
            "/damper.v1.Rules/GetRule/",
        ] {
            assert_eq!(of_path(path).need, AccessLevel::Never, "{path}");
        }
        assert_eq!(
            of_path("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo").need,
            AccessLevel::Known
        );
        assert_eq!(of_path("/grpc.health.v1.Health/Check").need, AccessLevel::Nothing);
        assert_eq!(of_path("/grpc.health.v1.Healthy/Check").need, AccessLevel::Known);
        for (path, long) in [("/", false), ("/index.html", false), ("/grpc.health.v1.Health/Watch", true)] {
            assert_eq!(answer_kind(path) != AnswerKind::Unary, long, "{path}");
        }
    }
}
