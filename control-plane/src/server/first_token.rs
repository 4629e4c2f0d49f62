//! Creates the key of the control plane and the first admin token, which a server with tokens needs in its
//! store.
//!
//! Both are written only if they do not exist, so that of several replicas that start at once one wins and
//! the others use its values. The first token is written to a file that only its owner can read. The file is
//! complete and flushed before the token is stored: after a crash in between, the next start uses the token
//! of the file. The token of an existing file is used.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use damper_proto::v1;
use tokio::task::spawn_blocking;

use crate::server::tasks::Parts;
use crate::state::error::ApiError;
use crate::state::snapshot::Snapshot;
use crate::state::tokens::role::Role;
use crate::state::tokens::secret::{BearerToken, ClusterKey};
use crate::state::tokens::{CLUSTER_KEY, StoredToken, token_key, token_of};
use crate::write::Writes;
use crate::write::request::{WriteRequest, commit, write};
use damper_store::writer::{EditPlanner, EntriesView};
use damper_store::writer::{Proposal, ProposedEdit};

const AUTHOR: &str = "damper";
const NAME: &str = "bootstrap";

/// The reason why a server cannot require tokens.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    /// There is no admin token, and no file for the first one.
    #[error(
        "tokens are required (auth = tokens) and the store has no admin token: set a file for the first one with \
         --bootstrap-token-file"
    )]
    NoAdmin,
    /// The file does not contain a token.
    #[error(
        "the file {file} contains no token: expected damper_ID_SECRET, with 16 digits 0-9a-f as ID and 64 as SECRET",
        file = .0.display()
    )]
    NoToken(PathBuf),
    /// The file cannot be read or written.
    #[error("the file {file} for the first admin token cannot be read or written", file = file.display())]
    File {
        /// The path of the file.
        file: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// The store did not accept the write.
    #[error("{0}")]
    Store(String),
}

/// Creates the key and an admin token if the store has none.
pub(crate) async fn ensure(parts: &Parts) -> Result<(), BootstrapError> {
    if let Some(how) = parts.settings.store.readable_by_others() {
        tracing::warn!(
            "the store is readable by other users of this machine: {how}. It contains the session key and token \
             hashes: chmod 700 it, unless a volume is shared with a group"
        );
    }
    ensure_key(&parts.writes).await?;
    if has_admin(&parts.writes.fleet.table()) {
        return Ok(());
    }
    let file = parts.settings.bootstrap_token_file.clone().ok_or(BootstrapError::NoAdmin)?;
    let place = file.clone();
    let first = spawn_blocking(move || First::read_or_create(&place)).await;
    let first = first.map_err(|error| BootstrapError::Store(error.to_string()))??;
    match store(&parts.writes, &first.bearer).await {
        Ok(()) => tracing::warn!(
            file = %file.display(), id = %first.bearer.id,
            "created the first admin token: create other tokens with it, then revoke it"
        ),
        Err(ApiError::PlannerRejected(_)) => {
            tracing::info!("another replica created the first admin token");
            first.remove_unused(&parts.writes.fleet.table(), &file);
        }
        Err(error) => return Err(BootstrapError::Store(error.to_string())),
    }
    Ok(())
}

async fn ensure_key(writes: &Writes) -> Result<(), BootstrapError> {
    if writes.fleet.table().tokens().cluster_key().is_some() {
        return Ok(());
    }
    let value = Some(bytes::Bytes::copy_from_slice(ClusterKey::draw().bytes()));
    let edit = ProposedEdit { key: CLUSTER_KEY.to_owned(), value, expected: Some(0) };
    let asked = asked("key of the control plane");
    match write(writes, &asked, &writes.fleet.table(), SystemTime::now(), vec![edit]).await {
        // Another replica was faster.
        Ok(_) | Err(ApiError::Conflict { .. }) => Ok(()),
        Err(error) => Err(BootstrapError::Store(error.to_string())),
    }
}

fn asked(reason: &str) -> WriteRequest {
    let (author, reason) = (AUTHOR.to_owned(), reason.to_owned());
    WriteRequest::internal(v1::WriteOptions { author, reason, ..Default::default() })
}

fn has_admin(table: &Snapshot) -> bool {
    let now = SystemTime::now();
    table.tokens().all().any(|token| token.role == Role::Admin && !token.is_over(now))
}

