//! Finds problems of the fleet or of one service, with remedies.
//!
//! A diagnosis is a list of checks over one [`DoctorInput`]: the known state at one moment. Each check is
//! narrow and reports its scope, so that an answer without findings is informative too. Rates are those of
//! the last minute, or of the requested window; a check of rates needs a minimum of calls.

pub(crate) mod clients;
pub(crate) mod codes;
pub(crate) mod endpoints;
pub(crate) mod listeners;
pub(crate) mod queues;
pub(crate) mod replicas;
pub(crate) mod routes;
pub(crate) mod rules;
pub(crate) mod store;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use damper_core::lint::codes::{CLIENTS_LACK_FEATURE, FindingCode, GUARD_CUTS, MORE_FINDINGS};
use damper_core::{Faults, key};
use damper_proto::v1;

use crate::auth::rejected::RejectedClient;
use crate::cluster::Cluster;
use crate::cluster::peers::OutOfSyncPeer;
use crate::jobs::Jobs;
use crate::state::error::ApiError;
use crate::state::snapshot::Snapshot;
use crate::state::text::many;
use crate::stats::rate_window::RateWindow;
use crate::stats::served::Method;
use crate::stats::summary::RouteSummary;
use crate::write::findings;
use crate::write::findings::FindingList;

/// Clients are back within 3 s of a server; a busy fleet takes longer.
const SETTLED_AFTER: Duration = Duration::from_secs(15);

/// Returns the codes of all findings of a diagnosis.
pub fn diagnosis_codes() -> impl Iterator<Item = &'static str> {
    let others = [GUARD_CUTS, CLIENTS_LACK_FEATURE, MORE_FINDINGS];
    codes::ALL.iter().copied().chain(others).map(|known| known.code)
}

/// The number of refused entries that are checked per client.
const LISTED: usize = 20;

/// The known state at one moment.
pub(crate) struct DoctorInput {
    now: SystemTime,
    /// When this replica started.
    started: SystemTime,
    table: Arc<Snapshot>,
    /// The service of the diagnosis; empty = all.
    service: String,
    /// All clients, by name.
    clients: Vec<v1::Client>,
    /// The window of rates.
    window: RateWindow,
    /// All routes.
    rows: Arc<[Arc<RouteSummary>]>,
    served: Vec<(Method, v1::ServedRates)>,
    endpoints: Vec<v1::CalleeEndpoints>,
    /// Instance ids that several processes report under, with their services.
    shared_ids: Vec<(String, String)>,
    /// The time that a client may take to acknowledge a revision.
    lags_after: Duration,
    /// All replicas, including this one, and those at another revision.
    replicas: Vec<v1::Replica>,
    apart: Vec<OutOfSyncPeer>,
    /// The expected number of replicas, if known.
    replicas_wanted: Option<u32>,
    last_export: Option<SystemTime>,
    /// Services that this replica rejected recently.
    rejected: Vec<RejectedClient>,
    store_is_full: bool,
    /// `None` without a job store.
    jobs: Option<queues::JobsInput>,
    /// `None` without TLS.
    certificate: Option<crate::doctor::listeners::ListenerCertificate>,
}

/// One check.
pub(crate) struct Check<Find = fn(&DoctorInput) -> Vec<v1::Finding>> {
    /// The expected state, as text.
    what: &'static str,
    /// The number of checked objects, as text.
    scope: fn(&DoctorInput) -> String,
    find: Find,
}

/// A check that may be impossible. Errors with the reason.
pub(crate) type Attempt = Check<fn(&DoctorInput) -> Result<Vec<v1::Finding>, String>>;

/// The sources of a diagnosis.
pub(crate) struct Doctor {
    pub(crate) cluster: Arc<Cluster>,
    /// The expected number of replicas, if configured.
    pub(crate) replicas_wanted: Option<u32>,
    /// How long a client may take to acknowledge before it counts as behind.
    pub(crate) lags_after: Duration,
    pub(crate) jobs: Arc<Jobs>,
}

pub(crate) async fn diagnose(
    doctor: &Arc<Doctor>,
    request: v1::DiagnoseRequest,
) -> Result<v1::DiagnoseResponse, ApiError> {
    if !request.service.is_empty() {
        let mut faults = Faults::none();
        key::check_name("service", &request.service, &mut faults);
        faults.or(()).map_err(ApiError::Faults)?;
    }
    let window =
        request.window.map_or(Ok(RateWindow::Minute), |window| RateWindow::read("window", Some(window)))?;
    let cluster = doctor.cluster.clone();
    let doctor = doctor.clone();
    let jobs = queues::read(&doctor.jobs).await;
    cluster.off_runtime(move |_| Ok(input(&doctor, request.service, window, jobs).diagnosis())).await
}

