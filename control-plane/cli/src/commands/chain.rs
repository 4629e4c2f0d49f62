//! `damper chain`: edges of the call graph with their amplification, and the worst path, measured and
//! possible.

use std::time::Duration;

use clap::Args;
use damper_proto::v1;

use crate::error::CliError;
use crate::output::amplification;
use crate::output::figures::share;
use crate::output::{Align, Table, printable, show, warn_missing_replicas};
use crate::remote::client::Client;
use crate::remote::session::Session;

/// Arguments of `damper chain`.
#[derive(Args, Debug)]
pub(crate) struct ChainArgs {
    /// Show only the calls that lead to this service or come from it, directly or through other services
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    service: String,
    /// Time over which the rates are averaged: 5s, 10s or 1m [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    window: Option<Duration>,
}

/// Prints the graph.
pub(crate) async fn run(session: &Session, args: ChainArgs) -> Result<(), CliError> {
    let client = Client::connect(&session.server).await?;
    let window = args.window.map(prost_types::Duration::try_from).transpose();
    let window = window.map_err(|_| CliError::Usage("--window: must be 5s, 10s or 1m".to_owned()))?;
    let request = v1::GetChainRequest { service: args.service, window, ..Default::default() };
    let response = client.answer(client.fleet.clone().get_chain(request)).await?;
    warn_missing_replicas(&response.missing_replicas);
    show(session.format, &response, || text(&response))
}

fn text(response: &v1::GetChainResponse) -> String {
    let mut text = edges(&response.edges).to_string();
    if let Some(v1::MeasuredPath { services, amplification }) = &response.worst_measured {
        let path = printable(&services.join(" -> "));
        text.push_str(&format!(
            "\nmeasured  {path}: {amplification:.2} attempts on the last hop per request\n"
        ));
    }
    if let Some(bound) = &response.worst_possible {
        text.push_str(&format!(
            "possible  {}{}\n",
            amplification::chain_text(bound),
            limit_note(bound.sends, response.limit)
        ));
        text.extend(amplification::hop_lines(bound).into_iter().map(|hop| format!("          {hop}\n")));
    }
    text
}

/// Compares the bound with the server's limit; 0 from an older server.
fn limit_note(sends: u64, limit: u32) -> String {
    match limit {
        0 => String::new(),
        limit if sends > u64::from(limit) => format!(", above the limit of {limit}"),
        limit => format!(" (limit {limit})"),
    }
}

fn edges(edges: &[v1::Edge]) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("CALLER", Left),
        ("CALLEE", Left),
        ("CALLS/S", Right),
        ("ATTEMPTS/S", Right),
        ("AMPLIFICATION", Right),
        ("AT MOST", Right),
        ("ERRORS", Right),
        ("ROUTES", Right),
        ("WITHOUT RULE", Right),
        ("COVERAGE", Right),
    ]);
    for edge in edges {
        let measured = edge.amplification > 0.0;
        table.row([
            edge.caller_service.clone(),
            edge.callee_service.clone(),
            format!("{:.1}", edge.calls_per_s),
            format!("{:.1}", edge.attempts_per_s),
            if measured { format!("{:.2}", edge.amplification) } else { String::new() },
            edge.max_attempts.to_string(),
            share(edge.error_share),
            edge.routes.to_string(),
            edge.routes_without_rule.to_string(),
            share(edge.chain_coverage),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_and_paths_are_shown_and_nothing_measured_is_no_figure() {
        let edge = v1::Edge {
            caller_service: "a".into(),
            callee_service: "b\x1b".into(),
            chain_coverage: 1.0,
            ..Default::default()
        };
        let path = v1::MeasuredPath { services: vec!["a".into(), "b".into()], amplification: 1.25 };
        let response = v1::GetChainResponse {
            edges: vec![edge],
            worst_measured: Some(path),
            worst_possible: None,
            ..Default::default()
        };
        let text = text(&response);
        assert!(text.contains("b\\u{1b}") && text.contains("100.0%"), "{text}");
        assert!(text.contains("  -  "), "{text}");
        assert_eq!(
            [limit_note(27, 16), limit_note(16, 16), limit_note(9, 0)],
            [", above the limit of 16", " (limit 16)", ""]
        );
        assert!(text.contains("measured  a -> b: 1.25 attempts on the last hop per request"), "{text}");
    }
}
