//! Tokens: sent, denied, renewed, and never printed.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use damper_proto::v1;
use damper_proto::v1::server_message::Kind;
use damper_sdk::{Damper, Source};
use tokio::time::Instant;
use tracing_subscriber::fmt::MakeWriter;

use crate::callee::attempts;
use crate::server::*;

const SECRET: &str = "damper_abc_verysecret";

/// Everything logged, as text.
#[derive(Clone, Default)]
struct Logged(Arc<Mutex<Vec<u8>>>);

impl io::Write for Logged {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Logged {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

impl Logged {
    /// Records logs of this thread, of all levels and libraries, until the guard is dropped.
    fn begin() -> (Self, tracing::subscriber::DefaultGuard) {
        let logged = Self::default();
        let builder = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_ansi(false);
        (logged.clone(), tracing::subscriber::set_default(builder.with_writer(logged).finish()))
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

#[tokio::test]
async fn a_renewed_token_file_is_read_for_the_next_stream() {
    let mut plane = ControlPlane::start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "first\n").unwrap();
    let _damper = Damper::connect(plane.options().token_file(&file)).unwrap();
    let mut stream = plane.accept().await;
    assert_eq!(stream.shown.as_deref(), Some("Bearer first"));
    stream.exchange(7, 1, snapshot(vec![])).await;
    std::fs::write(&file, "second\n").unwrap();
    drop(stream);
    assert_eq!(plane.accept().await.shown.as_deref(), Some("Bearer second"));
}

#[tokio::test]
async fn without_a_token_nothing_is_shown() {
    let mut plane = ControlPlane::start().await;
    let _damper = Damper::connect(plane.options()).unwrap();
    assert_eq!(plane.accept().await.shown, None);
}

#[tokio::test(start_paused = true)]
async fn denied_access_is_logged_once_and_retried_rarely() {
    let (logged, _guard) = Logged::begin();
    let mut plane = ControlPlane::start().await;
    *plane.asks_for.lock().unwrap() = Some(SECRET.to_owned());
    let damper = Damper::connect(plane.options().token("wrong")).unwrap();
    let status = until(&damper, |status| status.denied).await;
    let problem = status.last_problem.unwrap();
    assert!(problem.contains("access denied by the control plane: Unauthenticated"), "{problem}");
    assert!(!problem.contains("wrong"), "the token is not printed: {problem}");
    assert_eq!((status.source, attempts(&damper, "a").await), (Source::BuiltIn, 1));
    tokio::time::sleep(Duration::from_secs(300)).await;
    // Uniform in 0 to 20 s.
    assert!((15..=60).contains(&plane.refused()), "{} tries in five minutes", plane.refused());
    let text = logged.text();
    let warnings = text
        .lines()
        .filter(|line| line.contains("WARN") && line.contains("access denied by the control plane; retrying"))
        .count();
    assert_eq!(warnings, 1, "{text}");
    *plane.asks_for.lock().unwrap() = None;
    let mut stream = plane.accept().await;
    stream.exchange(7, 1, snapshot(vec![])).await;
    let status = until(&damper, |status| status.source == Source::Live).await;
    assert!(status.connected && !status.denied);
}

#[tokio::test]
async fn a_token_that_expires_during_a_stream_is_read_again() {
    let mut plane = ControlPlane::start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "first").unwrap();
    let damper = Damper::connect(plane.options().token_file(&file)).unwrap();
    let mut stream = plane.accept().await;
    stream.exchange(7, 1, snapshot(vec![rule("a", 1)])).await;
    std::fs::write(&file, "second").unwrap();
    let ended = Instant::now();
    stream.end_with(tonic::Status::unauthenticated("the token has expired")).await;
    assert_eq!(plane.accept().await.shown.as_deref(), Some("Bearer second"));
    assert!(ended.elapsed() < Duration::from_secs(10), "{:?}", ended.elapsed());
    assert_eq!(attempts(&damper, "a").await, 3, "rules stay in force");
}

#[tokio::test(start_paused = true)]
async fn a_denied_process_tries_again_as_soon_as_its_token_is_fixed() {
    let mut plane = ControlPlane::start().await;
    *plane.asks_for.lock().unwrap() = Some(SECRET.to_owned());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    for _ in 0..20 {
        std::fs::write(&file, "wrong").unwrap();
        let damper = Damper::connect(plane.options().token_file(&file)).unwrap();
        until(&damper, |status| status.denied).await;
        std::fs::write(&file, SECRET).unwrap();
        let fixed = Instant::now();
        plane.accept().await;
        assert!(fixed.elapsed() < Duration::from_secs(3), "{:?}", fixed.elapsed());
        damper.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_token_that_is_near_is_logged() {
    let (logged, _guard) = Logged::begin();
    let mut plane = ControlPlane::start().await;
    let damper = Damper::connect(plane.options().token(SECRET)).unwrap();
    let mut stream = plane.accept().await;
    let interval = Some(prost_types::Duration { seconds: 5, nanos: 0 });
    let pace = |token_ends_at| v1::ReportSettings { interval, token_ends_at };
    stream.say(7, 0, Kind::ReportSettings(pace(None))).await;
    stream.exchange(7, 1, snapshot(vec![])).await;
    assert!(!logged.text().contains("expires soon"));
    let end = Some(prost_types::Timestamp { seconds: 2_000_000_000, nanos: 0 });
    stream.say(7, 0, Kind::ReportSettings(pace(end))).await;
    stream.exchange(8, 2, delta(vec![], &[])).await;
    let text = logged.text();
    let warning = text.lines().find(|line| line.contains("expires soon")).expect("it is logged");
    assert!(warning.contains("WARN") && warning.contains("2033-05-18"), "{warning}");
    drop(damper);
}

#[tokio::test(start_paused = true)]
async fn connected_is_logged_only_once_the_server_has_answered() {
    let (logged, _guard) = Logged::begin();
    let mut plane = ControlPlane::start().await;
    let damper = Damper::connect(plane.options()).unwrap();
    plane.accept().await.end_with(tonic::Status::permission_denied("of another service")).await;
    until(&damper, |status| status.denied).await;
    assert!(!logged.text().contains("connected to the control plane"), "{}", logged.text());
    let mut stream = plane.accept().await;
    assert!(!damper.status().connected);
    stream.exchange(7, 1, snapshot(vec![])).await;
    until(&damper, |status| status.connected).await;
    assert!(logged.text().contains("connected to the control plane"));
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_one_warning_a_minute() {
    let (logged, _guard) = Logged::begin();
    let mut plane = ControlPlane::start().await;
    let damper = Damper::connect(plane.options()).unwrap();
    let mut stream = plane.accept().await;
    stream.exchange(7, 1, snapshot(vec![])).await;
    drop(stream);
    plane.kill().await;
    until(&damper, |status| !status.connected).await;
    tokio::time::sleep(Duration::from_secs(50)).await;
    let text = logged.text();
    let warnings = text.lines().filter(|line| line.contains("WARN")).count();
    assert_eq!(warnings, 1, "{text}");
}

#[tokio::test(start_paused = true)]
async fn where_one_replica_denies_us_the_other_is_asked_at_once() {
    for _ in 0..10 {
        let (mut one, mut other) = (ControlPlane::start().await, ControlPlane::start().await);
        let damper = Damper::connect(options([one.url(), other.url()])).unwrap();
        let mut stream = tokio::select! {
            stream = one.accept() => stream,
            stream = other.accept() => {
                std::mem::swap(&mut one, &mut other);
                stream
            }
        };
        stream.exchange(7, 1, snapshot(vec![])).await;
        // A replica that lags behind or has other settings, and comes first in the next round.
        *other.asks_for.lock().unwrap() = Some(SECRET.to_owned());
        stream.end_with(tonic::Status::unavailable("restarting")).await;
        let since = Instant::now();
        let stream = one.accept().await;
        // At most 0.5 s, plus delays of a busy machine while the clock is paced.
        assert!(since.elapsed() < Duration::from_secs(3), "{:?}", since.elapsed());
        assert_eq!(other.refused(), 1);
        stream.say(7, 0, Kind::Bookmark(v1::Bookmark {})).await;
        until(&damper, |status| status.connected && !status.denied).await;
    }
}

#[tokio::test]
async fn nothing_secret_is_logged_at_any_level() {
    let (logged, _guard) = Logged::begin();
    let mut plane = ControlPlane::start().await;
    let damper = Damper::connect(plane.options().token(SECRET)).unwrap();
    let mut stream = plane.accept().await;
    assert_eq!(stream.shown, Some(format!("Bearer {SECRET}")));
    stream.exchange(7, 1, snapshot(vec![])).await;
    // A server that echoes the token: in a goodbye, a status and a denial.
    let goodbye = v1::Goodbye { reason: format!("no more of {SECRET}") };
    stream.say(7, 0, Kind::Goodbye(goodbye)).await;
    plane.accept().await.end_with(tonic::Status::internal(format!("a bug with {SECRET}"))).await;
    *plane.asks_for.lock().unwrap() = Some("another".to_owned());
    let status = until(&damper, |status| status.denied).await;
    let text = logged.text();
    assert!(text.contains("TRACE") && text.contains("h2"), "logs of libraries are recorded");
    assert!(text.contains("[token]"), "{text}");
    assert!(!text.contains("verysecret"), "{text}");
    assert!(!format!("{status:?} {damper:?}").contains("verysecret"));
}
