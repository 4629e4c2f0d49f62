use std::time::Duration;

use damper_core::Pattern;

use crate::doctor::*;
use crate::state::resource_key::ResourceKey;
use crate::state::stored::StoredRule;
use crate::stats::Route;
use damper_queue::store::Burden;
use damper_store::{Entry, StoreContents};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A input with one rule in this mode that was written so long ago, and nobody connected.
fn input(mode: v1::Mode, ago: Duration) -> DoctorInput {
    let now = SystemTime::UNIX_EPOCH + 20_000 * DAY;
    let pattern = Pattern::parse("shop", "*", "stock", "s.S/Get").unwrap();
    let retry = v1::Retry { max_attempts: Some(3), ..Default::default() };
    let policy = v1::Policy { mode: mode.into(), retry: Some(retry), ..Default::default() };
    let rule = v1::Rule { policy: Some(policy), updated_at: Some((now - ago).into()), ..Default::default() };
    let entry = Entry { revision: 1, value: StoredRule::value(&rule).into() };
    let entries = [(ResourceKey::Rule(pattern).key(), entry)].into();
    let table = Snapshot::of(&StoreContents {
        epoch: "e".to_owned(),
        revision: 1,
        entries,
        ..StoreContents::default()
    });
    let nobody = Vec::new();
    DoctorInput {
        window: RateWindow::Minute,
        now,
        started: now - DAY,
        replicas_wanted: None,
        last_export: None,
        table: Arc::new(table),
        service: String::new(),
        clients: nobody,
        rows: Arc::new([]),
        served: Vec::new(),
        endpoints: Vec::new(),
        shared_ids: Vec::new(),
        lags_after: Duration::from_secs(10),
        replicas: Vec::new(),
        apart: Vec::new(),
        rejected: Vec::new(),
        store_is_full: false,
        jobs: None,
        certificate: None,
    }
}

fn codes(input: &DoctorInput) -> Vec<String> {
    input.diagnosis().findings.into_iter().map(|finding| finding.code).collect()
}

fn client(service: &str, n: usize) -> v1::Client {
    let identity = v1::Identity {
        service: service.to_owned(),
        cluster: "default".to_owned(),
        instance: format!("{service}-{n}"),
    };
    v1::Client { identity: Some(identity), source: v1::Source::Live.into(), ..Default::default() }
}

#[test]
fn a_rule_is_observed_for_long_after_a_week_and_only_in_observe() {
    let long = |mode, ago| codes(&input(mode, ago)).contains(&"observed_for_long".to_owned());
    assert!(long(v1::Mode::Observe, 8 * DAY));
    assert!(!long(v1::Mode::Observe, 6 * DAY));
    assert!(!long(v1::Mode::Enforce, 8 * DAY));
}

#[test]
fn burdened_or_changed_job_store_is_a_finding() {
    let mut input = input(v1::Mode::Enforce, DAY);
    let mut found = |seconds, live_rows, dead_rows, gap| {
        let burden = Burden { oldest_transaction: Duration::from_secs(seconds), live_rows, dead_rows };
        let (queues, away) = (Vec::new(), None);
        input.jobs =
            Some(queues::JobsInput { queues, away, is_full: false, burden: Ok(burden), gap: Ok(gap) });
        let all = codes(&input).into_iter();
        all.filter(|code| code.starts_with("job_")).collect::<Vec<_>>()
    };
    assert!(found(299, 10_000, 100_000, 0).is_empty());
    assert!(found(0, 0, 50_000, 0).is_empty(), "few in all");
    assert_eq!(found(300, 0, 0, 0), ["job_store_old_transaction"]);
    assert_eq!(found(0, 10_000, 100_001, 0), ["job_store_dead_rows"]);
    assert_eq!(found(0, 0, 0, 2), ["job_ledger_differs"]);
    assert_eq!(found(0, 0, 0, -1), ["job_ledger_differs"]);
}

