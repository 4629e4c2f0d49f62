//! Which rules, guards or routes are listed.

use damper_proto::v1;
use prost::Message as _;

use crate::errors::Error;
use crate::paging::Digest;

/// What is listed: each said part must be equal, the text must be part of any name.
pub(crate) struct Filter {
    wire: v1::RuleFilter,
}

impl Filter {
    pub(crate) fn new(wire: Option<v1::RuleFilter>) -> Result<Self, Error> {
        let wire = wire.unwrap_or_default();
        match wire.mode.map(v1::Mode::try_from) {
            Some(Err(_)) => Err(Error::fault("filter.mode", "is not known: off, observe or enforce")),
            _ => Ok(Self { wire }),
        }
    }

    /// A filter of things that have no mode.
    pub(crate) fn without_mode(path: &str, wire: Option<v1::RuleFilter>, what: &str) -> Result<Self, Error> {
        if wire.as_ref().is_some_and(|filter| filter.mode.is_some()) {
            return Err(Error::fault(&format!("{path}.mode"), format!("is not for {what}, they have none")));
        }
        Self::new(wire)
    }

    /// Stands for the filter in a page token.
    pub(crate) fn digest(&self) -> u64 {
        Digest::of(&self.wire.encode_to_vec())
    }

    pub(crate) fn accepts(&self, names: [&str; 4], mode: i32) -> bool {
        let v1::RuleFilter {
            caller_service,
            caller_cluster,
            callee_service,
            callee_method,
            mode: wanted,
            text,
            owner: _,
        } = &self.wire;
        let parts = [caller_service, caller_cluster, callee_service, callee_method];
        parts.iter().zip(names).all(|(part, name)| part.as_ref().is_none_or(|part| part == name))
            && wanted.is_none_or(|wanted| wanted == mode)
            && (text.is_empty() || names.iter().any(|name| name.contains(text.as_str())))
    }
}

/// The four names of a key.
pub(crate) fn names(key: &v1::Pattern) -> [&str; 4] {
    [&key.caller_service, &key.caller_cluster, &key.callee_service, &key.callee_method]
}
