//! What is said with every write, and what the answer to one says about whom it concerns.

use clap::Args;
use damper_proto::v1;

use crate::output::{message, printable};

/// So many warnings are printed; the rest is counted.
const MAX_WARNINGS: usize = 20;

/// Options of every command that changes something.
#[derive(Args, Debug)]
pub(crate) struct WriteArgs {
    /// Check everything on the server, change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Why; kept with the change
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) reason: String,
    /// Who makes the change [default: the system's user@host]
    #[arg(long, value_name = "NAME", env = "DAMPER_AUTHOR", hide_env_values = true)]
    pub(crate) author: Option<String>,
}

impl WriteArgs {
    /// The wire's form.
    pub(crate) fn options(&self) -> v1::WriteOptions {
        v1::WriteOptions {
            validate_only: self.dry_run,
            request_id: String::new(),
            reason: self.reason.clone(),
            author: self.author.clone().filter(|said| !said.is_empty()).unwrap_or_else(user_at_host),
            ..v1::WriteOptions::default()
        }
    }

    /// What follows the name of something done: that it was not really.
    pub(crate) fn suffix(&self) -> &'static str {
        if self.dry_run { " (dry run: nothing was changed)" } else { "" }
    }
}

fn user_at_host() -> String {
    let said = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let user = ["USER", "LOGNAME", "USERNAME"].into_iter().find_map(said);
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .or_else(|| ["HOSTNAME", "COMPUTERNAME"].into_iter().find_map(said));
    let user = user.or_else(owner_of_process).unwrap_or_else(|| "unknown".to_owned());
    host.map_or_else(|| user.clone(), |host| format!("{user}@{host}"))
}

/// The user as the system knows it, for shells of containers and services, which do not say it.
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

/// Warns about what was written although it deserves a look.
pub(crate) fn warn(warnings: &[String]) {
    for warning in warnings.iter().take(MAX_WARNINGS) {
        message(format_args!("warning: {warning}"));
    }
    if warnings.len() > MAX_WARNINGS {
        message(format_args!("warning: {} more", warnings.len() - MAX_WARNINGS));
    }
}

/// What deserves a look of one rule or guard: that it concerns nobody, or somebody who can not carry it out, and
/// what the server found.
pub(crate) fn warnings(words: &str, reach: Option<&v1::RuleReach>, findings: &[v1::Finding]) -> Vec<String> {
    let mut warnings = reach.map_or_else(Vec::new, |reach| of_reach(words, reach));
    warnings.extend(findings.iter().map(|v1::Finding { subject, field, message, .. }| {
        let about = [subject, field].map(|part| printable(part)).into_iter().filter(|part| !part.is_empty());
        about.chain([printable(message)]).collect::<Vec<_>>().join(": ")
    }));
    warnings
}

fn of_reach(words: &str, reach: &v1::RuleReach) -> Vec<String> {
    let v1::RuleReach { routes, clients, clients_lacking_features, nearest } = reach;
    let mut warnings = Vec::new();
    let nobody = match (routes, clients) {
        (0, 0) => Some("no known route and no connected client"),
        (0, _) => Some("no known route"),
        (_, 0) => Some("no connected client"),
        _ => None,
    };
    if let Some(nobody) = nobody {
        let nearest = match nearest.as_slice() {
            [] => String::new(),
            names => format!("; nearest: {}", printable(&names.join(", "))),
        };
        warnings.push(format!("{words}: {nobody} matches{nearest}"));
    }
    if *clients_lacking_features > 0 {
        let off =
            if words.starts_with("guard ") { "rules that it cuts are off there" } else { "it is off there" };
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
    fn rule_that_concerns_nobody_is_warned_about_with_the_nearest_names() {
        let reach =
            v1::RuleReach { nearest: vec!["checkout".into(), "catalog".into()], ..Default::default() };
        assert_eq!(
            warnings("KEY", Some(&reach), &[]),
            ["KEY: no known route and no connected client matches; nearest: checkout, catalog"]
        );
    }

    #[test]
    fn clients_that_can_not_carry_out_a_rule_are_counted() {
        let reach = v1::RuleReach { routes: 1, clients: 3, clients_lacking_features: 2, nearest: Vec::new() };
        assert_eq!(
            warnings("KEY", Some(&reach), &[]),
            ["KEY: 2 of 3 clients lack a feature that it needs; it is off there"]
        );
        let all = v1::RuleReach { routes: 1, clients: 1, ..Default::default() };
        assert!(warnings("KEY", Some(&all), &[]).is_empty());
    }

    #[test]
    fn what_the_server_found_is_told_with_subject_and_field() {
        let found = v1::Finding {
            code: "guard_cuts".into(),
            subject: "a * b *".into(),
            field: "policy.hedge".into(),
            message: "is forbidden\x1b".into(),
            ..Default::default()
        };
        let rest = v1::Finding { message: "and 7 more".into(), ..Default::default() };
        assert_eq!(
            warnings("KEY", None, &[found, rest]),
            ["a * b *: policy.hedge: is forbidden\\u{1b}", "and 7 more"]
        );
    }
}
