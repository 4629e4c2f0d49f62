//! Submissions: what is sent, repeated and returned.

use std::time::SystemTime;

use damper_core::{Code, Fate};
use tokio::time::Instant;

use super::*;
use crate::queue::{JobState, NewJob, SubmitError};
use crate::scenarios::{engine, ms};

fn job() -> NewJob {
    NewJob::new("emails", "k", "mailer", "mail.Mailer/Welcome")
}

#[tokio::test(start_paused = true)]
async fn submit_sends_the_job_and_returns_its_due_time() {
    let (mut plane, queues) = Plane::start(&engine(None));
    let due = SystemTime::UNIX_EPOCH + Duration::from_secs(7);
    let new = job().body("text").metadata("x-tenant", "a").order_key("o").after(ms(1_500));
    let submitting = tokio::spawn({
        let jobs = queues.jobs();
        async move { jobs.submit(new.expires_after(Duration::from_secs(60))).await }
    });
    let asked = plane.submit().await;
    let mut response = stored(&asked);
    response.jobs[0].due_at = Some(due.into());
    let v1::SubmitRequest { identity, mut jobs } = asked.answer(Ok(response));
    assert_eq!(identity.unwrap().service, "orders");
    let sent = jobs.pop().unwrap();
    assert!(jobs.is_empty());
    assert_eq!(
        (sent.queue.as_str(), sent.key.as_str(), sent.callee_service.as_str(), sent.callee_method.as_str()),
        ("emails", "k", "mailer", "mail.Mailer/Welcome")
    );
    assert_eq!((sent.body, sent.order_key.as_str()), (b"text".to_vec(), "o"));
    assert_eq!(sent.metadata["x-tenant"], "a");
    assert_eq!(sent.after, Some(prost_types::Duration { seconds: 1, nanos: 500_000_000 }));
    assert_eq!(sent.expires_after, Some(prost_types::Duration { seconds: 60, nanos: 0 }));
    assert_eq!((sent.job_id.len(), sent.failed, sent.not_before), (16, None, None));
    let submitted = submitting.await.unwrap().unwrap();
    assert_eq!(
        (submitted.existing, submitted.state, submitted.due_at),
        (false, JobState::Waiting, Some(due))
    );
    assert_eq!(submitted.job_id, crate::queue::jobs::hex(&sent.job_id));
}

#[tokio::test(start_paused = true)]
async fn job_ids_are_in_the_order_of_time() {
    let first = job().into_wire().unwrap().job_id;
    let time = u64::from_be_bytes([0, 0, first[0], first[1], first[2], first[3], first[4], first[5]]);
    let now = crate::background::clock::unix_ms();
    assert!(time <= now && now - time < 3_600_000, "{time} {now}");
    assert_ne!(first, job().into_wire().unwrap().job_id);
}

#[tokio::test(start_paused = true)]
async fn rejection_names_code_and_fate() {
    let (mut plane, queues) = Plane::start(&engine(None));
    let jobs = queues.jobs();
    let (result, ()) = tokio::join!(jobs.submit(job()), async {
        plane.submit().await.answer(Ok(rejected(v1::Code::FailedPrecondition, "not_retryable")));
    });
    let error = result.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition);
    assert_eq!(error.to_string(), "job rejected: FAILED_PRECONDITION: no");
    let SubmitError::Rejected { fate, .. } = error else { panic!("{error}") };
    assert_eq!(fate, Some(Fate::NotRetryable));
}

#[tokio::test(start_paused = true)]
async fn unknown_outcome_is_retried_with_the_same_id() {
    let (mut plane, queues) = Plane::start(&engine(None));
    let jobs = queues.jobs();
    let (result, ()) = tokio::join!(jobs.submit(job()), async {
        let first = plane.submit().await.answer(Err(Status::unavailable("store"))).jobs.pop().unwrap();
        let asked = plane.submit().await;
        let mut response = stored(&asked);
        // The first attempt was stored.
        response.jobs[0].existing = true;
        let second = asked.answer(Ok(response)).jobs.pop().unwrap();
        assert_eq!((&first.job_id, &first.key), (&second.job_id, &second.key));
    });
    assert!(!result.unwrap().existing, "it is the job of this submission");
    assert_eq!(plane.tried(), 2, "another replica is asked");
}

#[tokio::test(start_paused = true)]
async fn job_of_an_earlier_submission_is_existing() {
    let (mut plane, queues) = Plane::start(&engine(None));
    let jobs = queues.jobs();
    let (result, ()) = tokio::join!(jobs.submit(job()), async {
        let asked = plane.submit().await;
        let mut response = stored(&asked);
        (response.jobs[0].existing, response.jobs[0].job_id) = (true, "ab".repeat(16));
        response.jobs[0].state = v1::JobState::Done.into();
        asked.answer(Ok(response));
    });
    let submitted = result.unwrap();
    assert_eq!((submitted.existing, submitted.state), (true, JobState::Done));
    assert_eq!(submitted.job_id, "ab".repeat(16));
}

