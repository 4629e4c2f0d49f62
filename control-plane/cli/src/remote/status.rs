//! Maps gRPC errors to texts and exit statuses.
//!
//! A status with a source was made on this side of the wire: the connection failed. Certificate problems get
//! their own text and remedy, if necessary after a [`probe`]. All other statuses come from the server, with
//! `google.rpc` details: field violations (one line each, located by a [`Locate`]) and, in a conflict, the
//! current rule or guard.

use std::error::Error as _;
use std::time::{Duration, Instant};

use damper_endpoint::{Access, problem};
use damper_proto::v1;
use http::Uri;
use prost::Message as _;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::error::CliError;
use crate::input::key::{self, change_words};
use crate::input::manifests::ManifestItem;
use crate::output::figures::many;
use crate::output::printable;
use crate::remote::probe;

/// Maps the path of a field in a request to its place in the input.
pub(crate) type Locate<'a> = &'a dyn Fn(&str) -> String;

/// A missing server is an error within five seconds, the probe included.
pub(super) const FOUND_OUT_WITHIN: Duration = Duration::from_millis(4700);
/// Longest time for the probe.
const LOOK_WITHIN: Duration = Duration::from_millis(1500);

/// Address and credentials of the server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peer {
    pub(crate) address: String,
    pub(crate) uri: Uri,
    pub(crate) access: Access,
}

/// Cause of a failed connection.
#[derive(Debug)]
pub(crate) struct Fault {
    text: String,
    /// The text contains its own remedy.
    is_known: bool,
}

/// Returns the error of a status.
pub(crate) fn failure(peer: &Peer, status: &Status, locate: Locate<'_>) -> CliError {
    if status.source().is_some() {
        return unreachable(&[not_connected(peer, status)]);
    }
    let address = &peer.address;
    let message = words(status);
    match status.code() {
        Code::InvalidArgument | Code::OutOfRange => CliError::Data(faults(status, locate)),
        Code::ResourceExhausted if status.get_details_retry_info().is_none() => {
            CliError::Data(faults(status, locate))
        }
        Code::ResourceExhausted => CliError::Unavailable(format!("{address} is at a limit: {message}")),
        Code::NotFound => CliError::Missing(message),
        Code::Aborted | Code::AlreadyExists | Code::FailedPrecondition => {
            CliError::Conflict(conflict(status))
        }
        Code::PermissionDenied | Code::Unauthenticated => CliError::Denied(denied(peer, status)),
        Code::Unavailable => CliError::Unavailable(format!("{address} is unavailable: {message}")),
        Code::DeadlineExceeded | Code::Cancelled => {
            CliError::Unavailable(format!("{address} timed out: {message}"))
        }
        Code::Unimplemented => CliError::Unavailable(format!(
            "{address} does not support this command: not a Damper control plane, or an older one; check the address \
             (--server, DAMPER_SERVER) ({message})"
        )),
        Code::Ok | Code::Unknown | Code::Internal | Code::DataLoss => {
            CliError::Defect(format!("{address} failed: {} ({message})", status.code()))
        }
    }
}

