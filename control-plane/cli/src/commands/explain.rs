//! `damper explain KEY`: which rule applies to a route, why the others do not, and what it amounts to.

use clap::Args;
use damper_proto::{manifest, v1};

use crate::Session;
use crate::client::Client;
use crate::exit::Error;
use crate::filter::mode_name;
use crate::key::{self, Key};
use crate::output::{printable, show};

/// Arguments of `damper explain`.
#[derive(Args, Debug)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    key: Key,
}

/// Explains one route.
pub(crate) async fn run(session: &Session, args: ExplainArgs) -> Result<(), Error> {
    let route = args.key.route()?;
    let client = Client::connect(&session.server).await?;
    let request = v1::ExplainRequest { route: Some(route.clone()) };
    let response = client.answer(client.rules.clone().explain(request)).await?;
    show(session.format, &response, || text(&route, &response))
}

fn text(route: &v1::RouteKey, response: &v1::ExplainResponse) -> String {
    let mut text = format!("route   {}\n", key::route_columns(Some(route)).join(" "));
    match &response.winner {
        None => text.push_str("rule    none: calls pass and are counted\n"),
        Some(rule) => text.push_str(&format!("rule    {}\n", named(rule))),
    }
    if let Some(bound) = &response.bound {
        text.push_str(&format!("bound   {}\n", bound_in_words(bound)));
    }
    for v1::Loser { rule, reason } in &response.losers {
        let rule = rule.as_ref().map_or_else(String::new, named);
        text.push_str(&format!("lost    {rule}: {}\n", printable(reason)));
    }
    for note in &response.notes {
        text.push_str(&format!("note    {}\n", printable(note)));
    }
    if let Some(policy) = &response.effective {
        text.push_str("policy  with every default written out:\n");
        for line in manifest::yaml(policy).lines() {
            text.push_str(&format!("  {line}\n"));
        }
    }
    text
}

fn named(rule: &v1::Rule) -> String {
    let mode = mode_name(rule.policy.as_ref().map_or(0, |policy| policy.mode));
    format!("{} ({mode}, revision {})", key::words(rule.key.as_ref()), rule.revision)
}

fn bound_in_words(bound: &v1::Bound) -> String {
    let v1::Bound { max_attempts, steady_attempts_per_call: steady } = *bound;
    let most = if max_attempts == 1 {
        return "1 attempt per call".to_owned();
    } else {
        format!("at most {max_attempts} attempts per call")
    };
    if steady > 0.0 {
        format!("{most}, {steady} in the long run while everything fails")
    } else {
        format!("{most}, also in the long run while everything fails")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn route_without_a_rule_is_said_to_pass() {
        let text = text(&v1::RouteKey::default(), &v1::ExplainResponse::default());
        assert!(text.contains("rule    none: calls pass"), "{text}");
    }

    #[test]
    fn bound_is_told_in_words() {
        let bound = |max_attempts, steady_attempts_per_call| {
            bound_in_words(&v1::Bound { max_attempts, steady_attempts_per_call })
        };
        assert_eq!(bound(1, 1.0), "1 attempt per call");
        assert_eq!(bound(3, 1.1), "at most 3 attempts per call, 1.1 in the long run while everything fails");
        assert_eq!(bound(3, 0.0), "at most 3 attempts per call, also in the long run while everything fails");
    }
}
