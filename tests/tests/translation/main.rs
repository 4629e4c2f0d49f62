//! Translated rules at their real consumers: Envoy, and clients of grpc-go.
//!
//! Both must accept everything that is written. For Envoy that shows little, since it also accepts conditions
//! that never apply: so a running one is given each kind of failure, and what it sends is counted.

mod accepted;
mod envoy;
mod sends;

use damper_core::Rule;
use damper_foreign::to::{Options, Target, Translation, translate};
use damper_proto::manifest;

/// Returns the rules of these keys, as four words, and policies, as in a manifest.
fn rules(rules: &[(&str, &str)]) -> Vec<Rule> {
    let document = |(key, policy): &(&str, &str)| {
        let words: Vec<&str> = key.split(' ').collect();
        let &[caller, cluster, callee, method] = words.as_slice() else { panic!("{key} has four words") };
        format!(
            "---\nkind: Rule\nkey: {{ caller_service: '{caller}', caller_cluster: '{cluster}', \
             callee_service: '{callee}', callee_method: '{method}' }}\npolicy: {policy}\n"
        )
    };
    let text: String = rules.iter().map(document).collect();
    let documents = manifest::parse(&text).expect("manifests");
    manifest::check(&documents).expect("valid rules").rules
}

/// Translates rules; each of them must be written.
fn written(target: Target, rules: &[Rule], options: &Options) -> Translation {
    let translation = translate(target, rules, options).expect("documents");
    for report in &translation.reports {
        assert!(report.written, "{}: {:?}", report.rule, report.refused);
    }
    translation
}
