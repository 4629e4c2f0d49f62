//! `damper rules to TARGET`: rules as configuration of a mesh or a client.
//!
//! The documents go to stdout, and the report of each rule's settings to stderr. The exit status is 1 if a
//! setting changed or is lost, unless `--accept` allows it. With `--check` nothing is written: the documents
//! are compared with deployed ones.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use damper_core::Rule;
use damper_foreign::compare;
use damper_foreign::report::{Outcome, RuleReport};
use damper_foreign::to::{self, Options, Translation};
use damper_proto::{convert, manifest, v1};
use serde_json::{Value, json};

use crate::error::{CliError, print_message};
use crate::input::key;
use crate::input::manifests::{self as sources, FileArgs, ManifestItem};
use crate::output::{self, Format, printable};
use crate::remote::client::Client;
use crate::remote::session::Session;

/// Arguments of `damper rules to`.
#[derive(Args, Debug)]
#[command(after_help = "Documents go to stdout, the report to stderr (as JSON with -o json).\n\
    Exit status: 0 each setting kept, 1 one is changed or lost; with --check: 0 no difference, 1 differences.")]
pub(crate) struct ToArgs {
    /// Target
    target: Target,
    /// Read the rules from these manifests, not from the server. With --check: deployed configuration files
    /// to compare with the server's rules
    #[arg(short = 'f', long = "filename", value_name = "FILE|DIR|-")]
    files: Vec<PathBuf>,
    /// Translate the server's rules and compare the result with the deployed configuration files in -f
    #[arg(long, requires = "files", conflicts_with = "accept")]
    check: bool,
    /// Use only rules for this callee; repeatable [default: all callees that rules name]
    #[arg(long, value_name = "SERVICE")]
    callee: Vec<String>,
    /// Use only rules for this caller
    #[arg(long, value_name = "SERVICE")]
    caller: Option<String>,
    /// Cluster of the caller [default: default]
    #[arg(long, value_name = "CLUSTER", requires = "caller")]
    cluster: Option<String>,
    /// Language of the caller, for grpc-service-config: gRPC has hedging in some languages only
    #[arg(long)]
    language: Option<Language>,
    /// Pod label that contains the name of the caller, for istio
    #[arg(long, value_name = "LABEL")]
    caller_label: Option<String>,
    /// Pod label that contains the cluster of the caller, for istio
    #[arg(long, value_name = "LABEL")]
    cluster_label: Option<String>,
    /// Also write the Envoy filter that passes the retry flag (damper-retry) from a request to the calls made
    /// for it; for istio and envoy
    #[arg(long)]
    chain_flag: bool,
    /// Port of the callee's Service, for linkerd and gateway-api
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Exit with 0 even if the translation is not exact
    #[arg(long)]
    accept: Option<Accept>,
}

/// Target of the translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Target {
    /// Service config of gRPC clients
    GrpcServiceConfig,
    /// VirtualService and DestinationRule
    Istio,
    /// Routes and circuit breakers
    Envoy,
    /// GRPCRoute with Linkerd's annotations
    Linkerd,
    /// Retry policies of a client
    Kitex,
    /// HTTPRoute
    GatewayApi,
}

/// Language of a gRPC client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Language {
    /// No hedging
    Go,
    /// Hedging
    Java,
    /// Hedging
    Node,
    /// Hedging
    Dotnet,
    /// No hedging
    Other,
}

/// Worst accepted outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Accept {
    /// Accept settings that work differently in the target
    Changed,
    /// Accept also settings that the target does not support
    Lost,
}

impl Target {
    /// Returns the target of the crate.
    fn wire(self) -> to::Target {
        match self {
            Self::GrpcServiceConfig => to::Target::Grpc,
            Self::Istio => to::Target::Istio,
            Self::Envoy => to::Target::Envoy,
            Self::Linkerd => to::Target::Linkerd,
            Self::Kitex => to::Target::Kitex,
            Self::GatewayApi => to::Target::Gateway,
        }
    }

    /// True for the configuration of one client, which does not name its callee and is JSON.
    fn is_of_client(self) -> bool {
        matches!(self, Self::GrpcServiceConfig | Self::Kitex)
    }
}

/// Translates, prints and reports.
pub(crate) async fn run(session: &Session, args: &ToArgs) -> Result<(), CliError> {
    args.check_options()?;
    let translation = to::translate(args.target.wire(), &rules(session, args).await?, &args.options())
        .map_err(CliError::Data)?;
    if translation.reports.is_empty() {
        return Err(CliError::Missing("no rule of this caller and callee".to_owned()));
    }
    let several = translation.documents.len();
    if args.target.is_of_client() && several > 1 {
        let problem = format!("--callee: one configuration has one callee, the rules have {several}");
        return Err(CliError::Usage(problem));
    }
    if args.check {
        return check(args, &translation);
    }
    output::data(&text(session.format, args.target, &translation.documents))?;
    report(session.format, &translation);
    let accepted = match args.accept {
        None => Outcome::Kept,
        Some(Accept::Changed) => Outcome::Changed,
        Some(Accept::Lost) => Outcome::Lost,
    };
    if translation.outcome() <= accepted { Ok(()) } else { Err(CliError::Differs) }
}

