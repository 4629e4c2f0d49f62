//! One connection: its settings, its prepared statements, and what its errors mean.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::poll_fn;
use tokio::task::JoinHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Config, NoTls, Row, Socket, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::store::error::Error;

/// A connection must be usable after this.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// Both time limits end a transaction whose client has gone, and so give its locks back.
const SESSION: &str = "set search_path to damper_queue; set application_name to 'damper'; \
     set statement_timeout to '10s'; set idle_in_transaction_session_timeout to '10s'";

/// Plans of the commits: by index, whatever the size of the tables was when a statement was first planned,
/// and once per statement.
const PLANS: &str = "set plan_cache_mode to force_generic_plan; set enable_seqscan to off; set enable_hashjoin to \
     off; set enable_mergejoin to off; set jit to off";

/// Why a transaction cannot go on.
#[derive(Debug)]
pub(super) enum Stop {
    /// By another transaction: nothing is stored, and a second try can succeed.
    Again,
    Postgres(tokio_postgres::Error),
    /// In the commit itself: it may have been stored.
    Unknown(tokio_postgres::Error),
    Store(Error),
}

impl Stop {
    /// Returns true if another try can succeed, and nothing of this one is stored.
    pub(super) fn is_temporary(&self) -> bool {
        match self {
            Self::Again => true,
            Self::Postgres(error) => {
                let shutdown = [&SqlState::ADMIN_SHUTDOWN, &SqlState::CRASH_SHUTDOWN];
                error.is_closed() || error.code().is_some_and(|code| shutdown.contains(&code))
            }
            Self::Unknown(_) | Self::Store(_) => false,
        }
    }
}

impl From<tokio_postgres::Error> for Stop {
    fn from(error: tokio_postgres::Error) -> Self {
        match error.code() {
            Some(&SqlState::T_R_DEADLOCK_DETECTED | &SqlState::T_R_SERIALIZATION_FAILURE) => Self::Again,
            // Another server has taken a key or an id since it was read: the next try finds it.
            Some(&SqlState::UNIQUE_VIOLATION) => Self::Again,
            // Data exceptions and violated constraints: the same content would fail again.
            Some(code) if code.code().starts_with("22") || code.code().starts_with("23") => {
                Self::Store(Error::Invalid(text(&error)))
            }
            Some(code) => match exhausted(code) {
                Some(what) => {
                    let problem = format!("{what} (SQLSTATE {}): {}", code.code(), text(&error));
                    Self::Store(Error::Full(problem))
                }
                None => Self::Postgres(error),
            },
            None => Self::Postgres(error),
        }
    }
}

/// Returns what the database has too little of; `None` for errors of another kind. Nothing was stored.
fn exhausted(code: &SqlState) -> Option<&'static str> {
    if !code.code().starts_with("53") {
        return None;
    }
    Some(match *code {
        SqlState::DISK_FULL => "PostgreSQL has no disk space left",
        SqlState::OUT_OF_MEMORY => "PostgreSQL has no memory left",
        SqlState::TOO_MANY_CONNECTIONS => "PostgreSQL has no connection left",
        SqlState::CONFIGURATION_LIMIT_EXCEEDED => "a limit in the configuration of PostgreSQL is reached",
        _ => "PostgreSQL has too few resources",
    })
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl From<Stop> for Error {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Again => Self::Unavailable("too many conflicts with other servers".to_owned()),
            Stop::Store(error) => error,
            Stop::Postgres(error) => Self::Unavailable(text(&error)),
            Stop::Unknown(error) => Self::Unavailable(format!("commit: {}", text(&error))),
        }
    }
}

/// Returns an error with its causes: alone it is only "db error".
pub(super) fn text(error: &tokio_postgres::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// How to connect.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) config: Config,
    pub(super) tls: Option<MakeRustlsConnect>,
}

/// An open connection. Dropped, it closes at once.
pub(super) struct Connection {
    client: Client,
    statements: Mutex<HashMap<&'static str, Statement>>,
    driver: JoinHandle<()>,
}

