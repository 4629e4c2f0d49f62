//! Every code that a diagnosis can have, beside those of rules in damper-core's `lint`: how grave it is and what to do about it.
//!
//! Codes are only ever added, and none begins as another does: scripts go by them. docs/findings.md has them all.

use damper_core::lint::Severity::{Danger, Hint, Warning};
use damper_core::lint::codes::FindingCode;

macro_rules! codes {
    ($($name:ident = $code:literal, $severity:ident, $meaning:literal, $remedy:literal;)*) => {
        $(
            #[doc = $meaning]
            pub(crate) const $name: FindingCode =
                FindingCode { code: $code, severity: $severity, meaning: $meaning, remedy: $remedy };
        )*

        /// All of them, in the order of docs/findings.md.
        pub(crate) const ALL: &[FindingCode] = &[$($name),*];
    };
}

codes! {
    // The control plane itself.
    STORE_STALE = "store_stale", Danger,
        "The store does not answer: rules are as they were, and only kills can be changed.",
        "Bring the store back; services go on with the rules that they have.";
    STORE_UNACCEPTED = "store_unaccepted", Danger,
        "The store was emptied, replaced or set back: replicas and clients go on with what they had, and no change but a kill is possible.",
        "Bring back the store that is known; or `damper store refill` writes into it what is in memory, or `damper store accept` takes what it holds as the truth.";
    STORE_FULL = "store_full", Danger,
        "The disk of the store is full: kills can be set and ended, and nothing else can be changed.",
        "Free space or enlarge the volume. For etcd compact and defragment it or raise its quota, then disarm the alarm.";
    CLIENT_HELD = "client_held", Danger,
        "Connected processes hold more than the store: nothing is taken from them, and no change but a kill arrives there.",
        "If the store was emptied or restored from a backup, bring it to what it should be and run `damper store accept`; else look at what these processes send.";
    REPLICA_UNHEARD = "replica_unheard", Warning,
        "This replica does not hear another one: what that one's clients do is missing in what this one tells.",
        "See `damper replicas` for why; it is forgotten 10 s after it has ended, and heard again when it is reached.";
    REPLICA_BEHIND = "replica_behind", Warning,
        "A replica has not come to the revision of the others.",
        "Look at that replica's log and at its way to the store; its clients wait for changes meanwhile.";
    REPLICA_MISSING = "replica_missing", Warning,
        "There are fewer replicas than `--replicas` names.",
        "Look at the machine where one is missing, and start it; set `--replicas` to the new number if that is intended.";
    EXPORT_OLD = "export_old", Hint,
        "Rules and guards have not been exported for a week, as far as the running replicas know.",
        "Run `damper export` from a timer and keep the file elsewhere, unless the store itself is backed up.";
    TOKEN_ENDS = "token_ends", Warning,
        "A token ends within 14 days, or has ended; a service that shows it then keeps the rules that it has.",
        "Create its successor (`damper token create NAME --role ROLE --ttl TIME --file FILE --replace`), put it in place, then revoke the old one.";
    CLOCKS_DIFFER = "clocks_differ", Warning,
        "The clocks of two replicas differ by more than 2 s: ends of kills and tokens are not the same everywhere.",
        "Let NTP or chrony set the clocks of both machines; kills that are set while both run last for their whole time all the same.";
    AGENT_DENIED = "agent_denied", Warning,
        "A service is turned away for its token or certificate, and goes on without Damper.",
        "Give it a token of the role agent whose scope has the service (`damper token create NAME --role agent --caller SERVICE`), or a certificate for it.";
    CERTIFICATE_ENDS = "certificate_ends", Warning,
        "The certificate that this replica shows is not good, or ends soon; clients refuse it then.",
        "Put the next certificate and its key into their files; they are read again within 10 s.";
    CERTIFICATE_NOT_RELOADED = "certificate_not_reloaded", Warning,
        "The files of this replica's certificate have changed and can not be used; what was read before is still shown.",
        "Repair what the reason names; the files are read again within 10 s.";
    KILL_IN_FORCE = "kill_in_force", Warning,
        "A kill switch stops what is repeated, or calls altogether.",
        "End it with `damper unkill` when the incident is over, or let it expire.";
    KILL_NOT_OBEYED = "kill_not_obeyed", Danger,
        "Connected processes do not obey a kill switch in force: they lack the feature, or refuse it.",
        "Update the SDK there; until then DAMPER_MODE=off or the override file stops them.";

    // Clients.
    NOBODY_CONNECTED = "nobody_connected", Warning,
        "No process of a service is connected, so no rule arrives there and nothing is known of its calls.",
        "Give `Damper::connect` the address of this control plane and the service's name, then read the service's log.";
    CLIENT_LAGS = "client_lags", Warning,
        "A client has not confirmed for long what was sent to it.",
        "Look whether the process has time to run and its network is well; its stream is closed if it never reads.";
    ENTRY_REFUSED = "entry_refused", Warning,
        "Clients refuse a rule, guard or kill and keep the version before it.",
        "Repair what the reason names, or update the SDK there.";
    OLD_SDK = "old_sdk", Hint,
        "Processes run an older SDK than others do.",
        "Update it when the service is released next.";
    DUPLICATE_INSTANCE = "duplicate_instance", Warning,
        "Several processes report under one instance id; figures are those of one of them.",
        "Give each process its own instance id, or leave service.instance.id out.";
    MODE_OVERRIDDEN = "mode_overridden", Warning,
        "A process's mode is overridden where it runs, so that rules do less there than they say.",
        "Take DAMPER_MODE or the override file away when it has done its duty.";
    NOT_LIVE = "not_live", Warning,
        "A connected process still runs on what lay on its disk, or on nothing.",
        "If it stays so, look at what the process refuses and at its log.";
    SERVER_LAYER_MISSING = "server_layer_missing", Warning,
        "A service that others call has no server layer: flags end there, and its own calls belong to no chain.",
        "Add `damper.server_layer()` to its server.";

    // Routes.
    RETRY_STORM = "retry_storm", Danger,
        "So much is repeated on a route that its callee gets half as many sends again as there are calls.",
        "Stop it with `damper kill`, then let the rule's retry breaker or budget bound repeats.";
    STORM_STOPPED = "storm_stopped", Warning,
        "A kill switch stops a retry storm; the figures are of a time that began before it, so the proof is awaited.",
        "Wait a minute: the finding ends when the figures are all of the time since the kill. If it becomes a retry_storm again, see which clients do not obey.";
    BREAKER_REFUSES = "breaker_refuses", Warning,
        "A retry breaker refuses retries: the callee fails too often for retries to help.",
        "Repair the callee; retries come back by themselves when it answers.";
    TIME_RUNS_OUT = "time_runs_out", Warning,
        "Calls run out of time: their deadline, or the rule's timeout, is shorter than the callee takes.",
        "Compare p99 with the rule's timeout and the callers' deadlines: give calls more time, or repair the callee.";
    BUDGET_USED_UP = "budget_used_up", Warning,
        "The budget of what may be repeated is used up.",
        "Repair the callee, or raise the budget if it bears more.";
    CIRCUIT_NOT_CLOSED = "circuit_not_closed", Warning,
        "A circuit breaker refuses calls, or lets only probes through.",
        "Repair the callee; the circuit breaker closes when its probes succeed.";
    OUTER_LOOP = "outer_loop", Warning,
        "A service repeats calls in a loop of its own, around those that Damper makes.",
        "Take the loop out and let a rule for the route repeat instead.";
    REPEATS_BY_GRPC = "repeats_by_grpc", Warning,
        "A callee is sent repeats that a stock gRPC client made, which no rule bounds.",
        "Take retryPolicy and hedgingPolicy out of the callers' gRPC service config.";
    REPEATS_BY_ENVOY = "repeats_by_envoy", Warning,
        "A callee is sent repeats that Envoy or a mesh made, which no rule bounds.",
        "Set attempts: 0 in Istio's VirtualService, or leave retry_policy out of Envoy's route.";
    REPEATS_SHED = "repeats_shed", Warning,
        "A callee refuses repeats because all callers together send more than its repeat limit.",
        "Find who repeats most with `damper routes`, and lower the attempts there.";
    CONTEXT_LOST = "context_lost", Warning,
        "Calls of a service are made outside the request that they belong to, so that chains end there.",
        "Start tasks with `damper_sdk::spawn`, or hand the request's `Context` over with its `scope`.";
    ENDPOINT_FAILING = "endpoint_failing", Warning,
        "Some endpoints of a callee fail, or nobody is connected to them, while the others are well.",
        "Look at the instances at these addresses: restart or replace them. Clients that have ejected them leave them alone by themselves until they answer again.";
    RETRIES_MEET_ONE_ENDPOINT = "retries_meet_one_endpoint", Hint,
        "A rule repeats calls to a callee of which every client knows one endpoint only, so that a retry meets the same instance again.",
        "Run more instances, or give clients a name that has the addresses of all of them, in Kubernetes that of a headless service. If one is all there is, allow fewer attempts.";
    FAILING_WITHOUT_RULE = "failing_without_rule", Hint,
        "Calls of a route fail and no rule applies to it.",
        "See what a rule would do: `damper rules init` proposes one in observe.";
    CALLEE_MISSPELT = "callee_misspelt", Warning,
        "A callee has no process connected here, and a connected service serves exactly the methods called on it.",
        "Give `client_layer` the callee's own service name: rules and guards for that name do not reach these calls.";
    CALLEE_UNKNOWN = "callee_unknown", Hint,
        "A callee has no process connected here: it takes part in no chain, and no repeat limit can protect it.",
        "Link the SDK into the callee too, if it is yours, and check that both names are spelt alike.";

    // Rules, as the fleet has them.
    MATCHES_NOTHING = "matches_nothing", Warning,
        "A rule matches no route that any process reports.",
        "Check the four names of its key with `damper routes`, or delete it.";
    OBSERVED_FOR_LONG = "observed_for_long", Hint,
        "A rule has been in observe for more than a week.",
        "Compare its would_ figures in `damper stats`, then `damper rules promote` or delete it.";
    BREAKER_MODE_GONE = "breaker_mode_gone", Hint,
        "A rule was stored with the retry breaker's mode adaptive, which is gone; it goes by credit.",
        "Read what credit does in docs/policy.md, then put the rule again with mode credit or ratio.";
    SMALL_CALLERS_UNLIMITED = "small_callers_unlimited", Hint,
        "Many processes that call rarely retry a callee: each may repeat its first failure of an outage, and no repeat limit bounds them together.",
        "Put a guard for the callee with ceiling.repeat_limit in observe, look at what it would refuse, then enforce it.";
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = &'static str> {
        ALL.iter().chain(damper_core::lint::codes::ALL).map(|known| known.code)
    }

    #[test]
    fn no_code_begins_as_another_does() {
        for (i, code) in all().enumerate() {
            for (j, other) in all().enumerate() {
                assert!(i == j || !other.starts_with(code), "{code} and {other}");
            }
        }
    }

    #[test]
    fn every_code_is_explained_in_the_documents() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/findings.md");
        let text = std::fs::read_to_string(path).unwrap();
        for known in ALL {
            assert!(text.contains(&format!("`{}`", known.code)), "{} is not in docs/findings.md", known.code);
            assert!(text.contains(known.remedy), "docs/findings.md has another remedy for {}", known.code);
        }
    }
}
