//! Encryption of the bodies of jobs, under keys that the control plane never has.
//!
//! AES-256-GCM with a data key for each body: HKDF-SHA256 (RFC 5869) of the secret and a random salt of 128
//! bits. So each data key encrypts one message, and its nonce can be constant. The associated data are queue,
//! route and job id: a body that is moved to another job does not open.
//!
//! An encrypted body differs at each submission. A tag, HMAC-SHA256 over queue, route, key and content, is
//! equal if a key is submitted again with the same content. Tags of different keys reveal nothing.
//!
//! Format: version (1 byte), salt (16), ciphertext, tag of the cipher (16).

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use damper_core::Faults;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::{hkdf, hmac};

/// Length of a secret in bytes.
const SECRET_BYTES: usize = 32;
const SALT_BYTES: usize = 16;
const VERSION: u8 = 1;
/// Limit of the file in bytes.
const MAX_FILE_BYTES: u64 = 64 << 10;
/// Limit of a key's id in bytes.
const MAX_ID_BYTES: usize = 255;
/// Purposes of the derived keys.
const BODY: &[&[u8]] = &[b"damper job body 1"];
const TAG: &[&[u8]] = &[b"damper job tag 1"];

/// Keys for the bodies of jobs; never printed.
///
/// A file has one key a line: its id, and 64 hexadecimal digits. The first key encrypts, each decrypts the
/// bodies that name it. Lines that are empty or begin with `#` are ignored.
///
/// To replace a key, add the new one below the present one in all processes, then move it to the top, and
/// remove the old one when its last job has ended.
///
/// ```no_run
/// # fn options() -> Result<damper_sdk::Options, damper_sdk::Faults> {
/// use damper_sdk::Options;
/// use damper_sdk::queue::BodyKeys;
///
/// let options = Options::from_env().body_keys(BodyKeys::read("/run/secrets/damper-body-keys")?);
/// # Ok(options)
/// # }
/// ```
#[derive(Clone)]
pub struct BodyKeys(Arc<[BodyKey]>);

struct BodyKey {
    id: String,
    secret: [u8; SECRET_BYTES],
}

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

impl BodyKeys {
    /// Reads a file of keys. Blocks.
    ///
    /// # Errors
    /// The file cannot be read, or all its lines that are no keys.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, Faults> {
        use std::io::Read as _;

        let (path, mut text) = (path.as_ref(), String::new());
        let read = std::fs::File::open(path);
        let read = read.and_then(|file| file.take(MAX_FILE_BYTES).read_to_string(&mut text));
        let mut faults = Faults::none();
        match read {
            Ok(_) => Self::parse(&text).map_err(|found| {
                faults.nest(&path.display().to_string(), found);
                faults
            }),
            Err(error) => {
                faults.add(path.display().to_string(), error.to_string());
                Err(faults)
            }
        }
    }

    /// Parses the content of such a file.
    ///
    /// # Errors
    /// All lines that are no keys, without their text.
    pub fn parse(text: &str) -> Result<Self, Faults> {
        let (mut keys, mut faults) = (Vec::<BodyKey>::new(), Faults::none());
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            match parse_key(line) {
                Ok(key) if keys.iter().any(|known| known.id == key.id) => {
                    faults.add(format!("line {number}"), "repeats the id of another key");
                }
                Ok(key) => keys.push(key),
                Err(problem) => faults.add(format!("line {number}"), problem),
            }
        }
        if keys.is_empty() && faults.is_empty() {
            faults.add("keys", "required; a line has an id and 64 hexadecimal digits");
        }
        faults.or(Self(keys.into()))
    }

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
        let secret = self.0.first().expect("there is a key");
        let mut salt = [0; SALT_BYTES];
        getrandom::fill(&mut salt).map_err(|error| format!("cannot encrypt the body: {error}"))?;
        let tag = secret.tag(&place, key, &body);
        let associated = Aad::from(place.bytes([job_id]));
        let sealed = secret.data_key(&salt).seal_in_place_append_tag(nonce(), associated, &mut body);
        sealed.map_err(|_| "cannot encrypt the body: too long".to_owned())?;
        let body = [&[VERSION], &salt[..], &body].concat();
        Ok(SealedBody { key_id: secret.id.clone(), body, tag })
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
    ) -> Result<Vec<u8>, &'static str> {
        const DAMAGED: &str = "its body is not that of the job";

        let secret = self.0.iter().find(|key| key.id == key_id).ok_or("its body key is unknown")?;
        let (salt, content) = body
            .strip_prefix(&[VERSION])
            .and_then(|rest| rest.split_first_chunk::<SALT_BYTES>())
            .ok_or("its body has an unknown format")?;
        let (mut content, associated) = (content.to_vec(), Aad::from(place.bytes([job_id])));
        let plain = secret.data_key(salt).open_in_place(nonce(), associated, &mut content);
        let length = plain.map_err(|_| DAMAGED)?.len();
        content.truncate(length);
        Ok(content)
    }
}

