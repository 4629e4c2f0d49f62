//! Whether deployed objects still say what would be written.
//!
//! A deployed object has fields more, which clusters add: only what would be written is compared. Annotations
//! and metadata, which have the rules' revisions, are not.

use serde_json::Value;

/// Names of the fields with provenance, and the fields of a Kubernetes object that are not its content.
const LEFT_OUT: [&str; 2] = ["annotations", "filter_metadata"];

/// Returns each difference between the documents that would be written and the deployed ones.
#[must_use]
pub fn differences(wanted: &[Value], live: &[Value]) -> Vec<String> {
    let live: Vec<&Value> = live.iter().flat_map(objects).collect();
    let mut found = Vec::new();
    for document in wanted {
        let name = name(document);
        let same = |other: &&&Value| self::name(other) == name;
        let mut others = live.iter().filter(same).peekable();
        if others.peek().is_none() {
            found.push(format!("{name}: is not deployed"));
            continue;
        }
        let compared = others.map(|other| {
            let mut differing = Vec::new();
            compare(document, other, "", &mut differing);
            differing
        });
        let nearest = compared.min_by_key(Vec::len).unwrap_or_default();
        found.extend(nearest.into_iter().map(|difference| format!("{name}: {difference}")));
    }
    for profile in live.iter().filter(|object| kind(object) == "ServiceProfile") {
        if wanted.iter().any(|document| kind(document) == "GRPCRoute") {
            found.push(format!("{}: switches the annotations of its Service's routes off", name(profile)));
        }
    }
    found
}

/// Returns the document, or the items of a Kubernetes list.
fn objects(document: &Value) -> Vec<&Value> {
    match document.get("items").and_then(Value::as_array).filter(|_| kind(document) == "List") {
        Some(items) => items.iter().collect(),
        None => vec![document],
    }
}

fn kind(document: &Value) -> &str {
    document.get("kind").and_then(Value::as_str).unwrap_or_default()
}

/// Returns kind and name of a Kubernetes object, the callee of a fragment of Envoy, else what is configured.
fn name(document: &Value) -> String {
    let text = |path: &str| document.pointer(path).and_then(Value::as_str);
    match (kind(document), text("/metadata/name"), text("/virtual_host/name")) {
        ("", _, Some(callee)) => format!("routes of {callee}"),
        ("", ..) => "configuration".to_owned(),
        (kind, name, _) => format!("{kind} {}", name.unwrap_or("without a name")),
    }
}

fn compare(wanted: &Value, live: &Value, path: &str, found: &mut Vec<String>) {
    match (wanted, live) {
        (Value::Object(fields), Value::Object(others)) => {
            for (field, value) in fields.iter().filter(|(field, _)| !LEFT_OUT.contains(&field.as_str())) {
                let path = if path.is_empty() { field.clone() } else { format!("{path}.{field}") };
                match others.get(field) {
                    Some(other) => compare(value, other, &path, found),
                    None => found.push(format!("{path}: would be {value}, is missing")),
                }
            }
        }
        (Value::Array(items), Value::Array(others)) if items.len() == others.len() => {
            for (i, (item, other)) in items.iter().zip(others).enumerate() {
                compare(item, other, &format!("{path}[{i}]"), found);
            }
        }
        (wanted, live) if equal(wanted, live) => {}
        (Value::Array(items), Value::Array(others)) => {
            found.push(format!("{path}: would have {} entries, has {}", items.len(), others.len()));
        }
        _ => found.push(format!("{path}: would be {wanted}, is {live}")),
    }
}

/// True for the same value; durations and numbers may be written in several ways.
fn equal(wanted: &Value, live: &Value) -> bool {
    let duration = |value: &Value| value.as_str().and_then(|text| crate::duration::parse(text).ok());
    let same_duration = duration(wanted).zip(duration(live)).is_some_and(|(one, other)| one == other);
    wanted == live
        || same_duration
        || wanted.as_f64().zip(live.as_f64()).is_some_and(|(one, other)| one == other)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn route(timeout: &str, attempts: u32) -> Value {
        json!({
            "kind": "VirtualService",
            "metadata": { "name": "damper-b", "annotations": { "damper.dev/rules": attempts } },
            "spec": { "http": [{ "timeout": timeout, "retries": { "attempts": attempts } }] },
        })
    }

    #[test]
    fn fields_that_a_cluster_adds_are_no_differences() {
        let mut live = route("2000ms", 2);
        live["metadata"]["uid"] = json!("1");
        live["metadata"]["annotations"] = json!({});
        let list = json!({ "kind": "List", "items": [json!({ "kind": "Other" }), live] });
        assert_eq!(differences(&[route("2s", 2)], &[list]), Vec::<String>::new());
    }

    #[test]
    fn changed_and_missing_values_are_named() {
        let mut live = route("2s", 3);
        live["spec"]["http"][0].as_object_mut().unwrap().remove("timeout");
        assert_eq!(
            differences(&[route("2s", 2)], &[live]),
            [
                "VirtualService damper-b: spec.http[0].retries.attempts: would be 2, is 3",
                "VirtualService damper-b: spec.http[0].timeout: would be \"2s\", is missing",
            ]
        );
        assert_eq!(differences(&[route("2s", 2)], &[]), ["VirtualService damper-b: is not deployed"]);
    }

    #[test]
    fn service_profile_next_to_routes_of_linkerd_is_found() {
        let wanted = json!({ "kind": "GRPCRoute", "metadata": { "name": "damper-b-0" } });
        let profile = json!({ "kind": "ServiceProfile", "metadata": { "name": "b" } });
        let live = [wanted.clone(), profile];
        let found = differences(&[wanted], &live);
        assert_eq!(found, ["ServiceProfile b: switches the annotations of its Service's routes off"]);
    }
}
