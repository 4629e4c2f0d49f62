//! The rules on disk: stored before the ack, used without a control plane, ignored if damaged.

use std::path::{Path, PathBuf};
use std::time::Duration;

use damper_proto::v1;
use damper_proto::v1::server_message::Kind;
use damper_sdk::{Damper, Options, Source};
use tokio::time::Instant;

use crate::callee::attempts;
use crate::server::*;

/// An address without a listener.
fn nowhere(folder: &Path) -> Options {
    options(["http://127.0.0.1:1".to_owned()]).state_dir(folder)
}

fn file_in(folder: &Path) -> PathBuf {
    folder.join("damper-orders-online.rules")
}

/// A folder with the rules of a process that has ended.
async fn kept(rules: Vec<v1::DistributedRule>) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut plane = ControlPlane::start().await;
    let damper = Damper::connect(plane.options().state_dir(folder.path())).unwrap();
    let mut stream = plane.accept().await;
    stream.exchange(7, 1, snapshot(rules)).await;
    assert!(file_in(folder.path()).exists(), "stored before the ack");
    drop(stream);
    damper.shutdown().await;
    folder
}

#[tokio::test]
async fn a_service_started_without_control_plane_has_the_last_rules() {
    let folder = kept(vec![rule("*", 1), rule("a", 1), unknown_rule("b", 1)]).await;
    let damper = Damper::connect(nowhere(folder.path())).unwrap();
    let status = until(&damper, |status| status.source == Source::LastKnownGood).await;
    assert_eq!((status.epoch.as_str(), status.revision, status.refused), ("e", 7, 1));
    assert_eq!((attempts(&damper, "a").await, attempts(&damper, "b").await), (3, 1));
    let not_ready = damper.ready(Duration::from_millis(1)).await.unwrap_err();
    assert!(not_ready.to_string().contains("the rules that it saved"), "{not_ready}");
}

#[tokio::test]
async fn a_service_started_again_goes_on_from_what_it_kept() {
    let folder = kept(vec![rule("a", 1), unknown_rule("b", 6)]).await;
    let mut plane = ControlPlane::start().await;
    let damper = Damper::connect(plane.options().state_dir(folder.path())).unwrap();
    let mut stream = plane.accept().await;
    assert_eq!((stream.hello.epoch.as_str(), stream.hello.revision), ("e", 7));
    assert_eq!(stream.hello.source, i32::from(v1::Source::LastKnownGood));
    assert_eq!(stream.hello.refused.len(), 1);
    stream.say(9, 0, Kind::Bookmark(v1::Bookmark {})).await;
    damper.ready(PATIENCE).await.unwrap();
    assert_eq!(damper.status().revision, 9, "unchanged since: the stored rules are live");
    stream.exchange(10, 1, delta(vec![rule("b", 10)], &["a"])).await;
    assert_eq!((attempts(&damper, "a").await, attempts(&damper, "b").await), (1, 3));
}

#[tokio::test]
async fn another_service_does_not_take_the_rules_of_this_one() {
    let folder = kept(vec![rule("a", 1)]).await;
    let foreign = folder.path().join("damper-billing-online.rules");
    std::fs::copy(file_in(folder.path()), foreign).unwrap();
    let mut plane = ControlPlane::start().await;
    let options = plane.options().service("billing").state_dir(folder.path());
    let _damper = Damper::connect(options).unwrap();
    let hello = plane.accept().await.hello;
    assert_eq!((hello.epoch.as_str(), hello.revision), ("", 0));
    assert_eq!(hello.source, i32::from(v1::Source::BuiltIn));
}

#[tokio::test]
async fn a_damaged_file_means_no_retries_until_the_next_snapshot() {
    let folder = kept(vec![rule("a", 1)]).await;
    let file = file_in(folder.path());
    let whole = std::fs::read(&file).unwrap();
    let mut flipped = whole.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    for damaged in [&flipped[..], &whole[..whole.len() - 1], b"", b"# not ours"] {
        std::fs::write(&file, damaged).unwrap();
        let mut plane = ControlPlane::start().await;
        let damper = Damper::connect(plane.options().state_dir(folder.path())).unwrap();
        let mut stream = plane.accept().await;
        assert_eq!(stream.hello.source, i32::from(v1::Source::BuiltIn));
        assert_eq!(attempts(&damper, "a").await, 1);
        stream.exchange(7, 1, snapshot(vec![rule("a", 1)])).await;
        assert_eq!(attempts(&damper, "a").await, 3);
        drop(stream);
        damper.shutdown().await;
        let restored = Damper::connect(nowhere(folder.path())).unwrap();
        until(&restored, |status| status.source == Source::LastKnownGood).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_delta_is_on_disk_within_a_second() {
    let folder = tempfile::tempdir().unwrap();
    let mut plane = ControlPlane::start().await;
    let _damper = Damper::connect(plane.options().state_dir(folder.path())).unwrap();
    let mut stream = plane.accept().await;
    stream.exchange(7, 1, snapshot(vec![])).await;
    let file = file_in(folder.path());
    let before = std::fs::read(&file).unwrap();
    let acknowledged = Instant::now();
    for revision in 8..12 {
        stream.exchange(revision, revision, delta(vec![rule("a", revision)], &[])).await;
    }
    while std::fs::read(&file).unwrap() == before {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(acknowledged.elapsed() <= Duration::from_secs(1), "{:?}", acknowledged.elapsed());
    let restored = Damper::connect(nowhere(folder.path())).unwrap();
    until(&restored, |status| status.revision == 11).await;
}

#[tokio::test]
async fn a_delta_just_before_the_end_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let mut plane = ControlPlane::start().await;
    let damper = Damper::connect(plane.options().state_dir(folder.path())).unwrap();
    let mut stream = plane.accept().await;
    stream.exchange(7, 1, snapshot(vec![])).await;
    stream.exchange(8, 2, delta(vec![rule("a", 8)], &[])).await;
    drop(stream);
    damper.shutdown().await;
    let restored = Damper::connect(nowhere(folder.path())).unwrap();
    until(&restored, |status| status.revision == 8).await;
    assert_eq!(attempts(&restored, "a").await, 3);
}

#[tokio::test]
async fn a_folder_that_cannot_be_written_does_not_hold_up_the_rules() {
    let folder = tempfile::tempdir().unwrap();
    let occupied = folder.path().join("a-file");
    std::fs::write(&occupied, "").unwrap();
    let mut plane = ControlPlane::start().await;
    let damper = Damper::connect(plane.options().state_dir(occupied)).unwrap();
    let mut stream = plane.accept().await;
    stream.exchange(7, 1, snapshot(vec![rule("a", 1)])).await;
    assert_eq!(attempts(&damper, "a").await, 3);
}
