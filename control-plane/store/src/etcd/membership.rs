//! A server's place among the others: a key under a lease, and a watch on everybody's.
//!
//! The lease is kept alive three times in its length. Where that fails, for an outage or a pause of this process, another
//! lease is taken under the same key; so it is where the key itself was taken away, by whatever hand, because without it
//! whoever comes next takes a part of the fleet for all of it. Where the watch fails everything is listed anew; until
//! that succeeds what was known stays known, so that an outage of etcd takes nobody away.

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

/// How often the lease is kept alive, and how long the answer may take.
const KEEP_EVERY: Duration = Duration::from_secs(3);
/// The pause after a failure grows from the first to the second of these, with full jitter.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// One server's place.
struct Member {
    store: EtcdStore,
    key: String,
    value: Bytes,
    /// 0 = none.
    lease: AtomicI64,
    tell: watch::Sender<Members>,
    seen: watch::Sender<LeaseState>,
}

/// What was seen last of the own key.
#[derive(Clone, Copy, Default)]
struct LeaseState {
    /// etcd's revision at which it was so.
    at: i64,
    is_there: bool,
}

/// The key as it was put.
struct LeasedKey {
    lease: i64,
    /// etcd's revision that it was put with.
    at: i64,
}

/// Takes a place and keeps it.
pub(crate) fn join(store: EtcdStore, id: &str, value: Bytes) -> Membership {
    let (tell, known) = watch::channel(Members::default());
    let leaving = CancellationToken::new();
    let key = format!("{REPLICAS}{}", key([id]));
    let member = Member { store, key, value, lease: AtomicI64::new(0), tell, seen: watch::Sender::default() };
    let task = tokio::spawn(member.be_there(leaving.clone()));
    Membership::new(known, leaving, task)
}

impl Member {
    async fn be_there(self, leaving: CancellationToken) {
        tokio::select! {
            () = leaving.cancelled() => {}
            () = self.stay() => {}
            () = self.look() => {}
        }
        if let Err(failure) = self.leave().await {
            tracing::debug!(error = %failure.unavailable(), "this replica's key could not be removed");
        }
    }

    /// Keeps the key there, for ever.
    async fn stay(&self) {
        let mut pause = PAUSE.0;
        loop {
            match self.enter().await {
                Ok(placed) => {
                    pause = PAUSE.0;
                    let why = tokio::select! {
                        () = self.keep(placed.lease) => "its lease is over",
                        () = self.taken_away(placed.at) => "somebody removed it",
                    };
                    tracing::info!(why, "this replica's key is put into the store anew");
                }
                Err(failure) => {
                    tracing::debug!(error = %failure.unavailable(), "this replica can not make itself known");
                }
            }
            sleep(pause.mul_f64(fastrand::f64())).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Puts the key under a lease of its own.
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

    /// Waits until the key that was put at a revision is seen not to be there any more.
    async fn taken_away(&self, at: i64) {
        let mut seen = self.seen.subscribe();
        let gone = seen.wait_for(|seen| seen.at >= at && !seen.is_there).await.is_ok();
        debug_assert!(gone, "the sender is held by the one who waits");
    }

    /// Keeps a lease alive; returns when that fails or the lease is over.
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

    /// Tells who is there, for ever.
    async fn look(&self) {
        let mut pause = PAUSE.0;
        loop {
            if self.list_and_watch().await.is_ok() {
                pause = PAUSE.0;
            }
            sleep(pause.mul_f64(fastrand::f64())).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Lists everybody and follows what changes, until the watch ends.
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
            self.tell.send_replace(Arc::new(known.clone()));
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

    /// The id in a key; none where it is no id.
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
