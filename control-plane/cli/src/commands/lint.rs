//! `damper lint -f`: what deserves a look in rules and guards, before anybody has a server to ask.
//!
//! The engine's findings, as a server adds them to every write; of what a server knows beside (traffic, clients, the
//! chain) nothing. Manifests given together are read as one set: its guards are held against its rules.

use std::cmp::Reverse;
use std::fmt;

use clap::{Args, ValueEnum};
use damper_core::lint::{self, Context, Finding, Severity, codes};
use damper_core::{Guard, Rule};
use damper_proto::convert;
use damper_proto::manifest::FieldLines;
use serde::{Serialize, Serializer};

use crate::Session;
use crate::exit::Error;
use crate::output::{message, printable, show};
use crate::sources::{self, FileArgs, Item, Manifest};

/// Arguments of `damper lint`.
#[derive(Args, Debug)]
#[command(after_help = "Exit status: 0 nothing at or above the severity, 65 bad data, 79 findings.\n\
    docs/findings.md explains each code.")]
pub(crate) struct LintArgs {
    #[command(flatten)]
    files: FileArgs,
    /// Findings from this severity on end the command with 79
    #[arg(long, value_name = "SEVERITY", default_value = "warning")]
    min_severity: Least,
    /// Leave findings of this code out; repeatable
    #[arg(long = "allow", value_name = "CODE", value_parser = code)]
    allowed: Vec<String>,
}

/// A severity as it is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Least {
    Hint,
    Warning,
    Danger,
}

impl From<Least> for Severity {
    fn from(least: Least) -> Self {
        match least {
            Least::Hint => Self::Hint,
            Least::Warning => Self::Warning,
            Least::Danger => Self::Danger,
        }
    }
}

fn code(text: &str) -> Result<String, String> {
    let known = codes::ALL.iter().any(|known| known.code == text);
    if known { Ok(text.to_owned()) } else { Err("is no code of docs/findings.md".to_owned()) }
}

/// A finding and where it is.
#[derive(Debug, Serialize)]
struct Found {
    /// The file and the line of the setting.
    origin: String,
    #[serde(serialize_with = "name")]
    severity: Severity,
    code: &'static str,
    kind: &'static str,
    subject: String,
    field: String,
    message: String,
    remedy: &'static str,
}

/// The manifests as the engine reads them, in their order; rule or guard.
struct Set {
    items: Vec<Result<Rule, Guard>>,
}

/// Reads, checks and lints.
pub(crate) fn run(session: &Session, args: &LintArgs) -> Result<(), Error> {
    let (manifests, lines) = sources::read_with_lines(&args.files)?;
    let set = Set::read(&manifests)?;
    let mut all = Vec::new();
    for ((manifest, item), lines) in manifests.iter().zip(&set.items).zip(&lines) {
        let mut findings = set.findings(item);
        findings.retain(|finding| !args.allowed.iter().any(|allowed| allowed == finding.code));
        findings.sort_by_key(|finding| Reverse(finding.severity));
        all.extend(findings.into_iter().map(|finding| Found::at(manifest, item, lines, finding)));
    }
    show(session.format, &all, || all.iter().map(ToString::to_string).collect())?;
    message(summary(&all, manifests.len()));
    let least = Severity::from(args.min_severity);
    if all.iter().any(|found| found.severity >= least) { Err(Error::Findings) } else { Ok(()) }
}

impl Set {
    fn read(manifests: &[Manifest]) -> Result<Self, Error> {
        let mut faults = Vec::new();
        let mut items = Vec::with_capacity(manifests.len());
        for Manifest { origin, item } in manifests {
            let read = match item {
                Item::Rule(rule) => convert::rule(rule).map(Ok),
                Item::Guard(guard) => convert::guard(guard).map(Err),
            };
            match read {
                Ok(item) => items.push(item),
                Err(found) => faults.extend(found.iter().map(|fault| format!("{origin}: {fault}"))),
            }
        }
        if faults.is_empty() { Ok(Self { items }) } else { Err(Error::Data(faults)) }
    }

    fn guards(&self) -> impl Iterator<Item = &Guard> {
        self.items.iter().filter_map(|item| item.as_ref().err())
    }

    fn findings(&self, item: &Result<Rule, Guard>) -> Vec<Finding> {
        let rule = match item {
            Ok(rule) => rule,
            Err(guard) => return lint::guard_findings(guard),
        };
        let cuts = self.guards().flat_map(|guard| {
            let mut cuts = lint::cuts(guard, rule);
            if guard.pattern().covers(rule.pattern()) {
                // What is in the set already may be applied again; nothing is known of that here.
                cuts.iter_mut()
                    .for_each(|cut| cut.message.push_str(", so a server refuses it where it is new"));
            }
            cuts
        });
        lint::findings(rule, &Context::default()).into_iter().chain(cuts).collect()
    }
}

impl Found {
    fn at(manifest: &Manifest, item: &Result<Rule, Guard>, lines: &FieldLines, finding: Finding) -> Self {
        let Finding { code, severity, field, message, remedy } = finding;
        let (kind, pattern) = match item {
            Ok(rule) => ("rule", rule.pattern()),
            Err(guard) => ("guard", guard.pattern()),
        };
        let origin = manifest.origin.at(lines.of(&field));
        Self { origin, severity, code, kind, subject: pattern.to_string(), field, message, remedy }
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { origin, severity, code, kind, subject, field, message, remedy } = self;
        let kind = if *kind == "rule" { String::new() } else { format!("{kind} ") };
        let line = format!("{origin}: {severity} {code} {kind}{subject} {field}: {message}");
        writeln!(f, "{}\n  -> {remedy}", printable(&line))
    }
}

fn summary(all: &[Found], manifests: usize) -> String {
    let count = |severity| all.iter().filter(|found| found.severity == severity).count();
    let [dangers, warnings, hints] = [Severity::Danger, Severity::Warning, Severity::Hint].map(count);
    format!("{manifests} rules and guards: {dangers} dangers, {warnings} warnings, {hints} hints")
}

fn name<S: Serializer>(severity: &Severity, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(severity.name())
}
