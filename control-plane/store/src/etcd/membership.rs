//! Membership over etcd: a key under a lease, and a watch on the keys of all members.
//!
//! The lease is renewed three times in its length. If that fails, after an outage or a pause of this process,
//! another lease is taken under the same key. The same happens if the key itself was removed, because a new
//! replica would otherwise take a part of the fleet for all of it. If the watch fails, all members are listed
//! again; until that succeeds the known ones stay, so an outage of etcd removes no member.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use etcd_client::{EventType, GetOptions, PutOptions, Txn, TxnOp, WatchOptions};
use percent_encoding::percent_decode_str;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::etcd::link::EtcdFailure;
use crate::etcd::{EtcdStore, end_of};
use crate::key;
use crate::membership::{LEASE, Members, Membership};
use crate::record::REPLICAS;

/// Renewal interval of the lease, and the timeout of the answer.
const KEEP_EVERY: Duration = Duration::from_secs(3);
/// Pause after a failure: initial and maximum, with full jitter.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// This server's key.
struct Member {
    store: EtcdStore,
    key: String,
    value: Bytes,
    /// 0: none.
    lease: AtomicI64,
    members: watch::Sender<Members>,
    seen: watch::Sender<LeaseState>,
}

/// Last observed state of the own key.
#[derive(Clone, Copy, Default)]
struct LeaseState {
    /// etcd's revision of the observation.
    at: i64,
    is_there: bool,
}

/// The own key after a put.
struct LeasedKey {
    lease: i64,
    /// etcd's revision of the put.
    at: i64,
}

/// Registers the server and keeps it registered.
pub(crate) fn join(store: EtcdStore, id: &str, value: Bytes) -> Membership {
    let (members, known) = watch::channel(Members::default());
    let leaving = CancellationToken::new();
    let key = format!("{REPLICAS}{}", key([id]));
    let member =
        Member { store, key, value, lease: AtomicI64::new(0), members, seen: watch::Sender::default() };
    let task = tokio::spawn(member.run(leaving.clone()));
    Membership::new(known, leaving, task)
}

impl Member {
    async fn run(self, leaving: CancellationToken) {
        tokio::select! {
            () = leaving.cancelled() => {}
            () = self.stay() => {}
            () = self.follow_members() => {}
        }
        if let Err(failure) = self.leave().await {
            tracing::debug!(error = %failure.unavailable(), "cannot remove this replica from the list of replicas in etcd; its entry expires within seconds");
        }
    }

    /// Keeps the key in the store; never returns.
    async fn stay(&self) {
        let mut pause = PAUSE.0;
        loop {
            match self.enter().await {
                Ok(placed) => {
                    pause = PAUSE.0;
                    let why = tokio::select! {
                        () = self.keep(placed.lease) => "lease expired",
                        () = self.removed(placed.at) => "key removed",
                    };
                    tracing::info!(why, "writing this replica's membership key again");
                }
                Err(failure) => {
                    tracing::debug!(error = %failure.unavailable(), "cannot write this replica to the list of replicas in etcd");
                }
            }
            sleep(pause.mul_f64(fastrand::f64())).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Puts the key under a new lease.
    async fn enter(&self) -> Result<LeasedKey, EtcdFailure> {
        let seconds = i64::try_from(LEASE.as_secs()).unwrap_or(i64::MAX);
        let granted = self
            .store
            .link()
            .call(|client| async move { client.lease_client().grant(seconds, None).await })
            .await?;
        let lease = granted.id();
        self.lease.store(lease, Ordering::Relaxed);
        let options = PutOptions::new().with_lease(lease);
        let put = TxnOp::put(self.store.full(&self.key), self.value.to_vec(), Some(options));
        let answer = self.store.link().txn(&Txn::new().and_then([put])).await?;
        Ok(LeasedKey { lease, at: answer.header().map_or(0, |header| header.revision()) })
    }

    /// Waits until the key that was put at a revision is gone.
    async fn removed(&self, at: i64) {
        let mut seen = self.seen.subscribe();
        let gone = seen.wait_for(|seen| seen.at >= at && !seen.is_there).await.is_ok();
        debug_assert!(gone, "the sender is held by the one who waits");
    }

    /// Renews a lease; returns when that fails or the lease expires.
    async fn keep(&self, lease: i64) {
        let open =
            self.store.link().call(|client| async move { client.lease_client().keep_alive(lease).await });
        let Ok((mut keeper, mut answers)) = open.await else { return };
        loop {
            sleep(KEEP_EVERY).await;
            let kept = async {
                keeper.keep_alive().await.ok()?;
                answers.message().await.ok().flatten()
            };
            match timeout(KEEP_EVERY, kept).await {
                Ok(Some(answer)) if answer.ttl() > 0 => {}
                _ => return,
            }
        }
    }

    /// Publishes the members; never returns.
    async fn follow_members(&self) {
        let mut pause = PAUSE.0;
        loop {
            if self.list_and_watch().await.is_ok() {
                pause = PAUSE.0;
            }
            sleep(pause.mul_f64(fastrand::f64())).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Lists the members and follows their changes until the watch ends.
    async fn list_and_watch(&self) -> Result<(), EtcdFailure> {
        let from = self.store.full(REPLICAS);
        let options = GetOptions::new().with_range(end_of(&from));
        let mut listed = self.store.link().get(&from, &options).await?;
        let at = listed.header().map_or(0, |header| header.revision());
        let mut known = BTreeMap::new();
        for pair in listed.take_kvs() {
            let (key, value) = pair.into_key_value();
            known.extend(self.id(&key).map(|id| (id, Bytes::from(value))));
        }
        let own = self.id(&self.store.full(&self.key));
        let see = |at, known: &BTreeMap<String, Bytes>| {
            let is_there = own.as_ref().is_some_and(|own| known.contains_key(own));
            self.seen.send_replace(LeaseState { at, is_there });
            self.members.send_replace(Arc::new(known.clone()));
        };
        see(at, &known);
        let mut at = at;
        let options = WatchOptions::new().with_range(end_of(&from)).with_start_revision(at + 1);
        let mut changes = self.store.link().watch(&from, options).await?;
        while let Ok(Some(response)) = changes.message().await {
            if response.canceled() {
                break;
            }
            for event in response.events() {
                let Some(pair) = event.kv() else { continue };
                at = at.max(pair.mod_revision());
                let Some(id) = self.id(pair.key()) else { continue };
                match event.event_type() {
                    EventType::Put => drop(known.insert(id, Bytes::copy_from_slice(pair.value()))),
                    EventType::Delete => drop(known.remove(&id)),
                }
            }
            see(at, &known);
        }
        Ok(())
    }

    /// Parses the id of a key.
    fn id(&self, key: &[u8]) -> Option<String> {
        let id = self.store.own(key).ok()?.strip_prefix(REPLICAS)?;
        percent_decode_str(id).decode_utf8().ok().map(|id| id.into_owned())
    }

    async fn leave(&self) -> Result<(), EtcdFailure> {
        let removal = TxnOp::delete(self.store.full(&self.key), None);
        self.store.link().txn(&Txn::new().and_then([removal])).await?;
        let lease = self.lease.swap(0, Ordering::Relaxed);
        if lease != 0 {
            self.store.link().call(|client| async move { client.lease_client().revoke(lease).await }).await?;
        }
        Ok(())
    }
}