impl ToArgs {
    /// Errors on an option that the target ignores.
    fn check_options(&self) -> Result<(), CliError> {
        let target = self.target;
        let misplaced = [
            (
                "--language",
                self.language.is_some(),
                target == Target::GrpcServiceConfig,
                "grpc-service-config",
            ),
            ("--caller-label", self.caller_label.is_some(), target == Target::Istio, "istio"),
            ("--cluster-label", self.cluster_label.is_some(), target == Target::Istio, "istio"),
            (
                "--chain-flag",
                self.chain_flag,
                matches!(target, Target::Istio | Target::Envoy),
                "istio and envoy",
            ),
            (
                "--port",
                self.port.is_some(),
                matches!(target, Target::Linkerd | Target::GatewayApi),
                "linkerd and gateway-api",
            ),
        ];
        match misplaced.into_iter().find(|(_, given, fits, _)| *given && !fits) {
            Some((option, .., targets)) => Err(CliError::Usage(format!("{option}: is only for {targets}"))),
            None => Ok(()),
        }
    }

    fn options(&self) -> Options {
        let hedging = [Language::Java, Language::Node, Language::Dotnet];
        Options {
            callees: self.callee.clone(),
            caller: self.caller.clone(),
            cluster: self.cluster.clone(),
            caller_label: self.caller_label.clone(),
            cluster_label: self.cluster_label.clone(),
            chain_flag: self.chain_flag,
            language: match self.language {
                Some(language) if hedging.contains(&language) => to::Language::Hedging,
                _ => to::Language::Other,
            },
            port: self.port,
        }
    }
}

/// Returns the rules of the server, or of the manifests.
async fn rules(session: &Session, args: &ToArgs) -> Result<Vec<Rule>, CliError> {
    let wire: Vec<v1::Rule> = if args.files.is_empty() || args.check {
        let client = Client::connect(&session.server).await?;
        client.all_rules(&v1::RuleFilter::default()).await?.rules
    } else {
        let manifests = sources::read(&FileArgs { files: args.files.clone() })?;
        manifests.iter().filter_map(|manifest| ManifestItem::rule(&manifest.item)).cloned().collect()
    };
    let mut rules = Vec::new();
    let mut faults = Vec::new();
    for rule in &wire {
        match convert::rule(rule) {
            Ok(rule) => rules.push(rule),
            Err(found) => {
                let words = key::words(rule.key.as_ref());
                faults.extend(found.iter().map(|fault| format!("{words}: {fault}")));
            }
        }
    }
    if faults.is_empty() { Ok(rules) } else { Err(CliError::Data(faults)) }
}

/// Prints each difference to the deployed documents.
fn check(args: &ToArgs, translation: &Translation) -> Result<(), CliError> {
    let mut live = Vec::new();
    let mut faults = Vec::new();
    sources::each_text(&args.files, false, &mut |file, bytes| {
        let parsed = damper_document::utf8(bytes)
            .and_then(|text| damper_document::parse(text, |value: Value, _| Some(value)));
        match parsed {
            Ok(documents) => live.extend(documents.into_iter().map(|document| document.content)),
            Err(error) => {
                faults.extend(error.problems.into_iter().map(|problem| sources::fault(file, problem)))
            }
        }
    })?;
    if !faults.is_empty() {
        return Err(CliError::Data(faults));
    }
    let found = compare::differences(&translation.documents, &live);
    let lines: String = found.iter().map(|line| printable(line) + "\n").collect();
    output::data(&lines)?;
    if found.is_empty() { Ok(()) } else { Err(CliError::Differs) }
}

/// Returns the documents as text: JSON for clients, else YAML or the format's.
fn text(format: Format, target: Target, documents: &[Value]) -> String {
    if format != Format::Json && !target.is_of_client() {
        return documents.iter().map(|document| format!("---\n{}", manifest::yaml(document))).collect();
    }
    match documents {
        [] => String::new(),
        [one] => manifest::json(one) + "\n",
        several if target == Target::Envoy => manifest::json(&several) + "\n",
        several => manifest::json(&json!({ "apiVersion": "v1", "kind": "List", "items": several })) + "\n",
    }
}

/// Prints what becomes of each setting on stderr.
fn report(format: Format, translation: &Translation) {
    let Translation { reports, notes, .. } = translation;
    if format == Format::Json {
        let outcome = translation.outcome();
        return print_message(manifest::json(
            &json!({ "outcome": outcome, "rules": reports, "notes": notes }),
        ));
    }
    for report in reports {
        lines(report).iter().for_each(|line| print_message(printable(line)));
    }
    notes.iter().for_each(|note| print_message(format!("note: {}", printable(note))));
}

/// Returns the lines of a rule: what is lost and changed, then the names of what is kept.
fn lines(report: &RuleReport) -> Vec<String> {
    let of = |outcome| report.settings.iter().filter(move |loss| loss.outcome == outcome);
    let written = if report.written { "written" } else { "not written" };
    let callee = if report.callee.is_empty() { String::new() } else { format!(" for {}", report.callee) };
    let mut lines = vec![format!("{} (revision {}): {written}{callee}", report.rule, report.revision)];
    lines.extend(report.refused.iter().map(|why| format!("  refused {why}")));
    for loss in of(Outcome::Lost) {
        lines.push(format!("  lost    {} {}: {}", loss.setting, loss.value, loss.why));
    }
    for loss in of(Outcome::Changed) {
        let becomes = loss.becomes.as_ref().map_or_else(String::new, |becomes| format!(" -> {becomes}"));
        let why = if loss.why.is_empty() { String::new() } else { format!(": {}", loss.why) };
        lines.push(format!("  changed {} {}{becomes}{why}", loss.setting, loss.value));
    }
    let kept: Vec<&str> = of(Outcome::Kept).map(|loss| loss.setting.as_str()).collect();
    if !kept.is_empty() {
        lines.push(format!("  kept    {}", kept.join(", ")));
    }
    lines
}
