//! Encryption of bodies.
//!
//! AES-256-GCM with a data key for each body: HKDF-SHA256 (RFC 5869) of the secret and a random salt of 128
//! bits. So each data key encrypts one message, and its nonce can be constant. The associated data are queue,
//! route and job id: a body that is moved to another job does not open.
//!
//! An encrypted body differs at each submission. A tag, HMAC-SHA256 over queue, route, key and content, is
//! equal if a key is submitted again with the same content. Tags of different keys reveal nothing.
//!
//! Format: version (1 byte), salt (16), ciphertext, tag of the cipher (16).

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::{hkdf, hmac};

use super::{BodyKeys, SECRET_BYTES};

pub(super) const SALT_BYTES: usize = 16;
pub(super) const VERSION: u8 = 1;
/// Purposes of the derived keys.
const BODY: &[&[u8]] = &[b"damper job body 1"];
const TAG: &[&[u8]] = &[b"damper job tag 1"];

/// A secret from which keys are derived.
pub(super) struct Secret(pub(super) [u8; SECRET_BYTES]);

/// Where a body belongs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyPlace<'a> {
    pub(crate) queue: &'a str,
    pub(crate) caller_service: &'a str,
    pub(crate) caller_cluster: &'a str,
    pub(crate) callee_service: &'a str,
    pub(crate) callee_method: &'a str,
}

/// An encrypted body.
#[derive(Debug)]
pub(crate) struct SealedBody {
    pub(crate) key_id: String,
    pub(crate) body: Vec<u8>,
    pub(crate) tag: Vec<u8>,
}

/// Why a worker cannot read a body.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BodyProblem {
    #[error("the job body is encrypted with the key {0:?}, but this worker has no keys; give it this key")]
    NoKeys(String),
    #[error("the job body is encrypted with the key {0:?}, which this worker does not have")]
    UnknownKey(String),
    #[error("the job body has the encryption format {0}, which this SDK version cannot read; update the SDK")]
    Format(u8),
    #[error("the job body is not encrypted, and this worker accepts only encrypted bodies")]
    Plain,
    /// No worker can.
    #[error(
        "the job body cannot be decrypted: it is damaged, or was encrypted for another job, queue or route"
    )]
    Foreign,
}

impl BodyKeys {
    /// Encrypts a body. `key` is that of the job.
    ///
    /// # Errors
    /// The system has no randomness.
    pub(crate) fn seal(
        &self,
        place: BodyPlace<'_>,
        key: &str,
        job_id: &[u8],
        mut body: Vec<u8>,
    ) -> Result<SealedBody, String> {
        let first = self.keys.first().expect("there is a key");
        let mut salt = [0; SALT_BYTES];
        getrandom::fill(&mut salt).map_err(|error| format!("cannot encrypt the body: {error}"))?;
        let tag = first.secret.tag(&place, key, &body);
        let associated = Aad::from(place.bytes([job_id]));
        let sealed = first.secret.data_key(&salt).seal_in_place_append_tag(nonce(), associated, &mut body);
        sealed.map_err(|_| "cannot encrypt the body: too long".to_owned())?;
        let body = [&[VERSION], &salt[..], &body].concat();
        Ok(SealedBody { key_id: first.id.clone(), body, tag })
    }

    /// Decrypts a body.
    ///
    /// # Errors
    /// The key is unknown, or the body is not that of this job.
    pub(crate) fn open(
        &self,
        place: BodyPlace<'_>,
        key_id: &str,
        job_id: &[u8],
        body: &[u8],
    ) -> Result<Vec<u8>, BodyProblem> {
        let unknown = || BodyProblem::UnknownKey(key_id.to_owned());
        let key = self.keys.iter().find(|key| key.id == key_id).ok_or_else(unknown)?;
        let (version, rest) = body.split_first().ok_or(BodyProblem::Foreign)?;
        if *version != VERSION {
            return Err(BodyProblem::Format(*version));
        }
        let (salt, content) = rest.split_first_chunk::<SALT_BYTES>().ok_or(BodyProblem::Foreign)?;
        let (mut content, associated) = (content.to_vec(), Aad::from(place.bytes([job_id])));
        let plain = key.secret.data_key(salt).open_in_place(nonce(), associated, &mut content);
        let length = plain.map_err(|_| BodyProblem::Foreign)?.len();
        content.truncate(length);
        Ok(content)
    }

    /// Returns a body that was submitted without encryption.
    ///
    /// # Errors
    /// The worker does not accept such bodies.
    pub(crate) fn admit_plain(&self, body: Vec<u8>) -> Result<Vec<u8>, BodyProblem> {
        if self.accepts_plain { Ok(body) } else { Err(BodyProblem::Plain) }
    }
}

impl Secret {
    pub(super) fn data_key(&self, salt: &[u8; SALT_BYTES]) -> LessSafeKey {
        let derived = hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(&self.0);
        let key: UnboundKey = derived.expand(BODY, &AES_256_GCM).expect("a short purpose").into();
        LessSafeKey::new(key)
    }

    pub(super) fn tag(&self, place: &BodyPlace<'_>, key: &str, body: &[u8]) -> Vec<u8> {
        let derived = hkdf::Salt::new(hkdf::HKDF_SHA256, &[]).extract(&self.0);
        let derived: hmac::Key = derived.expand(TAG, hmac::HMAC_SHA256).expect("a short purpose").into();
        hmac::sign(&derived, &place.bytes([key.as_bytes(), body])).as_ref().to_vec()
    }
}

impl BodyPlace<'_> {
    /// Returns the parts with their lengths, so that no two lists of parts are equal.
    pub(super) fn bytes<const N: usize>(&self, more: [&[u8]; N]) -> Vec<u8> {
        let Self { queue, caller_service, caller_cluster, callee_service, callee_method } = *self;
        let names = [queue, caller_service, caller_cluster, callee_service, callee_method];
        let mut bytes = Vec::new();
        for part in names.iter().map(|name| name.as_bytes()).chain(more) {
            bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
            bytes.extend_from_slice(part);
        }
        bytes
    }
}

/// The nonce of all bodies: a data key encrypts one.
pub(super) fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; 12])
}
