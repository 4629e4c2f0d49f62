//! Generates the messages and services from `proto/damper/v1`.
//!
//! The files are compiled by protox, so that building needs no `protoc`. The descriptor set is kept for
//! server reflection. Servers and clients are generated apart, because only servers read with our own codec
//! (see `src/codec.rs`). The table of methods (`src/methods.rs`) comes from their option `access`. With the
//! feature `manifest` every message also gets its text form; the form of a field follows from its type alone
//! (see `src/manifest/form.rs`). Nothing generated is in git.

use std::{env, fs, path::PathBuf};

use prost_reflect::{DescriptorPool, Kind, MethodDescriptor, ReflectMessage as _};
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto};
use tonic_prost_build::Builder;

const FILES: [&str; 13] = [
    "damper/v1/access.proto",
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
    "damper/v1/jobs.proto",
    "damper/v1/queues.proto",
];
const PACKAGE: &str = ".damper.v1";
const FORM: &str = "crate::manifest::form";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).include_source_info(true).open_files(FILES)?;
    let descriptors = compiler.file_descriptor_set();
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), compiler.encode_file_descriptor_set())?;
    fs::write(out.join("methods.rs"), methods(&compiler.descriptor_pool())?)?;

    let mut servers =
        tonic_prost_build::configure().build_client(false).codec_path("crate::codec::ServerCodec");
    if env::var_os("CARGO_FEATURE_MANIFEST").is_some() {
        let ours =
            descriptors.file.iter().filter(|file| file.package() == &PACKAGE[1..] && file.name() != FILES[0]);
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

/// Returns the table of all methods as Rust, sorted by path.
fn methods(pool: &DescriptorPool) -> Result<String, String> {
    let services: Vec<_> = pool.services().collect();
    let rows = services.iter().flat_map(|service| service.methods()).map(|method| row(pool, &method));
    let mut rows = rows.collect::<Result<Vec<_>, _>>()?;
    rows.sort();
    Ok(format!("&[\n{}]", rows.concat()))
}

/// Returns the row of a method. Errors if its option `access` has no level.
fn row(pool: &DescriptorPool, method: &MethodDescriptor) -> Result<String, String> {
    let path = format!("/{}/{}", method.parent_service().full_name(), method.name());
    let option = pool.get_extension_by_name("damper.v1.access").ok_or("no option `access`")?;
    let options = method.options();
    let access = options.get_extension(&option);
    let access = access.as_message().ok_or("the option `access` is not a message")?;
    let flag = |name| access.get_field_by_name(name).and_then(|value| value.as_bool()).unwrap_or_default();
    let level =
        access.get_field_by_name("level").and_then(|value| value.as_enum_number()).unwrap_or_default();
    if level == 0 {
        return Err(format!(
            "{path}: requires `option (damper.v1.access) = {{ level: ... }};`, see access.proto"
        ));
    }
    let levels = access.descriptor().get_field_by_name("level").map(|field| field.kind());
    let Some(Kind::Enum(levels)) = levels else {
        return Err("the level of `access` is not an enum".to_owned());
    };
    let level = levels.get_value(level).ok_or_else(|| format!("{path}: unknown level {level}"))?;
    let is_write = method.input().fields().any(|field| {
        matches!(field.kind(), Kind::Message(message) if message.full_name() == "damper.v1.WriteOptions")
    });
    Ok(format!(
        "Method {{ path: {path:?}, level: Level::{}, unscoped: {}, urgent: {}, is_write: {is_write}, \
         client_streaming: {}, server_streaming: {} }},\n",
        capitalised(level.name()),
        flag("unscoped"),
        flag("urgent"),
        method.is_client_streaming(),
        method.is_server_streaming(),
    ))
}

/// `VIEWER` is `Viewer`.
fn capitalised(name: &str) -> String {
    name.get(..1).into_iter().chain(name.get(1..).map(str::to_lowercase).as_deref()).collect()
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
