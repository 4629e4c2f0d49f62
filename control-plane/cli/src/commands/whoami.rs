//! `damper whoami`: the authenticated identity and its permissions.

use clap::Args;
use damper_proto::v1;

use super::token::{end, role_name};
use crate::error::CliError;
use crate::output::{printable, show};
use crate::remote::client::Client;
use crate::remote::session::Session;

/// Arguments of `damper whoami`.
#[derive(Args, Debug)]
pub(crate) struct WhoAmIArgs {}

/// Prints the identity.
pub(crate) async fn run(session: &Session, WhoAmIArgs {}: WhoAmIArgs) -> Result<(), CliError> {
    let client = Client::connect(&session.server).await?;
    let who = client.answer(client.tokens.clone().who_am_i(v1::WhoAmIRequest {})).await?;
    show(session.format, &who, || identity_text(&who))
}

fn identity_text(who: &v1::WhoAmIResponse) -> String {
    if !who.tokens_required {
        return "unauthenticated: this server requires no tokens, all permissions\n".to_owned();
    }
    let scope = who.scope.clone().unwrap_or_default();
    let limits = [("callers", &scope.callers), ("callees", &scope.callees)];
    let limits = limits.into_iter().filter(|(_, names)| !names.is_empty());
    let limits: Vec<String> = limits.map(|(what, names)| format!("{what} {}", names.join(", "))).collect();
    let limits = if limits.is_empty() { "no limits".to_owned() } else { limits.join("; ") };
    let lines = [
        who.principal.clone(),
        format!("role: {}", role_name(who.role())),
        format!("scope: {limits}"),
        format!("until: {}", end(who.expires_at)),
    ];
    lines.iter().map(|line| printable(line) + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_and_permissions_take_four_lines() {
        let who = v1::WhoAmIResponse {
            principal: "token ci\x1b (0123456789abcdef)".to_owned(),
            role: v1::Role::Editor.into(),
            scope: Some(v1::Scope { callers: vec!["shop".to_owned()], callees: vec!["stock*".to_owned()] }),
            tokens_required: true,
            ..Default::default()
        };
        assert_eq!(
            identity_text(&who),
            "token ci\\u{1b} (0123456789abcdef)\nrole: editor\nscope: callers shop; callees stock*\nuntil: never\n"
        );
        assert!(identity_text(&v1::WhoAmIResponse::default()).starts_with("unauthenticated"));
    }
}
