//! `kind: Queue`

use damper_core::Mode;
use damper_core::job::{QueueSettings, ServiceName};

use super::{KEY, Manifest, check, parse, refused, to_yaml};
use crate::manifest::Settings;

const QUEUE: &str = "
kind: Queue
name: stock-later
owner: team-orders
policy:
  mode: enforce
  retry: { max_attempts: 20, per_attempt_timeout: 30s, backoff: { exponential: { base: 1s, max: 1h, jitter: equal } } }
workers: [orders]
";

#[test]
fn queue_text_round_trips() {
    let documents = parse(QUEUE).unwrap();
    let queues = check(&documents).unwrap().queues;
    let mut settings = QueueSettings::new(Mode::Enforce);
    settings.policy.retry = Some(damper_core::Retry { max_attempts: 20, ..QueueSettings::default_retry() });
    settings.workers = vec![ServiceName::Exact("orders".to_owned())];
    assert_eq!(queues[0].settings(), &settings);
    assert_eq!((queues[0].name(), queues[0].owner()), ("stock-later", "team-orders"));
    let manifests: Vec<_> = documents.into_iter().map(|document| document.manifest).collect();
    assert_eq!(
        to_yaml(&manifests),
        "---\nkind: Queue\nname: stock-later\npolicy:\n  mode: enforce\n  retry:\n    max_attempts: 20\n    \
         per_attempt_timeout: 30s\n    backoff:\n      exponential:\n        base: 1s\n        max: 1h\n        \
         jitter: equal\nworkers:\n- orders\nowner: team-orders\n"
    );
}

#[test]
fn two_queues_of_one_name_are_refused() {
    let text = format!("{KEY}policy: {{mode: off}}\n---{QUEUE}---{QUEUE}");
    let error = check(&parse(&text).unwrap()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "document 3, line 13: name: duplicate name stock-later, as in document 2, line 5"
    );
}

#[test]
fn queues_are_refused_by_line_and_field() {
    let text = "kind: Queue\nname: Stock\npolicy:\n  mode: enforce\n  timeout: 2s\nlease: 1s\nkey: {}\non_stop: wait\n";
    let error = refused(text).to_string();
    let lines: Vec<&str> = error.lines().collect();
    assert!(lines[0].starts_with("document 1, line 2: name: \"Stock\" contains 'S'"), "{error}");
    assert_eq!(
        lines[1],
        "document 1, line 5: policy.timeout: a queue has no such setting; it has mode, retry and stop_when"
    );
    assert_eq!(lines[2], "document 1, line 6: lease: must be between 5s and 1h, not 1s");
    assert!(
        lines[3].starts_with("document 1, line 7: key: unknown field `key`, expected one of `name`"),
        "{error}"
    );
    assert_eq!(lines[4], r#"document 1, line 8: on_stop: must be one of hold, dead, not "wait""#);
}

#[test]
fn queue_differs_by_its_settings_and_its_owner() {
    let of = |text: &str| match parse(text).unwrap().remove(0).manifest {
        Manifest::Queue(queue) => Settings::of_queue(&queue).unwrap(),
        other => panic!("{other:?}"),
    };
    let old = of(QUEUE);
    let same =
        QUEUE.replace("[orders]", "[orders]\nmax_in_flight: 100\nmetadata: [traceparent]\non_stop: hold");
    assert_eq!(old.clone().differing(of(&same)), []);
    let new =
        QUEUE.replace("20,", "30,").replace("team-orders", "team-stock") + "paused: incident 7\nrate: 5\n";
    let found = old.differing(of(&new));
    let found: Vec<_> =
        found.iter().map(|one| (one.path.as_str(), one.old.as_deref(), one.new.as_deref())).collect();
    assert_eq!(
        found,
        [
            ("owner", Some("team-orders"), Some("team-stock")),
            ("paused", None, Some("incident 7")),
            ("policy.retry.max_attempts", Some("20"), Some("30")),
            ("rate", None, Some("5.0")),
        ]
    );
}