#[test]
fn check_that_is_impossible_is_not_shown_as_passed() {
    let mut input = input(v1::Mode::Enforce, DAY);
    let is_about_jobs = |line: &&String| line.starts_with("no job is missing");
    let passed = "no job is missing (none on this server): nothing found";
    assert_eq!(input.diagnosis().checked.iter().find(is_about_jobs).unwrap(), passed);
    let (queues, burden) = (Vec::new(), Err("away".to_owned()));
    let gap = Err("other servers submit and delete jobs in the same store".to_owned());
    input.jobs = Some(queues::JobsInput { queues, away: None, is_full: false, burden, gap });
    let v1::DiagnoseResponse { findings, checked, not_checked } = input.diagnosis();
    assert_eq!(checked.iter().find(is_about_jobs), None);
    let expected = [
        "the database of the jobs is cleaned (1 job store): away",
        "no job is missing (1 job store): other servers submit and delete jobs in the same store",
    ];
    assert_eq!(not_checked, expected);
    assert!(!findings.iter().any(|finding| finding.code.starts_with("job_")), "{findings:?}");
}

#[test]
fn full_store_is_a_danger() {
    let mut input = input(v1::Mode::Enforce, DAY);
    assert!(!codes(&input).contains(&"store_full".to_owned()));
    input.store_is_full = true;
    let findings = input.diagnosis().findings;
    assert_eq!((&*findings[0].code, findings[0].severity()), ("store_full", v1::Severity::Danger));
}

#[test]
fn a_store_that_is_away_is_the_first_thing_told() {
    let mut input = input(v1::Mode::Enforce, DAY);
    let mut table = Snapshot::clone(&input.table);
    table.stale_since = Some(input.now - Duration::from_secs(90));
    input.table = Arc::new(table);
    let findings = input.diagnosis().findings;
    assert_eq!(findings[0].code, "store_stale");
    assert!(findings[0].message.contains("90s"), "{findings:?}");
}

#[test]
fn clients_that_do_not_run_on_live_rules_are_told_once_they_had_time() {
    let mut input = input(v1::Mode::Enforce, DAY);
    let connected = |seconds| Some((input.now - Duration::from_secs(seconds)).into());
    let stale = |n, source: v1::Source, seconds| v1::Client {
        source: source.into(),
        connected_at: connected(seconds),
        ..client("shop", n)
    };
    input.clients = vec![
        stale(1, v1::Source::LastKnownGood, 60),
        stale(2, v1::Source::BuiltIn, 60),
        stale(3, v1::Source::LastKnownGood, 5),
        stale(4, v1::Source::Live, 60),
    ];
    let findings = input.diagnosis().findings;
    let found: Vec<_> = findings.iter().filter(|finding| finding.code == "not_live").collect();
    assert_eq!(found.len(), 1);
    let says = "2 processes, one of them shop-1: the process runs with the last rules that it saved";
    assert!(found[0].message.starts_with(says), "{found:?}");
}

#[test]
fn an_answer_is_bounded_and_says_what_was_left_out() {
    let mut input = input(v1::Mode::Enforce, DAY);
    input.clients = (0..1500)
        .map(|n| v1::Client { override_mode: v1::Mode::Off.into(), ..client(&format!("s{n}"), 1) })
        .collect();
    let findings = input.diagnosis().findings;
    assert_eq!(findings.len(), 1_000);
    let last = findings.last().unwrap();
    assert_eq!((last.code.as_str(), last.message.as_str()), ("more_findings", "and 501 more findings"));
}

fn row(caller: &str, callee: &str, method: &str) -> Arc<RouteSummary> {
    let route = Route {
        caller_service: caller.into(),
        caller_cluster: "default".into(),
        callee_service: callee.into(),
        callee_method: method.into(),
    };
    Arc::new(RouteSummary { route, stats: v1::RouteStats::default() })
}

