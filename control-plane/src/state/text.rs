//! Numbers in messages.

/// Formats a share in percent; less than 100 % never rounds up to it.
pub(crate) fn percent(share: f64) -> String {
    let tenths = (share * 1_000.0).round();
    let tenths = if share < 1.0 { tenths.min(999.0) } else { tenths };
    format!("{:.1}%", tenths / 10.0)
}

/// Formats a count: `1 route`, `2 processes`.
pub(crate) fn many(count: usize, what: &str) -> String {
    match (count, what.ends_with('s')) {
        (1, _) => format!("1 {what}"),
        (_, true) => format!("{count} {what}es"),
        (_, false) => format!("{count} {what}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_than_everything_never_reads_as_everything() {
        for (share, text) in
            [(1.0, "100.0%"), (0.999_999, "99.9%"), (0.9994, "99.9%"), (0.1234, "12.3%"), (0.0, "0.0%")]
        {
            assert_eq!(percent(share), text);
        }
    }

    #[test]
    fn one_thing_is_no_plural() {
        assert_eq!(
            [many(0, "route"), many(1, "route"), many(2, "process")],
            ["0 routes", "1 route", "2 processes"]
        );
    }
}
