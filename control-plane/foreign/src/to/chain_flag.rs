//! The filter that keeps the retry flag in Envoy and Istio.
//!
//! Inbound, before the router, which overwrites the caller's count of attempts: a repeated request gets the
//! mark in its baggage. Outbound: a call with the mark is sent once. Services propagate the baggage.

use serde_json::{Value, json};

const SOURCE: &str = include_str!("chain_flag.lua");

/// Returns Istio's object with both filters.
pub(super) fn envoy_filter() -> Value {
    let patch = |context: &str, inbound: bool| {
        json!({
            "applyTo": "HTTP_FILTER",
            "match": {
                "context": context,
                "listener": { "filterChain": { "filter": {
                    "name": "envoy.filters.network.http_connection_manager",
                    "subFilter": { "name": "envoy.filters.http.router" },
                } } },
            },
            "patch": { "operation": "INSERT_BEFORE", "value": filter(inbound) },
        })
    };
    json!({
        "apiVersion": "networking.istio.io/v1alpha3",
        "kind": "EnvoyFilter",
        "metadata": { "name": "damper-chain-flag" },
        "spec": { "configPatches": [patch("SIDECAR_INBOUND", true), patch("SIDECAR_OUTBOUND", false)] },
    })
}

/// Returns Envoy's filters, one document each.
pub(super) fn http_filters() -> [Value; 2] {
    [json!({ "inbound_http_filter": filter(true) }), json!({ "outbound_http_filter": filter(false) })]
}

fn filter(inbound: bool) -> Value {
    json!({
        "name": "damper.chain_flag",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua",
            "default_source_code": { "inline_string": format!("local INBOUND = {inbound}\n{SOURCE}") },
        },
    })
}