#[test]
fn called_proxy_without_inbound_is_found_as_such() {
    let mut input = input(v1::Mode::Enforce, DAY);
    let proxy = |serves| v1::Client { via: v1::Via::Proxy.into(), serves, ..client("stock", 1) };
    input.rows = Arc::new([row("shop", "stock", "s.S/Get")]);
    input.clients = vec![proxy(false)];
    let findings = input.diagnosis().findings;
    let found = findings.iter().find(|finding| finding.code == "server_layer_missing").unwrap();
    assert!(found.message.contains("a proxy without `inbound`"), "{found:?}");
    input.clients = vec![proxy(true)];
    assert!(!codes(&input).contains(&"server_layer_missing".to_owned()));
}

#[test]
fn service_is_bypassed_if_it_serves_far_less_than_it_answers() {
    let mut input = input(v1::Mode::Enforce, DAY);
    let of = |callee: &str, per_s, total_calls| {
        let ended = |fate: v1::Fate, per_s| v1::FateRate { fate: fate.into(), per_s, ..Default::default() };
        // Cancelled calls may not have reached the callee.
        let fates = vec![ended(v1::Fate::OkAfterRetry, per_s), ended(v1::Fate::Cancelled, 50.0)];
        let stats = v1::RouteStats { fates, total_calls, ..Default::default() };
        Arc::new(RouteSummary { stats, ..RouteSummary::clone(&row("shop", callee, "s.S/Get")) })
    };
    let serves = |first_sends_per_s, damper_repeats_per_s| {
        let rates = v1::ServedRates { first_sends_per_s, damper_repeats_per_s, ..Default::default() };
        vec![(("stock".into(), "s.S/Get".into()), rates)]
    };
    let found = |input: &DoctorInput| {
        let findings = input.diagnosis().findings.into_iter();
        let found: Vec<_> = findings.filter(|finding| finding.code == "inbound_bypassed").collect();
        found.into_iter().map(|finding| (finding.subject, finding.message)).collect::<Vec<_>>()
    };
    let proxy = v1::Client { via: v1::Via::Proxy.into(), serves: true, ..client("stock", 1) };
    let sdk = v1::Client { serves: true, ..client("shop", 1) };
    input.clients = vec![proxy, sdk];
    // A proxy serves no HTTP, and an SDK may count calls that are no requests.
    let http = RouteSummary {
        route: row("shop", "stock", "GET:/a.b").route.clone(),
        ..(*of("stock", 10.0, 999)).clone()
    };
    input.rows = [of("stock", 8.0, 999), Arc::new(http), of("shop", 10.0, 999), of("mail", 10.0, 999)].into();
    let message = "480 calls to stock succeeded in the last minute, but its proxies report 0 requests";
    assert_eq!(found(&input), [("stock".to_owned(), message.to_owned())]);
    input.served = serves(3.0, 0.9);
    assert_eq!(found(&input).len(), 1, "3.9 of 8");
    input.served = serves(3.0, 1.0);
    assert!(found(&input).is_empty(), "half of them");
    input.served.clear();
    input.service = "shop".to_owned();
    assert!(found(&input).is_empty(), "another service was asked about");
    input.service = "stock".to_owned();
    assert_eq!(found(&input).len(), 1);
    input.replicas = vec![v1::Replica { problem: "timeout".to_owned(), ..Default::default() }];
    assert!(found(&input).is_empty(), "reports may be missing");
    input.replicas.clear();
    input.rows = [of("stock", 0.33, 999)].into();
    assert!(found(&input).is_empty(), "too few calls");
    input.rows = [of("stock", 10.0, 19)].into();
    assert!(found(&input).is_empty(), "few calls of a route that is new");
    input.rows = [of("stock", 10.0, 20)].into();
    assert_eq!(found(&input).len(), 1);
    input.window =
        RateWindow::read("window", prost_types::Duration::try_from(Duration::from_secs(10)).ok()).unwrap();
    assert!(found(&input).is_empty(), "reports of both sides are some seconds apart");
}

