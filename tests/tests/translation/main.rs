//! Translated rules at their real consumers: Envoy, channels of grpc-go and grpc-java, and the schemas that
//! Istio and the Gateway API publish.
//!
//! They must accept everything that is written. For Envoy that shows little, since it also accepts conditions
//! that never apply: so a running one is given each kind of failure, and what it sends is counted.

mod accepted;
mod chains;
mod envoy;
#[path = "../../../control-plane/foreign/src/example.rs"]
mod example;
mod schemas;
mod sends;

use damper_core::Rule;
use damper_foreign::to::{Options, Target, Translation, translate};
use example::rules;

/// Translates rules; each of them must be written.
fn written(target: Target, rules: &[Rule], options: &Options) -> Translation {
    let translation = translate(target, rules, options).expect("documents");
    for report in &translation.reports {
        assert!(report.written, "{}: {:?}", report.rule, report.refused);
    }
    translation
}