async fn store(writes: &Writes, bearer: &BearerToken) -> Result<(), ApiError> {
    let at = SystemTime::now();
    let token = v1::Token {
        name: NAME.to_owned(),
        role: v1::Role::Admin.into(),
        created_at: Some(at.into()),
        created_by: AUTHOR.to_owned(),
        ..Default::default()
    };
    let value = Some(StoredToken::value(&token, &bearer.hash()));
    let edit = ProposedEdit { key: token_key(&bearer.id), value, expected: Some(0) };
    let asked = asked("the first token");
    let first = FirstAdmin { edit: edit.clone(), at };
    let proposal = Proposal { planner: Some(Arc::new(first)), ..asked.proposal(at, vec![edit]) };
    commit(writes, &asked, &writes.fleet.table(), proposal).await.map(|_| ())
}

/// Writes the first admin token if there is none.
#[derive(Debug)]
struct FirstAdmin {
    edit: ProposedEdit,
    at: SystemTime,
}

impl EditPlanner for FirstAdmin {
    fn edits(&self, entries: &EntriesView<'_>) -> Result<Vec<ProposedEdit>, Vec<String>> {
        let admins = entries.iter().filter(|(key, entry)| {
            let token = token_of(key).and_then(|id| StoredToken::read(&id, &entry.value, entry.revision));
            token.is_some_and(|token| token.role == Role::Admin && !token.is_over(self.at))
        });
        let admins: Vec<String> = admins.map(|(key, _)| key.to_owned()).collect();
        if admins.is_empty() { Ok(vec![self.edit.clone()]) } else { Err(admins) }
    }
}

/// The first token.
#[derive(Debug)]
struct First {
    bearer: BearerToken,
    /// The token was created, not read from the file.
    is_new: bool,
}

impl First {
    /// Reads the token of a file; creates the file with a new token if there is none.
    fn read_or_create(file: &Path) -> Result<Self, BootstrapError> {
        let failed = |source| BootstrapError::File { file: file.to_owned(), source };
        if let Some(found) = found(file)? {
            return Ok(Self { bearer: found, is_new: false });
        }
        let bearer = BearerToken::draw();
        match write_once(file, &format!("{}\n", bearer.text())) {
            Ok(()) => Ok(Self { bearer, is_new: true }),
            // Another process was faster.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let bearer = found(file)?.ok_or_else(|| failed(error))?;
                Ok(Self { bearer, is_new: false })
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// Removes the file of a token that was not stored.
    fn remove_unused(&self, table: &Snapshot, file: &Path) {
        let is_good = table.tokens().stored(&self.bearer.id).is_some();
        if self.is_new
            && !is_good
            && let Err(error) = fs::remove_file(file)
        {
            tracing::warn!(%error, file = %file.display(), "cannot remove the file of an unused token");
        }
    }
}

/// Reads the token of a file; `None` if there is no file.
fn found(file: &Path) -> Result<Option<BearerToken>, BootstrapError> {
    refuse_where_others_write(file)?;
    match fs::read_to_string(file) {
        Ok(text) => {
            let bearer = BearerToken::parse(text.trim());
            bearer.map(Some).ok_or_else(|| BootstrapError::NoToken(file.to_owned()))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            Err(BootstrapError::NoToken(file.to_owned()))
        }
        Err(source) => Err(BootstrapError::File { file: file.to_owned(), source }),
    }
}

/// Rejects a file that other users can write, because they could choose the token.
fn refuse_where_others_write(file: &Path) -> Result<(), BootstrapError> {
    #[cfg(unix)]
    if let Ok(metadata) = fs::metadata(file)
        && std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o022 != 0
    {
        let source = io::Error::other("writable by group or others: chmod go-w it");
        return Err(BootstrapError::File { file: file.to_owned(), source });
    }
    Ok(())
}

/// Creates a file atomically; errors if it exists.
fn write_once(file: &Path, text: &str) -> io::Result<()> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let unfinished = folder.join(format!(".damper-token-{:016x}", fastrand::u64(..)));
    let written = || {
        let mut out = private(&unfinished)?;
        out.write_all(text.as_bytes())?;
        out.sync_all()?;
        fs::hard_link(&unfinished, file)
    };
    let done = written();
    let removed = fs::remove_file(&unfinished);
    done?;
    removed?;
    File::open(folder)?.sync_all()
}

/// Creates a file that only its owner can read.
fn private(file: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(file)
}
