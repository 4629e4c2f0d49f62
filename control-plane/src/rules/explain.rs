//! Why which rule applies to a route, and what it amounts to.

use damper_core::{Bound, Explanation, Mode};
use damper_proto::{convert, v1};

use crate::errors::Error;
use crate::shared::Shared;
use crate::table::TableView;

pub(super) async fn explain(
    shared: &Shared,
    request: v1::ExplainRequest,
) -> Result<v1::ExplainResponse, Error> {
    let Some(route) = &request.route else { return Err(Error::fault("route", "must be given")) };
    let route = convert::route_key(route).map_err(|faults| Error::at("route", faults))?;
    let table = shared.table();
    let explanation = table.explain(&route);
    let policy = explanation.winner.as_ref().map(|rule| rule.policy());
    let bound = Bound::of(policy);
    let stored = |rule: &damper_core::Rule| {
        table.stored(rule.pattern()).map_or_else(|| rule.into(), |stored| stored.wire.clone())
    };
    Ok(v1::ExplainResponse {
        winner: explanation.winner.as_deref().map(stored),
        losers: explanation
            .losers
            .iter()
            .map(|loser| v1::Loser { rule: Some(stored(&loser.rule)), reason: loser.reason.clone() })
            .collect(),
        effective: policy.map(Into::into),
        bound: Some(v1::Bound {
            max_attempts: bound.max_attempts,
            steady_attempts_per_call: bound.steady.map_or(0.0, |steady| f64::from(steady.bp()) / 1e4),
        }),
        revision: table.revision(),
        notes: notes(&explanation, bound, &table),
    })
}

fn notes(explanation: &Explanation, bound: Bound, table: &TableView) -> Vec<String> {
    let mut notes = Vec::new();
    match &explanation.winner {
        None => notes.push("no rule matches: calls are sent once and counted".to_owned()),
        Some(winner) => {
            notes.push(format!("rule {} applies, whole; nothing is merged", winner.pattern()));
            match winner.policy().mode {
                Mode::Off => notes.push("its mode is off: calls pass untouched".to_owned()),
                Mode::Observe => {
                    notes.push(
                        "its mode is observe: decisions are made and counted, none is carried out".to_owned(),
                    );
                }
                Mode::Enforce => notes.push(amount(bound)),
            }
        }
    }
    let lost = explanation
        .losers
        .iter()
        .map(|loser| format!("rule {} lost: {}", loser.rule.pattern(), loser.reason));
    notes.extend(lost);
    if table.stale_since.is_some() {
        notes.push("the store does not answer: newer rules may exist".to_owned());
    }
    notes
}

fn amount(bound: Bound) -> String {
    let most = bound.max_attempts;
    match bound.steady {
        _ if most <= 1 => "calls are sent once".to_owned(),
        Some(steady) => {
            format!("at most {most} attempts per call, {steady} in the long run while everything fails")
        }
        None => format!(
            "at most {most} attempts per call, however long everything fails: its retry breaker is off"
        ),
    }
}