#[test]
fn a_callee_whose_methods_another_one_serves_is_misspelt() {
    let mut input = input(v1::Mode::Enforce, DAY);
    input.clients = vec![client("shop", 1), client("price", 1), client("prices", 1)];
    let serves = |service: &str, method: &str| ((service.into(), method.into()), v1::ServedRates::default());
    input.served = vec![serves("price", "a.P/Get"), serves("price", "a.P/List"), serves("prices", "a.P/Get")];
    input.rows = [row("shop", "prise", "a.P/Get"), row("shop", "prise", "a.P/List")].into();
    let found = input.diagnosis().findings;
    let misspelt = found.iter().find(|finding| finding.code == "callee_misspelt").expect("it is found");
    assert_eq!((misspelt.subject.as_str(), misspelt.severity()), ("prise", v1::Severity::Warning));
    assert!(misspelt.message.contains("did you mean price"), "{misspelt:?}");
    assert!(!found.iter().any(|finding| finding.code == "callee_unknown"));

    // It is another service if it has a method that price has not, or only what every server has.
    for methods in [vec!["a.P/Get", "a.P/Put"], vec!["grpc.health.v1.Health/Check"]] {
        input.rows = methods.iter().map(|method| row("shop", "prise", method)).collect();
        input.served.push(serves("price", "grpc.health.v1.Health/Check"));
        let codes = codes(&input);
        assert!(codes.contains(&"callee_unknown".to_owned()), "{codes:?}");
        assert!(!codes.contains(&"callee_misspelt".to_owned()), "{codes:?}");
    }
}

#[test]
fn nobody_is_missed_while_clients_connect_to_a_server_that_has_started() {
    let mut input = input(v1::Mode::Enforce, DAY);
    input.rows = [row("shop", "stock", "a.S/Get")].into();
    input.replicas_wanted = Some(2);
    let missed = |input: &DoctorInput| {
        let all = codes(input).into_iter();
        all.filter(|code| {
            ["no_client_connected", "callee_unknown", "replica_missing"].contains(&code.as_str())
        })
        .count()
    };
    input.started = input.now - Duration::from_secs(4);
    assert_eq!(missed(&input), 0);
    let checked = input.diagnosis().checked.join("\n");
    assert!(checked.contains("this replica started 4s ago and clients are still connecting"), "{checked}");
    input.started = input.now - Duration::from_secs(20);
    assert_eq!(missed(&input), 3);
}

#[test]
fn a_backup_is_old_after_a_week_without_an_export() {
    let mut input = input(v1::Mode::Enforce, DAY);
    let is_old = |input: &DoctorInput| codes(input).contains(&"export_old".to_owned());
    input.started = input.now - 6 * DAY;
    assert!(!is_old(&input));
    input.started = input.now - 30 * DAY;
    assert!(is_old(&input));
    input.last_export = Some(input.now - 2 * DAY);
    assert!(!is_old(&input));
    input.last_export = Some(input.now - 8 * DAY);
    assert!(is_old(&input));
    input.table = Arc::new(Snapshot::of(&StoreContents {
        epoch: "e".to_owned(),
        revision: 1,
        ..StoreContents::default()
    }));
    assert!(!is_old(&input), "there is nothing to export");
}

#[test]
fn fewer_replicas_than_there_should_be_are_a_finding() {
    let mut input = input(v1::Mode::Enforce, DAY);
    let replica = |id: &str| v1::Replica { id: id.to_owned(), ..v1::Replica::default() };
    let is_missing = |input: &DoctorInput| codes(input).contains(&"replica_missing".to_owned());
    input.replicas = vec![replica("a")];
    assert!(!is_missing(&input), "how many there should be is not known");
    input.replicas_wanted = Some(2);
    assert!(is_missing(&input));
    input.replicas = vec![replica("a"), replica("b")];
    assert!(!is_missing(&input));
}

