//! `damper token list`.

use clap::Args;
use damper_proto::v1;

use super::{end, role_name};
use crate::error::CliError;
use crate::output::figures::{age, now};
use crate::output::{Align, Table, show};
use crate::remote::client::Client;
use crate::remote::session::Session;

/// Arguments of `damper token list`.
#[derive(Args, Debug)]
pub(crate) struct ListArgs {}

/// Prints the tokens.
pub(crate) async fn run(session: &Session, ListArgs {}: ListArgs) -> Result<(), CliError> {
    let client = Client::connect(&session.server).await?;
    let listed = client.answer(client.tokens.clone().list_tokens(v1::ListTokensRequest {})).await?;
    show(session.format, &listed, || table(&listed.tokens).to_string())
}

fn table(tokens: &[v1::Token]) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("ID", Left),
        ("NAME", Left),
        ("ROLE", Left),
        ("CALLERS", Left),
        ("CALLEES", Left),
        ("AGE", Right),
        ("BY", Left),
        ("UNTIL", Left),
    ]);
    let now = now();
    for token in tokens {
        let scope = token.scope.clone().unwrap_or_default();
        let is_over = token.expires_at.is_some_and(|end| end.seconds <= now);
        table.row([
            token.id.clone(),
            token.name.clone(),
            role_name(token.role()).to_owned(),
            scope.callers.join(","),
            scope.callees.join(","),
            age(token.created_at.as_ref(), now),
            token.created_by.clone(),
            if is_over { "expired".to_owned() } else { end(token.expires_at) },
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endless_and_expired_tokens_differ() {
        let token = |name: &str, expires_at: Option<i64>| v1::Token {
            id: "0123456789abcdef".to_owned(),
            name: name.to_owned(),
            role: v1::Role::Editor.into(),
            scope: Some(v1::Scope { callers: vec!["shop".to_owned(), "cart*".to_owned()], callees: vec![] }),
            expires_at: expires_at.map(|seconds| prost_types::Timestamp { seconds, nanos: 5 }),
            ..Default::default()
        };
        let later = now() + 86_400;
        let shown = table(&[token("a", None), token("b", Some(1)), token("c", Some(later))]).to_string();
        let ends: Vec<&str> =
            shown.lines().skip(1).filter_map(|line| line.split_whitespace().last()).collect();
        let later = prost_types::Timestamp { seconds: later, nanos: 0 }.to_string();
        assert_eq!(ends, ["never", "expired", later.as_str()]);
        assert!(shown.contains("shop,cart*"), "{shown}");
    }
}