impl Connection {
    /// Connects. `notified` is called with the process that sent each notification.
    pub(super) async fn open(
        target: &Target,
        notified: impl FnMut(i32) + Send + 'static,
    ) -> Result<Self, Stop> {
        let connecting = async {
            let connection = match &target.tls {
                Some(tls) => Self::connect(&target.config, tls.clone(), notified).await?,
                None => Self::connect(&target.config, NoTls, notified).await?,
            };
            connection.batch(SESSION).await?;
            Ok(connection)
        };
        tokio::time::timeout(CONNECT_WITHIN, connecting).await.unwrap_or_else(|_| {
            let seconds = CONNECT_WITHIN.as_secs();
            Err(Stop::Store(Error::Unavailable(format!("no connection to PostgreSQL within {seconds} s"))))
        })
    }

    async fn connect<T>(
        config: &Config,
        tls: T,
        mut notified: impl FnMut(i32) + Send + 'static,
    ) -> Result<Self, Stop>
    where
        T: MakeTlsConnect<Socket>,
        T::Stream: Send + 'static,
    {
        let (client, mut connection) = config.connect(tls).await?;
        let driver = tokio::spawn(async move {
            while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
                match message {
                    Ok(AsyncMessage::Notification(message)) => notified(message.process_id()),
                    Ok(_) => {}
                    // The client's next call returns it.
                    Err(_) => return,
                }
            }
        });
        Ok(Self { client, statements: Mutex::default(), driver })
    }

    /// Sets what the connection of the commits needs.
    pub(super) async fn for_commits(self) -> Result<Self, Stop> {
        self.batch(PLANS).await?;
        Ok(self)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Returns once the connection is closed.
    pub(super) async fn closed(&mut self) {
        // The driver's end is all that matters.
        let _ = (&mut self.driver).await;
    }

    /// Runs statements without parameters.
    pub(super) async fn batch(&self, sql: &str) -> Result<(), Stop> {
        Ok(self.client.batch_execute(sql).await?)
    }

    /// Commits the transaction.
    pub(super) async fn commit(&self) -> Result<(), Stop> {
        self.client.batch_execute("commit").await.map_err(Stop::Unknown)
    }

    pub(super) async fn query(
        &self,
        sql: &'static str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Stop> {
        let statement = self.statement(sql).await?;
        Ok(self.client.query(&statement, parameters).await?)
    }

    /// Returns the number of rows changed.
    pub(super) async fn execute(
        &self,
        sql: &'static str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, Stop> {
        let statement = self.statement(sql).await?;
        Ok(self.client.execute(&statement, parameters).await?)
    }

    /// Sends a prepared statement when it is polled first, and returns its rows.
    pub(super) async fn send(
        &self,
        statement: &Statement,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        self.client.query(statement, parameters).await
    }

    /// Sends statements without parameters when it is polled first.
    pub(super) async fn send_batch(&self, sql: &str) -> Result<(), tokio_postgres::Error> {
        self.client.batch_execute(sql).await
    }

    /// Prepares a statement once per connection.
    pub(super) async fn statement(&self, sql: &'static str) -> Result<Statement, Stop> {
        let known = self.statements.lock().unwrap_or_else(PoisonError::into_inner).get(sql).cloned();
        if let Some(statement) = known {
            return Ok(statement);
        }
        let statement = self.client.prepare(sql).await?;
        self.statements.lock().unwrap_or_else(PoisonError::into_inner).insert(sql, statement.clone());
        Ok(statement)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn class_53_names_what_the_database_has_too_little_of() {
        for (code, what) in [
            ("53000", "PostgreSQL has too few resources"),
            ("53100", "PostgreSQL has no disk space left"),
            ("53200", "PostgreSQL has no memory left"),
            ("53300", "PostgreSQL has no connection left"),
            ("53400", "a limit in the configuration of PostgreSQL is reached"),
        ] {
            assert_eq!(exhausted(&SqlState::from_code(code)), Some(what), "{code}");
        }
        for code in ["23505", "40P01", "57P01", "58030", "XX000"] {
            assert_eq!(exhausted(&SqlState::from_code(code)), None, "{code}");
        }
    }
}
