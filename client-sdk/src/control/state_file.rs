//! The rules on disk, for a process that starts while the control plane is unavailable.
//!
//! One file per identity: a header (format name, version, body length, CRC-32 of body and version), then one
//! protobuf message. A temporary file is written, synced and renamed, so readers and other processes of the
//! same service on this host always see one complete file. A file that is damaged, truncated or of another
//! identity is ignored and replaced by the next write.
//!
//! This code blocks; [`persist`](super::persist) runs it off the async threads.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use damper_core::feature;
use damper_proto::v1;
use prost::Message;

use super::applier::{PersistedState, Position};
use crate::options::identity::Identity;

const FORMAT: &[u8; 12] = b"damper-rules";
/// Version 2 added guards, 3 added kills. A process without guards would run rules that a guard must tighten,
/// so it must not read a file of version 2. A process without kills must not read a file that has some.
const FORMAT_VERSION: u32 = 3;
const VERSION_WITHOUT_KILLS: u32 = 2;
/// Oldest version that can be read.
const OLDEST_VERSION: u32 = 1;
const HEADER_BYTES: usize = FORMAT.len() + 4 + 8 + 4;
/// Limit in bytes, above any table of the control plane.
const MAX_BYTES: u64 = 512 << 20;
/// Age from which temporary files are removed; longer than any write.
const LEFT_BEHIND: Duration = Duration::from_secs(3600);

/// Path and identity of the state file.
#[derive(Clone, Debug)]
pub(super) struct StateFile {
    folder: PathBuf,
    name: String,
    service: String,
    cluster: String,
}

/// Reason why a state file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("the file with the rules saved by this service cannot be read: {0}")]
    Io(#[from] io::Error),
    #[error(
        "the file with the rules saved by this service is damaged and not used; the next rules from the control plane replace it: {0}"
    )]
    Damaged(&'static str),
    #[error(
        "the file with the rules saved by this service is damaged and not used; the next rules from the control plane replace it: {0}"
    )]
    Undecodable(#[from] prost::DecodeError),
    #[error(
        "the file with the rules saved by this service has format {0}; this SDK version reads formats \
         {OLDEST_VERSION} to {FORMAT_VERSION}"
    )]
    Version(u32),
    #[error(
        "the file with the last rules belongs to the service {service} in the cluster {cluster}, not to this service"
    )]
    Foreign { service: String, cluster: String },
}

#[derive(Clone, PartialEq, Message)]
struct Body {
    #[prost(string, tag = "1")]
    service: String,
    #[prost(string, tag = "2")]
    cluster: String,
    #[prost(string, tag = "3")]
    sdk_version: String,
    #[prost(string, repeated, tag = "4")]
    features: Vec<String>,
    #[prost(string, tag = "5")]
    epoch: String,
    #[prost(uint64, tag = "6")]
    revision: u64,
    #[prost(message, repeated, tag = "7")]
    rules: Vec<v1::DistributedRule>,
    #[prost(message, repeated, tag = "8")]
    refused: Vec<v1::Refusal>,
    #[prost(message, repeated, tag = "9")]
    guards: Vec<v1::DistributedGuard>,
    #[prost(message, repeated, tag = "10")]
    kills: Vec<v1::ActiveKill>,
    /// Absent in files of older versions.
    #[prost(fixed64, tag = "11")]
    commit: u64,
}

impl StateFile {
    pub(super) fn new(folder: &Path, identity: &Identity) -> Self {
        let Identity { service, cluster, .. } = identity;
        let mut name = format!("damper-{}-{}.rules", escaped(service), escaped(cluster));
        if name.len() > 200 {
            // File names are limited to 255 bytes. If two identities collide, each rejects the other's file.
            let hash = |text: &str| crc32fast::hash(text.as_bytes());
            name = format!("damper-{:08x}-{:08x}.rules", hash(service), hash(cluster));
        }
        Self { folder: folder.to_owned(), name, service: service.clone(), cluster: cluster.clone() }
    }

    pub(super) fn path(&self) -> PathBuf {
        self.folder.join(&self.name)
    }

    /// Returns the stored state; `None` without a file. If an SDK with other features wrote the file, the
    /// state has no position: the server must send a snapshot for the features of this one.
    pub(super) fn load(&self) -> Result<Option<PersistedState>, Error> {
        self.remove_left_behind();
        let file = match File::open(self.path()) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let length = file.metadata()?.len();
        if length > MAX_BYTES {
            return Err(Error::Damaged("too long"));
        }
        let mut bytes = Vec::new();
        file.take(MAX_BYTES).read_to_end(&mut bytes)?;
        let body = Body::decode(checked(&bytes)?)?;
        if (&body.service, &body.cluster) != (&self.service, &self.cluster) {
            return Err(Error::Foreign { service: body.service, cluster: body.cluster });
        }
        Ok(Some(body.into()))
    }

