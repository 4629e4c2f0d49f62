//! The finding codes of the doctor: severity, meaning and remedy. The codes of rules are in damper-core's
//! `lint`.
//!
//! Codes are only added, and none is a prefix of another, because scripts match them. docs/findings.md lists
//! all.

use damper_core::lint::Severity::{Danger, Hint, Warning};
use damper_core::lint::codes::FindingCode;

macro_rules! codes {
    ($($name:ident = $code:literal, $severity:ident, $meaning:literal, $remedy:literal;)*) => {
        $(
            #[doc = $meaning]
            pub(crate) const $name: FindingCode =
                FindingCode { code: $code, severity: $severity, meaning: $meaning, remedy: $remedy };
        )*

        /// All codes, in the order of docs/findings.md.
        pub(crate) const ALL: &[FindingCode] = &[$($name),*];
    };
}

codes! {
    // The control plane itself.
    STORE_STALE = "store_stale", Danger,
        "The control plane's store does not answer: rules stay as they are, and only kill switches can be changed.",
        "Repair the store (etcd, or the disk of the embedded store) so that it answers again. Until then services keep the rules that they have.";
    STORE_UNACCEPTED = "store_unaccepted", Danger,
        "The control plane's store was emptied, replaced or restored to an older state: replicas and clients keep the earlier rules, and only kill switches can be changed.",
        "Restore the previous store. Or write the earlier rules, which the replicas have in memory, into the new store with `damper store refill`. Or apply the rules of the new store with `damper store accept`.";
    STORE_FULL = "store_full", Danger,
        "The disk of the control plane's store is full: kill switches can be set and ended, and nothing else can be changed.",
        "Free space or enlarge the volume. If the store is etcd, compact and defragment it or raise its quota, then disarm its NOSPACE alarm.";
    CLIENT_HELD = "client_held", Danger,
        "Connected services run rules that the control plane's store does not contain: the services keep these rules and receive only kill switches.",
        "Find out what the store lacks: it may have been emptied, restored from a backup, or replaced (compare the revisions of `damper clients` and `damper store status`). Write the missing rules again, then run `damper store accept`: the services receive the rules of the store.";
    REPLICA_UNREACHABLE = "replica_unreachable", Warning,
        "Another replica of the control plane is unreachable: the statistics shown here omit the services that are connected to it.",
        "Read the cause in `damper replicas`. A stopped replica leaves the list after 10 s; a running one is reconnected automatically.";
    REPLICA_BEHIND = "replica_behind", Warning,
        "A replica of the control plane has an older revision of the rules than the other replicas.",
        "Check the log of this replica and its connection to the store. Until it catches up, the services that are connected to it receive no changes.";
    REPLICA_MISSING = "replica_missing", Warning,
        "Fewer replicas of the control plane run than `--replicas` expects.",
        "Start the missing replica. If the smaller number is intended, set `--replicas` to it.";
    EXPORT_OLD = "export_old", Hint,
        "Rules and guards have not been exported as a backup for a week, as far as the running replicas know.",
        "Run `damper export` regularly, for example from cron, and keep its file on another machine. Ignore this if the store itself is backed up.";
    TOKEN_ENDS = "token_ends", Warning,
        "An access token expires within 14 days, or has expired; a service with an expired token keeps its present rules and receives no changes.",
        "Create a second token (`damper token create NAME --role ROLE --ttl TIME --file NEW_FILE`); the old one remains valid. Deploy the new token, then revoke the old one (`damper token revoke`).";
    CLOCKS_DIFFER = "clocks_differ", Warning,
        "The clocks of two replicas of the control plane differ by more than 2 s: kill switches and tokens expire at different times on them.",
        "Synchronise the clocks of both machines with NTP or chrony.";
    AGENT_DENIED = "agent_denied", Warning,
        "The control plane rejects a service because of its token or certificate: the service receives no rules.",
        "Give the service a token with the role agent and a scope that contains its name (`damper token create NAME --role agent --caller SERVICE`), or a client certificate that is issued for its name.";
    CERTIFICATE_ENDS = "certificate_ends", Warning,
        "The TLS certificate of this replica of the control plane expires soon, or is invalid; clients cannot connect while it is invalid.",
        "Replace the certificate and key files (--tls-cert, --tls-key); the server reloads them within 10 s.";
    CERTIFICATE_NOT_RELOADED = "certificate_not_reloaded", Warning,
        "The TLS certificate files of this replica of the control plane have changed and cannot be used: the replica still uses the previous certificate.",
        "Fix the problem that this finding names; the server then reloads the files within 10 s.";
    KILL_IN_FORCE = "kill_in_force", Warning,
        "A kill switch stops retries and hedges, or all calls, of the routes that it selects.",
        "After the incident, end the kill switch with `damper unkill`, or let it expire.";
    KILL_NOT_APPLIED = "kill_not_applied", Danger,
        "Connected services do not apply a kill switch in force: their SDK lacks the feature kill_switch, or rejects this kill switch.",
        "Update the SDK of these services. Until then, restart them with the environment variable DAMPER_MODE=off, or write `off` to their override file: both stop the retries and hedges of these services, but not first attempts. If the kill switch blocks all calls, these services still send each call once.";

    // Clients.
    NO_CLIENT_CONNECTED = "no_client_connected", Warning,
        "No process of a service is connected to the control plane: the service receives no rules, and its calls are unknown.",
        "In the code of the service, give `Damper::connect` the address of this control plane and the name of the service; a proxy next to it gets them from DAMPER_SERVER and DAMPER_SERVICE. Then read the log of the service or proxy.";
    CLIENT_LAGS = "client_lags", Warning,
        "A connected process has not confirmed the latest change that was sent to it, so it may run older rules.",
        "Check the CPU load and the network of this process. The server closes the connection of a process that stops reading; the process then connects again and gets the current rules.";
    ENTRY_REFUSED = "entry_refused", Warning,
        "Connected services reject a rule, guard or kill switch as invalid and keep its previous version.",
        "Fix the problem that this finding names, or update the SDK of these services.";
    OLD_SDK = "old_sdk", Hint,
        "Some processes run an older version of Damper's SDK than others.",
        "Update the SDK of these services with their next release.";
    DUPLICATE_INSTANCE = "duplicate_instance", Warning,
        "Several processes of a service report under the same instance id: the statistics contain only one of them.",
        "Give each process its own instance id, or remove the setting service.instance.id: each process then generates an id.";
    MODE_OVERRIDDEN = "mode_overridden", Warning,
        "A local override sets a process to off or observe mode, so the process does not enforce its rules in full.",
        "Remove the environment variable DAMPER_MODE or the override file of the process when it is no longer needed.";
    NOT_LIVE = "not_live", Warning,
        "A process is connected to the control plane, but has not applied the current rules: it uses older ones from its disk, or none.",
        "If this lasts, list the rules that the process rejects (`damper clients --lagging`), and read the log of the process.";
    SERVER_LAYER_MISSING = "server_layer_missing", Warning,
        "A called service does not use the server layer of Damper's SDK, so its own retries multiply with those of its callers.",
        "In the code of the called service, add `damper.server_layer()` to its gRPC server. For a service behind `damper proxy`, add `inbound` to the proxy's configuration.";

    // Routes.
    RETRY_STORM = "retry_storm", Danger,
        "Retry storm: retries and hedges raise a route to more than 1.5 attempts per call.",
        "Stop the retries with `damper kill`. Then limit retries and hedges with the retry breaker or the budget of the rule for this route.";
    STORM_STOPPED = "storm_stopped", Warning,
        "A kill switch has stopped a retry storm; the rates of the last minute still include traffic from before.",
        "Wait for a minute: the finding ends when the rates no longer include this traffic. If it becomes retry_storm again, find the processes that do not apply the kill switch (`damper clients --lagging`).";
    BREAKER_REFUSES = "breaker_refuses", Warning,
        "A retry breaker has stopped the retries of a route: the callee fails too often for retries to help.",
        "Fix the callee; the retries then resume automatically.";
    TIME_RUNS_OUT = "time_runs_out", Warning,
        "Calls of a route expire: the caller's deadline or the rule's timeout is shorter than the response time of the callee.",
        "Compare the callee's p99 response time with the timeout of the rule and the deadlines of the callers. Raise the timeout or deadlines that are too short, or fix the callee.";
    BUDGET_USED_UP = "budget_used_up", Warning,
        "A rule's budget for retries and hedges is exhausted: no retry or hedge is sent until new calls refill the budget.",
        "Fix the callee, or raise the budget in the rule if the callee can take more load.";
    CIRCUIT_NOT_CLOSED = "circuit_not_closed", Warning,
        "A circuit breaker blocks the calls of a route, or lets only a few calls through as probes.",
        "Fix the callee; the circuit breaker closes when its probes succeed.";
    OUTER_LOOP = "outer_loop", Warning,
        "A service retries calls on its own, in a loop in its code or by its gRPC client. If a rule retries the same calls, the attempts multiply; only the retries of a gRPC client behind `damper proxy` are then sent once each.",
        "Remove the loop from the code of the service, or retryPolicy and hedgingPolicy from the service config of its gRPC client, and let a rule for the route retry instead.";
    REPEATS_BY_GRPC = "repeats_by_grpc", Warning,
        "The gRPC library of a caller retries calls to a callee on its own, and Damper cannot limit these retries.",
        "Remove retryPolicy and hedgingPolicy from the gRPC service config of the callers.";
    REPEATS_BY_ENVOY = "repeats_by_envoy", Warning,
        "Envoy or a service mesh retries calls to a callee on its own, and Damper cannot limit these retries.",
        "With Istio, set `retries: { attempts: 0 }` in the VirtualService of the callee. With Envoy, remove retry_policy from the route to the callee. Behind inbound proxies of Istio this finding never appears, because they set the count of attempts to 1: see docs/translation.md.";
    REPEATS_SHED = "repeats_shed", Warning,
        "A callee rejects retries: its callers together send more retries than the limit of its guard allows (setting repeat_limit).",
        "Fix the callee if it fails. Then find the caller with the most retries in `damper routes`, and lower max_attempts in its rule.";
    CONTEXT_LOST = "context_lost", Warning,
        "A service makes calls outside the context of the request that it serves, so its retries multiply with those of its callers.",
        "In the code of the service, start tasks with `damper_sdk::spawn`, or pass the request's `Context` to the task and run it within `Context::scope`. For a service behind `damper proxy`, configure OpenTelemetry in the service so that it propagates the context from each request to the calls made for it.";
    INBOUND_BYPASSED = "inbound_bypassed", Warning,
        "Calls reach a service without passing its proxy, as far as its proxies report: callers dial the service itself, or some of its processes have no proxy, or one that is not connected. The service takes no retry flags or deadlines from calls past its proxy, and its retry limit does not count them.",
        "Let callers dial the port of `inbound`. In Kubernetes make it the targetPort of the Service; for a headless Service, let the proxy listen on the port that callers dial, and the service on another one. Add the proxy to all processes of the service, and compare their number with `damper clients`: the log of a proxy has why it is not connected.";
    ENDPOINT_FAILING = "endpoint_failing", Warning,
        "Some instances of a callee fail or cannot be connected to, while its other instances work.",
        "Restart or replace the instances at the addresses that this finding names. A client that avoids such an instance uses it again as soon as it answers.";
    RETRIES_MEET_ONE_ENDPOINT = "retries_meet_one_endpoint", Hint,
        "A rule retries calls to a callee, but each client knows only one address of the callee, so every retry reaches the same instance.",
        "Run more instances, or give the clients a name that resolves to all of them (in Kubernetes, a headless service). With a single instance, allow fewer attempts in the rule.";
    FAILING_WITHOUT_RULE = "failing_without_rule", Hint,
        "Calls of a route fail, and no rule applies to the route.",
        "Try a rule in observe mode, which sends no retries: `damper rules init` proposes one.";
    CALLEE_MISSPELT = "callee_misspelt", Warning,
        "A caller names a callee of which no process is connected, while a service with another name serves exactly the called methods.",
        "In the code of the caller, change the name in `client_layer` to that of the other service. Until then the rules and guards of the other service do not apply to these calls.";
    CALLEE_UNKNOWN = "callee_unknown", Hint,
        "No process of a callee is connected to the control plane: retries by the callee multiply with those of its callers, and the callee does not limit the retries that it accepts.",
        "If the callee is yours, add Damper's SDK or `damper proxy` to it. Check that the caller and the callee use the same service name.";

    // Rules in the fleet.
    MATCHES_NOTHING = "matches_nothing", Warning,
        "A rule matches no route that any process reports, so it has no effect.",
        "Compare the caller, cluster, callee and method of the rule with the routes in `damper routes`. Correct the rule, or delete it.";
    OBSERVED_FOR_LONG = "observed_for_long", Hint,
        "A rule has been in observe mode for more than a week: it only counts what it would do, and sends no retries.",
        "Read in `damper stats` what the rule would have done (values that begin with would_). Then enforce it with `damper rules promote`, or delete it.";
    BREAKER_MODE_GONE = "breaker_mode_gone", Hint,
        "A stored rule sets retry_breaker.mode to `adaptive`, which no longer exists; the rule uses the mode `credit` instead.",
        "Read about the mode `credit` in docs/policy.md. Then write the rule again (`damper rules put`) with the mode `credit` or `ratio`.";
    SMALL_CALLERS_UNLIMITED = "small_callers_unlimited", Hint,
        "Many processes retry the same callee, and each of them sends few calls: in an outage each process sends a few retries before its own limit stops it, and nothing limits the sum of these retries.",
        "Create a guard for the callee that sets ceiling.repeat_limit in observe mode. Check how many retries it would reject, then enforce it.";

    // Queues.
    JOB_STORE_AWAY = "job_store_away", Danger,
        "The job store of the queues does not respond: no job is accepted or delivered, and results of jobs cannot be stored yet.",
        "Repair the job store so that it responds again. Until then workers continue the jobs that they already have.";
    JOB_STORE_FULL = "job_store_full", Danger,
        "The job store has no room: its disk is full, or the database has too little space, memory or connections. New jobs are rejected, and stored jobs are still delivered.",
        "The log of the server names the reason. Free space on the disk or enlarge the volume, or raise the limit of the database. To delete the jobs that were given up, run `damper jobs purge QUEUE --state dead`.";
    JOB_STORE_OLD_TRANSACTION = "job_store_old_transaction", Warning,
        "A transaction in the database of the jobs has been open for more than 5 minutes: the space of deleted and changed rows cannot be freed, and the queues become slow.",
        "Find the transaction in `pg_stat_activity` or `pg_prepared_xacts` and end it. Keep the jobs in a database that no other application uses.";
    JOB_STORE_DEAD_ROWS = "job_store_dead_rows", Warning,
        "The database of the jobs has more than ten times as many dead rows as live ones: the queues become slow.",
        "Check that autovacuum runs, and that no old transaction, prepared transaction or replication slot keeps the rows; then run `vacuum` on the tables of the schema damper_queue.";
    JOB_LEDGER_DIFFERS = "job_ledger_differs", Danger,
        "The number of stored jobs does not match the jobs that were submitted and deleted: jobs were lost, or something other than the server changed the job store.",
        "Check whether the job store (file or tables) was changed or restored while the server ran. If not, keep a copy of the job store and report a bug.";
    QUEUE_WITHOUT_POLICY = "queue_without_policy", Danger,
        "Jobs are stored for a queue that no longer exists: they are not delivered and do not expire.",
        "Create the queue again (`damper apply`), or cancel its jobs with `damper jobs cancel`.";
    QUEUE_LATE = "queue_late", Warning,
        "Jobs of a queue are delivered more than 5 minutes after they are due, although the callee works and the queue is not paused.",
        "Add workers or raise their concurrency. If the queue limits the deliveries, raise its max_in_flight or rate.";
    QUEUE_HELD = "queue_held", Warning,
        "Jobs of a queue are not delivered: the callee fails, a kill switch is in force, or the queue is paused.",
        "Fix the callee, end the kill switch (`damper unkill`), or resume the queue (`damper queues resume`).";
    QUEUE_LACKS_WORKER = "queue_lacks_worker", Warning,
        "Jobs of a queue are due, and no worker that may receive them is connected.",
        "Start a worker, and check that the name of the worker's service is in the list `workers` of the queue.";
    QUEUE_DEAD = "queue_dead", Warning,
        "Jobs of a queue were given up after their attempts failed; they are kept as dead jobs.",
        "Read the reasons with `damper jobs list QUEUE --state dead`. After the cause is fixed, deliver the jobs again with `damper jobs replay`. To delete them instead, run `damper jobs purge QUEUE --state dead`.";
    QUEUE_NEARLY_FULL = "queue_nearly_full", Warning,
        "A queue has used more than 80 % of its quota (max_jobs or max_bytes); a full queue rejects new jobs.",
        "Find out why the jobs are not delivered, or raise the quota of the queue.";
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = &'static str> {
        ALL.iter().chain(damper_core::lint::codes::ALL).map(|known| known.code)
    }

    #[test]
    fn no_code_is_a_prefix_of_another() {
        for (i, code) in all().enumerate() {
            for (j, other) in all().enumerate() {
                assert!(i == j || !other.starts_with(code), "{code} and {other}");
            }
        }
    }

    #[test]
    fn docs_list_every_code_with_its_remedy() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/findings.md");
        let text = std::fs::read_to_string(path).unwrap();
        for known in ALL {
            // The word that the command line and the web UI print.
            let severity = if known.severity == Danger { "critical" } else { known.severity.name() };
            let row = format!("| `{}` | {severity} | {} | {} |", known.code, known.meaning, known.remedy);
            assert!(text.contains(&row), "docs/findings.md lacks {row:?}");
        }
    }
}
