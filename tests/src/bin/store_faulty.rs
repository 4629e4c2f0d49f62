//! Writes to an embedded store whose disk fails at times.
//!
//! `store_faulty FOLDER`: puts a rule again and again until it is killed, and prints `written` or `refused` and why, each
//! time that is not what became of the rule before.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use damper_store::Store;
use damper_store::sled::SledStore;
use damper_store::writer::{Proposal, ProposedEdit, Writer, WriterConfig};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let folder = std::env::args_os().nth(1).ok_or_else(|| anyhow::anyhow!("store_faulty FOLDER"))?;
    let store: Arc<dyn Store> = Arc::new(SledStore::open(PathBuf::from(folder)).await?);
    let (writer, _task) = Writer::spawn(store.clone(), WriterConfig::default());
    let mut was_written = None;
    let mut revision = 0;
    for number in 0_u64.. {
        let written = writer.propose(put(&number.to_string())).await;
        if was_written != Some(written.is_ok()) {
            match &written {
                Ok(_) => println!("written"),
                Err(refusal) => println!("refused {refusal}"),
            }
        }
        was_written = Some(written.is_ok());
        if let Ok(committed) = written {
            anyhow::ensure!(committed.revision > revision, "revision {} was given twice", committed.revision);
            revision = committed.revision;
            anyhow::ensure!(
                store.load().await?.entries["rules/a"].value == number.to_string(),
                "another value"
            );
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

fn put(value: &str) -> Proposal {
    let edit =
        ProposedEdit { key: "rules/a".to_owned(), value: Some(value.to_owned().into()), expected: None };
    Proposal {
        author: "test".to_owned(),
        reason: String::new(),
        peer: String::new(),
        principal: String::new(),
        request_id: String::new(),
        request_digest: 0,
        at: SystemTime::now(),
        expected_head: None,
        edits: vec![edit],
        planner: None,
    }
}
