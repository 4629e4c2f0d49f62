//! What a store must have before a server can ask for tokens: the key of the control plane, and an admin token.
//!
//! Both are written only where nobody has written them before, so that of several replicas that start at once one wins
//! and the others take over what it wrote. The first token goes into a file that only its owner reads, whole and
//! flushed before the token is stored: whatever happens in between, the file holds the token that is good, or nothing
//! is stored yet and the next start takes the file's. Where the file is there already its token is taken.

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

/// Why a server can not ask for tokens.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    /// Nobody could make a token.
    #[error(
        "tokens are asked for (auth = tokens) and the store has no admin token: name a file for the first one with \
         --bootstrap-token-file"
    )]
    NoAdmin,
    /// What is in the file is no token.
    #[error("{} holds no token: it must be damper_ID_SECRET, 16 and 64 digits 0-9a-f", .0.display())]
    NoToken(PathBuf),
    /// The file can not be read or written.
    #[error("{} can not be used for the first token", file.display())]
    File {
        /// Which.
        file: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The store did not take it.
    #[error("{0}")]
    Store(String),
}

/// Sees to it that there are a key and an admin token.
pub(crate) async fn ensure(parts: &Parts) -> Result<(), BootstrapError> {
    if let Some(how) = parts.settings.store.readable_by_others() {
        tracing::warn!(
            "the store can be read by others on this machine: {how}. The key that sessions are signed with and the \
             hashes of tokens lie in it: chmod 700 it, unless a volume has to be shared with a group"
        );
    }
    ensure_key(&parts.writes).await?;
    if has_admin(&parts.writes.fleet.table()) {
        return Ok(());
    }
    let file = parts.settings.bootstrap_token_file.clone().ok_or(BootstrapError::NoAdmin)?;
    let place = file.clone();
    let first = spawn_blocking(move || First::at(&place)).await;
    let first = first.map_err(|error| BootstrapError::Store(error.to_string()))??;
    match store(&parts.writes, &first.bearer).await {
        Ok(()) => tracing::warn!(
            file = %file.display(), id = %first.bearer.id,
            "the first admin token is in this file: make others with it and revoke it"
        ),
        Err(ApiError::Judged(_)) => {
            tracing::info!("another replica has made the first admin token");
            first.take_back(&parts.writes.fleet.table(), &file);
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
    WriteRequest::by_itself(v1::WriteOptions { author, reason, ..Default::default() })
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
    let proposal = Proposal { judge: Some(Arc::new(first)), ..asked.proposal(at, vec![edit]) };
    commit(writes, &asked, &writes.fleet.table(), proposal).await.map(|_| ())
}

/// Writes the first admin token where there is none.
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
    /// It was drawn, not found.
    is_new: bool,
}

impl First {
    /// The token of a file; a new one where there is no file, which is then made.
    fn at(file: &Path) -> Result<Self, BootstrapError> {
        let failed = |source| BootstrapError::File { file: file.to_owned(), source };
        if let Some(found) = found(file)? {
            return Ok(Self { bearer: found, is_new: false });
        }
        let bearer = BearerToken::draw();
        match write_once(file, &format!("{}\n", bearer.text())) {
            Ok(()) => Ok(Self { bearer, is_new: true }),
            // Somebody was faster.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let bearer = found(file)?.ok_or_else(|| failed(error))?;
                Ok(Self { bearer, is_new: false })
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// Another token is the first one: a file with this one would be of no use.
    fn take_back(&self, table: &Snapshot, file: &Path) {
        let is_good = table.tokens().stored(&self.bearer.id).is_some();
        if self.is_new
            && !is_good
            && let Err(error) = fs::remove_file(file)
        {
            tracing::warn!(%error, file = %file.display(), "the file with a token that was not needed stays");
        }
    }
}

/// The token of a file; none where there is no file.
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

/// Whoever can write the file could choose the token.
fn refuse_where_others_write(file: &Path) -> Result<(), BootstrapError> {
    #[cfg(unix)]
    if let Ok(metadata) = fs::metadata(file)
        && std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o022 != 0
    {
        let source = io::Error::other("its group or others can write it: chmod go-w it");
        return Err(BootstrapError::File { file: file.to_owned(), source });
    }
    Ok(())
}

/// Writes a file that is there whole or not at all, and that was not there.
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

/// A new file for its owner's eyes.
fn private(file: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(file)
}
