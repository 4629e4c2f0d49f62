//! Generates the messages and services from `proto/damper/v1`.
//!
//! The files are compiled by protox, so that building needs no `protoc`. The descriptor set is kept for
//! server reflection. Servers and clients are generated apart, because only servers read with our own codec
//! (see `src/codec.rs`). With the feature `manifest` every message also gets its text form; which form a field
//! has follows from its type alone (see `src/manifest/form.rs`). Nothing generated is in git.

use std::{env, fs, path::PathBuf};

use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto};
use tonic_prost_build::Builder;

const FILES: [&str; 10] = [
    "damper/v1/policy.proto",
    "damper/v1/admin.proto",
    "damper/v1/guards.proto",
    "damper/v1/kills.proto",
    "damper/v1/rules.proto",
    "damper/v1/distribution.proto",
    "damper/v1/fleet.proto",
    "damper/v1/history.proto",
    "damper/v1/tokens.proto",
    "damper/v1/replicas.proto",
];
const PACKAGE: &str = ".damper.v1";
const FORM: &str = "crate::manifest::form";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(FILES, ["proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;

    let mut servers =
        tonic_prost_build::configure().build_client(false).codec_path("crate::codec::ServerCodec");
    if env::var_os("CARGO_FEATURE_MANIFEST").is_some() {
        let ours = descriptors.file.iter().filter(|file| file.package() == &PACKAGE[1..]);
        for message in ours.flat_map(|file| &file.message_type) {
            servers = with_text_form(servers, &format!("{PACKAGE}.{}", message.name()), message);
        }
    }
    servers.compile_fds(descriptors.clone())?;

    let clients = out.join("clients");
    fs::create_dir_all(&clients)?;
    tonic_prost_build::configure()
        .build_server(false)
        .extern_path(PACKAGE, "crate::v1")
        .out_dir(clients)
        .compile_fds(descriptors)?;
    Ok(())
}

/// Adds the text form to a message, its fields and its oneofs.
fn with_text_form(mut builder: Builder, path: &str, message: &DescriptorProto) -> Builder {
    builder = builder.message_attribute(path, "#[derive(serde::Serialize, serde::Deserialize)]");
    let (chosen, plain): (Vec<_>, Vec<_>) = message.field.iter().partition(|field| in_oneof(field));
    for oneof in &message.oneof_decl {
        if !oneof.name().starts_with('_') {
            let oneof = format!("{path}.{}", oneof.name());
            builder = builder
                .type_attribute(&oneof, "#[derive(serde::Serialize, serde::Deserialize)]")
                .type_attribute(&oneof, "#[serde(rename_all = \"snake_case\")]");
        }
    }
    for field in chosen {
        let oneof = field.oneof_index.and_then(|index| message.oneof_decl.get(usize::try_from(index).ok()?));
        if let (Some(form), Some(oneof)) = (form(field), oneof) {
            let at = format!("{path}.{}.{}", oneof.name(), field.name());
            builder = builder.field_attribute(&at, format!("#[serde(with = \"{FORM}::{form}\")]"));
        }
    }
    // A message with only a oneof or a list of codes is written as its content.
    let bare = plain.is_empty() && !message.field.is_empty() || path == ".damper.v1.CodeList";
    let attribute = if bare { "#[serde(transparent)]" } else { "#[serde(default, deny_unknown_fields)]" };
    builder = builder.message_attribute(path, attribute);
    for field in plain {
        let at = format!("{path}.{}", field.name());
        if let Some(form) = form(field) {
            builder = builder.field_attribute(&at, format!("#[serde(with = \"{FORM}::{form}\")]"));
        }
        // OK is a code, not an absent value.
        if !bare && field.type_name() != ".damper.v1.Code" {
            builder = builder
                .field_attribute(&at, format!("#[serde(skip_serializing_if = \"{FORM}::is_default\")]"));
        }
    }
    builder
}

fn in_oneof(field: &FieldDescriptorProto) -> bool {
    field.oneof_index.is_some() && !field.proto3_optional()
}

/// Returns the form of a field's type if serde has none.
fn form(field: &FieldDescriptorProto) -> Option<String> {
    let number = match field.label() {
        Label::Repeated => "Many",
        _ if field.proto3_optional() => "Optional",
        _ => "One",
    };
    match field.r#type() {
        Type::Enum => Some(format!("{number}::<crate::v1::{}>", rust_name(field.type_name()))),
        Type::Double => Some(format!("{}_number", number.to_lowercase())),
        Type::Message if field.type_name() == ".google.protobuf.Duration" => Some(match field.label() {
            Label::Repeated => "many_durations".to_owned(),
            _ if in_oneof(field) => "one_duration".to_owned(),
            _ => "duration".to_owned(),
        }),
        Type::Message if field.type_name() == ".google.protobuf.Timestamp" => Some("timestamp".to_owned()),
        _ => None,
    }
}

/// `.damper.v1.RuleResult.Change` is `rule_result::Change`.
fn rust_name(proto_name: &str) -> String {
    let name = proto_name.trim_start_matches(PACKAGE).trim_start_matches('.');
    let Some((message, name)) = name.rsplit_once('.') else {
        return name.to_owned();
    };
    let mut module = String::new();
    for c in message.chars() {
        if c.is_uppercase() && !module.is_empty() {
            module.push('_');
        }
        module.extend(c.to_lowercase());
    }
    format!("{module}::{name}")
}
