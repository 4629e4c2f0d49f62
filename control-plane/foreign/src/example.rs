//! Rules for tests.

use damper_core::Rule;

/// Returns manifests of the rules of these keys, as four words, and policies.
pub(crate) fn manifests(rules: &[(&str, &str)]) -> String {
    let document = |(key, policy): &(&str, &str)| {
        let words: Vec<&str> = key.split(' ').collect();
        let &[caller, cluster, callee, method] = words.as_slice() else { panic!("{key} has four words") };
        format!(
            "---\nkind: Rule\nkey: {{ caller_service: '{caller}', caller_cluster: '{cluster}', \
             callee_service: '{callee}', callee_method: '{method}' }}\npolicy: {policy}\n"
        )
    };
    rules.iter().map(document).collect()
}

/// Returns the rules of these keys and policies.
pub(crate) fn rules(rules: &[(&str, &str)]) -> Vec<Rule> {
    let documents = damper_proto::manifest::parse(&manifests(rules)).expect("manifests");
    damper_proto::manifest::check(&documents).expect("valid rules").rules
}
