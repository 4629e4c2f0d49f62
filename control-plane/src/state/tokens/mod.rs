//! Tokens at one revision, and the key of the control plane.
//!
//! An entry holds the token's description and the hash of its secret. A token that this version cannot read
//! grants nothing: its holder is unauthenticated. Expired tokens stay in the snapshot until they are cleaned
//! up.

pub(crate) mod role;
pub(crate) mod scope;
pub(crate) mod secret;

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use damper_core::Faults;
use damper_proto::v1;
use prost::Message;
use rpds::RedBlackTreeMapSync;

use crate::state::stored::decoded_whole;
use crate::state::tokens::role::Role;
use crate::state::tokens::scope::Scope;
use crate::state::tokens::secret::{ClusterKey, TokenHash, TokenId};
use damper_net::tls::certificate;
use damper_store::key;

/// Key prefix of tokens.
pub(crate) const TOKENS: &str = "tokens/";
/// Key of the control plane; never shown.
pub(crate) const CLUSTER_KEY: &str = "secrets/cluster";

/// All tokens, by id.
#[derive(Clone, Debug)]
pub(crate) struct TokenTable {
    tokens: RedBlackTreeMapSync<TokenId, Arc<StoredToken>>,
    cluster_key: Option<Arc<ClusterKey>>,
}

/// Token as stored.
#[derive(Debug)]
pub(crate) struct StoredToken {
    pub(crate) id: TokenId,
    /// With its id and revision.
    pub(crate) wire: v1::Token,
    pub(crate) role: Role,
    pub(crate) scope: Scope,
    /// `None`: never.
    pub(crate) expires_at: Option<SystemTime>,
    pub(crate) hash: TokenHash,
}

/// Value of an entry.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
struct TokenRecord {
    #[prost(message, optional, tag = "1")]
    token: Option<v1::Token>,
    #[prost(bytes = "bytes", tag = "2")]
    hash: Bytes,
}

impl fmt::Debug for TokenRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").field("token", &self.token).finish_non_exhaustive()
    }
}

impl TokenTable {
    pub(crate) fn none() -> Self {
        Self { tokens: RedBlackTreeMapSync::new_sync(), cluster_key: None }
    }

    /// Applies an entry; false if it is neither a token nor a key.
    pub(crate) fn follow(&mut self, key: &str, value: Option<&Bytes>, revision: u64) -> bool {
        if key == CLUSTER_KEY {
            self.cluster_key = value.and_then(|value| ClusterKey::read(value)).map(Arc::new);
            return true;
        }
        let Some(id) = token_of(key) else { return false };
        match value.and_then(|value| StoredToken::read(&id, value, revision)) {
            Some(token) => self.tokens.insert_mut(id, Arc::new(token)),
            None => {
                self.tokens.remove_mut(&id);
            }
        }
        true
    }

    /// Returns true if the entry of this key was read.
    pub(crate) fn has_read(&self, key: &str) -> bool {
        match token_of(key) {
            Some(id) => self.tokens.contains_key(&id),
            None => self.cluster_key.is_some(),
        }
    }

    /// Returns the token of this id, valid or expired.
    pub(crate) fn stored(&self, id: &TokenId) -> Option<&Arc<StoredToken>> {
        self.tokens.get(id)
    }

    /// Iterates over all stored tokens, sorted by id.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<StoredToken>> {
        self.tokens.values()
    }

    pub(crate) fn len(&self) -> usize {
        self.tokens.size()
    }

    /// Returns the cluster key; `None` if no server has required tokens yet.
    pub(crate) fn cluster_key(&self) -> Option<&Arc<ClusterKey>> {
        self.cluster_key.as_ref()
    }
}

impl StoredToken {
    /// Returns its expiry if that is soon.
    pub(crate) fn ends_soon(&self, now: SystemTime) -> Option<SystemTime> {
        let created = self.wire.created_at.and_then(|at| SystemTime::try_from(at).ok());
        self.expires_at.filter(|end| certificate::is_soon(created, *end, now))
    }

