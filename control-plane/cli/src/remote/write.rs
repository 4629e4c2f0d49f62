//! Options of every write, and the warnings in its response.

use clap::Args;
use damper_core::lint::codes::CLIENTS_LACK_FEATURE;
use damper_proto::v1;

use crate::error::{CliError, print_message};
use crate::output::findings;
use crate::output::printable;
use crate::remote::client::Client;
use crate::remote::wait::WaitArgs;

/// Most warnings printed; the rest is counted.
const MAX_WARNINGS: usize = 20;

/// Options of every command that changes something.
#[derive(Args, Debug)]
pub(crate) struct WriteArgs {
    /// Let the server check the command, but change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Reason of the change, recorded in the history
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) reason: String,
    /// Write even if a request may then cause more attempts than the server allows (--max-amplification);
    /// requires --reason
    #[arg(long, requires = "reason")]
    pub(crate) force: bool,
    /// Author of the change, recorded in the history [default: the system's user@host]
    #[arg(long, value_name = "NAME", env = "DAMPER_AUTHOR", hide_env_values = true)]
    pub(crate) author: Option<String>,
    /// Idempotency key: the same command, repeated with this key within 24 h, changes nothing and returns the
    /// first result
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    request_id: String,
    #[command(flatten)]
    wait: WaitArgs,
}

impl WriteArgs {
    /// Returns the wire form.
    pub(crate) fn options(&self) -> v1::WriteOptions {
        v1::WriteOptions {
            validate_only: self.dry_run,
            request_id: self.request_id.clone(),
            reason: self.reason.clone(),
            force: self.force,
            author: author_or_user(self.author.clone()),
            ..v1::WriteOptions::default()
        }
    }

    /// Waits for the delivery of a revision if requested; `None` = nothing was written.
    pub(crate) async fn delivered(&self, client: &Client, revision: Option<u64>) -> Result<(), CliError> {
        if self.dry_run { Ok(()) } else { self.wait.delivered(client, revision).await }
    }

    /// True if the command waits for delivery.
    pub(crate) fn waits(&self) -> bool {
        self.wait.is_wanted()
    }

    /// Returns the suffix of a printed result: empty unless this is a dry run.
    pub(crate) fn suffix(&self) -> &'static str {
        if self.dry_run { " (dry run: nothing was changed)" } else { "" }
    }
}

/// Returns the given author; the user of the system if there is none, or an empty one from the environment.
pub(crate) fn author_or_user(given: Option<String>) -> String {
    given.filter(|author| !author.is_empty()).unwrap_or_else(user_at_host)
}

/// Returns the user who runs the command.
fn user_at_host() -> String {
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let user = ["USER", "LOGNAME", "USERNAME"].into_iter().find_map(variable);
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .or_else(|| ["HOSTNAME", "COMPUTERNAME"].into_iter().find_map(variable));
    let user = user.or_else(owner_of_process).unwrap_or_else(|| "unknown".to_owned());
    host.map_or_else(|| user.clone(), |host| format!("{user}@{host}"))
}

/// Returns the user of the process, for shells of containers and services that do not set it.
#[cfg(unix)]
fn owner_of_process() -> Option<String> {
    use std::os::unix::fs::MetadataExt as _;
    let uid = std::fs::metadata("/proc/self").ok()?.uid().to_string();
    let users = std::fs::read_to_string("/etc/passwd").ok()?;
    let owner = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1) == Some(uid.as_str())).then(|| name.to_owned())
    });
    Some(owner.unwrap_or_else(|| format!("uid-{uid}")))
}

#[cfg(not(unix))]
fn owner_of_process() -> Option<String> {
    None
}

/// Prints warnings about a write.
pub(crate) fn warn(warnings: &[String]) {
    for warning in warnings.iter().take(MAX_WARNINGS) {
        print_message(warning);
    }
    if warnings.len() > MAX_WARNINGS {
        print_message(format_args!("warning: {} more", warnings.len() - MAX_WARNINGS));
    }
}

