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
        "The store does not answer: rules stay as they are, and only kills can be changed.",
        "Restore the store; services keep the rules that they have.";
    STORE_UNACCEPTED = "store_unaccepted", Danger,
        "The store was emptied, replaced or rolled back: replicas and clients keep what they had, and only kills can be changed.",
        "Restore the previous store. Or write the entries in memory into it with `damper store refill`, or accept its content with `damper store accept`.";
    STORE_FULL = "store_full", Danger,
        "The disk of the store is full: kills can be set and ended, and nothing else can be changed.",
        "Free space or enlarge the volume. For etcd compact and defragment it or raise its quota, then disarm the alarm.";
    CLIENT_HELD = "client_held", Danger,
        "Connected processes run rules that the store does not contain: they keep these rules and receive only kills.",
        "If the store was emptied or restored from a backup, correct its content and run `damper store accept`; otherwise check the epoch and revision that these processes report.";
    REPLICA_UNREACHABLE = "replica_unreachable", Warning,
        "Another replica is unreachable: the statistics shown here omit the clients connected to it.",
        "`damper replicas` shows the cause. A stopped replica leaves the list after 10 s; a running one is reconnected automatically.";
    REPLICA_BEHIND = "replica_behind", Warning,
        "A replica is behind the revision of the others.",
        "Check that replica's log and its connection to the store; its clients get no changes until it catches up.";
    REPLICA_MISSING = "replica_missing", Warning,
        "There are fewer replicas than `--replicas` names.",
        "Start the missing replica; set `--replicas` to the new number if the change is intended.";
    EXPORT_OLD = "export_old", Hint,
        "Rules and guards have not been exported for a week, as far as the running replicas know.",
        "Run `damper export` from a timer and keep the file elsewhere, unless the store itself is backed up.";
    TOKEN_ENDS = "token_ends", Warning,
        "A token expires within 14 days, or has expired; a service with an expired token keeps the rules that it has.",
        "Create a new token (`damper token create NAME --role ROLE --ttl TIME --file FILE --replace`), deploy it, then revoke the old one.";
    CLOCKS_DIFFER = "clocks_differ", Warning,
        "The clocks of two replicas differ by more than 2 s: kills and tokens expire at different times on them.",
        "Synchronise the clocks of both machines with NTP or chrony. Kills that are set while both run still last for their whole time.";
    AGENT_DENIED = "agent_denied", Warning,
        "A service is rejected because of its token or certificate, and runs without Damper.",
        "Give it a token with the role agent and a scope that contains the service (`damper token create NAME --role agent --caller SERVICE`), or a certificate for it.";
    CERTIFICATE_ENDS = "certificate_ends", Warning,
        "The certificate of this replica is invalid or expires soon; clients reject an invalid one.",
        "Write the new certificate and its key into their files; they are reloaded within 10 s.";
    CERTIFICATE_NOT_RELOADED = "certificate_not_reloaded", Warning,
        "The certificate files of this replica have changed and cannot be used; the previous certificate is still in use.",
        "Fix the problem that the reason names; the files are reloaded within 10 s.";
    KILL_IN_FORCE = "kill_in_force", Warning,
        "A kill switch stops retries and hedges, or all calls.",
        "End it with `damper unkill` after the incident, or let it expire.";
    KILL_NOT_APPLIED = "kill_not_applied", Danger,
        "Connected processes do not apply a kill switch in force: they lack the feature, or reject it.",
        "Update the SDK there. Until then restart these processes with DAMPER_MODE=off, or write off to the override file: both stop all their retries.";

    // Clients.
    NO_CLIENT_CONNECTED = "no_client_connected", Warning,
        "No process of a service is connected: it gets no rules, and its calls are unknown.",
        "Give `Damper::connect` the address of this control plane and the service's name, then read the service's log.";
    CLIENT_LAGS = "client_lags", Warning,
        "A client has not acknowledged the revision that was sent to it.",
        "Check the CPU and the network of the process. A stream that is never read is closed.";
    ENTRY_REFUSED = "entry_refused", Warning,
        "Clients reject a rule, guard or kill and keep its previous version.",
        "Fix the problem that the reason names, or update the SDK of these clients.";
    OLD_SDK = "old_sdk", Hint,
        "Processes run an older SDK than others do.",
        "Update the SDK with the next release of the service.";
    DUPLICATE_INSTANCE = "duplicate_instance", Warning,
        "Several processes report under one instance id; the statistics contain only one of them.",
        "Give each process its own instance id, or leave service.instance.id out.";
    MODE_OVERRIDDEN = "mode_overridden", Warning,
        "A process is set locally to a weaker mode, so its rules are not enforced in full.",
        "Remove DAMPER_MODE or the override file when it is no longer needed.";
    NOT_LIVE = "not_live", Warning,
        "A connected process still runs on the rules of its state file, or without rules.",
        "If this persists, check the entries that the process rejects, and its log.";
    SERVER_LAYER_MISSING = "server_layer_missing", Warning,
        "A called service has no server layer, so its own retries multiply with those of its callers.",
        "Add `damper.server_layer()` to its server.";

    // Routes.
    RETRY_STORM = "retry_storm", Danger,
        "Retries and hedges of a route are more than half as many as its calls.",
        "Stop it with `damper kill`, then limit extra attempts with the rule's retry breaker or budget.";
    STORM_STOPPED = "storm_stopped", Warning,
        "A kill switch stops a retry storm; the rates still include traffic from before the kill.",
        "Clears within a minute, once the rates no longer include traffic from before the kill. If it becomes a retry_storm again, find the clients that do not apply the kill.";
    BREAKER_REFUSES = "breaker_refuses", Warning,
        "A retry breaker is open: the callee fails too often for retries to help.",
        "Fix the callee; retries resume automatically.";
    TIME_RUNS_OUT = "time_runs_out", Warning,
        "Calls expire: their deadline or the rule's timeout is shorter than the callee's response time.",
        "Compare p99 with the rule's timeout and the callers' deadlines: raise them, or fix the callee.";
    BUDGET_USED_UP = "budget_used_up", Warning,
        "The budget for extra attempts is exhausted.",
        "Fix the callee, or raise the budget if the callee can take more load.";
    CIRCUIT_NOT_CLOSED = "circuit_not_closed", Warning,
        "A circuit breaker blocks calls, or lets only probes through.",
        "Fix the callee; the circuit breaker closes when its probes succeed.";
    OUTER_LOOP = "outer_loop", Warning,
        "A service retries calls in a loop of its own, around the calls that Damper retries.",
        "Remove the loop and let a rule for the route retry instead.";
    REPEATS_BY_GRPC = "repeats_by_grpc", Warning,
        "A caller's gRPC client retries calls to a callee on its own, and Damper cannot limit these retries.",
        "Remove retryPolicy and hedgingPolicy from the callers' gRPC service config.";
    REPEATS_BY_ENVOY = "repeats_by_envoy", Warning,
        "Envoy or a service mesh retries calls to a callee, and Damper cannot limit these retries.",
        "Set attempts: 0 in Istio's VirtualService, or remove retry_policy from Envoy's route.";
    REPEATS_SHED = "repeats_shed", Warning,
        "A callee rejects retries: its callers together retry more than its retry limit allows (setting repeat_limit).",
        "Fix the callee if it fails. Then find the caller with the most retries in `damper routes`, and lower max_attempts in its rule.";
    CONTEXT_LOST = "context_lost", Warning,
        "A service makes calls outside the context of the request that it serves, so its retries multiply with those of its callers.",
        "Start tasks with `damper_sdk::spawn`, or pass the request's `Context` with its `scope`.";
    ENDPOINT_FAILING = "endpoint_failing", Warning,
        "Some endpoints of a callee fail or have no connection, while the others work.",
        "Restart or replace the instances at these addresses. Clients that have ejected them use them again when they answer.";
    RETRIES_MEET_ONE_ENDPOINT = "retries_meet_one_endpoint", Hint,
        "A rule retries calls to a callee of which each client knows a single endpoint, so every retry reaches the same instance.",
        "Run more instances, or give clients a name that resolves to all of them, in Kubernetes a headless service. With a single instance allow fewer attempts.";
    FAILING_WITHOUT_RULE = "failing_without_rule", Hint,
        "Calls of a route fail and no rule applies to it.",
        "Try a rule in observe: `damper rules init` proposes one.";
    CALLEE_MISSPELT = "callee_misspelt", Warning,
        "No process of a callee is connected, but a service of another name serves exactly the methods called on it.",
        "Give `client_layer` the callee's own service name: rules and guards for that name do not reach these calls.";
    CALLEE_UNKNOWN = "callee_unknown", Hint,
        "No process of a callee is connected: retries of its callers and its own multiply, and no retry limit protects it.",
        "Add the SDK to the callee too, if it is yours, and check that both names are spelt alike.";

    // Rules in the fleet.
    MATCHES_NOTHING = "matches_nothing", Warning,
        "A rule matches no route that any process reports.",
        "Check the four names of its key with `damper routes`, or delete it.";
    OBSERVED_FOR_LONG = "observed_for_long", Hint,
        "A rule has been in observe for more than a week.",
        "Read in `damper stats` what it would have done (would_ values), then promote it with `damper rules promote` or delete it.";
    BREAKER_MODE_GONE = "breaker_mode_gone", Hint,
        "A stored rule sets retry_breaker.mode to adaptive, which no longer exists; the rule uses credit instead.",
        "Read about credit in docs/policy.md, then put the rule again with mode credit or ratio.";
    SMALL_CALLERS_UNLIMITED = "small_callers_unlimited", Hint,
        "Many processes with few calls retry a callee: each may retry its first failure of an outage, and no retry limit of the callee bounds their sum.",
        "Put a guard for the callee with ceiling.repeat_limit in observe, check what it would block, then enforce it.";

    // Queues.
    JOB_STORE_AWAY = "job_store_away", Danger,
        "The job store does not respond: nothing is submitted or delivered, and settlements wait.",
        "Restore the job store; workers keep what they work on.";
    JOB_STORE_FULL = "job_store_full", Danger,
        "The disk of the job store has no room: submissions are refused, and kept jobs are delivered.",
        "Free space or enlarge the volume; delete dead jobs with `damper jobs purge`.";
    QUEUE_WITHOUT_POLICY = "queue_without_policy", Danger,
        "Jobs wait for a queue that does not exist: they are neither delivered nor expired.",
        "Put the queue again (`damper apply`), or cancel its jobs with `damper jobs cancel`.";
    QUEUE_LATE = "queue_late", Warning,
        "Due jobs of a queue are not delivered in time, although nothing holds them.",
        "Add workers or raise their concurrency, or raise the queue's max_in_flight or rate.";
    QUEUE_HELD = "queue_held", Warning,
        "Jobs of a queue are held: the callee fails, a kill switch is in force, or the queue is paused.",
        "Fix the callee, end the kill (`damper unkill`), or resume the queue (`damper queues resume`).";
    QUEUE_LACKS_WORKER = "queue_lacks_worker", Warning,
        "Jobs of a queue are due and no worker that may receive them is connected.",
        "Start a worker, and check that the queue's `workers` names its service.";
    QUEUE_DEAD = "queue_dead", Warning,
        "Jobs of a queue were given up and are kept.",
        "Read why with `damper jobs list QUEUE --state dead`; once the cause is fixed, `damper jobs replay`, else `damper jobs purge`.";
    QUEUE_NEARLY_FULL = "queue_nearly_full", Warning,
        "A queue has more than 80 % of its max_jobs or max_bytes.",
        "Find out why jobs are not delivered, or raise the quota.";
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
