//! Lists all tokens, without their secrets.

use damper_proto::v1;

use crate::state::snapshot::Snapshot;

pub(crate) fn list(table: &Snapshot) -> v1::ListTokensResponse {
    let mut tokens: Vec<v1::Token> = table.tokens().all().map(|token| token.wire.clone()).collect();
    tokens.sort_by(|one, other| (&one.name, &one.id).cmp(&(&other.name, &other.id)));
    v1::ListTokensResponse { tokens, revision: table.revision() }
}
