//! `damper doctor`: problems of the fleet, with remedies.
//!
//! Reports the number of checks. Ends with 79 from the requested severity on, for scripts and pipelines.

use clap::Args;
use damper_proto::v1;

use crate::error::{CliError, print_message};
use crate::output::figures::many;
use crate::output::findings::{self, SeverityFilter};
use crate::output::{Format, printable, show};
use crate::remote::client::Client;
use crate::remote::session::Session;

/// Arguments of `damper doctor`.
#[derive(Args, Debug)]
#[command(after_help = "Exit status: 0 nothing at or above the severity, 79 findings.\n\
    docs/findings.md explains each code.")]
pub(crate) struct DoctorArgs {
    /// Check only this service: its processes, routes and rules
    #[arg(long, value_name = "SERVICE", default_value = "", hide_default_value = true)]
    service: String,
    #[command(flatten)]
    minded: SeverityFilter,
    /// List all checks, also those without a finding
    #[arg(short, long)]
    verbose: bool,
}

/// Prints the findings.
pub(crate) async fn run(session: &Session, args: DoctorArgs) -> Result<(), CliError> {
    args.minded.check(&damper_control_plane::diagnosis_codes().collect::<Vec<_>>())?;
    let client = Client::connect(&session.server).await?;
    let request = v1::DiagnoseRequest { service: args.service, window: None };
    let mut response = client.answer(client.fleet.clone().diagnose(request)).await?;
    response.findings.retain(|found| !args.minded.allows(&found.code));
    show(session.format, &response, || text(&response, args.verbose))?;
    let severities = || response.findings.iter().map(|found| findings::severity(found.severity()));
    if session.format == Format::Table {
        print_message(format_args!("{}: {}", checks(&response), findings::count(severities())));
    }
    if severities().any(|severity| args.minded.minds(severity)) { Err(CliError::Findings) } else { Ok(()) }
}

/// Returns the number of checks, and of those that were not possible.
fn checks(response: &v1::DiagnoseResponse) -> String {
    let checks = many(response.checked.len(), "check");
    match response.not_checked.len() {
        0 => checks,
        impossible => format!("{checks}, {impossible} not possible"),
    }
}

fn text(response: &v1::DiagnoseResponse, verbose: bool) -> String {
    let mut text: String = response.findings.iter().map(|found| findings::of_server(found) + "\n").collect();
    if verbose || response.findings.is_empty() {
        text.extend(response.checked.iter().map(|line| format!("checked: {}\n", printable(line))));
        text.extend(response.not_checked.iter().map(|line| format!("not checked: {}\n", printable(line))));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_have_remedies_and_checks_are_listed_without_them() {
        let found = v1::Finding {
            code: "retry_storm".into(),
            subject: "shop default stock S/M\x1b".into(),
            field: String::new(),
            message: "2.00 attempts per call".into(),
            severity: v1::Severity::Danger.into(),
            remedy: "Stop it.".into(),
        };
        let checked = vec!["rules (1): nothing found".into()];
        let mut response = v1::DiagnoseResponse { findings: vec![found], checked, not_checked: vec![] };
        assert_eq!(
            text(&response, false),
            "critical retry_storm shop default stock S/M\\u{1b}: 2.00 attempts per call\n  -> Stop it.\n"
        );
        assert!(text(&response, true).ends_with("checked: rules (1): nothing found\n"));
        response.findings.clear();
        assert_eq!(text(&response, false), "checked: rules (1): nothing found\n");
        assert_eq!(checks(&response), "1 check");
        response.not_checked = vec!["no job is missing (1 job store): it is away".into()];
        let both = "checked: rules (1): nothing found\n\
                    not checked: no job is missing (1 job store): it is away\n";
        assert_eq!(text(&response, false), both);
        assert_eq!(checks(&response), "1 check, 1 not possible");
    }
}