/// Returns warnings about one rule or guard: no route or client matches, clients lack a feature, findings of
/// the server.
pub(crate) fn warnings(words: &str, reach: Option<&v1::RuleReach>, found: &[v1::Finding]) -> Vec<String> {
    let reached = reach.map_or_else(Vec::new, |reach| {
        // The finding contains the same, with a remedy.
        let is_reported = found.iter().any(|found| found.code == CLIENTS_LACK_FEATURE.code);
        let lacking = if is_reported { 0 } else { reach.clients_lacking_features };
        of_reach(words, &v1::RuleReach { clients_lacking_features: lacking, ..reach.clone() })
    });
    let reached = reached.into_iter().map(|warning| format!("warning: {warning}"));
    reached.chain(found.iter().map(findings::of_server)).collect()
}

fn of_reach(words: &str, reach: &v1::RuleReach) -> Vec<String> {
    let v1::RuleReach { routes, clients, clients_lacking_features, nearest } = reach;
    let mut warnings = Vec::new();
    let unmatched = match (routes, clients) {
        (0, 0) => Some("no known route and no connected client"),
        (0, _) => Some("no known route"),
        (_, 0) => Some("no connected client"),
        _ => None,
    };
    if let Some(unmatched) = unmatched {
        let nearest = match nearest.as_slice() {
            [] => String::new(),
            names => format!("; nearest: {}", printable(&names.join(", "))),
        };
        warnings.push(format!("{words}: {unmatched} matches{nearest}"));
    }
    if *clients_lacking_features > 0 {
        let off = match words.split(' ').next() {
            Some("guard") => "rules that it cuts are off there",
            Some("kill") => "they ignore it",
            _ => "it is off there",
        };
        warnings.push(format!(
            "{words}: {clients_lacking_features} of {clients} clients lack a feature that it needs; {off}"
        ));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_without_a_match_warns_with_nearest_names() {
        let reach =
            v1::RuleReach { nearest: vec!["checkout".into(), "catalog".into()], ..Default::default() };
        assert_eq!(
            warnings("KEY", Some(&reach), &[]),
            ["warning: KEY: no known route and no connected client matches; nearest: checkout, catalog"]
        );
    }

    #[test]
    fn clients_lacking_a_feature_are_counted() {
        let reach = v1::RuleReach { routes: 1, clients: 3, clients_lacking_features: 2, nearest: Vec::new() };
        assert_eq!(
            warnings("KEY", Some(&reach), &[]),
            ["warning: KEY: 2 of 3 clients lack a feature that it needs; it is off there"]
        );
        let all = v1::RuleReach { routes: 1, clients: 1, ..Default::default() };
        assert!(warnings("KEY", Some(&all), &[]).is_empty());
    }

    #[test]
    fn lacking_clients_are_reported_once() {
        let reach = v1::RuleReach { routes: 1, clients: 3, clients_lacking_features: 2, nearest: Vec::new() };
        let code = CLIENTS_LACK_FEATURE.code.to_owned();
        let found = v1::Finding { code, message: "2 of 3".into(), ..Default::default() };
        let is_reported = warnings("KEY", Some(&reach), &[found]);
        assert_eq!(is_reported, ["warning clients_lack_feature: 2 of 3"]);
    }

    #[test]
    fn server_findings_have_subject_and_field() {
        let found = v1::Finding {
            code: "guard_cuts".into(),
            subject: "a * b *".into(),
            field: "policy.hedge".into(),
            message: "is forbidden\x1b".into(),
            severity: v1::Severity::Danger.into(),
            remedy: "Ask.".into(),
        };
        let rest = v1::Finding { message: "and 7 more".into(), ..Default::default() };
        assert_eq!(
            warnings("KEY", None, &[found, rest]),
            [
                "critical guard_cuts a * b * policy.hedge: is forbidden\\u{1b}\n  -> Ask.",
                "warning: and 7 more"
            ]
        );
    }
}
