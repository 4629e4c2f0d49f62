//! Numbers and types of the wire: `wire_numbers.txt` lists every field, enum value and method.
//!
//! A published line stays: old clients, servers and stores depend on it. New lines are allowed, and
//! `DAMPER_TEST_UPDATE=1` adds them to the file; the author of a change removes its old line.

use std::collections::BTreeSet;
use std::path::Path;

use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet};

const PACKAGE: &str = "damper.v1";

/// Returns a line for each field, enum value and method of the package.
fn lines() -> BTreeSet<String> {
    let set = FileDescriptorSet::decode(damper_proto::DESCRIPTORS).expect("the compiler made it");
    let mut lines = BTreeSet::new();
    for file in set.file.iter().filter(|file| file.package() == PACKAGE) {
        file.message_type.iter().for_each(|message| add_message(&mut lines, message.name(), message));
        file.enum_type.iter().for_each(|enumeration| add_enum(&mut lines, "", enumeration));
        for service in &file.service {
            for method in &service.method {
                let stream = |streams| if streams { "stream " } else { "" };
                let [input, output] = [method.input_type(), method.output_type()].map(short);
                let (sends, returns) = (stream(method.client_streaming()), stream(method.server_streaming()));
                let (service, method) = (service.name(), method.name());
                lines.insert(format!("rpc {service}.{method}({sends}{input}) returns ({returns}{output})"));
            }
        }
    }
    lines
}

fn add_message(lines: &mut BTreeSet<String>, name: &str, message: &DescriptorProto) {
    let is_map = message.options.as_ref().is_some_and(|options| options.map_entry());
    let kind = if is_map { "map entry" } else { "message" };
    for field in &message.field {
        lines.insert(format!("{kind} {name}.{} = {} {}", field.name(), field.number(), type_of(field)));
    }
    let inner = |part: &str| format!("{name}.{part}");
    message.nested_type.iter().for_each(|part| add_message(lines, &inner(part.name()), part));
    message.enum_type.iter().for_each(|part| add_enum(lines, &format!("{name}."), part));
}

fn add_enum(lines: &mut BTreeSet<String>, outer: &str, enumeration: &EnumDescriptorProto) {
    let name = enumeration.name();
    for value in &enumeration.value {
        lines.insert(format!("enum {outer}{name}.{} = {}", value.name(), value.number()));
    }
}

fn type_of(field: &FieldDescriptorProto) -> String {
    let name = match field.r#type() {
        Type::Message | Type::Enum => short(field.type_name()).to_owned(),
        scalar => scalar.as_str_name().trim_start_matches("TYPE_").to_lowercase(),
    };
    match field.label() {
        Label::Repeated => format!("repeated {name}"),
        _ if field.proto3_optional() => format!("optional {name}"),
        _ => name,
    }
}

/// Returns a type's name without the dot in front and without our package.
fn short(name: &str) -> &str {
    let name = name.trim_start_matches('.');
    name.strip_prefix(PACKAGE).and_then(|rest| rest.strip_prefix('.')).unwrap_or(name)
}

#[test]
fn published_wire_numbers_stay() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wire_numbers.txt");
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let published: BTreeSet<String> = text.lines().map(str::to_owned).collect();
    let found = lines();
    let lost: Vec<&String> = published.difference(&found).collect();
    assert!(lost.is_empty(), "removed or changed, which breaks peers and stores: {lost:#?}");
    if std::env::var_os("DAMPER_TEST_UPDATE").is_some() {
        let all: Vec<String> = found.into_iter().collect();
        std::fs::write(&path, all.join("\n") + "\n").expect("the checkout can be written");
    } else {
        assert!(published.len() > 500, "{} lines", published.len());
    }
}
