//! Rules for tests.

use damper_core::Rule;

/// Returns the rules of these keys, as four words, and policies, as in a manifest.
pub(crate) fn rules(rules: &[(&str, &str)]) -> Vec<Rule> {
    let document = |(key, policy): &(&str, &str)| {
        let words: Vec<&str> = key.split(' ').collect();
        let &[caller, cluster, callee, method] = words.as_slice() else { panic!("{key} has four words") };
        format!(
            "---\nkind: Rule\nkey: {{ caller_service: '{caller}', caller_cluster: '{cluster}', \
             callee_service: '{callee}', callee_method: '{method}' }}\npolicy: {policy}\n"
        )
    };
    let text: String = rules.iter().map(document).collect();
    let documents = damper_proto::manifest::parse(&text).expect("manifests");
    damper_proto::manifest::check(&documents).expect("valid rules").rules
}
