//! Counts what goes to the heap, with an allocator that notes everything, and prints it as JSON. Apart from `bench`,
//! for this allocator would slow down what is timed there.

use std::alloc::System;
use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use clap::Parser;
use damper_bench::calls::{self, Bench, Closures, Library, Subject};
use damper_bench::rows::{Decisions, table_of};
use damper_core::{Mode, Policy, Retry};
use serde_json::{Value, json};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Counts what goes to the heap
#[derive(Debug, Parser)]
enum Count {
    /// How often a call goes to the heap, through each subject
    Calls {
        /// The control plane that has the rule
        #[arg(long)]
        url: String,
    },
    /// Counts the allocations of a call of a closure, through each library
    Closures,
    /// How often a decision after a failure does, among few and many rules
    Decisions,
    /// The bytes that a rule takes in a table
    Table {
        /// How many rules the table has
        #[arg(long)]
        rules: usize,
    },
}

// One thread: the background work of the SDK runs only where this one waits, so that nothing else is counted.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let counted = match Count::parse() {
        Count::Calls { url } => calls(&url).await?,
        Count::Closures => closures()?,
        Count::Decisions => decisions()?,
        Count::Table { rules } => table(rules)?,
    };
    println!("{counted}");
    Ok(())
}

async fn calls(url: &str) -> Result<Value> {
    const CALLS: usize = 1_000;
    let mut bench = Bench::new(&calls::service(url).await?)?;
    let mut counted = BTreeMap::new();
    for subject in Subject::ALL {
        bench.calls(subject, CALLS);
        let region = Region::new(ALLOCATOR);
        bench.calls(subject, CALLS);
        let change = region.change();
        let count = change.allocations + change.reallocations;
        ensure!(count.is_multiple_of(CALLS), "{count} allocations in {CALLS} calls: not the same each time");
        counted.insert(subject.name(), count / CALLS);
    }
    Ok(json!(counted))
}

fn closures() -> Result<Value> {
    const CALLS: usize = 1_000;
    let closures = Closures::new()?;
    let mut counted = BTreeMap::new();
    for library in Library::ALL {
        closures.calls(library, CALLS);
        let region = Region::new(ALLOCATOR);
        closures.calls(library, CALLS);
        let change = region.change();
        let count = change.allocations + change.reallocations;
        counted.insert(library.name(), count as f64 / CALLS as f64);
    }
    Ok(json!(counted))
}

fn decisions() -> Result<Value> {
    let mut counted = BTreeMap::new();
    for rules in [1, 100, 10_000] {
        let mut decisions = Decisions::new(rules)?;
        let mut failing = decisions.failing();
        let region = Region::new(ALLOCATOR);
        let waiting = decisions.decide(&mut failing);
        let change = region.change();
        ensure!(waiting == failing.len(), "{waiting} are to be retried");
        counted.insert(rules.to_string(), change.allocations + change.reallocations);
    }
    Ok(json!(counted))
}

fn table(rules: usize) -> Result<Value> {
    let policy = Policy { retry: Some(Retry::default()), ..Policy::new(Mode::Enforce) };
    let region = Region::new(ALLOCATOR);
    let table = table_of(rules, &policy)?;
    let change = region.change();
    ensure!(table.len() == rules, "{} rules", table.len());
    let held = change.bytes_allocated - change.bytes_deallocated;
    Ok(json!(held as f64 / rules as f64))
}