    /// Parses an entry of the store; `None` if this version cannot read it.
    pub(crate) fn read(id: &TokenId, value: &[u8], revision: u64) -> Option<Self> {
        let read = || {
            let kept: TokenRecord = decoded_whole(value)?;
            let hash = TokenHash::read(&kept.hash).ok_or("has no hash")?;
            let wire = described(id, kept.token.unwrap_or_default(), revision);
            let role = Role::of(wire.role()).ok_or("role: is not known")?;
            let mut faults = Faults::none();
            let scope = Scope::read("scope", wire.scope.as_ref(), &mut faults);
            faults.or(()).map_err(|faults| faults.to_string())?;
            let expires_at = wire.expires_at.map(SystemTime::try_from).transpose();
            let expires_at = expires_at.map_err(|_| "expires_at: is no time")?;
            Ok::<_, String>(Self { id: id.clone(), wire, role, scope, expires_at, hash })
        };
        let warn = |problem: &String| {
            tracing::warn!(%id, revision, problem, "stored token cannot be read and grants no access");
        };
        read().inspect_err(warn).ok()
    }

    /// Returns the value to store for a token.
    pub(crate) fn value(token: &v1::Token, hash: &TokenHash) -> Bytes {
        let token = v1::Token { id: String::new(), revision: 0, ..token.clone() };
        let hash = Bytes::copy_from_slice(hash.bytes());
        TokenRecord { token: Some(token), hash }.encode_to_vec().into()
    }

    pub(crate) fn is_over(&self, now: SystemTime) -> bool {
        self.expires_at.is_some_and(|end| end <= now)
    }

    /// Returns true if it grants everything and never expires.
    pub(crate) fn is_lasting_admin(&self) -> bool {
        self.role == Role::Admin && self.expires_at.is_none()
    }
}

/// Returns the description of a token without its hash; only the id if it cannot be read.
pub(crate) fn description(id: &TokenId, value: &[u8], revision: u64) -> v1::Token {
    let kept = TokenRecord::decode(value).unwrap_or_default();
    described(id, kept.token.unwrap_or_default(), revision)
}

/// Returns the store's key of a token.
pub(crate) fn token_key(id: &TokenId) -> String {
    key([TOKENS.trim_end_matches('/'), id.as_str()])
}

/// Parses a store's key; `None` for other keys.
pub(crate) fn token_of(key: &str) -> Option<TokenId> {
    TokenId::parse(key.strip_prefix(TOKENS)?)
}

fn described(id: &TokenId, token: v1::Token, revision: u64) -> v1::Token {
    v1::Token { id: id.to_string(), revision, ..token }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tokens::secret::BearerToken;
    use damper_store::Entry;
    use damper_store::writer::ProposedEdit;

    #[test]
    fn token_is_stored_by_its_hash_and_hidden_in_debug() {
        let bearer = BearerToken::draw();
        let wire = v1::Token { name: "ci".to_owned(), role: v1::Role::Editor.into(), ..Default::default() };
        let value = StoredToken::value(&wire, &bearer.hash());
        let stored = StoredToken::read(&bearer.id, &value, 7).unwrap();
        assert!(stored.hash.is_of(&bearer));
        assert_eq!((stored.wire.id.as_str(), stored.wire.revision), (bearer.id.as_str(), 7));
        assert_eq!(description(&bearer.id, &value, 7), stored.wire);
        let kept = TokenRecord::decode(value.clone()).unwrap();
        let edit = ProposedEdit { key: token_key(&bearer.id), value: Some(value.clone()), expected: None };
        let entry = Entry { revision: 7, value };
        let text = format!("{stored:?} {kept:?} {edit:?} {entry:?}");
        assert!(text.contains("ci") && text.contains("Hash(hidden)"), "{text}");
        assert!(
            !text.contains(&format!("{:?}", kept.hash))
                && !text.contains(&format!("{:?}", kept.hash.to_vec()))
        );
    }

    #[test]
    fn unreadable_token_grants_nothing() {
        let bearer = BearerToken::draw();
        let wire = |role: i32| v1::Token { role, ..Default::default() };
        let good = StoredToken::value(&wire(1), &bearer.hash());
        assert!(StoredToken::read(&bearer.id, &good, 1).is_some());
        let short = TokenRecord { token: Some(wire(1)), hash: Bytes::from_static(b"x") }.encode_to_vec();
        for value in [&b""[..], b"\xff", &StoredToken::value(&wire(99), &bearer.hash()), &short] {
            assert!(StoredToken::read(&bearer.id, value, 1).is_none(), "{value:?}");
        }
    }

    #[test]
    fn a_token_is_over_at_its_end_to_the_instant() {
        let end = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(100);
        let wire = v1::Token { role: 1, expires_at: Some(end.into()), ..Default::default() };
        let bearer = BearerToken::draw();
        let stored = StoredToken::read(&bearer.id, &StoredToken::value(&wire, &bearer.hash()), 1).unwrap();
        assert!(!stored.is_over(end - std::time::Duration::from_nanos(1)));
        assert!(stored.is_over(end));
    }
}
