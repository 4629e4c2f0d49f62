//! Tables, and the checks of a database before it is used.
//!
//! A job's row has what statements select by; everything else is in `record`, in the encoding that all stores
//! share. Bodies are apart: an update of a job must not copy its body. Keys are `bytea`, which has no U+0000
//! problem and no collation.
//!
//! Migrations go forward only and add only, under an advisory lock. `oldest_reader` is the lowest format that
//! a server must know: an older server goes on working until a later release raises it.

use super::connection::{Connection, Stop};
use crate::store::error::Error;

/// Format of the tables.
const FORMAT: i64 = 1;

/// Advisory lock of migrations: "damper" as bytes.
const MIGRATION: i64 = 0x6461_6d70_6572;

const TABLES: &str = r#"
create schema if not exists damper_queue;
create table if not exists meta (name text primary key, value bigint not null);
create table if not exists server (
    id bigint generated always as identity primary key,
    beat bigint not null default 0,
    published bytea not null default ''
);
create table if not exists lane (
    id int generated always as identity primary key,
    queue text not null,
    caller_service text not null,
    caller_cluster text not null,
    callee_service text not null,
    callee_method text not null,
    unique (queue, caller_service, caller_cluster, callee_service, callee_method)
);
-- State: w waiting, b behind, l leased, d dead, f done, c cancelled, x expired. Times in ms since 1970.
create table if not exists job (
    id bytea primary key,
    lane int not null,
    state "char" not null,
    repeat bool not null,
    at bigint not null,
    began bigint not null,
    expires bigint not null,
    scope bytea not null,
    key bytea not null,
    order_key bytea,
    server bigint,
    record bytea not null,
    unique (scope, key)
) with (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0
);
create index if not exists job_due on job (lane, repeat, at, id) where state = 'w';
create index if not exists job_behind on job (scope, order_key, began, id) where state = 'b';
create index if not exists job_leased on job (server) where state = 'l';
create index if not exists job_over on job (lane, state, at) where state in ('d', 'f', 'c', 'x');
create index if not exists job_expires on job (lane, expires) where state in ('w', 'b');
create table if not exists body (id bytea primary key, body bytea not null) with (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0
);
-- The job that has the turn of an order key.
create table if not exists head (scope bytea, order_key bytea, job bytea, primary key (scope, order_key));
-- Counts of each lane by the server that changed them: only their sum means anything.
create table if not exists tally (
    lane int,
    server bigint,
    waiting bigint not null,
    behind bigint not null,
    leased bigint not null,
    dead bigint not null,
    ended bigint not null,
    bytes bigint not null,
    primary key (lane, server)
) with (fillfactor = 50);
-- Bounds that all servers keep together. Times in us since 1970, by the clock of the database.
create table if not exists queue_flow (
    queue text primary key,
    next_delivery bigint not null,
    line_servers bigint[] not null,
    line_until bigint[] not null
) with (fillfactor = 50);
create table if not exists callee_flow (
    queue text,
    callee text,
    failures bigint not null,
    probe_at bigint not null,
    pace bigint not null,
    halved_at bigint,
    primary key (queue, callee)
) with (fillfactor = 50);
create or replace function store_time() returns bigint language sql volatile as
    'select (extract(epoch from clock_timestamp()) * 1000000)::bigint';
"#;

/// Checks what durability rests on. Errors with the setting, its value and the required one.
pub(super) async fn check_settings(connection: &Connection) -> Result<(), Stop> {
    let allowed: [(&str, &[&str]); 5] = [
        ("fsync", &["on"]),
        ("full_page_writes", &["on"]),
        ("synchronous_commit", &["on", "remote_apply"]),
        ("server_encoding", &["UTF8"]),
        ("transaction_read_only", &["off"]),
    ];
    let sql = "select name, setting from pg_settings where name = any($1) or name = 'server_version_num'";
    let names: Vec<&str> = allowed.iter().map(|(name, _)| *name).collect();
    for row in connection.query(sql, &[&names]).await? {
        let (name, value): (String, String) = (row.try_get(0)?, row.try_get(1)?);
        if name == "server_version_num" && value.parse::<u32>().is_ok_and(|version| version < 130_000) {
            return Err(open(format!("PostgreSQL {value} is too old (13 or later is required)")));
        }
        let Some((_, values)) = allowed.iter().find(|(known, _)| *known == name) else { continue };
        if !values.contains(&value.as_str()) {
            return Err(open(format!("{name}: is {value} (required: {})", values.join(" or "))));
        }
    }
    Ok(())
}

/// Creates what is missing. Returns the identity of the store.
pub(super) async fn migrate(connection: &Connection) -> Result<u64, Stop> {
    connection.batch("begin").await?;
    connection.query("select pg_advisory_xact_lock($1)", &[&MIGRATION]).await?;
    connection.batch(TABLES).await?;
    let id = getrandom::u64().map_err(|error| open(format!("no random numbers: {error}")))?;
    let names = ["format", "oldest_reader", "id"];
    let values = [FORMAT, FORMAT, id.cast_signed()];
    let sql = "insert into meta select * from unnest($1::text[], $2::bigint[]) on conflict do nothing";
    connection.execute(sql, &[&names.as_slice(), &values.as_slice()]).await?;
    connection.commit().await?;
    identity(connection).await
}

/// Checks that this version may use the tables. Returns the identity of the store.
pub(super) async fn identity(connection: &Connection) -> Result<u64, Stop> {
    let (mut oldest_reader, mut id) = (i64::MAX, None);
    for row in connection.query("select name, value from meta", &[]).await? {
        match row.try_get::<_, &str>(0)? {
            "oldest_reader" => oldest_reader = row.try_get(1)?,
            "id" => id = Some(row.try_get::<_, i64>(1)?.cast_unsigned()),
            _ => {}
        }
    }
    if oldest_reader > FORMAT {
        return Err(open(format!(
            "the database needs a server that reads format {oldest_reader} (this one reads {FORMAT}); use a newer \
             version"
        )));
    }
    id.ok_or_else(|| Stop::Store(Error::Damaged("meta: no id".to_owned())))
}

fn open(problem: String) -> Stop {
    Stop::Store(Error::Open(problem))
}
