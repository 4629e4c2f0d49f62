//! Keys for the bodies of jobs, which the control plane never has.
//!
//! They come from a file or from code. `cipher` uses them. A secret is in no error, log or debug output: a
//! fault of a file has the line's number, not its text.

pub(crate) mod cipher;
#[cfg(test)]
mod tests;

use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;

use damper_core::Faults;

use self::cipher::Secret;

/// Length of a secret in bytes.
const SECRET_BYTES: usize = 32;
/// Limit of the file in bytes.
const MAX_FILE_BYTES: usize = 64 << 10;
/// Limit of a key's id in bytes.
const MAX_ID_BYTES: usize = 255;

/// Keys for the bodies of jobs; never printed.
///
/// A file has one key a line: its id, and 64 hexadecimal digits. The first key encrypts, each decrypts the
/// bodies that name it. Lines that are empty or begin with `#` are ignored.
///
/// To replace a key, add the new one below the present one in all processes, then move it to the top, and
/// remove the old one when its last job has ended. An id never gets another secret: bodies of the old one
/// would not open, and their jobs would be dead.
///
/// A worker does not begin a job whose body it cannot decrypt. If it lacks the key, the delivery is released
/// without an attempt, since other workers may have it. If it has the key and the body does not authenticate,
/// the body is damaged or was exchanged, and the job is dead. Both are logged, and counted in
/// [`WorkerStats::unreadable`](crate::queue::WorkerStats::unreadable).
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
pub struct BodyKeys {
    keys: Arc<[BodyKey]>,
    accepts_plain: bool,
}

struct BodyKey {
    id: String,
    secret: Secret,
}

impl BodyKeys {
    /// Returns these keys, by id: the first encrypts, each decrypts.
    ///
    /// # Errors
    /// There is none; all ids that are invalid or repeated.
    pub fn new<I: Into<String>>(
        keys: impl IntoIterator<Item = (I, [u8; SECRET_BYTES])>,
    ) -> Result<Self, Faults> {
        let (mut list, mut faults) = (Vec::new(), Faults::none());
        for (i, (id, secret)) in keys.into_iter().enumerate() {
            let added = add(&mut list, id.into(), Secret(secret));
            added.unwrap_or_else(|problem| faults.add(format!("keys[{i}].id"), problem));
        }
        Self::of(list, faults)
    }

    /// Reads a file of at most 64 KiB. Blocks.
    ///
    /// # Errors
    /// The file cannot be read or is too large, all its lines that are no keys, or its group or others may
    /// write it: they could choose the key. One that others may read is a warning in the log.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, Faults> {
        let path = path.as_ref();
        let name = path.display();
        let content = content(path).map_err(|problem| fault(name.to_string(), problem))?;
        let text = std::str::from_utf8(&content).map_err(|error| {
            let before = content.iter().take(error.valid_up_to());
            let line = 1 + before.filter(|byte| **byte == b'\n').count();
            fault(format!("{name}, line {line}"), "must be UTF-8")
        })?;
        Self::parse(text).map_err(|found| {
            let mut faults = Faults::none();
            found.iter().for_each(|fault| faults.add(format!("{name}, {}", fault.path), &*fault.problem));
            faults
        })
    }

    /// Parses the content of such a file.
    ///
    /// # Errors
    /// All lines that are no keys, without their text.
    pub fn parse(text: &str) -> Result<Self, Faults> {
        let (mut list, mut faults) = (Vec::new(), Faults::none());
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let added = parse_key(line).and_then(|(id, secret)| add(&mut list, id, secret));
            added.unwrap_or_else(|problem| faults.add(format!("line {number}"), problem));
        }
        Self::of(list, faults)
    }

    /// Lets workers also begin jobs whose bodies are not encrypted. Default: they are released.
    ///
    /// For the time in which encryption is introduced, until the last job from before has ended: meanwhile a
    /// plain body can replace an encrypted one.
    #[must_use]
    pub fn accept_plain(self) -> Self {
        Self { accepts_plain: true, ..self }
    }

    fn of(keys: Vec<BodyKey>, mut faults: Faults) -> Result<Self, Faults> {
        if keys.is_empty() && faults.is_empty() {
            faults.add("keys", "required; a key has an id and 64 hexadecimal digits");
        }
        faults.or(Self { keys: keys.into(), accepts_plain: false })
    }
}