/// Cause of a failed or broken connection.
fn not_connected(peer: &Peer, error: &(dyn std::error::Error + 'static)) -> Fault {
    fault(peer, problem::of(error), error)
}

/// Like `not_connected`, with a probe if time allows it.
pub(crate) async fn looked_into(
    peer: &Peer,
    error: &(dyn std::error::Error + 'static),
    begun: Instant,
) -> Fault {
    let within = FOUND_OUT_WITHIN.saturating_sub(begun.elapsed()).min(LOOK_WITHIN);
    let cause = match within.is_zero() {
        true => None,
        false => probe::ask(&peer.access, &peer.uri, within).await,
    };
    fault(peer, cause.or_else(|| problem::of(error)), error)
}

fn fault(peer: &Peer, cause: Option<String>, error: &(dyn std::error::Error + 'static)) -> Fault {
    let is_known = cause.is_some();
    let why = cause.map_or_else(|| root_of(error), |cause| with_flags(&cause));
    Fault { text: format!("cannot reach {}: {why}", peer.address), is_known }
}

/// Replaces names of variables by flag and variable.
fn with_flags(text: &str) -> String {
    let flags = ["ca-file", "cert-file", "key-file", "server-name"];
    flags.iter().fold(text.to_owned(), |text, flag| {
        let variable = format!("DAMPER_{}", flag.replace('-', "_").to_uppercase());
        text.replace(&variable, &format!("--{flag} or {variable}"))
    })
}

/// Error if no server is reachable: a line each, with a hint if the cause is unclear.
pub(crate) fn unreachable(faults: &[Fault]) -> CliError {
    let hint = "check the address (--server, DAMPER_SERVER) and that `damper serve` runs there; services keep \
                their last rules; DAMPER_MODE=off stops retries without a server";
    let last_unclear = faults.iter().rposition(|fault| !fault.is_known);
    let line = |(i, fault): (usize, &Fault)| match Some(i) == last_unclear {
        true => format!("{}; {hint}", fault.text),
        false => fault.text.clone(),
    };
    CliError::Unavailable(faults.iter().enumerate().map(line).collect::<Vec<_>>().join("\n"))
}

/// Text of a denied request: the server's reason and the remedy.
fn denied(peer: &Peer, status: &Status) -> String {
    let reason = status.get_details_error_info().map(|info| info.reason);
    let advice = match (status.code(), reason.as_deref()) {
        (Code::Unauthenticated, _) if let Some(place) = peer.access.token_place() => &format!(
            "the token came from {place}; an administrator creates a new one with `damper token create`"
        ),
        (Code::Unauthenticated, _) => {
            "set --token-file FILE, DAMPER_TOKEN_FILE or DAMPER_TOKEN; an administrator creates a token with \
             `damper token create`"
        }
        (_, Some("ROLE")) => "ask an administrator for a token with that role; `damper whoami` shows yours",
        (_, Some("SCOPE")) => "ask an administrator for a token with that scope; `damper whoami` shows yours",
        _ => "`damper whoami` shows the authenticated identity",
    };
    format!("denied by {}: {}; {advice}", peer.address, words(status))
}

/// Returns the innermost cause ("Connection refused").
fn root_of(error: &dyn std::error::Error) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    match inner.to_string() {
        // The text of rustls is for programmers.
        text if text.contains("close_notify") => "the connection was closed".to_owned(),
        text => text,
    }
}

fn words(status: &Status) -> String {
    match status.message() {
        "" => format!("{:?}", status.code()),
        message => message.to_owned(),
    }
}

fn faults(status: &Status, locate: Locate<'_>) -> Vec<String> {
    let violations =
        status.get_details_bad_request().map_or_else(Vec::new, |details| details.field_violations);
    if violations.is_empty() {
        return vec![words(status)];
    }
    violations
        .iter()
        .map(|violation| match violation.field.as_str() {
            "" => violation.description.clone(),
            field => format!("{}: {}", locate(field), violation.description),
        })
        .collect()
}

fn conflict(status: &Status) -> String {
    let mut lines = vec![words(status)];
    let violations =
        status.get_details_precondition_failure().map_or_else(Vec::new, |details| details.violations);
    for violation in violations {
        let line = format!("{}: {}", violation.subject, violation.description);
        if !lines[0].contains(&violation.description) {
            lines.push(line);
        }
    }
    lines.extend(conflicts(status).iter().flat_map(owned));
    if let Some((words, revision, by)) = current(status) {
        let by = if by.is_empty() { "unknown" } else { &by };
        lines.push(format!("{words} is at revision {revision} now, changed by {by}"));
    }
    lines.join("\n")
}

/// Returns the settings of other owners in a rejected set.
fn conflicts(status: &Status) -> Option<v1::Conflicts> {
    let details = tonic_types::pb::Status::decode(status.details()).ok()?.details;
    let packed = details.iter().find(|any| any.type_url.ends_with("/damper.v1.Conflicts"))?;
    v1::Conflicts::decode(packed.value.as_slice()).ok()
}

/// Returns a line for each setting of another owner, and the remedy.
fn owned(conflicts: &v1::Conflicts) -> Vec<String> {
    let line = |conflict: &v1::Conflict| {
        let v1::Conflict { guard, key, owner, field, current, wanted, queue } = conflict;
        let words = change_words(*guard, key.as_ref(), queue);
        let [owner, current, wanted] = [owner, current, wanted].map(|text| match text.as_str() {
            "" => "unset".to_owned(),
            text => printable(text),
        });
        format!("{words} (owner {owner}): {field}: {current} -> {wanted}")
    };
    let mut lines: Vec<String> = conflicts.conflicts.iter().map(line).collect();
    let rest = (conflicts.total as usize).saturating_sub(lines.len());
    if rest > 0 {
        lines.push(format!("and {}", many(rest, "more setting")));
    }
    lines.push("nothing was changed; remove these settings from the set or add --take-over".to_owned());
    lines
}

/// Returns name, revision and last author of the current rule, guard, queue or kill in the details of a
/// conflict.
fn current(status: &Status) -> Option<(String, u64, String)> {
    let details = tonic_types::pb::Status::decode(status.details()).ok()?.details;
    let packed = |name: &str| details.iter().find(|any| any.type_url.ends_with(name));
    if let Some(packed) = packed("/damper.v1.Rule") {
        let rule = v1::Rule::decode(packed.value.as_slice()).ok()?;
        return Some((ManifestItem::Rule(rule.clone()).words(), rule.revision, rule.updated_by));
    }
    if let Some(packed) = packed("/damper.v1.Queue") {
        let queue = v1::Queue::decode(packed.value.as_slice()).ok()?;
        return Some((ManifestItem::Queue(queue.clone()).words(), queue.revision, queue.updated_by));
    }
    if let Some(packed) = packed("/damper.v1.KillSwitch") {
        let kill = v1::KillSwitch::decode(packed.value.as_slice()).ok()?;
        let words = format!("kill {}", key::words(kill.key.as_ref()));
        return Some((words, kill.revision, kill.updated_by));
    }
    let guard = v1::Guard::decode(packed("/damper.v1.Guard")?.value.as_slice()).ok()?;
    Some((ManifestItem::Guard(guard.clone()).words(), guard.revision, guard.updated_by))
}

#[cfg(test)]
mod tests {
    use std::io;

    use damper_core::Faults;
    use damper_endpoint::{AccessSettings, Speaker};
    use tonic_types::{ErrorDetails, FieldViolation};

    use super::*;
    use crate::error::as_is;

    fn peer() -> Peer {
        Peer { address: "http://server".to_owned(), ..Peer::default() }
    }

    fn code_of(code: Code) -> u8 {
        failure(&peer(), &Status::new(code, "said"), &as_is).code()
    }

    #[test]
    fn each_answer_has_its_exit_status() {
        let table = [
            (Code::InvalidArgument, 65),
            (Code::OutOfRange, 65),
            (Code::ResourceExhausted, 65),
            (Code::NotFound, 66),
            (Code::Unavailable, 69),
            (Code::DeadlineExceeded, 69),
            (Code::Cancelled, 69),
            (Code::Unimplemented, 69),
            (Code::Internal, 70),
            (Code::Unknown, 70),
            (Code::DataLoss, 70),
            (Code::Aborted, 75),
            (Code::AlreadyExists, 75),
            (Code::FailedPrecondition, 75),
            (Code::PermissionDenied, 77),
            (Code::Unauthenticated, 77),
        ];
        for (code, exit) in table {
            assert_eq!(code_of(code), exit, "{code:?}");
        }
    }

    #[test]
    fn broken_connection_names_address_and_cause() {
        let refused = io::Error::new(io::ErrorKind::ConnectionRefused, "refused");
        let error = failure(&peer(), &Status::from_error(Box::new(refused)), &as_is);
        assert_eq!(error.code(), 69);
        let text = error.to_string();
        assert!(text.starts_with("cannot reach http://server: refused; check the address"), "{text}");
    }

    #[test]
    fn known_causes_have_a_remedy_and_others_a_hint() {
        let known = || Fault { text: with_flags("name it (DAMPER_CA_FILE)"), is_known: true };
        assert_eq!(unreachable(&[known()]).to_string(), "name it (--ca-file or DAMPER_CA_FILE)");
        let unclear = Fault { text: "refused".to_owned(), is_known: false };
        let text = unreachable(&[unclear, known()]).to_string();
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].starts_with("refused; check the address"), "{text}");
        assert_eq!(lines[1], known().text);
    }

    #[test]
    fn denied_requests_have_a_remedy() {
        let said = |code, reason: &str, env: &[(&str, &str)]| {
            let details =
                ErrorDetails::with_error_info(reason, "damper.v1", [("role".to_owned(), "x".to_owned())]);
            let status = Status::with_error_details(code, "needs the role operator", details);
            let env =
                |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, said)| (*said).to_owned());
            let mut faults = Faults::none();
            let access =
                Access::resolve(AccessSettings::default(), Speaker::CommandLine, &[], &env, &mut faults);
            assert!(faults.is_empty());
            let error = failure(&Peer { access, ..peer() }, &status, &as_is);
            assert_eq!(error.code(), 77);
            error.to_string()
        };
        assert!(said(Code::Unauthenticated, "", &[]).contains("--token-file"));
        let by_variable = said(Code::Unauthenticated, "", &[("DAMPER_TOKEN", "kept")]);
        assert!(
            by_variable.contains("the token came from DAMPER_TOKEN;") && !by_variable.contains("kept"),
            "{by_variable}"
        );
        let by_file = said(Code::Unauthenticated, "", &[("DAMPER_TOKEN_FILE", "/run/token")]);
        assert!(by_file.contains("the token came from DAMPER_TOKEN_FILE, /run/token;"), "{by_file}");
        let role = said(Code::PermissionDenied, "ROLE", &[]);
        assert!(role.contains("needs the role operator") && role.contains("with that role"), "{role}");
        assert!(said(Code::PermissionDenied, "SCOPE", &[]).contains("with that scope"));
    }

    #[test]
    fn every_field_violation_is_a_line_of_its_own() {
        let details = ErrorDetails::with_bad_request(vec![
            FieldViolation::new("changes[0].put.policy.mode", "is required"),
            FieldViolation::new("", "too much"),
        ]);
        let status = Status::with_error_details(Code::InvalidArgument, "2 faults", details);
        let error = failure(&peer(), &status, &|field| field.replace("changes[0].put", "a.yaml"));
        assert_eq!(error.to_string(), "a.yaml.policy.mode: is required\ntoo much");
    }

    #[test]
    fn conflict_names_the_last_author() {
        let rule = v1::Rule {
            key: Some(v1::Pattern {
                caller_service: "a".into(),
                caller_cluster: "*".into(),
                callee_service: "b".into(),
                callee_method: "p.S/M".into(),
            }),
            revision: 9,
            updated_by: "kim".into(),
            ..v1::Rule::default()
        };
        let any = prost_types::Any {
            type_url: "type.googleapis.com/damper.v1.Rule".into(),
            value: rule.encode_to_vec(),
        };
        let details = tonic_types::pb::Status { code: 10, message: String::new(), details: vec![any] };
        let status = Status::with_details(Code::Aborted, "not at revision 7", details.encode_to_vec().into());
        let error = failure(&peer(), &status, &as_is);
        assert_eq!(error.to_string(), "not at revision 7\na * b p.S/M is at revision 9 now, changed by kim");
    }
}
