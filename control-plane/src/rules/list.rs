//! Rules by filter, in pages. Also the filter itself, which routes share.

use damper_core::Pattern;
use damper_proto::v1;
use prost::Message as _;

use crate::errors::Error;
use crate::paging::{self, Digest};
use crate::shared::Shared;

/// The most bytes of one page; a page ends there even when more entries were asked for.
const PAGE_BYTES: usize = 1 << 20;

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
        } = &self.wire;
        let parts = [caller_service, caller_cluster, callee_service, callee_method];
        parts.iter().zip(names).all(|(part, name)| part.as_ref().is_none_or(|part| part == name))
            && wanted.is_none_or(|wanted| wanted == mode)
            && (text.is_empty() || names.iter().any(|name| name.contains(text.as_str())))
    }
}

pub(super) async fn list(
    shared: &Shared,
    request: v1::ListRulesRequest,
) -> Result<v1::ListRulesResponse, Error> {
    let size = paging::size(request.page_size)?;
    let filter = Filter::new(request.filter)?;
    let start = paging::start(filter.digest(), &request.page_token)?;
    let start = match &start {
        Some([caller, cluster, callee, method]) => {
            let parsed = Pattern::parse(caller, cluster, callee, method);
            Some(parsed.map_err(|_| Error::fault("page_token", "not a token of this list"))?)
        }
        None => None,
    };
    let table = shared.table_at(request.min_revision, shared.settings.unary_deadline / 2).await?;
    let accepted = |rule: &v1::Rule| match (&rule.key, &rule.policy) {
        (Some(key), policy) => filter.accepts(names(key), policy.as_ref().map_or(0, |policy| policy.mode)),
        (None, _) => false,
    };
    let mut response = v1::ListRulesResponse { revision: table.revision(), ..Default::default() };
    response.total = table.iter().filter(|(_, stored)| accepted(&stored.wire)).count() as u64;
    let rest: Box<dyn Iterator<Item = _> + Send> = match &start {
        Some(start) => Box::new(table.after(start)),
        None => Box::new(table.iter()),
    };
    let mut bytes = 0;
    for (_, stored) in rest.filter(|(_, stored)| accepted(&stored.wire)) {
        let full = response.rules.len() == size || bytes > PAGE_BYTES;
        if let Some(last) = response.rules.last().filter(|_| full) {
            let last = last.key.as_ref().map(names).unwrap_or_default();
            response.next_page_token = paging::token(filter.digest(), last);
            break;
        }
        bytes += stored.wire.encoded_len();
        response.rules.push(stored.wire.clone());
    }
    Ok(response)
}

fn names(key: &v1::Pattern) -> [&str; 4] {
    [&key.caller_service, &key.caller_cluster, &key.callee_service, &key.callee_method]
}
