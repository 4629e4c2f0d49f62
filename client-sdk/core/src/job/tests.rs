//! Tests of what follows each event of a job, by tables. `exactness` has random orders of events, `callee`
//! holds and pace.

use std::time::Duration;

use super::*;
use crate::call::backoff::Sequence;
use crate::fault::Ratio;
use crate::outcome::classify::{Failure, Pushback};
use crate::outcome::code::Code;
use crate::outcome::fate::Fate;
use crate::policy::{Backoff, Growth, Jitter, Mode, OverMax, Retry, StopWhen, Waits};

mod callee;
mod exactness;

const NOW: Wall = Wall(1_700_000_000_000);
const UNAVAILABLE: Failure = Failure::new(Code::Unavailable);
const DAY: Duration = Duration::from_secs(24 * 3600);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// Five attempts, 1 s apart.
fn queue() -> QueueSettings {
    let mut settings = QueueSettings::new(Mode::Enforce);
    let backoff = Backoff::Always(Waits::Fixed { delay: secs(1), jitter: Jitter::None });
    settings.policy.retry = Some(Retry { max_attempts: 5, backoff, ..QueueSettings::default_retry() });
    settings
}

fn with_retry(change: impl FnOnce(&mut Retry)) -> QueueSettings {
    let mut settings = queue();
    change(settings.policy.retry.as_mut().unwrap());
    settings
}

fn with_backoff(waits: Waits) -> QueueSettings {
    with_retry(|retry| retry.backoff = Backoff::Always(waits))
}

fn untried(settings: &QueueSettings) -> Submission {
    Submission {
        failed: None,
        stop: false,
        sends_before: 0,
        not_before: None,
        expires_after: settings.expires_after,
    }
}

fn job(settings: &QueueSettings) -> Job {
    Job::submit(settings, &untried(settings), NOW, 0).unwrap().0
}

fn asking(pushback: Pushback) -> Failure {
    Failure { pushback: Some(pushback), ..UNAVAILABLE }
}

fn dead(fate: Fate) -> Next {
    Next::End(JobEnd::Dead(fate))
}

fn after(wait: Duration) -> Next {
    Next::At(NOW + wait)
}

/// Fails deliveries at `NOW` until the job ends. Returns the waits in milliseconds, and how it ended.
fn waits(settings: &QueueSettings, random: u64) -> (Vec<u64>, JobEnd) {
    let (mut job, mut waits) = (job(settings), Vec::new());
    loop {
        match job.failed(settings, &UNAVAILABLE, false, NOW, random) {
            Next::At(due) => waits.push(due.0 - NOW.0),
            Next::End(end) => return (waits, end),
        }
    }
}

#[test]
fn policies_of_the_seed_give_its_waits() {
    let exhausted = JobEnd::Dead(Fate::AttemptsExhausted);
    let check = |waits_of: Waits, random, expected: &[u64]| {
        assert_eq!(
            waits(&with_backoff(waits_of.clone()), random),
            (expected.to_vec(), exhausted),
            "{waits_of:?}"
        );
    };
    check(Waits::None, 0, &[0; 4]);
    check(Waits::Fixed { delay: secs(3), jitter: Jitter::None }, 0, &[3_000; 4]);
    let random = || Waits::Random { min: secs(1), max: secs(2), jitter: Jitter::None };
    check(random(), 0, &[1_000; 4]);
    // The largest draw is 1 us less than the maximum; due times are whole milliseconds.
    check(random(), u64::MAX, &[2_000; 4]);
    let exponential = |max| Waits::Exponential {
        base: secs(1),
        multiplier: Ratio::from_bp(20_000),
        growth: Growth { max: secs(max), over_max: OverMax::Stop, jitter: Jitter::None },
    };
    check(exponential(3_600), 0, &[1_000, 2_000, 4_000, 8_000]);
    check(exponential(4), 0, &[1_000, 2_000, 4_000]);
    check(exponential(3), 0, &[1_000, 2_000]);
    let custom = |delays: &[u64]| Waits::Custom {
        delays: delays.iter().map(|delay| secs(*delay)).collect(),
        jitter: Jitter::None,
    };
    check(custom(&[7, 1, 30]), 0, &[7_000, 1_000, 30_000]);
    check(custom(&[7, 1, 30, 2, 2, 2]), 0, &[7_000, 1_000, 30_000, 2_000]);
}