#[tokio::test(start_paused = true)]
async fn outcome_stays_unknown_when_the_time_is_over() {
    let (mut plane, queues) = Plane::start(&engine(None));
    let (jobs, begun) = (queues.jobs().within(ms(300)), Instant::now());
    let (result, sent) = tokio::join!(jobs.submit(job()), async {
        let asked = plane.submit().await;
        let id = crate::queue::jobs::hex(&asked.message.jobs[0].job_id);
        (asked, id)
    });
    let error = result.unwrap_err();
    assert_eq!(begun.elapsed(), ms(300));
    let SubmitError::Unknown { job_id, .. } = error else { panic!("{error}") };
    assert_eq!(job_id, sent.1);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_stored_without_a_connection() {
    let (plane, queues) = Plane::start(&engine(None));
    plane.refuse(usize::MAX);
    let error = queues.jobs().submit(job()).await.unwrap_err();
    assert!(matches!(&error, SubmitError::Unavailable { problem } if problem == "refused"), "{error}");
    assert!(plane.tried() > 5, "it tries until its time is over");
    plane.refuse(0);
    let off = Queues::off(&engine(None));
    let error = off.jobs().submit(job()).await.unwrap_err();
    assert!(error.to_string().contains("no control plane"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn denied_submission_is_not_repeated() {
    let (mut plane, queues) = Plane::start(&engine(None));
    let jobs = queues.jobs();
    let (result, ()) = tokio::join!(jobs.submit(job()), async {
        plane.submit().await.answer(Err(Status::permission_denied("not yours")));
    });
    let error = result.unwrap_err();
    assert_eq!(error.code(), Code::PermissionDenied);
    assert!(error.to_string().contains("not yours"), "{error}");
    assert_eq!(plane.tried(), 1);
}

#[tokio::test(start_paused = true)]
async fn many_jobs_go_in_bounded_messages_with_own_results() {
    let (mut plane, queues) = Plane::start(&engine(None));
    let jobs = queues.jobs();
    let many = (0..1_200).map(|n| NewJob::new("emails", n.to_string(), "mailer", "mail.Mailer/Welcome"));
    let wrong = job().after(Duration::MAX);
    let big = (0..3).map(|n| NewJob::new("emails", format!("b{n}"), "a", "b.C/D").body(vec![0; 500 << 10]));
    let all: Vec<_> = many.chain([wrong]).chain(big).collect();
    let (results, sizes) = tokio::join!(jobs.submit_all(all), async {
        let mut sizes = Vec::new();
        while sizes.iter().sum::<usize>() < 1_203 {
            let asked = plane.submit().await;
            sizes.push(asked.message.jobs.len());
            let mut response = stored(&asked);
            if sizes.len() == 2 {
                response.jobs[499] = rejected(v1::Code::ResourceExhausted, "").jobs.pop().unwrap();
            }
            asked.answer(Ok(response));
        }
        sizes
    });
    assert_eq!(sizes, [500, 500, 200, 1, 1, 1]);
    let failed: Vec<_> = results.iter().enumerate().filter(|(_, result)| result.is_err()).collect();
    let failed: Vec<_> = failed.iter().map(|(n, result)| (*n, result.as_ref().unwrap_err().code())).collect();
    assert_eq!(failed, [(999, Code::ResourceExhausted), (1_200, Code::InvalidArgument)]);
    assert_eq!((results.len(), plane.tried()), (1_204, 1));
}

#[tokio::test(start_paused = true)]
async fn submissions_share_a_connection_and_its_failure() {
    let (mut plane, queues) = Plane::start(&engine(None));
    plane.refuse(1);
    let jobs = queues.jobs();
    let (one, two, ()) = tokio::join!(jobs.submit(job()), jobs.submit(job()), async {
        for _ in 0..2 {
            let asked = plane.submit().await;
            let response = stored(&asked);
            asked.answer(Ok(response));
        }
    });
    assert!(one.is_ok() && two.is_ok());
    assert_eq!(plane.tried(), 2, "one refused, then one for both");
}

#[tokio::test(start_paused = true)]
async fn cancel_returns_if_there_was_a_job() {
    let (mut plane, queues) = Plane::start(&engine(None));
    let jobs = queues.jobs();
    for (answer, expected) in [
        (Ok(true), Ok(true)),
        (Ok(false), Ok(false)),
        (Err(Status::failed_precondition("delivered")), Err(Code::FailedPrecondition)),
    ] {
        let (result, asked) = tokio::join!(jobs.cancel("ab"), async {
            let answer = answer.map(|cancelled| v1::CancelJobResponse { cancelled });
            plane.cancel().await.answer(answer)
        });
        assert_eq!(result.map_err(|error| error.code()), expected);
        assert_eq!((asked.job_id.as_str(), asked.identity.unwrap().service.as_str()), ("ab", "orders"));
    }
}

#[test]
fn bodies_are_not_printed() {
    let shown = format!("{:?}", job().body("secret").metadata("a", "secret"));
    assert!(shown.contains("body_bytes: 6") && !shown.contains("secret"), "{shown}");
}