fn input(
    doctor: &Doctor,
    service: String,
    window: RateWindow,
    jobs: Option<queues::JobsInput>,
) -> DoctorInput {
    let table = doctor.cluster.fleet.table();
    let now = SystemTime::now();
    let sessions = doctor.cluster.fleet.hub.clients("", "");
    let sessions = sessions.iter().map(|(_, session)| session);
    let certificate = doctor.cluster.tls.as_ref().map(|tls| crate::doctor::listeners::ListenerCertificate {
        warning: tls.validity().warning(now),
        refused: tls.refused(),
    });
    DoctorInput {
        now,
        window,
        started: doctor.cluster.peers.started_at(),
        replicas_wanted: doctor.replicas_wanted,
        last_export: doctor.cluster.peers.last_export(),
        rejected: doctor.cluster.access.rejected.recent(now),
        store_is_full: doctor.cluster.fleet.state.store.is_full(),
        certificate,
        jobs,
        clients: doctor.cluster.fleet.hub.described(sessions, &table, LISTED).collect(),
        rows: doctor.cluster.fleet.stats.rows_over(window, &table),
        served: doctor.cluster.fleet.stats.served_rates(window),
        endpoints: doctor.cluster.fleet.stats.endpoints(""),
        shared_ids: doctor.cluster.fleet.stats.shared_ids(),
        lags_after: doctor.lags_after,
        replicas: crate::cluster::list::list(&doctor.cluster).replicas,
        apart: doctor.cluster.peers.apart(),
        service,
        table,
    }
}

impl<Find> Check<Find> {
    /// Returns what is checked, and of what.
    fn name(&self, input: &DoctorInput) -> String {
        format!("{} ({})", self.what, (self.scope)(input))
    }
}

impl DoctorInput {
    fn diagnosis(&self) -> v1::DiagnoseResponse {
        let (mut findings, mut checked, mut not_checked) = (Vec::new(), Vec::new(), Vec::new());
        let mut passed = |name: String, found: Vec<v1::Finding>| {
            let result = match found.len() {
                0 => "nothing found".to_owned(),
                n => many(n, "finding"),
            };
            checked.push(format!("{name}: {result}"));
            findings.extend(found);
        };
        let checks = [
            store::CHECKS,
            replicas::CHECKS,
            crate::doctor::listeners::CHECKS,
            clients::CHECKS,
            routes::CHECKS,
            endpoints::CHECKS,
            rules::CHECKS,
            queues::CHECKS,
        ];
        for check in checks.into_iter().flatten() {
            passed(check.name(self), (check.find)(self));
        }
        for attempt in queues::ATTEMPTS {
            match (attempt.find)(self) {
                Ok(found) => passed(attempt.name(self), found),
                Err(reason) => not_checked.push(format!("{}: {reason}", attempt.name(self))),
            }
        }
        findings.sort_by(|a: &v1::Finding, b| {
            let rank = |finding: &v1::Finding| Reverse(finding.severity);
            (rank(a), &a.code, &a.subject).cmp(&(rank(b), &b.code, &b.subject))
        });
        v1::DiagnoseResponse { findings: FindingList::all(findings), checked, not_checked }
    }

    fn is_about(&self, service: &str) -> bool {
        self.service.is_empty() || self.service == service
    }

    /// True while clients may still be reconnecting after a restart of the server.
    fn is_settling(&self) -> bool {
        let has_started = self.now.duration_since(self.started).is_ok_and(|since| since < SETTLED_AFTER);
        has_started && self.table.revision() > 0
    }

    /// The clients of the diagnosis.
    fn clients(&self) -> impl Iterator<Item = &v1::Client> {
        self.clients.iter().filter(|client| self.is_about(service_of(client)))
    }

    /// The routes of the diagnosis: from and to the service.
    fn rows(&self) -> impl Iterator<Item = &RouteSummary> {
        let rows = self.rows.iter().map(|row| &**row);
        rows.filter(|row| {
            self.is_about(&row.route.caller_service) || self.is_about(&row.route.callee_service)
        })
    }

    /// The connected services.
    fn connected(&self) -> BTreeSet<&str> {
        self.clients.iter().map(service_of).collect()
    }

    fn count_of_clients(&self) -> String {
        let services: BTreeSet<&str> = self.clients().map(service_of).collect();
        format!("{} connected of {}", many(self.clients().count(), "client"), many(services.len(), "service"))
    }

    fn count_of_routes(&self) -> String {
        many(self.rows().count(), "route")
    }

    /// Returns a finding for each service with such clients: their number and one example.
    fn by_service(
        &self,
        known: FindingCode,
        problem_of: impl Fn(&v1::Client) -> Option<String>,
    ) -> Vec<v1::Finding> {
        let mut services: BTreeMap<&str, (usize, String)> = BTreeMap::new();
        for client in self.clients() {
            if let Some(how) = problem_of(client) {
                let (count, _) = services.entry(service_of(client)).or_insert_with(|| {
                    (0, format!("{}: {how}", client.identity.as_ref().map_or("", |it| it.instance.as_str())))
                });
                *count += 1;
            }
        }
        let findings = services.into_iter().map(|(service, (count, example))| {
            let message = match count {
                1 => example,
                _ => format!("{count} processes, one of them {example}"),
            };
            finding(known, service, message)
        });
        findings.collect()
    }
}

fn service_of(client: &v1::Client) -> &str {
    client.identity.as_ref().map_or("", |identity| identity.service.as_str())
}

fn finding(known: FindingCode, subject: &str, message: String) -> v1::Finding {
    findings::finding(known, subject, "", message)
}