#[test]
fn questions_after_a_failure_are_asked_in_order() {
    let mut settings = with_retry(|retry| {
        (retry.max_attempts, retry.max_duration) = (2, Some(secs(10)));
        retry.backoff = Backoff::Always(Waits::Custom { delays: vec![secs(2)], jitter: Jitter::None });
    });
    settings.on_stop = OnStop::Dead;
    settings.expires_after = secs(10);
    let (first, not_found) = (job(&settings), Failure::new(Code::NotFound));
    let check = |job: Job, settings: &QueueSettings, failure, stop, now, expected| {
        let mut job = job;
        assert_eq!(job.failed(settings, &failure, stop, now, 0), expected);
        job
    };
    let (last, late) = (Job { attempts: 1, ..first }, NOW + secs(10) + ms(1));
    check(last, &settings, not_found, true, late, Next::End(JobEnd::Expired));
    check(last, &settings, not_found, true, NOW, dead(Fate::NotRetryable));
    check(last, &settings, UNAVAILABLE, true, NOW, dead(Fate::AttemptsExhausted));
    let used_up = Job { waits: Sequence::from_parts(1, 0), ..first };
    check(used_up, &settings, UNAVAILABLE, true, NOW, dead(Fate::AttemptsExhausted));
    check(first, &settings, UNAVAILABLE, true, NOW, dead(Fate::StopWhen));
    check(first, &settings, UNAVAILABLE, false, NOW + ms(8_001), dead(Fate::MaxDuration));
    let mut unlimited = settings.clone();
    unlimited.policy.retry.as_mut().unwrap().max_duration = None;
    check(first, &unlimited, UNAVAILABLE, false, NOW + ms(8_001), Next::End(JobEnd::Expired));
    check(first, &settings, UNAVAILABLE, false, NOW + ms(8_000), after(secs(10)));
    let job = check(first, &settings, UNAVAILABLE, false, NOW, after(secs(2)));
    assert_eq!((job.attempts, job.waits.to_parts()), (1, (1, 2_000_000)));
    settings.on_stop = OnStop::Hold;
    check(first, &settings, UNAVAILABLE, true, NOW, after(secs(2)));
}

#[test]
fn pushback_is_the_exact_wait_and_a_stop_pauses_the_job() {
    let settings = queue();
    let flag = Failure { no_more_retry: true, ..UNAVAILABLE };
    let check = |settings: &QueueSettings, failure: Failure, wait| {
        assert_eq!(job(settings).failed(settings, &failure, false, NOW, 0), after(wait), "{failure:?}");
    };
    check(&settings, asking(Pushback::After(Duration::ZERO)), Duration::ZERO);
    check(&settings, asking(Pushback::After(ms(1))), ms(1));
    check(&settings, asking(Pushback::After(DAY)), DAY);
    check(&settings, asking(Pushback::After(DAY + ms(1))), DAY);
    check(&settings, asking(Pushback::After(Duration::MAX)), DAY);
    check(&settings, asking(Pushback::Stop), secs(60));
    check(&settings, flag, secs(60));
    check(&settings, Failure { no_more_retry: true, ..asking(Pushback::Stop) }, secs(60));
    check(&settings, Failure { no_more_retry: true, ..asking(Pushback::After(secs(5))) }, secs(60));
    check(&settings, Failure { no_more_retry: true, ..asking(Pushback::After(secs(90))) }, secs(90));
    let slow = with_backoff(Waits::Fixed { delay: secs(100), jitter: Jitter::None });
    check(&slow, flag, secs(100));

    let growing = with_backoff(Waits::Custom { delays: vec![secs(3), secs(9)], jitter: Jitter::None });
    let mut job = job(&growing);
    let mut wait = |failure| job.failed(&growing, &failure, false, NOW, 0);
    let found = [wait(UNAVAILABLE), wait(asking(Pushback::After(secs(5)))), wait(UNAVAILABLE)];
    assert_eq!(found, [after(secs(3)), after(secs(5)), after(secs(3))], "the sequence begins again");
}

#[test]
fn submission_is_due_at_once_or_at_its_time() {
    let settings = queue();
    let check = |not_before: Option<Wall>, failed, due| {
        let submission = Submission { not_before, failed, sends_before: 3, ..untried(&settings) };
        let (job, found) = Job::submit(&settings, &submission, NOW, 0).unwrap();
        assert_eq!(found, due);
        assert_eq!((job.deliveries, job.attempts, job.sends(), job.began), (0, 0, 3, NOW));
        assert_eq!(job.expires, NOW + settings.expires_after);
    };
    check(None, None, NOW);
    check(Some(Wall(5)), None, NOW);
    check(Some(NOW + secs(5)), None, NOW + secs(5));
    check(None, Some(UNAVAILABLE), NOW + secs(1));
    check(Some(NOW + ms(500)), Some(UNAVAILABLE), NOW + secs(1));
    check(Some(NOW + secs(5)), Some(UNAVAILABLE), NOW + secs(5));
    check(None, Some(asking(Pushback::Stop)), NOW + secs(60));
    check(None, Some(asking(Pushback::After(ms(7)))), NOW + ms(7));
}

