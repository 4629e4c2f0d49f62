//! Filters of the list requests, for rules, guards, queues and routes.

use damper_proto::{convert, v1};
use prost::Message as _;

use crate::state::error::ApiError;
use crate::state::resource_key::ResourceKey;
use crate::state::snapshot::Snapshot;
use crate::write::digest::Digest;

/// A filter: each set field must be equal, and the text must be part of any name.
pub(crate) struct ListFilter {
    wire: v1::RuleFilter,
}

impl ListFilter {
    pub(crate) fn new(wire: Option<v1::RuleFilter>) -> Result<Self, ApiError> {
        let wire = wire.unwrap_or_default();
        match wire.mode.map(v1::Mode::try_from) {
            Some(Err(_)) => Err(ApiError::fault("filter.mode", "is not known: off, observe or enforce")),
            _ => Ok(Self { wire }),
        }
    }

    /// Reads a filter of resources without a mode.
    pub(crate) fn without_mode(
        path: &str,
        wire: Option<v1::RuleFilter>,
        what: &str,
    ) -> Result<Self, ApiError> {
        if wire.as_ref().is_some_and(|filter| filter.mode.is_some()) {
            return Err(ApiError::fault(&format!("{path}.mode"), format!("must be empty: {what} have none")));
        }
        Self::new(wire)
    }

    /// True if nothing is filtered out.
    pub(crate) fn accepts_all(&self) -> bool {
        self.wire == v1::RuleFilter::default()
    }

    /// Returns the fingerprint of the filter for page tokens.
    pub(crate) fn digest(&self) -> u64 {
        Digest::hash(&self.wire.encode_to_vec())
    }

    /// True if resources of this owner are listed; "" is no owner.
    pub(crate) fn accepts_owner(&self, owner: &str) -> bool {
        self.wire.owner.as_ref().is_none_or(|wanted| wanted == owner)
    }

    /// True if a route is listed, by its names and the mode and owner of its rule.
    pub(crate) fn accepts_route(&self, table: &Snapshot, names: [&str; 4], stats: &v1::RouteStats) -> bool {
        let owned = || {
            let pattern = stats.rule.as_ref().and_then(|rule| convert::pattern(rule).ok());
            let stored = pattern.and_then(|pattern| table.stored(&pattern));
            self.accepts_owner(stored.map_or("", |stored| &stored.wire.owner))
        };
        self.accepts(names, stats.mode) && (self.wire.owner.is_none() || owned())
    }

    /// True if a resource of a change is listed, under any owner.
    pub(crate) fn accepts_subject(&self, subject: &ResourceKey) -> bool {
        match subject {
            ResourceKey::Rule(pattern) | ResourceKey::Guard(pattern) | ResourceKey::Kill(pattern) => {
                self.accepts(names(&pattern.into()), 0)
            }
            ResourceKey::Queue(name) => self.accepts_id(name),
        }
    }

    /// True if a resource is listed that has an id or a name but no service names.
    pub(crate) fn accepts_id(&self, id: &str) -> bool {
        let v1::RuleFilter {
            caller_service,
            caller_cluster,
            callee_service,
            callee_method,
            mode,
            text,
            owner: _,
        } = &self.wire;
        let parts = [caller_service, caller_cluster, callee_service, callee_method];
        parts.iter().all(|part| part.is_none()) && mode.is_none() && id.contains(text.as_str())
    }

    /// True if a resource with these names and this mode is listed, under any owner.
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

/// Returns the four names of a key.
pub(crate) fn names(key: &v1::Pattern) -> [&str; 4] {
    [&key.caller_service, &key.caller_cluster, &key.callee_service, &key.callee_method]
}
