//! Statements that are sent one after the other, without waiting for the results in between.
//!
//! A commit of many rows takes few statements, so most of its time would be round trips. PostgreSQL runs the
//! statements in their order, each on what the ones before have written.

use futures_util::future::{join, try_join_all};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error as PostgresError, Row, Statement};

use super::connection::{Connection, Stop};

/// A parameter of a statement.
pub(super) type Parameter<'a> = Box<dyn ToSql + Sync + Send + 'a>;

/// Makes a list of parameters.
macro_rules! parameters {
    ($($value:expr),* $(,)?) => {
        vec![$(Box::new($value) as $crate::store::postgres::pipeline::Parameter<'_>),*]
    };
}
pub(super) use parameters;

/// Statements, in their order.
#[derive(Default)]
pub(super) struct Pipeline<'a> {
    statements: Vec<(&'static str, Vec<Parameter<'a>>)>,
}

/// Place of a statement's rows in the results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place(usize);

/// The rows of each statement.
pub(super) struct Results(Vec<Vec<Row>>);

impl Results {
    pub(super) fn rows(&self, Place(place): Place) -> &[Row] {
        self.0.get(place).map_or(&[], Vec::as_slice)
    }
}

impl<'a> Pipeline<'a> {
    /// Adds a statement.
    pub(super) fn add(&mut self, sql: &'static str, parameters: Vec<Parameter<'a>>) -> Place {
        self.statements.push((sql, parameters));
        Place(self.statements.len() - 1)
    }

    /// Runs the statements. Errors with the error of the first one that fails; the ones behind it fail too.
    pub(super) async fn run(self, connection: &Connection) -> Result<Results, Stop> {
        let statements = self.prepare(connection).await?;
        Ok(Results(self.send(connection, &statements).await?))
    }

    /// Begins a transaction and runs the statements.
    pub(super) async fn begin(self, connection: &Connection) -> Result<Results, Stop> {
        let statements = self.prepare(connection).await?;
        let (begun, rows) = join(connection.send_batch("begin"), self.send(connection, &statements)).await;
        begun?;
        Ok(Results(rows?))
    }

    /// Runs the statements and commits their transaction.
    pub(super) async fn commit(self, connection: &Connection) -> Result<Results, Stop> {
        let statements = self.prepare(connection).await?;
        let (rows, committed) =
            join(self.send(connection, &statements), connection.send_batch("commit")).await;
        match (rows, committed) {
            (Ok(rows), Ok(())) => Ok(Results(rows)),
            (Ok(_), Err(error)) => Err(Stop::Unknown(error)),
            // The database has refused a statement: then the commit was a rollback.
            (Err(error), _) if error.code().is_some() => Err(error.into()),
            (Err(error), _) => Err(Stop::Unknown(error)),
        }
    }

    /// Before the first one is sent: their order must not depend on which are prepared.
    async fn prepare(&self, connection: &Connection) -> Result<Vec<Statement>, Stop> {
        let mut statements = Vec::with_capacity(self.statements.len());
        for (sql, _) in &self.statements {
            statements.push(connection.statement(sql).await?);
        }
        Ok(statements)
    }

    async fn send(
        &self,
        connection: &Connection,
        statements: &[Statement],
    ) -> Result<Vec<Vec<Row>>, PostgresError> {
        let parameters = self.statements.iter().map(|(_, parameters)| parameters);
        // Each is sent when it is polled first, which is in this order.
        let sent = statements.iter().zip(parameters).map(|(statement, parameters)| async move {
            let parameters: Vec<&(dyn ToSql + Sync)> =
                parameters.iter().map(|parameter| &**parameter as &(dyn ToSql + Sync)).collect();
            connection.send(statement, &parameters).await
        });
        try_join_all(sent).await
    }
}
