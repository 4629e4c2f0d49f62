//! Settings of `damper worker`, checked as a whole before anything starts.
//!
//! Faults carry the flag. Those of the service's own options carry the SDK's names and variables.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use damper_sdk::balance::Targets;
use damper_sdk::queue::{BodyKeys, WorkerHandle};
use damper_sdk::{Balanced, Damper, Faults, balanced};

use super::RunArgs;
use crate::error::CliError;
use crate::remote::session::Session;

/// Variable with the file of body keys.
const BODY_KEYS_VARIABLE: &str = "DAMPER_BODY_KEYS_FILE";
/// Limit of queues of one worker.
const MAX_QUEUES: usize = 100;
const REMOTE: &str =
    "is not on loopback, where others on the network can use it; allow it with --insecure-allow-remote";

/// Checked settings.
pub(super) struct Settings {
    pub(super) damper: Damper,
    pub(super) admin: SocketAddr,
    plan: Plan,
}

/// The workers to start.
struct Plan {
    queues: Vec<String>,
    callees: Vec<(String, Balanced)>,
    concurrency: u32,
    drain: Duration,
}

impl Settings {
    /// Reads the arguments, and connects to the control plane in the background.
    ///
    /// # Errors
    /// All faults together.
    pub(super) fn read(session: &Session, args: RunArgs) -> Result<Self, CliError> {
        let mut faults = Faults::none();
        let admin = args.admin;
        if !admin.ip().is_loopback() && !args.insecure_allow_remote {
            faults.add("--admin", format!("{admin} {REMOTE}"));
        }
        let mut options = session.server.service_options();
        if let Some(service) = &args.service {
            options = options.service(service);
        }
        if let Some(keys) = body_keys(&args, &mut faults) {
            options = options.body_keys(keys);
        }
        let plan = Plan {
            callees: callees(&args, &mut faults),
            queues: args.queues,
            concurrency: args.concurrency,
            drain: args.drain,
        };
        plan.check(&mut faults);
        let damper = Damper::connect(options);
        let damper = damper.map_err(|found| found.iter().for_each(|fault| add(&mut faults, "", fault))).ok();
        match damper.filter(|_| faults.is_empty()) {
            Some(damper) => Ok(Self { damper, admin, plan }),
            None => Err(CliError::Config(faults.iter().map(ToString::to_string).collect())),
        }
    }

    /// Starts a worker for each queue.
    pub(super) fn start(self) -> Result<Vec<(String, WorkerHandle)>, CliError> {
        let Self { damper, plan, .. } = self;
        let start = |queue: &String| -> Result<_, CliError> {
            let mut callees = plan.callees.iter().cloned();
            // The arguments have at least one.
            let (callee, channel) = callees.next().ok_or_else(|| CliError::Usage("--to: required".into()))?;
            let worker = damper.worker(queue).forward(&callee, channel);
            let worker = callees.fold(worker, |worker, (callee, channel)| worker.forward(&callee, channel));
            let started = worker.concurrency(plan.concurrency).drain(plan.drain).start();
            Ok((queue.clone(), started.map_err(|found| CliError::Config(vec![found.to_string()]))?))
        };
        plan.queues.iter().map(start).collect()
    }
}

impl Plan {
    fn check(&self, faults: &mut Faults) {
        if self.queues.len() > MAX_QUEUES {
            faults.add("--queue", format!("{} queues; must be at most {MAX_QUEUES}", self.queues.len()));
        }
        let (off, mut seen) = (Damper::off(), BTreeSet::new());
        for queue in &self.queues {
            if !seen.insert(queue) {
                faults.add("--queue", format!("{queue:?} is repeated"));
            }
            let worker = off.worker(queue).handle(|_| async { Ok::<_, tonic::Status>(()) });
            let checked = worker.concurrency(self.concurrency).drain(self.drain).check();
            let Err(found) = checked else { continue };
            for fault in found.iter() {
                // Settings of all queues are reported with the first.
                if fault.path == "queue" || seen.len() == 1 {
                    add(faults, "--", fault);
                }
            }
        }
    }
}

fn add(faults: &mut Faults, prefix: &str, fault: &damper_core::Fault) {
    faults.add(format!("{prefix}{}", fault.path), &*fault.problem);
}

fn body_keys(args: &RunArgs, faults: &mut Faults) -> Option<BodyKeys> {
    let of_env = || std::env::var_os(BODY_KEYS_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
    let file = args.body_keys.clone().or_else(of_env);
    if file.is_none() && args.accept_plain {
        faults.add("--accept-plain", "requires --body-keys");
    }
    let read = BodyKeys::read(file?);
    let keys =
        read.map_err(|found| found.iter().for_each(|fault| add(faults, "--body-keys: ", fault))).ok()?;
    Some(if args.accept_plain { keys.accept_plain() } else { keys })
}

/// Returns the callees with a channel each.
fn callees(args: &RunArgs, faults: &mut Faults) -> Vec<(String, Balanced)> {
    let (mut seen, mut callees) = (BTreeSet::new(), Vec::new());
    for text in &args.callees {
        let Some((callee, url)) = text.split_once('=') else {
            faults.add("--to", format!("{text:?} must be CALLEE=URL, such as stock=http://stock:50051"));
            continue;
        };
        if !seen.insert(callee) {
            faults.add("--to", format!("callee {callee:?} is repeated"));
        }
        if let Err(found) = Damper::off().client_layer(callee) {
            found.iter().for_each(|fault| faults.add("--to", format!("{text:?}: {fault}")));
            continue;
        }
        match balanced(targets(args, url)) {
            Ok(channel) => callees.push((callee.to_owned(), channel)),
            Err(found) => found.iter().for_each(|fault| faults.add("--to", format!("{text:?}: {fault}"))),
        }
    }
    callees
}

fn targets(args: &RunArgs, url: &str) -> Targets {
    let mut targets = Targets::new(url);
    if !url.starts_with("https:") {
        return targets;
    }
    if let Some(file) = &args.to_ca_file {
        targets = targets.ca_file(file);
    }
    match (&args.to_cert_file, &args.to_key_file) {
        (Some(certificate), Some(key)) => targets.certificate(certificate, key),
        _ => targets,
    }
}
