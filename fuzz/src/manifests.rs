//! Whatever text an operator applies: manifests in YAML and JSON.
//!
//! Checked: nothing panics; documents that are read print as YAML and as JSON, and what is read of that is the
//! same; what the engine accepts of them says the same after it was written by us.

use damper_proto::manifest::{self, Manifest};
use damper_proto::v1;

use crate::seed;

/// Inputs that bytes alone would hardly find.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let all = seed::manifests();
    let one = |manifest: &Manifest| manifest::to_yaml(std::slice::from_ref(manifest)).into_bytes();
    let many = [manifest::to_yaml(&all[..4]), manifest::to_json(&all[4..8]), manifest::to_json(&all[..1])];
    all.iter().map(one).chain(many.map(String::into_bytes)).collect()
}

/// Runs one case.
pub fn run(data: &[u8]) {
    let Ok(documents) = manifest::parse_bytes(data) else { return };
    let read: Vec<Manifest> = documents.iter().map(|document| document.manifest.clone()).collect();
    for text in [manifest::to_yaml(&read), manifest::to_json(&read)] {
        let again = manifest::parse(&text).unwrap_or_else(|error| panic!("{error}\nof {text}"));
        let again: Vec<Manifest> = again.into_iter().map(|document| document.manifest).collect();
        assert_eq!(again, read, "{text}");
    }
    let Ok(checked) = manifest::check(&documents) else { return };
    let rules = checked.rules.iter().map(|rule| Manifest::from(v1::Rule::from(rule)));
    let guards = checked.guards.iter().map(|guard| Manifest::from(v1::Guard::from(guard)));
    let written: Vec<Manifest> = rules.chain(guards).collect();
    let text = manifest::to_yaml(&written);
    let again = manifest::parse(&text).unwrap_or_else(|error| panic!("{error}\nof {text}"));
    let again = manifest::check(&again).unwrap_or_else(|error| panic!("{error}\nof {text}"));
    assert_eq!(again, checked, "{text}");
}
