//! Where a server keeps its jobs: `redb:PATH`, `postgres://...` or `off`.
//!
//! Never in the policy store: a full queue must not make the kill switch unwritable.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use damper_queue::store::postgres;
use damper_store::StoreUrl;

/// File of the jobs next to an embedded policy store.
const FILE: &str = "jobs.redb";

/// The job store of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueuesUrl {
    /// None: queues can be written, and no job is accepted.
    Off,
    /// One file of this machine.
    Redb(PathBuf),
    /// A database for any number of servers: `postgres://USER@HOST[:PORT]/DATABASE[?sslmode=require]`.
    Postgres(String),
}

/// The URL of a job store is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct QueuesUrlError(String);

impl QueuesUrl {
    /// Returns the default: a file in the folder of an embedded policy store, none with a shared one.
    #[must_use]
    pub fn default_for(store: &StoreUrl) -> Self {
        match store {
            StoreUrl::Sled(path) => Self::Redb(path.join(FILE)),
            StoreUrl::Etcd(_) => Self::Off,
        }
    }

    /// Returns why these jobs cannot be kept with this policy store; `None` if they can.
    pub(crate) fn problem(&self, store: &StoreUrl, single_server: bool) -> Option<String> {
        match (self, store) {
            (Self::Redb(_), StoreUrl::Etcd(_)) if !single_server => Some(format!(
                "queues: {self} is a file of this machine, and {store} can have further servers, which would \
                 not see its jobs: use off, or confirm with --single-server that there is one server"
            )),
            _ => None,
        }
    }
}

impl FromStr for QueuesUrl {
    type Err = QueuesUrlError;

    fn from_str(text: &str) -> Result<Self, QueuesUrlError> {
        match text.split_once(':') {
            None if text == "off" => Ok(Self::Off),
            Some(("redb", path)) if !path.is_empty() => Ok(Self::Redb(path.into())),
            Some(("postgres" | "postgresql", _)) => match postgres::check_url(text) {
                Ok(()) => Ok(Self::Postgres(text.to_owned())),
                Err(problem) => Err(QueuesUrlError(problem)),
            },
            _ => Err(QueuesUrlError("must be redb:PATH, postgres://USER@HOST/DATABASE or off".to_owned())),
        }
    }
}

impl fmt::Display for QueuesUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Redb(path) => write!(f, "redb:{}", path.display()),
            Self::Postgres(url) => f.write_str(url),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_and_written_back() {
        let database = "postgres://damper@db.example:5432/jobs?sslmode=require";
        for text in ["off", "redb:/var/lib/damper/jobs.redb", "redb:a:b", database] {
            assert_eq!(text.parse::<QueuesUrl>().unwrap().to_string(), text);
        }
        for text in ["", "on", "redb:", "redb", "sled:jobs", "postgres", "postgres://db", "postgres:///jobs"]
        {
            assert!(text.parse::<QueuesUrl>().is_err(), "{text:?}");
        }
        let secret = "postgres://damper:secret@db/jobs".parse::<QueuesUrl>().unwrap_err().to_string();
        assert_eq!(secret, "must not contain a password");
    }

    #[test]
    fn file_with_a_shared_policy_store_must_be_confirmed() {
        let (sled, etcd): (StoreUrl, StoreUrl) =
            ("sled:data".parse().unwrap(), "etcd://127.0.0.1:2379".parse().unwrap());
        let file = QueuesUrl::default_for(&sled);
        assert_eq!(file.to_string(), "redb:data/jobs.redb");
        assert_eq!(QueuesUrl::default_for(&etcd), QueuesUrl::Off);
        assert_eq!(file.problem(&sled, false), None);
        assert_eq!(file.problem(&etcd, true), None);
        assert!(file.problem(&etcd, false).unwrap().contains("--single-server"));
        assert_eq!(QueuesUrl::Off.problem(&etcd, false), None);
    }
}
