//! What is known of each method of the API: whether it writes, and whether it is one request and one answer.
//!
//! Taken from the descriptors, so that a new method is known at once. Methods that write are named by what they do;
//! whatever is not among them reads.

use std::collections::HashMap;
use std::sync::LazyLock;

use prost::Message as _;
use prost_types::FileDescriptorSet;

const WRITES: [&str; 8] = ["Put", "Delete", "Apply", "Rollback", "Kill", "Unkill", "Create", "Revoke"];

/// What a method does to what the server keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Read,
    Write,
}

/// One method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Method {
    pub(super) class: Class,
    /// One message each way.
    pub(super) unary: bool,
}

static METHODS: LazyLock<HashMap<String, Method>> = LazyLock::new(|| {
    let set = FileDescriptorSet::decode(damper_proto::DESCRIPTORS)
        .expect("the descriptors were made by the compiler");
    let mut methods = HashMap::new();
    for file in &set.file {
        for service in &file.service {
            for method in &service.method {
                let is_write = WRITES.iter().any(|verb| method.name().starts_with(verb));
                let class = if is_write { Class::Write } else { Class::Read };
                let unary = !method.client_streaming() && !method.server_streaming();
                let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                methods.insert(path, Method { class, unary });
            }
        }
    }
    methods
});

/// The method behind a path; none where it is not of this API.
pub(super) fn of(path: &str) -> Option<Method> {
    METHODS.get(path).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_something_is_a_write_and_everything_else_a_read() {
        for (class, unary, paths) in [
            (
                Class::Write,
                true,
                &["Rules/PutRule", "Kills/Unkill", "History/RollbackAll", "Tokens/RevokeToken"][..],
            ),
            (Class::Write, false, &["Rules/ApplyRules"]),
            (Class::Read, true, &["Rules/GetRule", "Fleet/Diagnose", "Tokens/WhoAmI", "Kills/ListKills"]),
            (Class::Read, false, &["Fleet/Watch", "Distribution/Subscribe", "History/Export"]),
        ] {
            for path in paths {
                let found = of(&format!("/damper.v1.{path}"));
                assert_eq!(found, Some(Method { class, unary }), "{path}");
            }
        }
        assert_eq!(of("/grpc.health.v1.Health/Check"), None);
    }
}