    /// Replaces the stored state.
    pub(super) fn store(&self, image: PersistedState) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        let bytes = self.encoded(image);
        let temporary = self.folder.join(format!("{}.{:016x}.tmp", self.name, fastrand::u64(..)));
        let written = write_synced(&temporary, &bytes).and_then(|()| fs::rename(&temporary, self.path()));
        if written.is_err() {
            // The first error is the one to report.
            let _ = fs::remove_file(&temporary);
        }
        written?;
        // Syncing the folder makes the rename survive a power cut; not all systems support it.
        let _ = File::open(&self.folder).and_then(|folder| folder.sync_all());
        Ok(())
    }

    fn encoded(&self, image: PersistedState) -> Vec<u8> {
        let PersistedState { position, rules, guards, kills, refused } = image;
        let version = if kills.is_empty() { VERSION_WITHOUT_KILLS } else { FORMAT_VERSION };
        let Position { epoch, revision, commit } = position.unwrap_or_default();
        let body = Body {
            service: self.service.clone(),
            cluster: self.cluster.clone(),
            sdk_version: super::SDK_VERSION.to_owned(),
            features: feature::ALL.iter().map(|&name| name.to_owned()).collect(),
            epoch,
            revision,
            commit,
            rules: rules.into_iter().map(Arc::unwrap_or_clone).collect(),
            refused,
            guards: guards.into_iter().map(Arc::unwrap_or_clone).collect(),
            kills,
        };
        let body = body.encode_to_vec();
        let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
        bytes.extend_from_slice(FORMAT);
        bytes.extend_from_slice(&version.to_le_bytes());
        bytes.extend_from_slice(&(body.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&checksum(version, &body).to_le_bytes());
        bytes.extend_from_slice(&body);
        bytes
    }

    /// Removes old temporary files, best effort.
    fn remove_left_behind(&self) {
        let Ok(files) = fs::read_dir(&self.folder) else { return };
        for file in files.flatten() {
            let name = file.file_name();
            let ours =
                name.to_str().is_some_and(|name| name.starts_with(&self.name) && name.ends_with(".tmp"));
            let modified = file.metadata().and_then(|data| data.modified());
            let age = modified.ok().and_then(|at| SystemTime::now().duration_since(at).ok());
            if ours && age.is_some_and(|age| age > LEFT_BEHIND) {
                let _ = fs::remove_file(file.path());
            }
        }
    }
}

impl From<Body> for PersistedState {
    fn from(body: Body) -> Self {
        let same_abilities = body.sdk_version == super::SDK_VERSION && body.features == feature::ALL;
        let position = Position { epoch: body.epoch, revision: body.revision, commit: body.commit };
        Self {
            position: Some(position).filter(|_| same_abilities),
            rules: body.rules.into_iter().map(Arc::new).collect(),
            guards: body.guards.into_iter().map(Arc::new).collect(),
            kills: body.kills,
            refused: body.refused,
        }
    }
}

/// Returns the message behind the header, if intact.
fn checked(bytes: &[u8]) -> Result<&[u8], Error> {
    let rest = bytes.strip_prefix(FORMAT).ok_or(Error::Damaged("not a state file of Damper"))?;
    let (version, rest) = rest.split_first_chunk::<4>().ok_or(Error::Damaged("cut short"))?;
    let version = u32::from_le_bytes(*version);
    if !(OLDEST_VERSION..=FORMAT_VERSION).contains(&version) {
        return Err(Error::Version(version));
    }
    let (length, rest) = rest.split_first_chunk::<8>().ok_or(Error::Damaged("cut short"))?;
    let (sum, body) = rest.split_first_chunk::<4>().ok_or(Error::Damaged("cut short"))?;
    if body.len() as u64 != u64::from_le_bytes(*length) {
        return Err(Error::Damaged("length does not match"));
    }
    if checksum(version, body) != u32::from_le_bytes(*sum) {
        return Err(Error::Damaged("checksum does not match"));
    }
    Ok(body)
}

/// The checksum of version 1 does not cover the version.
fn checksum(version: u32, body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    if version > 1 {
        hasher.update(&version.to_le_bytes());
    }
    hasher.update(body);
    hasher.finalize()
}

fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::options().write(true).create_new(true).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Escapes a name for a file name, including the separating dash: `a-b` in `c` differs from `a` in `b-c`.
fn escaped(name: &str) -> String {
    let mut escaped = String::with_capacity(name.len());
    for c in name.chars() {
        if c.is_ascii_alphanumeric() || c == '.' || c == '_' {
            escaped.push(c);
        } else {
            escaped.push_str(&format!("%{:02X}", u32::from(c)));
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn identity(service: &str, cluster: &str) -> Identity {
        Identity { service: service.to_owned(), cluster: cluster.to_owned(), instance: "i".to_owned() }
    }

    fn image(revision: u64, rules: usize) -> PersistedState {
        let rule = |i: usize| v1::DistributedRule {
            key: Some(v1::Pattern { callee_service: format!("callee-{i}"), ..v1::Pattern::default() }),
            revision,
            kind: None,
        };
        PersistedState {
            position: Some(Position { epoch: "e".to_owned(), revision, commit: revision << 40 }),
            rules: (0..rules).map(rule).map(Arc::new).collect(),
            guards: vec![Arc::new(v1::DistributedGuard { revision, ..v1::DistributedGuard::default() })],
            kills: vec![v1::ActiveKill { revision, ..v1::ActiveKill::default() }],
            refused: vec![v1::Refusal { revision, ..v1::Refusal::default() }],
        }
    }

    #[test]
    fn stored_state_is_loaded_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let place = StateFile::new(&folder.path().join("made/on/demand"), &identity("orders", "default"));
        assert!(place.load().unwrap().is_none());
        for revision in 1..4 {
            place.store(image(revision, 3)).unwrap();
            assert_eq!(place.load().unwrap(), Some(image(revision, 3)));
        }
        assert_eq!(fs::read_dir(&place.folder).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn each_identity_has_its_own_file() {
        let folder = tempfile::tempdir().unwrap();
        let place = |service, cluster| StateFile::new(folder.path(), &identity(service, cluster));
        assert_ne!(place("a-b", "c").path(), place("a", "b-c").path());
        assert!(StateFile::new(folder.path(), &identity(&"x".repeat(255), "c")).name.len() < 255);
        place("a", "b").store(image(1, 1)).unwrap();
        fs::copy(place("a", "b").path(), place("a", "c").path()).unwrap();
        assert!(matches!(place("a", "c").load(), Err(Error::Foreign { .. })));
    }

    #[test]
    fn an_sdk_with_other_features_drops_the_position() {
        let body = Body {
            sdk_version: "0.0.1".to_owned(),
            features: feature::ALL.iter().map(|&name| name.to_owned()).collect(),
            epoch: "e".to_owned(),
            rules: vec![v1::DistributedRule::default()],
            ..Body::default()
        };
        let image = PersistedState::from(body);
        assert_eq!((image.position, image.rules.len()), (None, 1));
    }

    #[test]
    fn older_versions_are_read_and_later_ones_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let place = StateFile::new(folder.path(), &identity("orders", "default"));
        let before = PersistedState { guards: Vec::new(), kills: Vec::new(), ..image(7, 5) };
        let mut bytes = place.encoded(before.clone());
        let version = FORMAT.len()..FORMAT.len() + 4;
        for (number, expected) in
            [(0_u32, None), (1, Some(&before)), (2, Some(&before)), (3, Some(&before)), (4, None)]
        {
            bytes[version.clone()].copy_from_slice(&number.to_le_bytes());
            let sum = checksum(number, &bytes[HEADER_BYTES..]).to_le_bytes();
            bytes[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&sum);
            fs::write(place.path(), &bytes).unwrap();
            match (place.load(), expected) {
                (Ok(Some(read)), Some(expected)) => assert_eq!(read, *expected),
                (Err(Error::Version(read)), None) => assert_eq!(read, number),
                (read, _) => panic!("version {number}: {read:?}"),
            }
        }
    }

    #[test]
    fn only_a_file_with_kills_has_the_latest_version() {
        let folder = tempfile::tempdir().unwrap();
        let place = StateFile::new(folder.path(), &identity("orders", "default"));
        let version = |image| place.encoded(image)[FORMAT.len()];
        assert_eq!(
            (version(image(7, 5)), version(PersistedState { kills: Vec::new(), ..image(7, 5) })),
            (3, 2)
        );
    }

    #[test]
    fn concurrent_writers_leave_complete_files() {
        let folder = tempfile::tempdir().unwrap();
        let place = StateFile::new(folder.path(), &identity("orders", "default"));
        place.store(image(1, 1)).unwrap();
        std::thread::scope(|scope| {
            for writer in 1..4_u64 {
                let place = &place;
                scope.spawn(move || {
                    for round in 0..20 {
                        place.store(image(writer, round * 17)).unwrap();
                    }
                });
            }
            for _ in 0..200 {
                assert!(place.load().unwrap().is_some());
            }
        });
    }

    proptest! {
        #[test]
        fn any_damage_is_detected(at in any::<prop::sample::Index>(), to: u8, cut in any::<bool>()) {
            let folder = tempfile::tempdir().unwrap();
            let place = StateFile::new(folder.path(), &identity("orders", "default"));
            let mut bytes = place.encoded(image(7, 5));
            let at = at.index(bytes.len());
            prop_assume!(cut || bytes[at] != to);
            if cut { bytes.truncate(at) } else { bytes[at] = to }
            fs::write(place.path(), bytes).unwrap();
            prop_assert!(place.load().is_err());
        }
    }
}
