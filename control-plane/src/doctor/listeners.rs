//! Checks of the listeners of this replica: rejected services, certificates and tokens.

use std::time::Duration;

use damper_proto::v1;

use crate::doctor::clients::age;
use crate::doctor::{Check, DoctorInput, codes, finding};
use crate::state::text::many;
use crate::state::tokens::StoredToken;

/// The state of this replica's certificate.
#[derive(Debug, Default)]
pub(crate) struct ListenerCertificate {
    /// The reason why it is invalid or expires soon.
    pub(crate) warning: Option<String>,
    /// The reason why the current files are not in use.
    pub(crate) refused: Option<String>,
}

pub(crate) const CHECKS: &[Check] = &[
    Check { what: "services are accepted by this replica", scope: rejected, find: agent_denied },
    Check { what: "this replica's certificate does not expire soon", scope: tls, find: certificate_ends },
    Check { what: "tokens do not expire soon", scope: tokens, find: token_ends },
    Check { what: "this replica uses the certificate in its files", scope: tls, find: reload_fails },
];

fn rejected(input: &DoctorInput) -> String {
    format!("{} rejected in the last 10 min", many(input.rejected.len(), "service"))
}

fn tls(input: &DoctorInput) -> String {
    if input.certificate.is_some() { "TLS".to_owned() } else { "no TLS".to_owned() }
}

fn agent_denied(input: &DoctorInput) -> Vec<v1::Finding> {
    let about = input.rejected.iter().filter(|refusal| input.is_about(&refusal.service));
    let findings = about.map(|refusal| {
        let crate::auth::rejected::RejectedClient { who, service, why, times, last, .. } = refusal;
        let ago = age(*last, input.now);
        let message = format!("{who} was rejected {}, last {ago} ago: {why}", many_times(*times));
        finding(codes::AGENT_DENIED, service, message)
    });
    findings.collect()
}

fn many_times(times: u64) -> String {
    if times == 1 { "once".to_owned() } else { format!("{times} times") }
}

fn certificate_ends(input: &DoctorInput) -> Vec<v1::Finding> {
    let warning = input.certificate.iter().filter_map(|certificate| certificate.warning.as_ref());
    warning.map(|warning| finding(codes::CERTIFICATE_ENDS, "", warning.clone())).collect()
}

fn tokens(input: &DoctorInput) -> String {
    many(about_tokens(input).count(), "token")
}

/// All tokens, or those with a scope for the service.
fn about_tokens(input: &DoctorInput) -> impl Iterator<Item = &StoredToken> {
    let all = input.table.tokens().all().map(|token| &**token);
    let service = &input.service;
    all.filter(move |token| {
        service.is_empty() || token.scope.is_limited() && token.scope.holds_caller(service)
    })
}

fn token_ends(input: &DoctorInput) -> Vec<v1::Finding> {
    let now = input.now;
    let ending = about_tokens(input).filter_map(|token| Some((token, token.ends_soon(now)?)));
    let found = ending.map(|(token, end)| {
        let role = token.wire.role().as_str_name().trim_start_matches("ROLE_").to_ascii_lowercase();
        let at = prost_types::Timestamp { nanos: 0, ..end.into() };
        let message = match end.duration_since(now) {
            Ok(left) => format!("role {role}, expires in {}, at {at}", roughly(left)),
            Err(_) => format!("role {role}, expired {} ago, at {at}", age(end, now)),
        };
        finding(codes::TOKEN_ENDS, &format!("{} ({})", token.wire.name, token.id), message)
    });
    found.collect()
}

/// Formats a time in days, or in hours below two days.
fn roughly(left: Duration) -> String {
    let hours = left.as_secs() / 3600;
    if hours < 48 { many(hours as usize, "hour") } else { many(hours as usize / 24, "day") }
}

fn reload_fails(input: &DoctorInput) -> Vec<v1::Finding> {
    let refused = input.certificate.iter().filter_map(|certificate| certificate.refused.as_ref());
    refused.map(|why| finding(codes::CERTIFICATE_NOT_RELOADED, "", why.clone())).collect()
}