impl fmt::Debug for BodyKeys {
    /// Shows the ids alone.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.keys.iter().map(|key| &key.id)).finish()
    }
}

fn fault(path: String, problem: impl Into<String>) -> Faults {
    let mut faults = Faults::none();
    faults.add(path, problem);
    faults
}

/// Returns the content of a key file.
fn content(path: &Path) -> Result<Vec<u8>, String> {
    let read = || -> io::Result<(Metadata, Vec<u8>)> {
        let file = File::open(path)?;
        let (metadata, mut content) = (file.metadata()?, Vec::new());
        // One more byte, which shows that the file is too large.
        file.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut content)?;
        Ok((metadata, content))
    };
    let (metadata, content) = read().map_err(|error| format!("cannot be read: {error}"))?;
    check_permissions(path, &metadata)?;
    if content.len() > MAX_FILE_BYTES {
        return Err(format!("must have at most {MAX_FILE_BYTES} bytes, not {}", metadata.len()));
    }
    Ok(content)
}

/// Rejects a file that others can write, and warns of one that others can read.
#[cfg(unix)]
fn check_permissions(path: &Path, metadata: &Metadata) -> Result<(), String> {
    let mode = std::os::unix::fs::PermissionsExt::mode(&metadata.permissions());
    if let Some(warning) = warning_of(mode)? {
        let path = path.display();
        tracing::warn!(%path, "file with the encryption keys of job bodies {warning}");
    }
    Ok(())
}

/// Returns the warning about a file with this mode, if there is one. A group may read it: orchestrators give
/// secrets to the group of the process.
///
/// # Errors
/// Others may write the file.
#[cfg(unix)]
fn warning_of(mode: u32) -> Result<Option<String>, String> {
    let mode = mode & 0o777;
    if mode & 0o022 != 0 {
        return Err(format!("can be written by its group or others (mode {mode:04o}); use 0600 or 0640"));
    }
    let warning = || format!("can be read by others (mode {mode:04o}); use 0600 or 0640");
    Ok((mode & 0o004 != 0).then(warning))
}

#[cfg(not(unix))]
fn check_permissions(_: &Path, _: &Metadata) -> Result<(), String> {
    Ok(())
}

/// Adds a key to those before it.
fn add(keys: &mut Vec<BodyKey>, id: String, secret: Secret) -> Result<(), String> {
    if !(1..=MAX_ID_BYTES).contains(&id.len()) || !id.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!("the id must have 1 to {MAX_ID_BYTES} visible ASCII characters"));
    }
    if keys.iter().any(|known| known.id == id) {
        return Err("repeats the id of another key".to_owned());
    }
    keys.push(BodyKey { id, secret });
    Ok(())
}

fn parse_key(line: &str) -> Result<(String, Secret), String> {
    const FORM: &str = "must be an id, a space and 64 hexadecimal digits";

    let (id, digits) = line.split_once(char::is_whitespace).ok_or(FORM)?;
    let digits = digits.trim_start();
    let count = digits.chars().count();
    if count != 2 * SECRET_BYTES {
        return Err(format!("{FORM}, not {count} characters after the id"));
    }
    let mut secret = [0; SECRET_BYTES];
    for (byte, pair) in secret.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
        let text = std::str::from_utf8(pair).ok();
        let text = text.filter(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let value = text.and_then(|text| u8::from_str_radix(text, 16).ok());
        *byte = value.ok_or_else(|| format!("{FORM}; another character is among the digits"))?;
    }
    Ok((id.to_owned(), Secret(secret)))
}
