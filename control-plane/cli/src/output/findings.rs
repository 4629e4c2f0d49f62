//! Findings as all commands print them, and the severities that fail a command.
//!
//! One form for all sources: `file:line: severity code subject field: message` with the remedy on the next
//! line. Only findings in files have a file and a line. Control characters are escaped.

use clap::{Args, ValueEnum};
use damper_core::lint::Severity;
use damper_proto::v1;

use crate::output::figures::many;
use crate::output::printable;

/// Severities and codes that fail a command.
#[derive(Args, Debug)]
pub(crate) struct SeverityFilter {
    /// Lowest severity of a finding that makes the command exit with status 79
    #[arg(long, value_name = "SEVERITY", default_value = "warning")]
    min_severity: Least,
    /// Leave out findings with this code; repeatable
    #[arg(long = "allow", value_name = "CODE")]
    allowed: Vec<String>,
}

/// A severity as an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Least {
    Hint,
    Warning,
    #[value(alias = "danger")]
    Critical,
}

impl SeverityFilter {
    /// Errors on unknown codes.
    pub(crate) fn check(&self, known: &[&str]) -> Result<(), crate::error::CliError> {
        let unknown: Vec<&str> =
            self.allowed.iter().map(String::as_str).filter(|code| !known.contains(code)).collect();
        if unknown.is_empty() {
            return Ok(());
        }
        Err(crate::error::CliError::Usage(format!(
            "--allow {}: unknown code (known: {})",
            unknown.join(", "),
            known.join(", ")
        )))
    }

    pub(crate) fn allows(&self, code: &str) -> bool {
        self.allowed.iter().any(|allowed| allowed == code)
    }

    /// True if this severity ends the command with 79.
    pub(crate) fn minds(&self, severity: Severity) -> bool {
        let least = match self.min_severity {
            Least::Hint => Severity::Hint,
            Least::Warning => Severity::Warning,
            Least::Critical => Severity::Danger,
        };
        severity >= least
    }
}

/// A finding and its place.
pub(crate) struct PrintedFindings<'a> {
    /// File and line; "" = in no file.
    pub(crate) origin: &'a str,
    pub(crate) severity: Severity,
    pub(crate) code: &'a str,
    pub(crate) subject: &'a str,
    pub(crate) field: &'a str,
    pub(crate) message: &'a str,
    pub(crate) remedy: &'a str,
}

/// Returns the text of a finding.
pub(crate) fn text(
    PrintedFindings { origin, severity, code, subject, field, message, remedy }: &PrintedFindings<'_>,
) -> String {
    let origin = if origin.is_empty() { String::new() } else { format!("{}: ", printable(origin)) };
    let about = [severity_name(*severity), code, subject, field].map(printable);
    let about: Vec<String> = about.into_iter().filter(|part| !part.is_empty()).collect();
    let remedy = if remedy.is_empty() { String::new() } else { format!("\n  -> {}", printable(remedy)) };
    format!("{origin}{}: {}{remedy}", about.join(" "), printable(message))
}

/// Returns the name that people read.
fn severity_name(severity: Severity) -> &'static str {
    if severity == Severity::Danger { "critical" } else { severity.name() }
}

/// Returns the text of a finding of the server.
pub(crate) fn of_server(finding: &v1::Finding) -> String {
    let v1::Finding { code, subject, field, message, remedy, .. } = finding;
    text(&PrintedFindings {
        origin: "",
        severity: severity(finding.severity()),
        code,
        subject,
        field,
        message,
        remedy,
    })
}

/// An unknown severity counts as a warning.
pub(crate) fn severity(wire: v1::Severity) -> Severity {
    match wire {
        v1::Severity::Danger => Severity::Danger,
        v1::Severity::Hint => Severity::Hint,
        v1::Severity::Warning | v1::Severity::Unspecified => Severity::Warning,
    }
}

/// Returns the number of findings of each severity.
pub(crate) fn count(severities: impl IntoIterator<Item = Severity>) -> String {
    let mut counts = [0_usize; 3];
    for severity in severities {
        counts[severity as usize] += 1;
    }
    let [hints, warnings, dangers] = counts;
    format!("{dangers} critical, {}, {}", many(warnings, "warning"), many(hints, "hint"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_have_one_form_without_control_characters() {
        let mut found = v1::Finding {
            code: "guard_cuts".into(),
            subject: "a * b *".into(),
            field: "policy.hedge".into(),
            message: "is forbidden\x1b".into(),
            severity: v1::Severity::Danger.into(),
            remedy: "Ask.".into(),
        };
        assert_eq!(
            of_server(&found),
            "critical guard_cuts a * b * policy.hedge: is forbidden\\u{1b}\n  -> Ask."
        );
        found.field.clear();
        found.remedy.clear();
        assert_eq!(of_server(&found), "critical guard_cuts a * b *: is forbidden\\u{1b}");
        let rest = v1::Finding { message: "and 7 more".into(), ..Default::default() };
        assert_eq!(of_server(&rest), "warning: and 7 more");
    }

    #[test]
    fn findings_are_counted_by_severity() {
        use Severity::{Danger, Hint, Warning};
        assert_eq!(count([Hint, Danger, Hint]), "1 critical, 0 warnings, 2 hints");
        assert_eq!(count([Warning]), "0 critical, 1 warning, 0 hints");
    }
}
