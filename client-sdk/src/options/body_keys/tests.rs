//! Files of keys, and what a body opens for.

use std::path::PathBuf;

use ring::aead::Aad;

use super::cipher::{BodyPlace, BodyProblem, VERSION, nonce};
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
    for place in [
        BodyPlace { queue: "others", ..PLACE },
        BodyPlace { caller_service: "x", ..PLACE },
        BodyPlace { caller_cluster: "x", ..PLACE },
        BodyPlace { callee_service: "x", ..PLACE },
        BodyPlace { callee_method: "x", ..PLACE },
        // The same text, divided elsewhere.
        BodyPlace { queue: "emailso", caller_service: "rders", ..PLACE },
    ] {
        assert_eq!(open(place, "new", b"id", &sealed.body), Err(BodyProblem::Foreign), "{place:?}");
    }
    assert_eq!(open(PLACE, "new", b"ie", &sealed.body), Err(BodyProblem::Foreign));
    assert_eq!(open(PLACE, "old", b"id", &sealed.body), Err(BodyProblem::Foreign));
    let unknown = BodyProblem::UnknownKey("other".to_owned());
    assert_eq!(open(PLACE, "other", b"id", &sealed.body), Err(unknown));
}

#[test]
fn changed_or_shortened_body_does_not_open() {
    let sealed = keys().seal(PLACE, "k", b"id", b"secret".to_vec()).unwrap();
    let open = |body: &[u8]| keys().open(PLACE, "new", b"id", body);
    for at in 0..sealed.body.len() {
        let mut changed = sealed.body.clone();
        changed[at] ^= 1;
        let expected = if at == 0 { BodyProblem::Format(VERSION ^ 1) } else { BodyProblem::Foreign };
        assert_eq!(open(&changed), Err(expected), "{at}");
        assert_eq!(open(&sealed.body[..at]), Err(BodyProblem::Foreign), "{at}");
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
}

#[test]
fn key_is_replaced_while_its_bodies_wait() {
    let (old, new) = (("a", [1; 32]), ("b", [2; 32]));
    let steps = [vec![old], vec![old, new], vec![new, old], vec![new]];
    let steps = steps.map(|keys| BodyKeys::new(keys).unwrap());
    let sealed = steps.each_ref().map(|keys| keys.seal(PLACE, "k", b"id", vec![7]).unwrap());
    let ids = sealed.each_ref().map(|sealed| sealed.key_id.as_str());
    assert_eq!(ids, ["a", "a", "b", "b"]);
    let open = |reader: usize, body: usize| {
        let (reader, sealed) = (&steps[reader], &sealed[body]);
        reader.open(PLACE, &sealed.key_id, b"id", &sealed.body)
    };
    // Processes at neighbouring steps read the bodies of each other.
    for (reader, body) in [(0, 0), (0, 1), (1, 0), (1, 2), (2, 0), (2, 1), (2, 3), (3, 2)] {
        assert_eq!(open(reader, body), Ok(vec![7]), "step {reader} reads the body of step {body}");
    }
    for (reader, body, id) in [(0, 2, "b"), (3, 1, "a")] {
        assert_eq!(open(reader, body), Err(BodyProblem::UnknownKey(id.to_owned())));
    }
}

/// RFC 5869 and NIST SP 800-38D define the parts, this their composition. The values were computed by
/// another implementation.
#[test]
fn format_is_stable() {
    let secret = &keys().keys[0].secret;
    let body = [&[VERSION][..], &[7; 16], &encrypted(secret, &[7; 16], b"id", b"hello")].concat();
    assert_eq!(keys().open(PLACE, "new", b"id", &body).unwrap(), b"hello");
    assert_eq!(hex(&body), "0107070707070707070707070707070707b6de4c4cf66cbb6ab68c64e5db7606ecfa3daf8091");
    assert_eq!(
        hex(&secret.tag(&PLACE, "k", b"hello")),
        "c2d963dafd7525d266dffffaae7cc80c42734fb9f759a0620b8a8ef0e921270a"
    );
}

fn encrypted(secret: &Secret, salt: &[u8; 16], job_id: &[u8], body: &[u8]) -> Vec<u8> {
    let (mut body, associated) = (body.to_vec(), Aad::from(PLACE.bytes([job_id])));
    secret.data_key(salt).seal_in_place_append_tag(nonce(), associated, &mut body).unwrap();
    body
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn lines_that_are_no_keys_are_all_named() {
    let secret = "00".repeat(32);
    let text = format!("a {secret}\na {secret}\nb\nc {secret}0\nd {}+f\n\u{e9} {secret}\n", "0".repeat(62));
    let faults = BodyKeys::parse(&text).unwrap_err();
    let lines: Vec<_> = faults.iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "line 2: repeats the id of another key",
            "line 3: must be an id, a space and 64 hexadecimal digits",
            "line 4: must be an id, a space and 64 hexadecimal digits, not 65 characters after the id",
            "line 5: must be an id, a space and 64 hexadecimal digits; another character is among the digits",
            "line 6: the id must have 1 to 255 visible ASCII characters",
        ]
    );
    assert!(BodyKeys::parse("# none\n").unwrap_err().to_string().contains("keys: required"));
}

