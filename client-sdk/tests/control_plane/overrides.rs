//! The local override, without a control plane.

use std::time::Duration;

use damper_proto::v1;
use damper_sdk::{Damper, Mode};
use tokio::time::Instant;

use crate::callee::attempts;
use crate::server::*;

#[tokio::test(start_paused = true)]
async fn an_override_file_ends_retries_without_a_control_plane() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mode");
    let mut plane = ControlPlane::start().await;
    let damper = Damper::connect(plane.options().override_file(&file)).unwrap();
    let mut stream = plane.accept().await;
    stream.exchange(7, 1, snapshot(vec![rule("a", 1)])).await;
    drop(stream);
    plane.kill().await;
    until(&damper, |status| !status.connected).await;
    for (word, mode, expected) in
        [("off\n", Some(Mode::Off), 1), ("enforce", None, 3), ("observe", Some(Mode::Observe), 1)]
    {
        std::fs::write(&file, word).unwrap();
        let written = Instant::now();
        until(&damper, |status| status.override_mode == mode).await;
        assert!(written.elapsed() <= Duration::from_secs(6), "{word}: {:?}", written.elapsed());
        assert_eq!(attempts(&damper, "a").await, expected, "{word}");
    }
    std::fs::write(&file, "obsreve").unwrap();
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(damper.status().override_mode, Some(Mode::Observe), "the last mode stays");
    std::fs::remove_file(&file).unwrap();
    until(&damper, |status| status.override_mode.is_none()).await;
    assert_eq!(attempts(&damper, "a").await, 3);
}

#[tokio::test]
async fn the_variable_reduces_rules_from_the_first_call() {
    let mut plane = ControlPlane::start().await;
    let options = plane.options().environment(|name| (name == "DAMPER_MODE").then(|| "off".to_owned()));
    let damper = Damper::connect(options).unwrap();
    assert_eq!(damper.status().override_mode, Some(Mode::Off));
    let mut stream = plane.accept().await;
    assert_eq!(stream.hello.override_mode, i32::from(v1::Mode::Off));
    stream.exchange(7, 1, snapshot(vec![rule("a", 1)])).await;
    assert_eq!(attempts(&damper, "a").await, 1);
}

#[tokio::test(start_paused = true)]
async fn an_override_file_applies_before_the_first_rules() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mode");
    std::fs::write(&file, "observe").unwrap();
    let mut plane = ControlPlane::start().await;
    let damper = Damper::connect(plane.options().override_file(&file)).unwrap();
    let stream = plane.accept().await;
    assert_eq!(stream.hello.override_mode, i32::from(v1::Mode::Observe));
    assert_eq!(damper.status().override_mode, Some(Mode::Observe));
}
