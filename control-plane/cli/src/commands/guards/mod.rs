//! `damper guards`: single guards by key.

mod delete;
mod get;
mod list;
mod put;

use std::time::Duration;

use clap::Subcommand;
use damper_core::fault::Millis;
use damper_proto::{convert, manifest, v1};

use crate::error::CliError;
use crate::input::filter::mode_name;
use crate::input::key;
use crate::output::figures::{age, now};
use crate::output::{self, Align, Format, Table};
use crate::remote::session::Session;

/// Commands of guards.
#[derive(Debug, Subcommand)]
pub(crate) enum GuardsCommand {
    /// Show one guard
    Get(get::GetArgs),
    /// List guards
    List(list::ListArgs),
    /// Create or replace the guard of one manifest
    Put(put::PutArgs),
    /// Delete one guard
    Delete(delete::DeleteArgs),
}

/// Runs the command.
pub(crate) async fn run(session: &Session, command: GuardsCommand) -> Result<(), CliError> {
    match command {
        GuardsCommand::Get(args) => get::run(session, args).await,
        GuardsCommand::List(args) => list::run(session, args).await,
        GuardsCommand::Put(args) => put::run(session, args).await,
        GuardsCommand::Delete(args) => delete::run(session, args).await,
    }
}

/// Prints guards; as YAML and JSON in the form of `apply -f`.
fn show(format: Format, guards: &[v1::Guard]) -> Result<(), CliError> {
    match format {
        Format::Table => output::data(&table(guards).to_string()),
        Format::Yaml => output::data(&manifest::to_yaml(guards)),
        Format::Json => output::data(&(manifest::to_json(guards) + "\n")),
    }
}

fn table(guards: &[v1::Guard]) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("CALLER", Left),
        ("CLUSTER", Left),
        ("CALLEE", Left),
        ("METHOD", Left),
        ("CEILING", Left),
        ("OWNER", Left),
        ("REVISION", Right),
        ("AGE", Right),
        ("BY", Left),
    ]);
    let now = now();
    for guard in guards {
        let figures = [
            ceiling(guard),
            guard.owner.clone(),
            guard.revision.to_string(),
            age(guard.updated_at.as_ref(), now),
            guard.updated_by.clone(),
        ];
        table.row(key::columns(guard.key.as_ref()).into_iter().chain(figures));
    }
    table
}

/// Returns the ceilings of a guard in one cell.
fn ceiling(guard: &v1::Guard) -> String {
    // A newer server may send unknown ceilings.
    let Ok(guard) = convert::guard(guard) else { return "unknown".to_owned() };
    let damper_core::Ceiling {
        max_attempts,
        forbid_hedge,
        codes,
        max_retry_breaker_ratio,
        min_per_attempt_timeout,
        repeat_limit,
    } = *guard.ceiling();
    let codes = codes.map(|codes| match codes.iter().map(|code| code.name()).collect::<Vec<_>>() {
        none if none.is_empty() => "no codes".to_owned(),
        names => format!("only {}", names.join("+")),
    });
    let limits = [
        max_attempts.map(|most| format!("attempts<={most}")),
        forbid_hedge.then(|| "no hedges".to_owned()),
        codes,
        max_retry_breaker_ratio.map(|ratio| format!("breaker<={ratio}")),
        min_per_attempt_timeout.map(|least: Duration| format!("attempt timeout>={}", Millis(least))),
        repeat_limit.map(|limit| {
            let mode = mode_name(v1::Mode::from(limit.mode).into());
            format!("retries<={} ({mode})", limit.ratio)
        }),
    ];
    limits.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ceiling_has_its_words() {
        let text = "kind: Guard\nkey: { caller_service: '*', caller_cluster: '*', callee_service: b, \
                    callee_method: '*' }\nceiling: { max_attempts: 3, hedge: forbid, \
                    codes: { allow: [UNAVAILABLE, ABORTED] }, max_retry_breaker_ratio: 0.2, \
                    min_per_attempt_timeout: 50ms, repeat_limit: { mode: enforce } }\n";
        let manifest::Manifest::Guard(guard) = manifest::parse(text).unwrap().remove(0).manifest else {
            panic!("no guard")
        };
        assert_eq!(
            ceiling(&guard),
            "attempts<=3, no hedges, only ABORTED+UNAVAILABLE, breaker<=0.2, attempt timeout>=50ms, \
             retries<=0.1 (enforce)"
        );
        let nothing = v1::Ceiling { codes: Some(v1::Codes::default()), ..Default::default() };
        assert_eq!(ceiling(&v1::Guard { ceiling: Some(nothing), ..guard }), "unknown");
    }
}
