//! Access levels and kinds of all methods.
//!
//! docs/security.md has the same table, checked by a test. A method that is not listed is denied to all
//! callers; another test compares the list with the descriptors.

use crate::state::tokens::role::Role;
use damper_net::connection::AnswerKind;
use damper_net::limits::RequestKind;

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

const VIEWER: MethodPolicy = read(AccessLevel::Role(Role::Viewer));
const EDITOR: MethodPolicy = write(AccessLevel::Role(Role::Editor));
const OPERATOR: MethodPolicy = write(AccessLevel::Role(Role::Operator));
const ADMIN: MethodPolicy = write(AccessLevel::Role(Role::Admin));

/// Every method of damper.v1.
const METHODS: &[(&str, &[(&str, MethodPolicy)])] = &[
    (
        "Rules",
        &[
            ("GetRule", VIEWER),
            ("ListRules", VIEWER),
            ("PutRule", EDITOR),
            ("DeleteRule", EDITOR),
            ("JudgeRule", VIEWER),
            ("ApplyRules", long(EDITOR, true, false)),
            ("WhatIf", EDITOR),
            ("Explain", VIEWER),
            ("ProposeRule", VIEWER),
        ],
    ),
    (
        "Guards",
        &[
            ("GetGuard", VIEWER),
            ("ListGuards", VIEWER),
            ("PutGuard", OPERATOR),
            ("DeleteGuard", OPERATOR),
            ("JudgeGuard", VIEWER),
        ],
    ),
    ("Kills", &[("ListKills", VIEWER), ("Kill", urgent(OPERATOR)), ("Unkill", urgent(OPERATOR))]),
    (
        "History",
        &[
            ("ListChanges", VIEWER),
            ("GetObject", VIEWER),
            ("DiffRevisions", VIEWER),
            ("Rollback", EDITOR),
            ("RollbackAll", write(AccessLevel::Unscoped(Role::Operator))),
            ("AcceptStore", write(AccessLevel::Unscoped(Role::Operator))),
            ("ExportAudit", long(VIEWER, false, true)),
            ("Export", long(VIEWER, false, true)),
        ],
    ),
    (
        "Fleet",
        &[
            ("ListRoutes", VIEWER),
            ("ListClients", VIEWER),
            ("Watch", long(VIEWER, false, true)),
            ("WatchConvergence", long(VIEWER, false, true)),
            ("GetChain", VIEWER),
            ("Diagnose", VIEWER),
            ("ListEndpoints", VIEWER),
            ("ListReplicas", VIEWER),
        ],
    ),
    (
        "Distribution",
        &[(
            "Subscribe",
            MethodPolicy { is_client: true, ..long(read(AccessLevel::Role(Role::Agent)), true, true) },
        )],
    ),
    (
        "Tokens",
        &[
            ("CreateToken", ADMIN),
            ("ListTokens", read(AccessLevel::Role(Role::Admin))),
            ("RevokeToken", ADMIN),
            ("WhoAmI", read(AccessLevel::Known)),
        ],
    ),
    ("Replicas", &[("Follow", urgent(long(read(AccessLevel::Replica), true, true)))]),
];

const PACKAGE: &str = "/damper.v1.";
const HEALTH: &str = "/grpc.health.v1.Health/";

/// Returns the policy of a path.
pub(crate) fn of_path(path: &str) -> MethodPolicy {
    if let Some(method) = path.strip_prefix(HEALTH) {
        return long(read(AccessLevel::Nothing), false, method == "Watch");
    }
    let Some(ours) = path.strip_prefix(PACKAGE) else {
        // Reflection, and other services outside damper.v1.
        return long(read(AccessLevel::Known), true, true);
    };
    ours.split_once('/')
        .and_then(|(service, method)| listed(service, method))
        .unwrap_or(read(AccessLevel::Never))
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

fn listed(service: &str, method: &str) -> Option<MethodPolicy> {
    let (_, methods) = METHODS.iter().find(|(name, _)| *name == service)?;
    methods.iter().find(|(name, _)| *name == method).map(|(_, needs)| *needs)
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

const fn write(need: AccessLevel) -> MethodPolicy {
    MethodPolicy { class: RequestKind::Write, ..read(need) }
}

const fn urgent(method: MethodPolicy) -> MethodPolicy {
    MethodPolicy { is_urgent: true, ..method }
}

const fn long(method: MethodPolicy, long_request: bool, long_answer: bool) -> MethodPolicy {
    MethodPolicy { long_request, long_answer, ..method }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prost::Message as _;
    use prost_types::FileDescriptorSet;

    use super::*;

    #[test]
    fn listed_methods_match_the_descriptors() {
        let descriptors = FileDescriptorSet::decode(damper_proto::DESCRIPTORS).unwrap();
        let ours = descriptors.file.iter().filter(|file| file.package() == "damper.v1");
        let mut served = BTreeSet::new();
        for service in ours.flat_map(|file| &file.service) {
            for method in &service.method {
                let needs = of_path(&format!("{PACKAGE}{}/{}", service.name(), method.name()));
                assert_ne!(
                    needs.need,
                    AccessLevel::Never,
                    "{}/{} is not listed",
                    service.name(),
                    method.name()
                );
                let streams = (method.client_streaming(), method.server_streaming());
                assert_eq!((needs.long_request, needs.long_answer), streams, "{}", method.name());
                served.insert((service.name().to_owned(), method.name().to_owned()));
            }
        }
        for (service, methods) in METHODS {
            for (method, _) in *methods {
                assert!(
                    served.contains(&((*service).to_owned(), (*method).to_owned())),
                    "{service}/{method}"
                );
            }
        }
        assert!(served.len() > 30, "{served:?}");
    }

    #[test]
    fn what_takes_the_options_of_a_write_is_one_and_nothing_else() {
        let descriptors = FileDescriptorSet::decode(damper_proto::DESCRIPTORS).unwrap();
        let takes_options = |message: &str| {
            let named = |name: &str| name.trim_start_matches(PACKAGE.replace('/', ".").as_str()).to_owned();
            let messages = descriptors.file.iter().flat_map(|file| &file.message_type);
            let message = messages.into_iter().find(|known| known.name() == named(message)).unwrap();
            let said = message.field.iter().chain(message.nested_type.iter().flat_map(|inner| &inner.field));
            said.into_iter().any(|field| field.type_name() == ".damper.v1.WriteOptions")
        };
        let ours = descriptors.file.iter().filter(|file| file.package() == "damper.v1");
        let mut writes = 0;
        for service in ours.flat_map(|file| &file.service) {
            for method in &service.method {
                let path = format!("{PACKAGE}{}/{}", service.name(), method.name());
                let is_write = of_path(&path).class == RequestKind::Write;
                assert_eq!(is_write, takes_options(method.input_type()), "{path}");
                writes += usize::from(is_write);
            }
        }
        assert!(writes > 10, "{writes}");
    }

    #[test]
    fn unlisted_method_is_denied() {
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