#[test]
fn a_replica_is_told_that_is_not_heard_or_has_been_elsewhere_for_long() {
    let mut input = input(v1::Mode::Enforce, DAY);
    let since = input.now - Duration::from_secs(30);
    let (id, address) = ("b-1".to_owned(), "http://b:7600".to_owned());
    let heard = v1::Replica { id, address, ..v1::Replica::default() };
    let problem = "connection refused".to_owned();
    input.replicas = vec![v1::Replica { problem, unheard_since: Some(since.into()), ..heard.clone() }];
    let found = input.diagnosis().findings;
    let unreachable = found.iter().find(|finding| finding.code == "replica_unreachable").unwrap();
    assert_eq!(unreachable.subject, "b-1");
    assert!(unreachable.message.contains("for 30s: connection refused"), "{unreachable:?}");

    input.replicas = vec![heard];
    let apart = |seconds| OutOfSyncPeer {
        id: "b-1".to_owned(),
        revision: 0,
        since: input.now - Duration::from_secs(seconds),
    };
    let (a_moment, long) = (apart(2), apart(20));
    input.apart = vec![a_moment];
    assert!(!codes(&input).iter().any(|code| code.starts_with("replica")));
    input.apart = vec![long];
    assert!(codes(&input).contains(&"replica_behind".to_owned()));
}

#[test]
fn a_rule_stored_with_the_mode_that_is_gone_is_told() {
    let stored_with = |mode| {
        let mut input = input(v1::Mode::Enforce, DAY);
        let retry_breaker = Some(v1::RetryBreaker { mode, ..Default::default() });
        let retry = Some(v1::Retry::default());
        let policy =
            v1::Policy { mode: v1::Mode::Enforce.into(), retry, retry_breaker, ..Default::default() };
        let value = StoredRule::value(&v1::Rule { policy: Some(policy), ..Default::default() });
        let pattern = Pattern::parse("shop", "*", "stock", "*").unwrap();
        let entries = [(ResourceKey::Rule(pattern).key(), Entry { revision: 1, value: value.into() })].into();
        let state = StoreContents { epoch: "e".to_owned(), revision: 1, entries, ..StoreContents::default() };
        input.table = Arc::new(Snapshot::of(&state));
        codes(&input).contains(&"breaker_mode_gone".to_owned())
    };
    assert_eq!([stored_with(2), stored_with(1), stored_with(3)], [true, false, false]);
}

#[test]
fn many_small_callers_without_a_repeat_limit_are_told_once_for_each_callee() {
    let mut input = input(v1::Mode::Enforce, DAY);
    let row = |method: &str, clients, calls_per_s| {
        let (route, mode) = (row("shop", "stock", method).route.clone(), v1::Mode::Enforce.into());
        Arc::new(RouteSummary {
            route,
            stats: v1::RouteStats { clients, calls_per_s, mode, ..Default::default() },
        })
    };
    let mut told = |rows: Vec<Arc<RouteSummary>>| {
        input.rows = rows.into();
        let findings = input.diagnosis().findings;
        let found = findings.into_iter().filter(|finding| finding.code == "small_callers_unlimited");
        found.map(|finding| (finding.subject, finding.message)).collect::<Vec<_>>()
    };
    assert_eq!(told(vec![row("s.S/Get", 49, 4.9), row("s.S/Put", 50, 25.0)]), [], "few, and busy ones");
    let told = told(vec![row("s.S/Get", 60, 6.0), row("s.S/Put", 500, 50.0)]);
    let message = "500 processes make 50.0 calls/s together, and the callee enforces no retry limit";
    assert_eq!(told, [("* * stock *".to_owned(), message.to_owned())]);
}

/// A route to `stock` with so many calls a second.
fn route_to_stock(calls_per_s: f64) -> Arc<[Arc<RouteSummary>]> {
    let key = v1::RouteKey {
        caller_service: "shop".to_owned(),
        caller_cluster: "default".to_owned(),
        callee_service: "stock".to_owned(),
        callee_method: "s.S/Get".to_owned(),
    };
    let stats = v1::RouteStats { calls_per_s, ..Default::default() };
    [Arc::new(RouteSummary { route: Route::read(&key).unwrap(), stats })].into()
}

fn endpoints_of_stock(count: u32, problem: &str) -> v1::CalleeEndpoints {
    v1::CalleeEndpoints {
        callee_service: "stock".to_owned(),
        clients: 4,
        count,
        problem: problem.to_owned(),
        ..Default::default()
    }
}