#[test]
fn submission_that_would_be_given_up_is_rejected() {
    let check = |settings: &QueueSettings, submission: Submission, fate| {
        assert_eq!(Job::submit(settings, &submission, NOW, 0).unwrap_err(), fate);
    };
    let failed = |settings: &QueueSettings| Submission { failed: Some(UNAVAILABLE), ..untried(settings) };
    let settings = queue();
    let not_found = Some(Failure::new(Code::NotFound));
    check(&settings, Submission { failed: not_found, ..untried(&settings) }, Fate::NotRetryable);
    let used_up = with_backoff(Waits::Custom { delays: Vec::new(), jitter: Jitter::None });
    check(&used_up, failed(&used_up), Fate::AttemptsExhausted);
    let mut stops = queue();
    stops.on_stop = OnStop::Dead;
    check(&stops, Submission { stop: true, ..failed(&stops) }, Fate::StopWhen);
    let short = with_retry(|retry| retry.max_duration = Some(ms(999)));
    check(&short, failed(&short), Fate::MaxDuration);
    check(&short, Submission { not_before: Some(NOW + secs(1)), ..untried(&short) }, Fate::MaxDuration);
    check(&settings, Submission { expires_after: ms(999), ..failed(&settings) }, Fate::Deadline);
    let late = Submission { not_before: Some(NOW + secs(2)), expires_after: secs(1), ..untried(&settings) };
    check(&settings, late, Fate::Deadline);
}

#[test]
fn delivery_follows_the_settings_in_force() {
    let settings = with_retry(|retry| retry.max_duration = Some(secs(10)));
    let job = Job { deliveries: 7, attempts: 4, sends_before: 2, ..job(&settings) };
    let send = JobSend { number: 7, sends_before: 6, limit: secs(30) };
    assert_eq!(job.deliver(&settings, NOW + secs(10)), Ok(send));
    let check = |settings: &QueueSettings, now, end| assert_eq!(job.deliver(settings, now), Err(end));
    check(&settings, NOW + ms(10_001), JobEnd::Dead(Fate::MaxDuration));
    check(&queue(), job.expires + ms(1), JobEnd::Expired);
    assert!(job.deliver(&queue(), job.expires).is_ok());
    let fewer = with_retry(|retry| retry.max_attempts = 4);
    check(&fewer, NOW, JobEnd::Dead(Fate::AttemptsExhausted));
    let long = with_retry(|retry| retry.per_attempt_timeout = Some(DAY));
    assert_eq!(job.deliver(&long, NOW).unwrap().limit, DAY);
}

#[test]
fn lost_job_is_repeated_at_once_then_alone_then_dead() {
    let check = |max_lost, alone: &[bool], expected: &[Next]| {
        let mut settings = with_retry(|retry| retry.max_attempts = 1_000);
        settings.max_lost = max_lost;
        let mut job = job(&settings);
        for (i, (is_alone, next)) in alone.iter().zip(expected).enumerate() {
            assert_eq!(job.lost(&settings, *is_alone, NOW, 0), *next, "{max_lost}, loss {}", i + 1);
        }
        (job.attempts, job.is_suspect(&settings))
    };
    let (now, wait, end) = (Next::At(NOW), after(secs(1)), Next::End(JobEnd::Lost));
    assert_eq!(check(5, &[false, true, true, true, true], &[now, wait, wait, wait, end]), (5, true));
    let shared = [false, false, false, false, true, true, true];
    assert_eq!(check(5, &shared, &[now, wait, wait, wait, wait, wait, end]), (7, true));
    check(1, &[false], &[end]);
    check(2, &[false, false, true], &[now, wait, end]);
    check(3, &[false, false, false, true], &[now, wait, wait, end]);
    assert_eq!(check(5, &[false], &[now]), (1, false));
    assert_eq!(check(5, &[false; 2], &[now, wait]), (2, true));
    assert_eq!(check(2, &[false], &[now]), (1, true));

    let settings = queue();
    let mut job = Job { lost: 4, ..job(&settings) };
    job.failed(&settings, &UNAVAILABLE, false, NOW, 0);
    assert_eq!((job.lost, job.is_suspect(&settings)), (0, false), "a worker survived it");
    assert_eq!(job.lost(&settings, false, job.expires + ms(1), 0), Next::End(JobEnd::Expired));
    let mut last = Job { attempts: 4, ..job };
    assert_eq!(last.lost(&settings, false, NOW, 0), dead(Fate::AttemptsExhausted));
}

