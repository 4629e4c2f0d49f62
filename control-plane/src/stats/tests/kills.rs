//! Kills in the statistics of the routes that they stop: in force at once, and awaited until rates show them.

use crate::stats::tests::*;

/// A snapshot in which these routes are stopped, each kill by its callee and its age.
fn stopped(kills: &[(&str, u64)]) -> Arc<Snapshot> {
    let now = SystemTime::now();
    let entries = kills.iter().map(|(callee, seconds)| {
        let kill = v1::KillSwitch {
            reason: "r".to_owned(),
            updated_at: Some((now - Duration::from_secs(*seconds)).into()),
            expires_at: Some((now + Duration::from_secs(600)).into()),
            ..Default::default()
        };
        let key = ResourceKey::Kill(Pattern::parse("*", "*", callee, "*").unwrap()).key();
        (key, Entry { revision: 1, value: StoredKill::value(&kill).into() })
    });
    Arc::new(Snapshot::of(&StoreContents {
        epoch: "e".to_owned(),
        revision: 1,
        entries: entries.collect(),
        ..StoreContents::default()
    }))
}

/// The rows of this window after reports of two processes.
async fn told(over: RateWindow, table: &Arc<Snapshot>) -> v1::RouteStats {
    let (stats, all) = (stats(), [session("one"), session("two")]);
    for n in 1..=2 {
        pass(5).await;
        for session in &all {
            stats.connected(session);
            stats.report(session, &detailed(n * 10, |_| {}));
        }
    }
    stats.rows_over(over, table)[0].stats.clone()
}

#[tokio::test(start_paused = true)]
async fn a_kill_is_told_of_all_processes_as_soon_as_it_is_in_the_table() {
    assert_eq!(told(RateWindow::default(), &table()).await.killed, 0);
    assert_eq!(told(RateWindow::default(), &stopped(&[("*", 0)])).await.killed, 2);
}

#[tokio::test(start_paused = true)]
async fn the_proof_of_a_kill_is_awaited_until_all_of_the_window_comes_after_it() {
    let awaited = async |over, kills: &[_]| {
        told(over, &stopped(kills)).await.awaited_kill.map(|kill| kill.callee_service)
    };
    let stock = || Some("stock".to_owned());
    assert_eq!(awaited(RateWindow::TenSeconds, &[]).await, None);
    assert_eq!(awaited(RateWindow::TenSeconds, &[("other", 1)]).await, None, "it stops another route");
    assert_eq!(awaited(RateWindow::TenSeconds, &[("stock", 9)]).await, stock());
    assert_eq!(awaited(RateWindow::TenSeconds, &[("stock", 14)]).await, None);
    assert_eq!(awaited(RateWindow::Minute, &[("stock", 14)]).await, stock());
    assert_eq!(awaited(RateWindow::Minute, &[("stock", 64)]).await, None);
    assert_eq!(
        awaited(RateWindow::TenSeconds, &[("*", 64), ("stock", 1)]).await,
        None,
        "the earlier one has shown its effect"
    );
}
