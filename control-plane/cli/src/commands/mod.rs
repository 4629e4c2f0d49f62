//! One file per command: reads arguments, calls the server, prints the response.

mod admin_port;
mod apply;
mod audit;
mod chain;
mod clients;
mod completion;
mod diff;
mod doctor;
mod endpoints;
mod explain;
mod export;
mod failures;
mod guards;
mod history;
mod import;
mod jobs;
mod kill;
mod kills;
mod lint;
pub(crate) mod proxy;
mod queues;
mod reference;
mod replicas;
mod rollback;
mod routes;
mod rules;
mod serve;
mod simulate;
mod stats;
mod store;
mod token;
mod unkill;
mod whoami;
mod worker;

use clap::{Parser, Subcommand};

use crate::error::CliError;
use crate::remote::session::Session;
use crate::{config, demo};

const EXIT_CODES: &str = "Exit status: 0 done, 64 usage, 65 invalid data, 66 not found, 69 unavailable, \
    70 internal error, 74 input or output, 75 conflict, 77 denied, 78 invalid configuration, 79 findings; \
    diff: 0 no difference, 1 differences, 2 error; \
    rules to: 1 a setting changed or lost, or a difference; \
    --wait: 1 written, not delivered in time.\n\n\
    A key is four words, CALLER CLUSTER CALLEE METHOD; quote '*' in a shell.";

/// Control plane for retries, and its command line
#[derive(Debug, Parser)]
#[command(name = "damper", version, after_help = EXIT_CODES, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    session: Session,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the control plane
    Serve(Box<config::ServeArgs>),
    /// Run a proxy next to a service that is not written in Rust
    Proxy(proxy::ProxyArgs),
    /// Run a worker that delivers kept calls to services in any language
    Worker(worker::WorkerArgs),
    /// Run a demo: four services under load, and the effect of retries on them
    Demo(demo::Args),
    /// List routes with statistics and rule
    Routes(routes::RoutesArgs),
    /// Show and change single rules
    #[command(subcommand)]
    Rules(rules::RulesCommand),
    /// Alias of `rules promote`
    #[command(hide = true)]
    Promote(rules::PromoteArgs),
    /// Show and change guards: ceilings that callee owners set for all rules
    #[command(subcommand)]
    Guards(guards::GuardsCommand),
    /// Show and change queues: policies for durable jobs
    #[command(subcommand)]
    Queues(queues::QueuesCommand),
    /// Show and change jobs of queues
    #[command(subcommand)]
    Jobs(jobs::JobsCommand),
    /// Write the rules, guards and queues of manifests, all or nothing
    Apply(apply::ApplyArgs),
    /// Show what apply would change, delete and reject
    Diff(diff::DiffArgs),
    /// Export all rules, guards and queues at one revision, as manifests
    Export(export::ExportArgs),
    /// Restore rules, guards and queues from an export
    Import(import::ImportArgs),
    /// List changes of rules, guards, queues, kill switches and tokens, and actions on jobs
    History(history::HistoryArgs),
    /// Restore a rule, a guard, a queue or everything to an earlier revision
    Rollback(rollback::RollbackArgs),
    /// Export the audit log
    #[command(subcommand)]
    Audit(audit::AuditCommand),
    /// Stop retries and hedges on routes immediately, for a limited time
    Kill(kill::KillArgs),
    /// End a kill switch early
    Unkill(unkill::UnkillArgs),
    /// List the kill switches in force
    Kills(kills::KillsArgs),
    /// Show the rule of a route, the cuts by guards, and the reasons
    Explain(explain::ExplainArgs),
    /// Show the call graph with its amplification, and the worst path
    Chain(chain::ChainArgs),
    /// Check manifests for risky settings, without a server
    Lint(lint::LintArgs),
    /// Try rules and guards on simulated services, without a server
    Simulate(simulate::SimulateArgs),
    /// List connected processes and the rules they run
    Clients(clients::ClientsArgs),
    /// List replicas of the control plane and their reachability
    Replicas(replicas::ReplicasArgs),
    /// Show call statistics
    Stats(stats::StatsArgs),
    /// Show recent failed calls of a route
    Failures(failures::FailuresArgs),
    /// Show endpoints of callees and their failures
    Endpoints(endpoints::EndpointsArgs),
    /// Diagnose problems and suggest fixes
    Doctor(doctor::DoctorArgs),
    /// Show and resolve the state of an emptied, replaced or rewound store
    #[command(subcommand)]
    Store(store::StoreCommand),
    /// Create, list and revoke tokens
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// Show the authenticated identity and its permissions
    Whoami(whoami::WhoAmIArgs),
    /// Print a completion script for a shell
    Completion(completion::CompletionArgs),
    /// Print the reference of all commands as Markdown
    #[command(hide = true)]
    Reference,
}

impl Cli {
    /// Returns the number of worker threads; `None` for that of tokio.
    pub(crate) fn worker_threads(&self) -> Option<usize> {
        if matches!(self.command, Command::Proxy(_)) { proxy::worker_threads() } else { None }
    }
}

/// Runs the command.
pub(crate) async fn run(Cli { session, command }: Cli) -> Result<(), CliError> {
    match command {
        Command::Serve(args) => serve::run(*args).await,
        Command::Proxy(args) => proxy::run(&session, args).await,
        Command::Worker(args) => worker::run(&session, args).await,
        Command::Demo(args) => demo::run(args).await.map_err(CliError::Demo),
        Command::Routes(args) => routes::run(&session, args).await,
        Command::Rules(command) => rules::run(&session, command).await,
        Command::Promote(args) => rules::promote(&session, args).await,
        Command::Guards(command) => guards::run(&session, command).await,
        Command::Queues(command) => queues::run(&session, command).await,
        Command::Jobs(command) => jobs::run(&session, command).await,
        Command::Apply(args) => apply::run(&session, args).await,
        Command::Diff(args) => diff::run(&session, args).await,
        Command::Export(args) => export::run(&session, args).await,
        Command::Import(args) => import::run(&session, args).await,
        Command::History(args) => history::run(&session, args).await,
        Command::Rollback(args) => rollback::run(&session, args).await,
        Command::Audit(command) => audit::run(&session, command).await,
        Command::Kill(args) => kill::run(&session, args).await,
        Command::Unkill(args) => unkill::run(&session, args).await,
        Command::Kills(args) => kills::run(&session, args).await,
        Command::Explain(args) => explain::run(&session, args).await,
        Command::Chain(args) => chain::run(&session, args).await,
        Command::Lint(args) => lint::run(&session, &args),
        Command::Simulate(args) => simulate::run(&session, &args),
        Command::Clients(args) => clients::run(&session, args).await,
        Command::Replicas(args) => replicas::run(&session, args).await,
        Command::Stats(args) => stats::run(&session, args).await,
        Command::Failures(args) => failures::run(&session, args).await,
        Command::Endpoints(args) => endpoints::run(&session, args).await,
        Command::Doctor(args) => doctor::run(&session, args).await,
        Command::Store(command) => store::run(&session, command).await,
        Command::Token(command) => token::run(&session, command).await,
        Command::Whoami(args) => whoami::run(&session, args).await,
        Command::Completion(args) => completion::run(&args),
        Command::Reference => reference::run(),
    }
}
