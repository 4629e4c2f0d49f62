//! `damper explain KEY`: the rule of a route, the rejected candidates, and the resulting bounds.

use clap::Args;
use damper_proto::{manifest, v1};

use crate::error::CliError;
use crate::input::filter::mode_name;
use crate::input::key::{self, Route};
use crate::output::amplification;
use crate::output::findings;
use crate::output::{printable, show};
use crate::remote::client::Client;
use crate::remote::session::Session;

/// Arguments of `damper explain`.
#[derive(Args, Debug)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    route: Route,
}

/// Explains one route.
pub(crate) async fn run(session: &Session, args: ExplainArgs) -> Result<(), CliError> {
    let route = args.route.key()?;
    let client = Client::connect(&session.server).await?;
    let request = v1::ExplainRequest { route: Some(route.clone()) };
    let response = client.answer(client.rules.clone().explain(request)).await?;
    show(session.format, &response, || text(&route, &response))
}

fn text(route: &v1::RouteKey, response: &v1::ExplainResponse) -> String {
    let mut text = format!("route   {}\n", key::route_columns(Some(route)).join(" "));
    match &response.winner {
        None => text.push_str("rule    none: calls pass, measured only\n"),
        Some(rule) => text.push_str(&format!("rule    {}\n", named(rule))),
    }
    for cut in &response.cuts {
        text.push_str(&format!("cut     {}\n", printable(&cut_text(cut))));
    }
    if let Some(bound) = &response.bound {
        text.push_str(&format!("bound   {}\n", amplification::bound_text(bound)));
    }
    if let Some(chain) = &response.chain {
        text.push_str(&format!("chain   {}\n", amplification::chain_text(chain)));
        text.extend(amplification::hop_lines(chain).into_iter().map(|hop| format!("        {hop}\n")));
    }
    for v1::Loser { rule, reason } in &response.losers {
        let rule = rule.as_ref().map_or_else(String::new, named);
        text.push_str(&format!("unused  {rule}: {}\n", printable(reason)));
    }
    for note in &response.notes {
        text.push_str(&format!("note    {}\n", printable(note)));
    }
    for found in &response.findings {
        text.push_str(&format!("found   {}\n", findings::of_server(found).replace('\n', "\n        ")));
    }
    if let Some(policy) = &response.effective {
        let as_left = if response.cuts.is_empty() { "" } else { " and the limits of guards" };
        text.push_str(&format!("policy  with all defaults{as_left}:\n"));
        for line in manifest::yaml(policy).lines() {
            text.push_str(&format!("  {line}\n"));
        }
    }
    text
}

fn named(rule: &v1::Rule) -> String {
    let mode = mode_name(rule.policy.as_ref().map_or(0, |policy| policy.mode));
    let owner = match rule.owner.as_str() {
        "" => String::new(),
        owner => format!(", owner {}", printable(owner)),
    };
    format!("{} ({mode}, revision {}{owner})", key::words(rule.key.as_ref()), rule.revision)
}

fn cut_text(v1::Cut { guard, owner, field, problem }: &v1::Cut) -> String {
    let asked = if owner.is_empty() { String::new() } else { format!(" (owner {owner})") };
    format!("policy.{field}: {problem}, the ceiling of guard {}{asked}", key::words(guard.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn route_without_a_rule_passes() {
        let text = text(&v1::RouteKey::default(), &v1::ExplainResponse::default());
        assert!(text.contains("rule    none: calls pass"), "{text}");
    }
}
