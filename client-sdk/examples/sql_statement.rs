//! A statement of sqlx under rules. The lines that adopting it changes are marked.
//!
//! `cargo run -p damper-sdk --features manifest --example sql_statement`

use std::time::Duration;

use damper_sdk::{BoxOperation, Damper};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions, SqliteQueryResult};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// In production the control plane delivers the rule.
const RULE: &str = r#"
kind: Rule
key: { caller_service: shop, caller_cluster: "*", callee_service: orders-db, callee_method: orders/insert }
policy:
  mode: enforce
  retry: { max_attempts: 10, backoff: { fixed: { delay: 20ms } } }
  retry_breaker: { enabled: false } # its credit is empty at the start
  budget: { min_per_second: 10 }
"#;

/// Returns true for an error after which the statement had no effect.
fn is_busy(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|error| error.message().contains("locked"))
}

/// What the service keeps.
struct Orders {
    pool: SqlitePool,
    insert: BoxOperation<SqliteQueryResult, sqlx::Error>, // new
}

/// Inserts an order.
async fn insert(orders: &Orders, item: &str) -> Result<()> {
    let statement = || sqlx::query("INSERT INTO orders (item) VALUES (?)").bind(item).execute(&orders.pool);
    orders.insert.call(|_| statement()).await?; // was: statement().await?
    Ok(())
}

#[tokio::main]
pub(crate) async fn main() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = SqliteConnectOptions::new().filename(folder.path().join("orders.db"));
    let options = file.create_if_missing(true).busy_timeout(Duration::ZERO);
    let pool = SqlitePoolOptions::new().max_connections(2).connect_with(options).await?;
    sqlx::query("CREATE TABLE orders (item TEXT)").execute(&pool).await?;

    // Another writer has locked the database for a while.
    let mut other = pool.acquire().await?;
    sqlx::query("BEGIN EXCLUSIVE").execute(&mut *other).await?;
    let unlock = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        sqlx::query("COMMIT").execute(&mut *other).await
    };
    let damper = Damper::fixed("shop", RULE)?;
    let insert_order = damper.operation("orders-db", "orders/insert")?.retry_if(is_busy).boxed(); // new
    let orders = Orders { pool: pool.clone(), insert: insert_order };
    let (inserted, unlocked) = tokio::join!(insert(&orders, "tea"), unlock);
    inserted?;
    unlocked?;

    let mut retries = 0;
    damper.for_each_route(|_, _, counters| retries += counters.retries());
    println!("inserted after {retries} retries");
    assert!(retries > 0);
    Ok(())
}