impl fmt::Debug for BodyKeys {
    /// Shows the ids alone.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|key| &key.id)).finish()
    }
}

impl BodyKey {
    fn data_key(&self, salt: &[u8; SALT_BYTES]) -> LessSafeKey {
        let derived = hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(&self.secret);
        let key: UnboundKey = derived.expand(BODY, &AES_256_GCM).expect("a short purpose").into();
        LessSafeKey::new(key)
    }

    fn tag(&self, place: &BodyPlace<'_>, key: &str, body: &[u8]) -> Vec<u8> {
        let derived = hkdf::Salt::new(hkdf::HKDF_SHA256, &[]).extract(&self.secret);
        let derived: hmac::Key = derived.expand(TAG, hmac::HMAC_SHA256).expect("a short purpose").into();
        hmac::sign(&derived, &place.bytes([key.as_bytes(), body])).as_ref().to_vec()
    }
}

impl BodyPlace<'_> {
    /// Returns the parts with their lengths, so that no two lists of parts are equal.
    fn bytes<const N: usize>(&self, more: [&[u8]; N]) -> Vec<u8> {
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
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; 12])
}

fn parse_key(line: &str) -> Result<BodyKey, &'static str> {
    const FORM: &str = "must be an id and 64 hexadecimal digits";

    let (id, digits) = line.split_once(char::is_whitespace).ok_or(FORM)?;
    let digits = digits.trim_start().as_bytes();
    if id.len() > MAX_ID_BYTES || !id.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("the id must have 1 to 255 visible ASCII characters");
    }
    let mut secret = [0; SECRET_BYTES];
    if digits.len() != 2 * SECRET_BYTES {
        return Err(FORM);
    }
    for (byte, digits) in secret.iter_mut().zip(digits.chunks_exact(2)) {
        let text =
            std::str::from_utf8(digits).ok().filter(|text| text.bytes().all(|b| b.is_ascii_hexdigit()));
        *byte = text.and_then(|text| u8::from_str_radix(text, 16).ok()).ok_or(FORM)?;
    }
    Ok(BodyKey { id: id.to_owned(), secret })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# keys\n\nnew 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\nold \
        FFfe02030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n";

    const PLACE: BodyPlace<'_> = BodyPlace {
        queue: "emails",
        caller_service: "orders",
        caller_cluster: "default",
        callee_service: "mailer",
        callee_method: "mail.Mailer/Welcome",
    };

    fn keys() -> BodyKeys {
        BodyKeys::parse(FILE).unwrap()
    }

    #[test]
    fn body_opens_for_its_job_alone() {
        let sealed = keys().seal(PLACE, "k", b"id", b"secret".to_vec()).unwrap();
        assert_eq!((sealed.key_id.as_str(), sealed.tag.len()), ("new", 32));
        assert!(!sealed.body.windows(6).any(|part| part == b"secret"));
        let open = |place, key_id, job_id: &[u8], body: &[u8]| keys().open(place, key_id, job_id, body);
        assert_eq!(open(PLACE, "new", b"id", &sealed.body).unwrap(), b"secret");
        let damaged = "its body is not that of the job";
        for place in [
            BodyPlace { queue: "others", ..PLACE },
            BodyPlace { caller_service: "x", ..PLACE },
            BodyPlace { caller_cluster: "x", ..PLACE },
            BodyPlace { callee_service: "x", ..PLACE },
            BodyPlace { callee_method: "x", ..PLACE },
            // The same text, divided elsewhere.
            BodyPlace { queue: "emailso", caller_service: "rders", ..PLACE },
        ] {
            assert_eq!(open(place, "new", b"id", &sealed.body), Err(damaged), "{place:?}");
        }
        assert_eq!(open(PLACE, "new", b"ie", &sealed.body), Err(damaged));
        assert_eq!(open(PLACE, "old", b"id", &sealed.body), Err(damaged));
        assert_eq!(open(PLACE, "other", b"id", &sealed.body), Err("its body key is unknown"));
        for at in 0..sealed.body.len() {
            let mut changed = sealed.body.clone();
            changed[at] ^= 1;
            assert!(open(PLACE, "new", b"id", &changed).is_err(), "{at}");
            assert!(open(PLACE, "new", b"id", &sealed.body[..at]).is_err(), "{at}");
        }
    }

    #[test]
    fn tag_is_equal_for_the_same_content_alone() {
        let tag = |keys: &BodyKeys, place, key, body: &[u8]| {
            keys.seal(place, key, &[fastrand::u8(..)], body.to_vec()).unwrap()
        };
        let keys = keys();
        let (one, two) = (tag(&keys, PLACE, "k", b"a"), tag(&keys, PLACE, "k", b"a"));
        assert_eq!(one.tag, two.tag);
        assert_ne!(one.body, two.body, "each body has its own salt");
        let elsewhere = BodyPlace { queue: "x", ..PLACE };
        for other in
            [tag(&keys, PLACE, "k", b"b"), tag(&keys, PLACE, "l", b"a"), tag(&keys, elsewhere, "k", b"a")]
        {
            assert_ne!(one.tag, other.tag);
        }
        let turned = BodyKeys::parse(&FILE.lines().rev().collect::<Vec<_>>().join("\n")).unwrap();
        assert_ne!(tag(&turned, PLACE, "k", b"a").tag, one.tag);
        // A process with the keys in another order reads it.
        assert_eq!(
            turned.open(PLACE, "new", &[1], &keys.seal(PLACE, "k", &[1], vec![7]).unwrap().body),
            Ok(vec![7])
        );
    }

    /// RFC 5869 and NIST SP 800-38D define the parts, this their composition. The values were computed by
    /// another implementation.
    #[test]
    fn format_is_stable() {
        let body = [
            &[VERSION][..],
            &[7; 16],
            &keys().0[0].encrypted_with_salt(&[7; 16], PLACE.bytes([b"id"]), b"hello"),
        ];
        assert_eq!(keys().open(PLACE, "new", b"id", &body.concat()).unwrap(), b"hello");
        assert_eq!(
            hex(&body.concat()),
            "0107070707070707070707070707070707b6de4c4cf66cbb6ab68c64e5db7606ecfa3daf8091"
        );
        assert_eq!(
            hex(&keys().0[0].tag(&PLACE, "k", b"hello")),
            "c2d963dafd7525d266dffffaae7cc80c42734fb9f759a0620b8a8ef0e921270a"
        );
    }

    impl BodyKey {
        fn encrypted_with_salt(&self, salt: &[u8; 16], associated: Vec<u8>, body: &[u8]) -> Vec<u8> {
            let mut body = body.to_vec();
            self.data_key(salt).seal_in_place_append_tag(nonce(), Aad::from(associated), &mut body).unwrap();
            body
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn lines_that_are_no_keys_are_all_named() {
        let secret = "00".repeat(32);
        let text =
            format!("a {secret}\na {secret}\nb\nc {secret}0\nd {}+f\n\u{e9} {secret}\n", "0".repeat(62));
        let faults = BodyKeys::parse(&text).unwrap_err();
        let paths: Vec<_> = faults.iter().map(|fault| fault.path.as_str()).collect();
        assert_eq!(paths, ["line 2", "line 3", "line 4", "line 5", "line 6"]);
        assert!(!faults.to_string().contains("0000"), "{faults}");
        assert!(BodyKeys::parse("# none\n").unwrap_err().to_string().contains("required"));
        assert_eq!(format!("{:?}", keys()), r#"["new", "old"]"#);
    }

    #[test]
    fn file_is_read_or_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        assert!(BodyKeys::read(&path).unwrap_err().to_string().contains("keys: "));
        std::fs::write(&path, "x").unwrap();
        assert!(BodyKeys::read(&path).unwrap_err().to_string().contains("line 1"));
        std::fs::write(&path, FILE).unwrap();
        assert_eq!(BodyKeys::read(&path).unwrap().0.len(), 2);
    }
}
