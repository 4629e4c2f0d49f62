use http::HeaderMap;

use super::*;

fn ids(trace: &str) -> Ids {
    let mut headers = HeaderMap::new();
    headers.insert("x-b3-traceid", trace.parse().unwrap());
    Ids::of(&headers)
}

fn first() -> Context {
    let mut headers = HeaderMap::new();
    assert!(Context::of_flag(&headers).is_none());
    headers.insert("damper-retry", "1".parse().unwrap());
    assert!(Context::of_flag(&headers).is_some_and(|context| context.is_retry()));
    // A context without a flag is made by the server layer alone, so the tests of ids use retries.
    Context::of_retry()
}

#[test]
fn request_is_found_while_it_lives() {
    let contexts = Contexts::new(10);
    let kept = contexts.keep(first(), Ids::default());
    let key = kept.key().unwrap();
    assert!(contexts.find(key).is_some_and(|found| found.context.is_retry()));
    contexts.find(key).unwrap().was_stopped.store(true, Ordering::Relaxed);
    assert!(kept.was_stopped());
    drop(kept);
    assert!(contexts.find(key).is_none());
}

#[test]
fn full_table_keeps_no_further_request() {
    let contexts = Contexts::new(2);
    let kept: Vec<_> = (0..4).map(|_| contexts.keep(first(), ids("1234567890abcdef"))).collect();
    assert_eq!(kept.iter().filter(|kept| kept.key().is_some()).count(), 2);
    assert_eq!(contexts.len(), 2);
    assert_eq!(contexts.of_ids(&ids("1234567890abcdef")), OfId::Unknown, "not all requests are known");
    drop(kept);
    let again = contexts.keep(first(), ids("1234567890abcdef"));
    assert!(again.key().is_some());
    assert_eq!(contexts.of_ids(&ids("1234567890abcdef")), OfId::One { is_retry: true });
}

#[test]
fn id_has_the_flag_that_all_its_requests_have() {
    let contexts = Contexts::new(10);
    let id = || ids("1234567890abcdef");
    assert_eq!(contexts.of_ids(&id()), OfId::Unknown);
    let one = contexts.keep(first(), id());
    assert_eq!(contexts.of_ids(&id()), OfId::One { is_retry: true });
    let other = contexts.keep(first(), id());
    assert_eq!(contexts.of_ids(&id()), OfId::Several { is_retry: true });
    contexts.requests(id().each().next().unwrap(), |of_id| of_id.begins(false));
    assert_eq!(contexts.of_ids(&id()), OfId::Several { is_retry: false });
    drop((one, other));
    assert_eq!(contexts.of_ids(&id()), OfId::One { is_retry: false });
    contexts.requests(id().each().next().unwrap(), |of_id| of_id.ends(false));
    assert_eq!(contexts.of_ids(&id()), OfId::Unknown);
    assert!(contexts.by_id.iter().all(|shard| lock(shard).is_empty()));
}

#[test]
fn table_is_full_at_its_limit_and_empty_at_the_end() {
    let contexts = Contexts::new(MAX_REQUESTS);
    let mut kept: Vec<_> = (0..MAX_REQUESTS).map(|_| contexts.keep(first(), Ids::default())).collect();
    assert!(kept.iter().all(|kept| kept.key().is_some_and(|key| contexts.find(key).is_some())));
    let beyond = contexts.keep(first(), ids("1234567890abcdef"));
    assert!(beyond.key().is_none() && contexts.len() == MAX_REQUESTS);
    kept.pop();
    assert!(contexts.keep(first(), Ids::default()).key().is_some(), "a request that ended leaves room");
    drop((kept, beyond));
    assert_eq!((contexts.len(), contexts.of_ids(&ids("1234567890abcdef"))), (0, OfId::Unknown));
}

/// An id has two numbers, however many requests share it.
#[test]
fn requests_of_one_id_take_one_place() {
    let contexts = Contexts::new(MAX_REQUESTS);
    let kept: Vec<_> = (0..1_000).map(|_| contexts.keep(first(), ids("1234567890abcdef"))).collect();
    let places: usize = contexts.by_id.iter().map(|shard| lock(shard).len()).sum();
    assert_eq!((places, kept.len()), (1, 1_000));
    assert_eq!(contexts.of_ids(&ids("1234567890abcdef")), OfId::Several { is_retry: true });
}
