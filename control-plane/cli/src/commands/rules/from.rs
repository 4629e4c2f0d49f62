//! `damper rules from SOURCE`: configuration of a mesh or a client as rules in observe mode.
//!
//! The manifests go to stdout, and a finding for each unsaid default and each difference to stderr. Nothing
//! is written to a server. Of two rules with one key the first is kept, as the first route is in a mesh.

use std::collections::HashSet;

use clap::{Args, ValueEnum};
use damper_foreign::from::{self, Options, Reading};
use damper_proto::manifest::{self, Problem};
use damper_proto::v1;

use crate::error::{CliError, print_message};
use crate::input::key;
use crate::input::manifests::{self as sources, FileArgs};
use crate::output::{self, Format, printable};
use crate::remote::session::Session;

/// Arguments of `damper rules from`.
#[derive(Args, Debug)]
#[command(mut_arg("files", |files| files.help("Configuration file of the source, folder of them (*.yaml, *.yml, *.json, \
    including subfolders) or - for standard input; repeatable")))]
#[command(after_help = "The manifests are what apply reads; findings go to stderr:\n  \
    damper rules from istio -f live/ > rules.yaml")]
pub(crate) struct FromArgs {
    /// Source
    source: Source,
    #[command(flatten)]
    files: FileArgs,
    /// Name of the caller in the generated rules, for grpc-service-config and kitex [default: *]
    #[arg(long, value_name = "SERVICE")]
    caller: Option<String>,
    /// Name of the callee in the generated rules; required for grpc-service-config and kitex
    #[arg(long, value_name = "SERVICE")]
    callee: Option<String>,
    /// Pod label that contains the name of the caller, for istio
    #[arg(long, value_name = "LABEL")]
    caller_label: Option<String>,
    /// Pod label that contains the cluster of the caller, for istio
    #[arg(long, value_name = "LABEL")]
    cluster_label: Option<String>,
    /// Full name of the gRPC service to which the methods in the policies belong, such as shop.v1.Stock;
    /// required for kitex
    #[arg(long, value_name = "SERVICE")]
    service: Option<String>,
}

/// Source of the translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Source {
    /// Service config of gRPC clients
    GrpcServiceConfig,
    /// VirtualService and DestinationRule
    Istio,
    /// Route configurations, virtual hosts, listeners and clusters
    Envoy,
    /// Retry policies of a client
    Kitex,
}

/// Reads and prints.
pub(crate) fn run(session: &Session, args: &FromArgs) -> Result<(), CliError> {
    let source = match args.source {
        Source::GrpcServiceConfig => from::Source::Grpc,
        Source::Istio => from::Source::Istio,
        Source::Envoy => from::Source::Envoy,
        Source::Kitex => from::Source::Kitex,
    };
    let (files, mut readings) = read(source, args)?;
    from::share_limits(source, &mut readings);
    let rules = rules(&files, readings);
    if rules.is_empty() {
        return Err(CliError::data("no rule: nothing in these files concerns retries or time limits"));
    }
    match session.format {
        Format::Table | Format::Yaml => output::data(&manifest::to_yaml(&rules)),
        Format::Json => output::data(&(manifest::to_json(&rules) + "\n")),
    }
}

/// Reads all files; errors with all faults of all of them.
fn read(source: from::Source, args: &FromArgs) -> Result<(Vec<String>, Vec<Reading>), CliError> {
    let options = Options {
        caller: args.caller.clone(),
        callee: args.callee.clone(),
        caller_label: args.caller_label.clone(),
        cluster_label: args.cluster_label.clone(),
        service: args.service.clone(),
    };
    let (mut files, mut readings, mut faults) = (Vec::new(), Vec::new(), Vec::new());
    sources::each_text(&args.files.files, false, &mut |file, bytes| match damper_document::utf8(bytes)
        .and_then(|text| from::read(source, text, &options))
    {
        Ok(reading) => {
            files.push(file.to_owned());
            readings.push(reading);
        }
        Err(error) => faults.extend(error.problems.into_iter().map(|problem| sources::fault(file, problem))),
    })?;
    if faults.is_empty() { Ok((files, readings)) } else { Err(CliError::Data(faults)) }
}

/// Returns the rules, the first of each key, and prints the findings.
fn rules(files: &[String], readings: Vec<Reading>) -> Vec<v1::Rule> {
    let mut seen = HashSet::new();
    let mut rules = Vec::new();
    for (file, reading) in files.iter().zip(readings) {
        for document in reading.documents {
            let print = |words: &str, path: &str, problem: &str| {
                let (path, problem) = (path.to_owned(), format!("{problem} ({words})"));
                let place = Some(document.line);
                let problem = Problem { document: Some(document.number), line: place, path, problem };
                print_message(format!("finding: {}", printable(&sources::fault(file, problem))));
            };
            for found in document.content {
                let words = key::words(found.rule.key.as_ref());
                if !seen.insert(words.clone()) {
                    print(&words, "", "left out: a rule before it has its key");
                    continue;
                }
                found.findings.iter().for_each(|finding| print(&words, &finding.path, &finding.message));
                rules.push(found.rule);
            }
        }
    }
    rules
}
