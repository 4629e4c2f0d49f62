//! Writes to an embedded store whose disk becomes full.
//!
//! `store_full FOLDER`: puts rules until one is refused, prints `refused` and why; sets kills, ends them, removes a
//! rule and compacts, and prints `urgent`; goes on until a rule is written, and prints `written`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use damper_store::Store;
use damper_store::sled::SledStore;
use damper_store::writer::{Committed, Proposal, ProposeError, ProposedEdit, Writer, WriterConfig};

/// How large a rule is, the largest there may be.
const RULE_BYTES: usize = 64 << 10;

/// How many kills are set and ended on the full disk.
const KILLS: u64 = 200;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let folder =
        PathBuf::from(std::env::args_os().nth(1).ok_or_else(|| anyhow::anyhow!("store_full FOLDER"))?);
    let store: Arc<dyn Store> = Arc::new(SledStore::open(folder).await?);
    let (writer, _task) = Writer::spawn(store.clone(), WriterConfig::default());
    let mut written = 0;
    let refusal = loop {
        match put(&writer, "rules/a", fastrand::u64(..)).await {
            Ok(committed) => written = committed.revision,
            Err(refusal) => break refusal,
        }
    };
    println!("refused {refusal}");
    anyhow::ensure!(store.is_full(), "the store does not know that it is full");
    for number in 0..KILLS {
        write(&writer, "kills/a", Some(number.to_string().into())).await?;
        write(&writer, "kills/a", None).await?;
    }
    write(&writer, "rules/a", None).await?;
    store.compact(written).await?;
    println!("urgent");
    while put(&writer, "rules/a", fastrand::u64(..)).await.is_err() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    anyhow::ensure!(store.load().await?.entries.len() == 1, "the entries are not what was written");
    anyhow::ensure!(!store.is_full(), "the store does not know that it has room");
    println!("written");
    Ok(())
}

/// Puts a rule whose bytes cannot be made fewer.
async fn put(writer: &Writer, key: &str, seed: u64) -> Result<Committed, ProposeError> {
    let mut random = fastrand::Rng::with_seed(seed);
    let value: Vec<u8> = (0..RULE_BYTES).map(|_| random.u8(..)).collect();
    write(writer, key, Some(value)).await
}

async fn write(writer: &Writer, key: &str, value: Option<Vec<u8>>) -> Result<Committed, ProposeError> {
    let edits = vec![ProposedEdit { key: key.to_owned(), value: value.map(Into::into), expected: None }];
    let proposal = Proposal {
        author: "filler".to_owned(),
        reason: String::new(),
        peer: String::new(),
        principal: String::new(),
        request_id: String::new(),
        request_digest: 0,
        at: SystemTime::now(),
        expected_head: None,
        edits,
        planner: None,
    };
    writer.propose(proposal).await
}
