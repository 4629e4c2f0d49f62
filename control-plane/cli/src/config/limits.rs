//! Limits of the server: `limits` in the file, `DAMPER_LIMITS_*` in the environment.
//!
//! They have no flags: they are seldom changed, and twenty flags would hide the others. One table lists them;
//! an unknown name is a fault that lists the known ones.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use damper_control_plane::ServerConfig;

use super::{Layers, Text};

type Set = fn(&mut ServerConfig, &str) -> Result<(), String>;

const ALL: [(&str, Set); 28] = [
    ("first_byte_within", |to, text| put(&mut to.limits.first_byte_within, time(text))),
    ("handshake_within", |to, text| put(&mut to.limits.handshake_within, time(text))),
    ("request_head_within", |to, text| put(&mut to.limits.request_head_within, time(text))),
    ("idle_connection_after", |to, text| put(&mut to.limits.idle_connection_after, time(text))),
    ("unary_deadline", |to, text| put(&mut to.unary_deadline, time(text))),
    ("max_connections", |to, text| put(&mut to.limits.max_connections, count(text))),
    ("max_connections_per_identity", |to, text| {
        put(&mut to.limits.max_connections_per_identity, count(text))
    }),
    ("max_new_connections_per_address", |to, text| {
        put(&mut to.limits.max_new_connections_per_address, count(text))
    }),
    ("max_open_requests_per_identity", |to, text| {
        put(&mut to.limits.max_open_requests_per_identity, count(text))
    }),
    ("max_streams_per_connection", |to, text| {
        put(&mut to.limits.max_streams_per_connection, number(text).map(NonZeroU32::get))
    }),
    ("max_message_bytes", |to, text| put(&mut to.limits.max_message_bytes, bytes(text))),
    ("max_apply_bytes", |to, text| put(&mut to.max_apply_bytes, bytes(text))),
    ("max_rules", |to, text| put(&mut to.max_rules, count(text))),
    ("max_guards", |to, text| put(&mut to.max_guards, count(text))),
    ("max_tokens", |to, text| put(&mut to.max_tokens, count(text))),
    ("max_routes", |to, text| put(&mut to.max_routes, count(text))),
    ("max_statistics_bytes", |to, text| put(&mut to.max_statistics_bytes, bytes(text))),
    ("reads_per_second", |to, text| put(&mut to.limits.reads.per_second, number(text))),
    ("reads_burst", |to, text| put(&mut to.limits.reads.burst, number(text))),
    ("writes_per_second", |to, text| put(&mut to.limits.writes.per_second, number(text))),
    ("writes_burst", |to, text| put(&mut to.limits.writes.burst, number(text))),
    ("written_kib_per_second", |to, text| put(&mut to.limits.written_kib.per_second, number(text))),
    ("written_kib_burst", |to, text| put(&mut to.limits.written_kib.burst, number(text))),
    ("submits_per_second", |to, text| put(&mut to.limits.submits.per_second, number(text))),
    ("submits_burst", |to, text| put(&mut to.limits.submits.burst, number(text))),
    ("submitted_kib_per_second", |to, text| put(&mut to.limits.submitted_kib.per_second, number(text))),
    ("submitted_kib_burst", |to, text| put(&mut to.limits.submitted_kib.burst, number(text))),
    ("slow_consumer_after", |to, text| put(&mut to.slow_consumer_after, time(text))),
];

/// Sets the limits from the environment and the section `limits` of the file.
pub(super) fn put_all(
    layers: &mut Layers<'_>,
    mut in_file: BTreeMap<String, Text>,
    settings: &mut ServerConfig,
) {
    for (name, set) in ALL {
        let variable = format!("DAMPER_LIMITS_{}", name.to_uppercase());
        let (place, text) = match ((layers.env)(&variable), in_file.remove(name)) {
            (Some(text), _) => (variable, text),
            (None, Some(Text(text))) => (format!("{}: limits.{name}", layers.file), text),
            (None, None) => continue,
        };
        if let Err(problem) = set(settings, &text) {
            layers.faults.push(format!("{place}: {text:?}: {problem}"));
        }
    }
    for unknown in in_file.keys() {
        let known = ALL.map(|(name, _)| name).join(", ");
        layers.faults.push(format!("{}: limits.{unknown}: unknown (known: {known})", layers.file));
    }
}

fn put<T>(place: &mut T, value: Result<T, String>) -> Result<(), String> {
    *place = value?;
    Ok(())
}

fn time(text: &str) -> Result<Duration, String> {
    let bounds = Duration::from_millis(100)..=Duration::from_secs(24 * 3600);
    match humantime::parse_duration(text) {
        Ok(time) if bounds.contains(&time) => Ok(time),
        Ok(_) => Err("must be between 100ms and 24h".to_owned()),
        Err(_) => Err("must be a duration such as 10s or 5m".to_owned()),
    }
}

fn number(text: &str) -> Result<NonZeroU32, String> {
    text.parse().map_err(|_| format!("must be between 1 and {}", u32::MAX))
}

fn count(text: &str) -> Result<usize, String> {
    number(text).map(|count| count.get() as usize)
}

/// `4096`, `64KiB`, `1MiB`.
fn bytes(text: &str) -> Result<usize, String> {
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let shift = match unit.trim() {
        "" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => return Err("must be a size such as 64KiB or 1MiB".to_owned()),
    };
    let size = digits.parse::<usize>().ok().and_then(|count| count.checked_mul(1 << shift));
    let bounds = 64 << 10..=1 << 30;
    size.filter(|size| bounds.contains(size)).ok_or_else(|| "must be between 64KiB and 1GiB".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_their_units() {
        for (text, size) in [("65536", 65536), ("64KiB", 65536), ("1MiB", 1 << 20), ("1 GiB", 1 << 30)] {
            assert_eq!(bytes(text), Ok(size), "{text}");
        }
        for text in ["", "1", "63KiB", "2GiB", "1MB", "-1", "99999999999999999999", "18446744073709551615GiB"]
        {
            assert!(bytes(text).is_err(), "{text}");
        }
    }
}
