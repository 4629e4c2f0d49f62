//! What each method needs: the one place that says so.
//!
//! docs/security.md has the same table for people, and a test reads it there. A method of ours that is not listed here
//! is nobody's; another test walks the descriptors, so that a new method can not be forgotten.

use super::role::Role;

/// What a caller must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Nothing: health.
    Nothing,
    /// Whoever has a valid token or certificate.
    Known,
    /// At least this role. Scopes are looked at where a write goes through.
    Role(Role),
    /// At least this role, and no scope.
    Unscoped(Role),
    /// Another replica.
    Replica,
    /// No caller is enough.
    Never,
}

/// One method, as far as access goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Method {
    pub(crate) need: Need,
    /// The caller keeps sending: it is cut off in the middle when its credential is over.
    pub(crate) long_request: bool,
    /// It is kept being answered.
    pub(crate) long_answer: bool,
}

const VIEWER: Method = short(Need::Role(Role::Viewer));
const EDITOR: Method = short(Need::Role(Role::Editor));
const OPERATOR: Method = short(Need::Role(Role::Operator));
const ADMIN: Method = short(Need::Role(Role::Admin));

/// Every method of damper.v1.
const METHODS: &[(&str, &[(&str, Method)])] = &[
    (
        "Rules",
        &[
            ("GetRule", VIEWER),
            ("ListRules", VIEWER),
            ("PutRule", EDITOR),
            ("DeleteRule", EDITOR),
            ("ApplyRules", long(EDITOR, true, false)),
            ("Explain", VIEWER),
            ("ProposeRule", VIEWER),
        ],
    ),
    (
        "Guards",
        &[("GetGuard", VIEWER), ("ListGuards", VIEWER), ("PutGuard", OPERATOR), ("DeleteGuard", OPERATOR)],
    ),
    ("Kills", &[("ListKills", VIEWER), ("Kill", OPERATOR), ("Unkill", OPERATOR)]),
    (
        "History",
        &[
            ("ListChanges", VIEWER),
            ("GetObject", VIEWER),
            ("DiffRevisions", VIEWER),
            ("Rollback", EDITOR),
            ("RollbackAll", short(Need::Unscoped(Role::Operator))),
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
            ("ListReplicas", VIEWER),
        ],
    ),
    ("Distribution", &[("Subscribe", long(short(Need::Role(Role::Agent)), true, true))]),
    (
        "Tokens",
        &[
            ("CreateToken", ADMIN),
            ("ListTokens", ADMIN),
            ("RevokeToken", ADMIN),
            ("WhoAmI", short(Need::Known)),
        ],
    ),
    ("Replicas", &[("Follow", long(short(Need::Replica), true, true))]),
];

const PACKAGE: &str = "/damper.v1.";
const HEALTH: &str = "/grpc.health.v1.Health/";

/// What a path of the API needs.
pub(crate) fn of_path(path: &str) -> Method {
    if path.starts_with(HEALTH) {
        return short(Need::Nothing);
    }
    let Some(ours) = path.strip_prefix(PACKAGE) else {
        // Reflection, and whatever else is served beside it one day.
        return long(short(Need::Known), true, true);
    };
    ours.split_once('/').and_then(|(service, method)| listed(service, method)).unwrap_or(short(Need::Never))
}

fn listed(service: &str, method: &str) -> Option<Method> {
    let (_, methods) = METHODS.iter().find(|(name, _)| *name == service)?;
    methods.iter().find(|(name, _)| *name == method).map(|(_, needs)| *needs)
}

const fn short(need: Need) -> Method {
    Method { need, long_request: false, long_answer: false }
}

const fn long(method: Method, long_request: bool, long_answer: bool) -> Method {
    Method { long_request, long_answer, ..method }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prost::Message as _;
    use prost_types::FileDescriptorSet;

    use super::*;

    #[test]
    fn every_method_that_is_served_is_listed_with_its_streams_and_no_other() {
        let descriptors = FileDescriptorSet::decode(damper_proto::DESCRIPTORS).unwrap();
        let ours = descriptors.file.iter().filter(|file| file.package() == "damper.v1");
        let mut served = BTreeSet::new();
        for service in ours.flat_map(|file| &file.service) {
            for method in &service.method {
                let needs = of_path(&format!("{PACKAGE}{}/{}", service.name(), method.name()));
                assert_ne!(needs.need, Need::Never, "{}/{} is not listed", service.name(), method.name());
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
    fn what_is_not_listed_is_open_to_nobody() {
        for path in [
            "/damper.v1.Rules/Other",
            "/damper.v1.Other/GetRule",
            "/damper.v1.Rules",
            "/damper.v1.Rules/GetRule/",
        ] {
            assert_eq!(of_path(path).need, Need::Never, "{path}");
        }
        assert_eq!(of_path("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo").need, Need::Known);
        assert_eq!(of_path("/grpc.health.v1.Health/Check").need, Need::Nothing);
        assert_eq!(of_path("/grpc.health.v1.Healthy/Check").need, Need::Known);
    }
}
