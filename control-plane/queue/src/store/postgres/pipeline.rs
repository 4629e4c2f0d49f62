//! Statements that are sent one after the other, without waiting for the results in between.
//!
//! A commit of many rows takes few statements, so most of its time would be round trips. PostgreSQL runs the
//! statements in their order, each on what the ones before have written.

use std::pin::Pin;
use std::task::Poll;

use futures_util::future::{BoxFuture, maybe_done, poll_fn};
use futures_util::{FutureExt as _, TryFutureExt as _};
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
        let results = in_order(self.steps(connection, &statements)).await;
        Ok(Results(results.into_iter().collect::<Result<_, _>>()?))
    }

    /// Begins a transaction and runs the statements.
    pub(super) async fn begin(self, connection: &Connection) -> Result<Results, Stop> {
        let statements = self.prepare(connection).await?;
        let mut steps = vec![without_rows(connection, "begin")];
        steps.extend(self.steps(connection, &statements));
        let mut rows = in_order(steps).await.into_iter().collect::<Result<Vec<_>, _>>()?;
        rows.remove(0);
        Ok(Results(rows))
    }

    /// Runs the statements and commits their transaction.
    pub(super) async fn commit(self, connection: &Connection) -> Result<Results, Stop> {
        let statements = self.prepare(connection).await?;
        let mut steps = self.steps(connection, &statements);
        steps.push(without_rows(connection, "commit"));
        let commit = steps.len() - 1;
        let results = in_order(steps).await;
        let (sent, failed) = (results.len(), results.iter().position(Result::is_err));
        let rows = results.into_iter().collect::<Result<Vec<_>, _>>();
        rows.map(Results).map_err(|error| {
            // The database has refused a statement: then the commit was a rollback.
            let is_refused = error.code().is_some() && failed != Some(commit);
            if sent <= commit || is_refused { error.into() } else { Stop::Unknown(error) }
        })
    }

    /// Before the first one is sent: their order must not depend on which are prepared.
    async fn prepare(&self, connection: &Connection) -> Result<Vec<Statement>, Stop> {
        let mut statements = Vec::with_capacity(self.statements.len());
        for (sql, _) in &self.statements {
            statements.push(connection.statement(sql).await?);
        }
        Ok(statements)
    }

    fn steps<'s>(&'s self, connection: &'s Connection, statements: &'s [Statement]) -> Vec<Step<'s>> {
        let parameters = self.statements.iter().map(|(_, parameters)| parameters);
        let steps = statements.iter().zip(parameters).map(|(statement, parameters)| {
            let step = async move {
                let parameters: Vec<&(dyn ToSql + Sync)> =
                    parameters.iter().map(|parameter| &**parameter as &(dyn ToSql + Sync)).collect();
                connection.send(statement, &parameters).await
            };
            step.boxed()
        });
        steps.collect()
    }
}

/// A statement, sent when it is polled first.
type Step<'s> = BoxFuture<'s, Result<Vec<Row>, PostgresError>>;

fn without_rows<'s>(connection: &'s Connection, sql: &'static str) -> Step<'s> {
    connection.send_batch(sql).map_ok(|()| Vec::new()).boxed()
}

/// Starts steps in their order, up to the first one that fails at once: behind a statement that cannot be
/// sent no commit must be. Waits for all that were started, and returns their results.
///
/// Joins of futures-util do not fit: of many futures they can poll some later, and an error ends them at the
/// first that is seen.
async fn in_order<T, E>(steps: Vec<BoxFuture<'_, Result<T, E>>>) -> Vec<Result<T, E>> {
    let mut steps: Vec<_> = steps.into_iter().map(maybe_done).collect();
    let mut is_start = true;
    poll_fn(move |context| {
        let (mut next, mut is_done) = (0, true);
        while let Some(step) = steps.get_mut(next) {
            let mut step = Pin::new(step);
            is_done &= step.as_mut().poll(context).is_ready();
            next += 1;
            if is_start && step.output_mut().is_some_and(|result| result.is_err()) {
                steps.truncate(next);
            }
        }
        is_start = false;
        if !is_done {
            return Poll::Pending;
        }
        Poll::Ready(steps.iter_mut().filter_map(|step| Pin::new(step).take_output()).collect())
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use futures_util::future::ready;
    use tokio::sync::oneshot;

    use super::*;

    /// More than the joins of futures-util poll in one go.
    const MANY: usize = 100;

    type Answer = oneshot::Sender<Result<usize, usize>>;

    /// Returns steps that note their start and wait for their answers.
    fn steps(started: &Mutex<Vec<usize>>) -> (Vec<Answer>, Vec<BoxFuture<'_, Result<usize, usize>>>) {
        let steps = (0..MANY).map(|number| {
            let (answer, result) = oneshot::channel();
            let step = async move {
                started.lock().unwrap().push(number);
                result.await.unwrap()
            };
            (answer, step.boxed())
        });
        steps.unzip()
    }

    #[tokio::test]
    async fn many_steps_start_at_once_and_in_order() {
        let started = Mutex::default();
        let (answers, steps) = steps(&started);
        let mut all = Box::pin(in_order(steps));
        assert!(all.as_mut().now_or_never().is_none());
        assert_eq!(*started.lock().unwrap(), (0..MANY).collect::<Vec<_>>());
        for (number, answer) in answers.into_iter().enumerate().rev() {
            assert!(all.as_mut().now_or_never().is_none(), "{number} has no answer yet");
            answer.send(Ok(number)).unwrap();
        }
        assert_eq!(all.await, (0..MANY).map(Ok).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn first_error_in_order_wins_over_an_earlier_one() {
        let started = Mutex::default();
        let (answers, steps) = steps(&started);
        let mut all = Box::pin(in_order(steps));
        assert!(all.as_mut().now_or_never().is_none());
        for (number, answer) in answers.into_iter().enumerate().rev() {
            assert!(all.as_mut().now_or_never().is_none(), "{number} has no answer yet");
            answer.send(if number < 40 { Ok(number) } else { Err(number) }).unwrap();
        }
        assert_eq!(all.await.into_iter().collect::<Result<Vec<_>, _>>(), Err(40));
    }

    #[tokio::test]
    async fn steps_behind_one_that_cannot_be_sent_do_not_start() {
        let started = Mutex::default();
        let (answers, mut steps) = steps(&started);
        steps[40] = ready(Err(40)).boxed();
        let all = in_order(steps);
        answers
            .into_iter()
            .enumerate()
            .take(40)
            .for_each(|(number, answer)| answer.send(Ok(number)).unwrap());
        let results = all.await;
        assert_eq!(*started.lock().unwrap(), (0..40).collect::<Vec<_>>());
        assert_eq!(results.into_iter().collect::<Result<Vec<_>, _>>(), Err(40));
    }
}
