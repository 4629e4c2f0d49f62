//! `damper lint -f`: findings in rules, guards and queues, without a server.
//!
//! The engine finds what a server adds to every write, except findings that need traffic, clients or the
//! chain. Manifests given together are one set: its guards are checked against its rules.

use std::cmp::Reverse;
use std::fmt;

use clap::Args;
use damper_core::job::Queue;
use damper_core::lint::{self, Finding, LintContext, Severity, codes};
use damper_core::{Guard, Rule};
use damper_proto::convert;
use damper_proto::manifest::FieldLines;
use serde::{Serialize, Serializer};

use crate::error::{CliError, print_message};
use crate::input::manifests::{self as sources, FileArgs, Manifest, ManifestItem};
use crate::output::figures::many;
use crate::output::findings::{self, PrintedFindings, SeverityFilter};
use crate::output::show;
use crate::remote::session::Session;

/// Arguments of `damper lint`.
#[derive(Args, Debug)]
#[command(after_help = "Exit status: 0 nothing at or above the severity, 65 bad data, 79 findings.\n\
    docs/findings.md explains each code.")]
pub(crate) struct LintArgs {
    #[command(flatten)]
    files: FileArgs,
    #[command(flatten)]
    minded: SeverityFilter,
}

/// A finding and its place.
#[derive(Debug, Serialize)]
struct Found {
    /// File and line of the setting.
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

/// The manifests as core types, in order.
struct ManifestSet {
    items: Vec<Item>,
}

/// A manifest as core type.
enum Item {
    Rule(Box<Rule>),
    Guard(Guard),
    Queue(Box<Queue>),
}

/// Reads, checks and lints.
pub(crate) fn run(session: &Session, args: &LintArgs) -> Result<(), CliError> {
    args.minded.check(&lint_codes().collect::<Vec<_>>())?;
    let (manifests, lines) = sources::read_with_lines(&args.files)?;
    let set = ManifestSet::read(&manifests)?;
    let mut all = Vec::new();
    for ((manifest, item), lines) in manifests.iter().zip(&set.items).zip(&lines) {
        let mut findings = set.findings(item);
        findings.retain(|finding| !args.minded.allows(finding.code));
        findings.sort_by_key(|finding| Reverse(finding.severity));
        all.extend(findings.into_iter().map(|finding| Found::at(manifest, item, lines, finding)));
    }
    show(session.format, &all, || all.iter().map(ToString::to_string).collect())?;
    print_message(summary(&all, manifests.len()));
    if all.iter().any(|found| args.minded.minds(found.severity)) { Err(CliError::Findings) } else { Ok(()) }
}

impl ManifestSet {
    fn read(manifests: &[Manifest]) -> Result<Self, CliError> {
        let mut faults = Vec::new();
        let mut items = Vec::with_capacity(manifests.len());
        for Manifest { origin, item } in manifests {
            let read = match item {
                ManifestItem::Rule(rule) => convert::rule(rule).map(|rule| Item::Rule(Box::new(rule))),
                ManifestItem::Guard(guard) => convert::guard(guard).map(Item::Guard),
                ManifestItem::Queue(queue) => convert::queue(queue).map(|queue| Item::Queue(Box::new(queue))),
            };
            match read {
                Ok(item) => items.push(item),
                Err(found) => faults.extend(found.iter().map(|fault| format!("{origin}: {fault}"))),
            }
        }
        if faults.is_empty() { Ok(Self { items }) } else { Err(CliError::Data(faults)) }
    }

    fn guards(&self) -> impl Iterator<Item = &Guard> {
        self.items.iter().filter_map(|item| if let Item::Guard(guard) = item { Some(guard) } else { None })
    }

    fn findings(&self, item: &Item) -> Vec<Finding> {
        let rule = match item {
            Item::Rule(rule) => rule,
            Item::Guard(guard) => return lint::guard_findings(guard),
            Item::Queue(queue) => return lint::queue_findings(queue),
        };
        let cuts = self.guards().flat_map(|guard| {
            let mut cuts = lint::cuts(guard, rule);
            if guard.pattern().covers(rule.pattern()) {
                // A set may already be applied; that is unknown here.
                cuts.iter_mut().for_each(|cut| cut.message.push_str("; a server rejects it if it is new"));
            }
            cuts
        });
        lint::findings(rule, &LintContext::default()).into_iter().chain(cuts).collect()
    }
}

impl Found {
    fn at(manifest: &Manifest, item: &Item, lines: &FieldLines, finding: Finding) -> Self {
        let Finding { code, severity, field, message, remedy } = finding;
        let subject = match item {
            Item::Rule(rule) => rule.pattern().to_string(),
            Item::Guard(guard) => guard.pattern().to_string(),
            Item::Queue(queue) => queue.name().to_owned(),
        };
        let (kind, origin) = (manifest.item.kind(), manifest.origin.at(lines.of(&field)));
        Self { origin, severity, code, kind, subject, field, message, remedy }
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { origin, severity, code, kind, subject, field, message, remedy } = self;
        let subject = if *kind == "rule" { subject.clone() } else { format!("{kind} {subject}") };
        let (severity, subject) = (*severity, subject.as_str());
        writeln!(
            f,
            "{}",
            findings::text(&PrintedFindings { origin, severity, code, subject, field, message, remedy })
        )
    }
}

fn summary(all: &[Found], manifests: usize) -> String {
    format!("{}: {}", many(manifests, "manifest"), findings::count(all.iter().map(|found| found.severity)))
}

/// Returns the findings that need no server.
fn lint_codes() -> impl Iterator<Item = &'static str> {
    codes::ALL.iter().map(|known| known.code)
}

fn name<S: Serializer>(severity: &Severity, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(severity.name())
}
