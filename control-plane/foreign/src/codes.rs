//! Status codes in the words of Envoy's retry conditions.
//!
//! Envoy knows five codes. A connection that fails or is reset has no status: Envoy answers it itself, and
//! the gRPC conditions do not match that, so UNAVAILABLE needs three conditions more.

use damper_core::{Code, CodeSet};

/// Codes of Envoy, Istio and Linkerd, with their condition.
const KNOWN: [(Code, &str); 5] = [
    (Code::Cancelled, "cancelled"),
    (Code::DeadlineExceeded, "deadline-exceeded"),
    (Code::Internal, "internal"),
    (Code::ResourceExhausted, "resource-exhausted"),
    (Code::Unavailable, "unavailable"),
];

/// Conditions of attempts that end without a status.
const CONNECTION: [&str; 3] = ["connect-failure", "refused-stream", "reset"];

/// Conditions of a source that retry a failed connection, beyond those above.
const WIDER: [&str; 5] =
    ["5xx", "gateway-error", "reset-before-request", "http3-post-connect-failure", "retriable-status-codes"];

/// Returns the codes that have a condition.
pub(crate) fn known(codes: CodeSet) -> CodeSet {
    KNOWN.into_iter().map(|(code, _)| code).filter(|code| codes.contains(*code)).collect()
}

/// Returns the conditions of the codes, without those for connections.
pub(crate) fn grpc_conditions(codes: CodeSet) -> Vec<&'static str> {
    KNOWN.into_iter().filter(|(code, _)| codes.contains(*code)).map(|(_, condition)| condition).collect()
}

/// Returns all conditions of the codes.
pub(crate) fn conditions(codes: CodeSet) -> Vec<&'static str> {
    let mut all = grpc_conditions(codes);
    if codes.contains(Code::Unavailable) {
        all.extend(CONNECTION);
    }
    all
}

/// What conditions mean in codes.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Conditions {
    /// Codes that are retried.
    pub(crate) codes: Vec<Code>,
    /// Differences to a rule with these codes.
    pub(crate) findings: Vec<String>,
    /// Conditions that do not exist.
    pub(crate) unknown: Vec<String>,
}

/// Reads a comma-separated list of conditions.
pub(crate) fn read(text: &str) -> Conditions {
    let mut read = Conditions::default();
    let words: Vec<&str> = text.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
    for word in &words {
        if let Some((code, _)) = KNOWN.iter().find(|(_, condition)| condition == word) {
            read.codes.push(*code);
            continue;
        }
        let is_status = word.parse::<u16>().is_ok_and(|status| (100..600).contains(&status));
        if is_status
            || WIDER.contains(word)
            || ["retriable-4xx", "retriable-headers", "envoy-ratelimited"].contains(word)
        {
            read.findings.push(format!("{word} is a condition of HTTP, which a rule does not have"));
        } else if !CONNECTION.contains(word) {
            read.unknown.push((*word).to_owned());
        }
    }
    let connection = |word: &&str| CONNECTION.contains(word) || WIDER[..4].contains(word) || **word == *"503";
    let missing: Vec<&str> = CONNECTION.into_iter().filter(|condition| !words.contains(condition)).collect();
    match (read.codes.contains(&Code::Unavailable), words.iter().any(connection)) {
        (false, true) => {
            read.codes.push(Code::Unavailable);
            read.findings
                .push("only failed connections are retried, not UNAVAILABLE from the callee".to_owned());
        }
        (true, _) if !missing.is_empty() => {
            let missing = missing.join(", ");
            read.findings.push(format!("failed connections are not all retried: {missing} is not listed"));
        }
        _ => {}
    }
    read
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unavailable_needs_conditions_of_connections() {
        let all = conditions(CodeSet::of(&[Code::Unavailable, Code::Internal, Code::Aborted]));
        assert_eq!(all, ["internal", "unavailable", "connect-failure", "refused-stream", "reset"]);
        assert_eq!(conditions(CodeSet::of(&[Code::Internal])), ["internal"]);
    }

    #[test]
    fn conditions_read_back_without_findings() {
        for codes in
            [CodeSet::of(&[Code::Unavailable, Code::Cancelled]), CodeSet::of(&[Code::DeadlineExceeded])]
        {
            let read = read(&conditions(codes).join(","));
            assert_eq!((read.codes.iter().copied().collect::<CodeSet>(), read.findings.len()), (codes, 0));
        }
    }

    #[test]
    fn http_conditions_are_findings_and_unknown_ones_faults() {
        let found = read("connect-failure, 503,unavailabel");
        assert_eq!(found.codes, [Code::Unavailable]);
        assert_eq!(found.unknown, ["unavailabel"]);
        assert_eq!(found.findings.len(), 2, "{found:?}");
        assert!(read("unavailable").findings[0].contains("connect-failure, refused-stream, reset"));
    }
}