#[test]
fn keys_in_code_have_valid_ids() {
    let long = "i".repeat(256);
    let faults = BodyKeys::new([("a", [0; 32]), ("", [1; 32]), ("a", [2; 32]), (&long, [3; 32])]);
    let faults = faults.unwrap_err();
    let paths: Vec<_> = faults.iter().map(|fault| fault.path.as_str()).collect();
    assert_eq!(paths, ["keys[1].id", "keys[2].id", "keys[3].id"]);
    assert!(BodyKeys::new::<String>([]).is_err());
    assert!(BodyKeys::new([(&long[1..], [0; 32])]).is_ok());
}

#[test]
fn secret_is_in_no_debug_output_or_fault() {
    let options = crate::Options::new(["http://localhost:1"]).body_keys(keys());
    let text = format!("{:?} {options:?} {:?}", keys(), options.clone().service("a").resolve().unwrap());
    assert!(text.contains(r#"["new", "old"]"#));
    let faults = BodyKeys::parse(&FILE.replace("1e1f", "1e1")).unwrap_err().to_string();
    for digits in ["0405", "4, 5"] {
        assert!(!text.contains(digits), "{text}");
        assert!(!faults.contains(digits), "{faults}");
    }
}

/// A file of keys in a folder of its own.
struct KeyFile(tempfile::TempDir);

impl KeyFile {
    fn new(content: impl AsRef<[u8]>) -> Self {
        let file = Self(tempfile::tempdir().unwrap());
        std::fs::write(file.path(), content).unwrap();
        #[cfg(unix)]
        file.set_mode(0o600);
        file
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("keys")
    }

    #[cfg(unix)]
    fn set_mode(&self, mode: u32) {
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(self.path(), permissions).unwrap();
    }

    /// Returns the faults, without the file's path.
    fn faults(&self) -> Vec<String> {
        let (faults, path) = (BodyKeys::read(self.path()).unwrap_err(), self.path().display().to_string());
        faults.iter().map(|fault| fault.to_string().strip_prefix(&path).unwrap().to_owned()).collect()
    }
}

#[test]
fn file_is_read_or_named_with_its_lines() {
    assert_eq!(BodyKeys::read(KeyFile::new(FILE).path()).unwrap().keys.len(), 2);
    let form = "must be an id, a space and 64 hexadecimal digits";
    assert_eq!(KeyFile::new("x\n\ny").faults(), [format!(", line 1: {form}"), format!(", line 3: {form}")]);
    assert_eq!(KeyFile::new(b"#\n#\xff\n").faults(), [", line 2: must be UTF-8"]);
    let empty = ", keys: required; a key has an id and 64 hexadecimal digits";
    assert_eq!(KeyFile::new("").faults(), [empty]);
    let absent = KeyFile::new("");
    std::fs::remove_file(absent.path()).unwrap();
    assert!(absent.faults()[0].starts_with(": cannot be read: "), "{:?}", absent.faults());
}

#[test]
fn file_beyond_its_limit_is_rejected_not_shortened() {
    let padded = |bytes: usize| KeyFile::new(format!("{FILE}{}", "#".repeat(bytes - FILE.len())));
    assert_eq!(BodyKeys::read(padded(65_536).path()).unwrap().keys.len(), 2);
    assert_eq!(padded(65_537).faults(), [": must have at most 65536 bytes, not 65537"]);
}

#[cfg(unix)]
#[test]
fn file_that_others_can_write_is_rejected() {
    let file = KeyFile::new(FILE);
    for mode in [0o620, 0o602, 0o666] {
        file.set_mode(mode);
        let problem = format!("can be written by its group or others (mode {mode:04o}); use 0600 or 0640");
        assert_eq!(file.faults(), [format!(": {problem}")]);
    }
    // One that others can read is a warning.
    for (mode, is_warned) in [(0o400, false), (0o600, false), (0o640, false), (0o604, true), (0o644, true)] {
        file.set_mode(mode);
        assert!(BodyKeys::read(file.path()).is_ok());
        assert_eq!(warning_of(mode).unwrap().is_some(), is_warned, "{mode:o}");
    }
}
