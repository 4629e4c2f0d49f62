//! Creates a token.
//!
//! The secret is only in this response, not in that to a repeated request, because only its hash is stored.
//! The expiry is a wall clock time of the server that creates the token.

use std::ops::RangeInclusive;
use std::time::{Duration, SystemTime};

use damper_core::Faults;
use damper_net::limits::Limit;
use damper_proto::{convert, v1};
use damper_store::writer::ProposedEdit;
use tonic::Request;

use crate::auth::caller::misplaced;
use crate::state::error::ApiError;
use crate::state::snapshot::Snapshot;
use crate::state::tokens::role::Role;
use crate::state::tokens::scope::Scope;
use crate::state::tokens::secret::BearerToken;
use crate::state::tokens::{StoredToken, description, token_key, token_of};
use crate::write::Writes;
use crate::write::request::{CompletedWrite, WriteRequest, check_options, stored_answer, too_many, write};

const MAX_NAME_BYTES: usize = 255;
const DAY: u64 = 24 * 3600;
const DEFAULT_TIME_TO_LIVE: Duration = Duration::from_secs(90 * DAY);
/// 1 minute to 10 years.
const TIME_TO_LIVE: RangeInclusive<Duration> = Duration::from_secs(60)..=Duration::from_secs(3650 * DAY);

/// A token to be created.
struct NewToken {
    name: String,
    role: Role,
    scope: Option<v1::Scope>,
    /// `None` for a token that does not expire.
    time_to_live: Option<Duration>,
}

pub(crate) async fn create(
    writes: &Writes,
    request: Request<v1::CreateTokenRequest>,
) -> Result<v1::CreateTokenResponse, ApiError> {
    let (asked, request) = WriteRequest::read("create token", request, |request| request.options.take());
    let wanted = NewToken::read(request, &asked.options)?;
    if let Some(first) = stored_answer(writes, &asked).await? {
        return Ok(answer_repeated(&first));
    }
    let (at, table) = (SystemTime::now(), writes.fleet.table());
    let token = wanted.wire(at, &created_by(&asked));
    if asked.options.validate_only {
        let (count, limit) = (table.tokens().len(), writes.limits.max_tokens);
        if count >= limit {
            return Err(too_many(Limit::Tokens, count + 1, limit));
        }
        return Ok(v1::CreateTokenResponse {
            token: Some(token),
            secret: String::new(),
            revision: table.revision(),
        });
    }
    let bearer = BearerToken::draw();
    let value = Some(StoredToken::value(&token, &bearer.hash()));
    let edit = ProposedEdit { key: token_key(&bearer.id), value, expected: Some(0) };
    let done = write(writes, &asked, &table, at, vec![edit]).await?;
    if done.committed.repeated {
        return Ok(answer_repeated(&done));
    }
    let (id, revision) = (bearer.id.to_string(), done.committed.revision);
    tracing::warn!(id, name = token.name, role = wanted.role.name(), revision, "token created");
    Ok(v1::CreateTokenResponse {
        token: Some(v1::Token { id, revision, ..token }),
        secret: bearer.text(),
        revision,
    })
}

impl NewToken {
    fn read(request: v1::CreateTokenRequest, options: &v1::WriteOptions) -> Result<Self, ApiError> {
        let v1::CreateTokenRequest { name, role, scope, time_to_live, never_expires, options: _ } = request;
        let mut faults = Faults::none();
        if name.is_empty() || name.len() > MAX_NAME_BYTES {
            faults.add("name", format!("must have 1 to {MAX_NAME_BYTES} bytes, not {}", name.len()));
        }
        if name.chars().any(char::is_control) {
            faults.add("name", "must not contain control characters");
        }
        let role = v1::Role::try_from(role).ok().and_then(Role::of);
        if role.is_none() {
            faults.add("role", "is required: viewer, editor, operator, admin or agent");
        }
        let limits = Scope::read("scope", scope.as_ref(), &mut faults);
        if let Some((path, problem)) = role.and_then(|role| misplaced(role, &limits)) {
            faults.add(path, problem);
        }
        let time_to_live = read_time_to_live(time_to_live, never_expires, &mut faults);
        check_options("options", options, &mut faults);
        // Without faults there is a role.
        let role = faults.or(role).map_err(ApiError::Faults)?.unwrap_or(Role::Viewer);
        Ok(Self { name, role, scope: scope.filter(|_| limits.is_limited()), time_to_live })
    }

    /// Returns the token to store, without its id.
    fn wire(&self, at: SystemTime, by: &str) -> v1::Token {
        v1::Token {
            name: self.name.clone(),
            role: self.role.wire().into(),
            scope: self.scope.clone(),
            created_at: Some(at.into()),
            created_by: by.to_owned(),
            expires_at: self.time_to_live.map(|left| (at + left).into()),
            ..Default::default()
        }
    }
}

fn read_time_to_live(
    wire: Option<prost_types::Duration>,
    never_expires: bool,
    faults: &mut Faults,
) -> Option<Duration> {
    let Some(wire) = wire else { return (!never_expires).then_some(DEFAULT_TIME_TO_LIVE) };
    if never_expires {
        faults.add("time_to_live", "conflicts with never_expires: set one of the two");
    }
    let (seconds, nanos) = (wire.seconds, wire.nanos);
    let words = if nanos == 0 { format!("{seconds} s") } else { format!("{seconds} s and {nanos} ns") };
    let read = convert::length(wire).filter(|wire| TIME_TO_LIVE.contains(wire));
    if read.is_none() {
        faults.add("time_to_live", format!("must be between 1 min and 10 years (3650 days), not {words}"));
    }
    read
}

/// Returns the author and the authenticated name, if any.
fn created_by(asked: &WriteRequest) -> String {
    let (author, principal) = (&asked.options.author, asked.principal());
    match (author.is_empty(), principal.is_empty()) {
        (_, true) => author.clone(),
        (true, false) => principal,
        (false, false) => format!("{author}, {principal}"),
    }
}

/// Answers a request that was committed before; if the token is gone, with its id only.
fn answer_repeated(CompletedWrite { committed, after, .. }: &CompletedWrite) -> v1::CreateTokenResponse {
    let token = committed.keys.first().and_then(|(key, _)| to_wire(key, after));
    v1::CreateTokenResponse { token, secret: String::new(), revision: committed.revision }
}

fn to_wire(key: &str, table: &Snapshot) -> Option<v1::Token> {
    let id = token_of(key)?;
    let stored = table.tokens().stored(&id).map(|stored| stored.wire.clone());
    Some(stored.unwrap_or_else(|| description(&id, &[], 0)))
}
