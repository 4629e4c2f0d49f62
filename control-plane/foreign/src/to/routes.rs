//! Routes of the Gateway API, which Linkerd reads too: a document for each rule of a callee.

use damper_core::Policy;
use serde_json::{Value, json};

use super::{Options, Translation, Written, each, host, set};
use crate::duration::{seconds, whole_millis};
use crate::selection::{Callee, Selected};

/// The Service that the calls of a route go to.
pub(super) struct Backend<'a> {
    host: &'a str,
    port: u16,
}

/// Writes the routes of a callee and names them.
pub(super) fn write(
    callee: &Callee<'_>,
    options: &Options,
    target: &str,
    translation: &mut Translation,
    route: impl Fn(&Selected<'_>, &Policy, &Backend<'_>) -> Written<Value>,
) -> Result<(), String> {
    let host = host(&callee.name)?;
    let port = options.port.ok_or("a route needs the port of the callee's Service; add --port")?;
    let backend = Backend { host, port };
    let parts = each(callee, target, translation, |selected, policy| route(selected, policy, &backend));
    for (number, (_, mut route)) in parts.into_iter().enumerate() {
        if let Some(metadata) = route.get_mut("metadata") {
            set(metadata, "name", Some(format!("damper-{host}-{number}")));
            translation.documents.push(route);
        }
    }
    Ok(())
}

/// Errors if a time limit is finer than the milliseconds of a route.
pub(super) fn check_limits(policy: &Policy, target: &str) -> Result<(), Vec<String>> {
    let per_attempt = policy.retry.as_ref().and_then(|retry| retry.per_attempt_timeout);
    for (setting, limit) in
        [("policy.timeout", policy.timeout), ("policy.retry.per_attempt_timeout", per_attempt)]
    {
        if let Some(limit) = limit.filter(|limit| whole_millis(*limit).is_none()) {
            return Err(vec![format!(
                "{setting}: {target} takes whole milliseconds, not {}",
                seconds(limit)
            )]);
        }
    }
    Ok(())
}

impl Backend<'_> {
    /// Returns a rule that sends its calls here.
    pub(super) fn rule(&self) -> Value {
        json!({ "backendRefs": [{ "name": self.host, "port": self.port }] })
    }

    /// Returns the route with a rule.
    pub(super) fn route(&self, kind: &str, annotations: Value, rule: Value) -> Value {
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": kind,
            "metadata": { "annotations": annotations },
            "spec": {
                "parentRefs": [{ "group": "", "kind": "Service", "name": self.host, "port": self.port }],
                "rules": [rule],
            },
        })
    }
}
