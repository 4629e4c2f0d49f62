//! Writes to a store as fast as it can until it is killed, and says what was acknowledged.
//!
//! `store_victim LOCATION ROUND`: one line `REVISION KEY VALUE` on stdout for every key of every acknowledged
//! proposal, printed only after the writer's answer. The proposals differ: new keys, one key that all tasks
//! overwrite, removals, and changes too large for one etcd transaction.

use std::io::Write;
use std::sync::Arc;
use std::time::SystemTime;

use damper_store::writer::{Proposal, ProposedEdit, Writer, WriterConfig};
use damper_store::{Store, StoreUrl, key};

/// How many proposals are on their way at the same time.
const TASKS: usize = 4;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(location), Some(round)) = (arguments.next(), arguments.next()) else {
        anyhow::bail!("usage: store_victim LOCATION ROUND");
    };
    let store: Arc<dyn Store> = match location.parse()? {
        // The test has just read it.
        StoreUrl::Sled(path) => Arc::new(damper_tests::sled::open(&path).await),
        etcd => etcd.open().await?,
    };
    store.create().await?;
    let (writer, _task) = Writer::spawn(store, WriterConfig::default());
    let tasks = (0..TASKS).map(|task| tokio::spawn(write(writer.clone(), format!("{round}-{task}"))));
    for task in tasks.collect::<Vec<_>>() {
        task.await??;
    }
    Ok(())
}

async fn write(writer: Writer, name: String) -> anyhow::Result<()> {
    for number in 0.. {
        let value = format!("{name}-{number}");
        let edits = edits(&name, number, &value);
        let keys: Vec<String> =
            edits.iter().filter(|edit| edit.value.is_some()).map(|e| e.key.clone()).collect();
        let committed = writer.propose(proposal(edits)).await?;
        let lines: String =
            keys.iter().map(|key| format!("{} {key} {value}\n", committed.revision)).collect();
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(lines.as_bytes())?;
        stdout.flush()?;
    }
    Ok(())
}

fn edits(name: &str, number: usize, value: &str) -> Vec<ProposedEdit> {
    let put = |key: String| ProposedEdit { key, value: Some(value.to_owned().into()), expected: None };
    let mut edits = vec![put(key(["rules", name, &number.to_string()])), put(key(["rules", "shared"]))];
    if number % 3 == 2 {
        let earlier = key(["rules", name, &(number - 1).to_string()]);
        edits.push(ProposedEdit { key: earlier, value: None, expected: None });
    }
    if number % 10 == 4 {
        edits.extend((0..150).map(|place| put(key(["rules", "many", &place.to_string()]))));
    }
    edits
}

fn proposal(edits: Vec<ProposedEdit>) -> Proposal {
    Proposal {
        author: "victim".to_owned(),
        reason: String::new(),
        peer: String::new(),
        principal: String::new(),
        request_id: String::new(),
        request_digest: 0,
        at: SystemTime::now(),
        expected_head: None,
        edits,
        planner: None,
    }
}