/// A job that kills its worker within microseconds: no start is ever reported.
#[test]
fn second_unknown_end_in_a_row_makes_a_job_a_suspect() {
    let check = |max_lost, ends: &[(bool, Next)]| {
        let mut settings = with_retry(|retry| retry.max_attempts = 1_000);
        settings.max_lost = max_lost;
        let mut job = job(&settings);
        let suspect = ends.iter().enumerate().map(|(i, (is_alone, next))| {
            let ended = job.unknown(&settings, *is_alone, NOW, 0);
            assert_eq!(ended, *next, "{max_lost}, end {}", i + 1);
            job.is_suspect(&settings)
        });
        (suspect.collect::<Vec<_>>(), job.attempts)
    };
    let (now, wait, end) = (Next::At(NOW), after(secs(1)), Next::End(JobEnd::Lost));
    let (shared, alone) = (false, true);
    assert_eq!(check(5, &[(shared, now), (shared, wait)]), (vec![false, true], 2));
    // Others' deaths are not held against it; its own are.
    let isolated =
        [(shared, now), (shared, wait), (shared, wait), (alone, wait), (alone, wait), (alone, end)];
    assert_eq!(check(5, &isolated).1, 6);
    assert_eq!(check(1, &[(shared, now), (shared, wait), (alone, end)]).0, [true; 3]);
    assert_eq!(check(2, &[(shared, now), (shared, wait), (alone, end)]).0, [true; 3]);

    let settings = with_retry(|retry| retry.max_attempts = 3);
    let mut job = job(&settings);
    job.lost(&settings, false, NOW, 0);
    job.unknown(&settings, false, NOW, 0);
    assert!(job.is_suspect(&settings), "one whose start was reported counts as well");
    let mut survived = Job { attempts: 0, ..job };
    survived.failed(&settings, &UNAVAILABLE, false, NOW, 0);
    survived.unknown(&settings, false, NOW, 0);
    assert!(!survived.is_suspect(&settings), "not in a row");
}

#[test]
fn delivery_of_unknown_begin_is_an_attempt() {
    let settings = with_retry(|retry| retry.max_attempts = 2);
    let mut job = job(&settings);
    assert_eq!(job.unknown(&settings, false, NOW, 0), Next::At(NOW));
    assert_eq!(job.attempts, 1);
    let mut late = job;
    let expired = job.expires + ms(1);
    assert_eq!(late.unknown(&settings, false, expired, 0), Next::End(JobEnd::Expired));
    assert_eq!(job.unknown(&settings, false, NOW, 0), dead(Fate::AttemptsExhausted));
}

#[test]
fn released_delivery_uses_no_attempt() {
    let job = job(&queue());
    assert_eq!(job.released(NOW), Next::At(NOW));
    assert_eq!(job.released(job.expires + ms(1)), Next::End(JobEnd::Expired));
}

#[test]
fn replayed_job_has_new_attempts_and_counts_its_sends_on() {
    let settings = queue();
    let mut job = Job { sends_before: 3, deliveries: 9, ..job(&settings) };
    while let Next::At(_) = job.failed(&settings, &UNAVAILABLE, false, NOW, 0) {}
    let due = NOW + DAY;
    let replayed = Job { lost: 4, ..job }.replayed(&settings, due);
    let expected = Job {
        deliveries: 9,
        attempts: 0,
        sends_before: 8,
        lost: 0,
        waits: Sequence::default(),
        began: due,
        expires: due + settings.expires_after,
    };
    assert_eq!(replayed, expected);
}

#[test]
fn ends_have_names_and_dead_ones_are_kept() {
    let check = |end: JobEnd, name, is_dead| assert_eq!((end.name(), end.is_dead()), (name, is_dead));
    check(JobEnd::Done, "done", false);
    check(JobEnd::Refused, "refused", true);
    check(JobEnd::Lost, "lost", true);
    check(JobEnd::Dead(Fate::NotRetryable), "not_retryable", true);
    check(JobEnd::Expired, "expired", false);
    check(JobEnd::Cancelled, "cancelled", false);
    let mut job = job(&queue());
    assert_eq!((job.done(), job.refused()), (Next::End(JobEnd::Done), Next::End(JobEnd::Refused)));
    assert_eq!(job.attempts, 2);
}

#[test]
fn due_times_round_up_and_saturate() {
    assert_eq!(Wall(5) + Duration::from_micros(1), Wall(6));
    assert_eq!(Wall(5) + Duration::from_nanos(1), Wall(6));
    assert_eq!(Wall(5) + ms(1), Wall(6));
    assert_eq!(Wall(u64::MAX) + ms(1), Wall(u64::MAX));
    assert_eq!(Wall(0) + Duration::MAX, Wall(u64::MAX));
    assert_eq!((Wall(5).since(Wall(6)), Wall(6).since(Wall(5))), (Duration::ZERO, ms(1)));
}