#[test]
fn an_endpoint_that_fails_is_told_of_callees_that_are_called() {
    let mut input = input(v1::Mode::Enforce, DAY);
    input.endpoints = vec![endpoints_of_stock(3, "1 of 3 endpoints of stock fails")];
    input.rows = route_to_stock(1.0);
    let findings = input.diagnosis().findings;
    let told = findings.iter().find(|finding| finding.code == "endpoint_failing").unwrap();
    assert_eq!((&*told.subject, &*told.message), ("* * stock *", "1 of 3 endpoints of stock fails"));
    assert_eq!(told.severity(), v1::Severity::Warning);
    let is_told = |input: &DoctorInput| codes(input).contains(&"endpoint_failing".to_owned());
    input.service = "shop".to_owned();
    assert!(is_told(&input), "it calls stock");
    input.service = "price".to_owned();
    assert!(!is_told(&input));
    input.service = String::new();
    input.rows = route_to_stock(0.0);
    assert!(!is_told(&input), "nobody calls it");
}

#[test]
fn retries_that_can_only_meet_the_same_endpoint_are_told() {
    let is_told = |mode, count| {
        let mut input = input(mode, DAY);
        input.endpoints = vec![endpoints_of_stock(count, "")];
        input.rows = route_to_stock(1.0);
        codes(&input).contains(&"retries_meet_one_endpoint".to_owned())
    };
    assert!(is_told(v1::Mode::Enforce, 1));
    assert!(!is_told(v1::Mode::Enforce, 2), "there is another");
    assert!(!is_told(v1::Mode::Observe, 1), "nothing is retried");
}

#[test]
fn clocks_differ_beyond_two_seconds_either_way() {
    let mut input = input(v1::Mode::Enforce, DAY);
    let replica = |id: &str, seconds, nanos| v1::Replica {
        id: id.to_owned(),
        clock_offset: Some(prost_types::Duration { seconds, nanos }),
        ..Default::default()
    };
    input.replicas = vec![
        replica("a", 1, 900_000_000),
        replica("b", 70, 0),
        replica("c", -2, -500_000_000),
        replica("d", -2, 0),
    ];
    let findings = input.diagnosis().findings;
    let found = findings.iter().filter(|finding| finding.code == "clocks_differ");
    let found: Vec<_> = found.map(|one| (&*one.subject, &*one.message)).collect();
    let expected = [
        ("b", "the clock is 70.0 s ahead of that of this replica"),
        ("c", "the clock is 2.5 s behind that of this replica"),
    ];
    assert_eq!(found, expected);
}

#[test]
fn certificate_that_ends_soon_is_found() {
    let mut input = input(v1::Mode::Enforce, DAY);
    assert!(!codes(&input).contains(&"certificate_ends".to_owned()), "without TLS");
    input.certificate = Some(Default::default());
    assert!(!codes(&input).contains(&"certificate_ends".to_owned()), "nothing is wrong with it");
    let warning = Some("expires in 3 days".to_owned());
    input.certificate = Some(crate::doctor::listeners::ListenerCertificate { warning, refused: None });
    let findings = input.diagnosis().findings;
    let found = findings.iter().find(|finding| finding.code == "certificate_ends").expect("it is found");
    assert_eq!((&*found.message, found.severity()), ("expires in 3 days", v1::Severity::Warning));
    assert!(!findings.iter().any(|finding| finding.code == "certificate_not_reloaded"));
}

#[test]
fn certificate_that_is_not_reloaded_is_found() {
    let mut input = input(v1::Mode::Enforce, DAY);
    let refused = Some("tls_key: this private key does not belong to the certificate".to_owned());
    input.certificate = Some(crate::doctor::listeners::ListenerCertificate { warning: None, refused });
    let findings = input.diagnosis().findings;
    let found =
        findings.iter().find(|finding| finding.code == "certificate_not_reloaded").expect("it is found");
    assert!(found.message.contains("does not belong to the certificate"), "{found:?}");
    assert!(!findings.iter().any(|finding| finding.code == "certificate_ends"));
}
