//! Secrets: tokens, their hashes, and the key of the control plane.
//!
//! A token is `damper_ID_SECRET`, both parts in lower-case hexadecimal: a public id of 64 bits and a secret
//! of 256 random bits. Only the secret's SHA-256 is stored; a secret of that size cannot be guessed, so no
//! slow hash is needed. Hashes are compared in constant time. Other keys are derived from the cluster key by
//! HMAC-SHA256, one per purpose. `Debug` hides all secrets.

use std::fmt;

use hmac::{Hmac, Mac as _};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

const PREFIX: &str = "damper_";
const ID_BYTES: usize = 8;
const KEY_BYTES: usize = 32;
/// Prefix of the key by which replicas authenticate each other.
const REPLICA_PREFIX: &str = "damper-replica_";

/// Public id of a token.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TokenId(String);

/// Hash of a token's secret.
#[derive(Clone)]
pub(crate) struct TokenHash([u8; KEY_BYTES]);

/// Whole token, as shown to its holder.
pub(crate) struct BearerToken {
    pub(crate) id: TokenId,
    secret: [u8; KEY_BYTES],
}

/// Secret shared by all replicas of a control plane.
#[derive(Clone)]
pub(crate) struct ClusterKey {
    key: [u8; KEY_BYTES],
    sessions: cookie::Key,
}

impl TokenId {
    /// Parses an id.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        from_hex::<ID_BYTES>(text).map(|_| Self(text.to_owned()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TokenHash {
    /// Reads a stored hash; `None` if its length is wrong.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Compares with a secret's hash in constant time.
    pub(crate) fn is_of(&self, bearer: &BearerToken) -> bool {
        self.0.ct_eq(&bearer.hash().0).into()
    }
}

impl BearerToken {
    /// Creates a random token.
    pub(crate) fn draw() -> Self {
        Self { id: TokenId(hex(&random::<ID_BYTES>())), secret: random() }
    }

    /// Parses a token.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
        Some(Self { id: TokenId::parse(id)?, secret: from_hex(secret)? })
    }

    /// Returns the token's text.
    pub(crate) fn text(&self) -> String {
        format!("{PREFIX}{}_{}", self.id, hex(&self.secret))
    }

    pub(crate) fn hash(&self) -> TokenHash {
        TokenHash(Sha256::digest(self.secret).into())
    }
}

impl ClusterKey {
    /// Creates a random key.
    pub(crate) fn draw() -> Self {
        Self::of(random())
    }

    /// Reads a stored key; `None` if its length is wrong.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self::of)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.key
    }

    /// Returns the signing key of sessions.
    pub(crate) fn sessions(&self) -> &cookie::Key {
        &self.sessions
    }

    /// Returns the bearer token that replicas present to each other.
    pub(crate) fn replica(&self) -> String {
        format!("{REPLICA_PREFIX}{}", hex(&derived(&self.key, "replicas")))
    }

    /// Compares with the replicas' bearer in constant time.
    pub(crate) fn is_replica(&self, bearer: &str) -> bool {
        bearer.as_bytes().ct_eq(self.replica().as_bytes()).into()
    }

    fn of(key: [u8; KEY_BYTES]) -> Self {
        let both = [derived(&key, "sessions, first half"), derived(&key, "sessions, second half")];
        Self { key, sessions: cookie::Key::from(both.as_flattened()) }
    }
}

/// Returns true if a bearer has the form of a replica's.
pub(crate) fn claims_to_be_replica(bearer: &str) -> bool {
    bearer.starts_with(REPLICA_PREFIX)
}

macro_rules! hidden {
    ($($secret:ident),*) => {$(
        impl fmt::Debug for $secret {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(concat!(stringify!($secret), "(hidden)"))
            }
        }
    )*};
}

hidden!(TokenHash, BearerToken, ClusterKey);

fn derived(key: &[u8], purpose: &str) -> [u8; KEY_BYTES] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("an HMAC takes a key of any length");
    mac.update(purpose.as_bytes());
    mac.finalize().into_bytes().into()
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the system has random bytes");
    bytes
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Parses exactly N bytes of lower-case hexadecimal.
fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    let bytes: Option<Vec<u8>> =
        pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect();
    bytes?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_was_shown_and_known_by_its_hash() {
        let bearer = BearerToken::draw();
        let shown = bearer.text();
        let read = BearerToken::parse(&shown).unwrap();
        assert_eq!(read.id, bearer.id);
        assert!(bearer.hash().is_of(&read));
        assert!(!BearerToken::draw().hash().is_of(&read));
        assert_ne!(BearerToken::draw().text(), shown);
    }

    #[test]
    fn what_is_not_just_so_is_no_token() {
        let good = format!("damper_{}_{}", "0f".repeat(8), "a1".repeat(32));
        assert!(BearerToken::parse(&good).is_some());
        let bad = [
            String::new(),
            good.to_uppercase(),
            good[..good.len() - 1].to_owned(),
            format!("{good}0"),
            format!(" {good}"),
            good.replace("damper_", "damper-"),
            good.replace('f', "g"),
            good.replace("0f", "é"),
            format!("damper__{}", "a1".repeat(32)),
        ];
        for text in bad {
            assert!(BearerToken::parse(&text).is_none(), "{text:?}");
        }
    }

    #[test]
    fn secrets_do_not_tell_themselves() {
        let (bearer, key) = (BearerToken::draw(), ClusterKey::draw());
        let text = format!("{bearer:?} {:?} {key:?}", bearer.hash());
        assert_eq!(text, "BearerToken(hidden) TokenHash(hidden) ClusterKey(hidden)");
    }

    #[test]
    fn a_replica_shows_what_only_the_cluster_key_gives() {
        let key = ClusterKey::draw();
        let same = ClusterKey::read(key.bytes()).unwrap();
        assert!(same.is_replica(&key.replica()));
        assert!(!ClusterKey::draw().is_replica(&key.replica()));
        assert!(!key.is_replica(""));
        assert_eq!(same.sessions().signing(), key.sessions().signing());
        assert!(ClusterKey::read(&[0; 31]).is_none());
    }
}
