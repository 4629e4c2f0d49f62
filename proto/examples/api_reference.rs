//! Writes the reference of `damper.v1` to standard output, as Markdown, for `cargo xtask docs`.
//!
//! All content comes from the .proto files: services, messages and enums, with their comments.

use std::collections::HashMap;

use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet,
    ServiceDescriptorProto,
};

const PACKAGE: &str = "damper.v1";
const HEAD: &str = "# API reference

The gRPC API `damper.v1`, as the server's reflection service describes it. Made from \
[`proto/proto/damper/v1`](../proto/proto/damper/v1) by `cargo xtask docs`; do not edit.

A field marked *optional* distinguishes absent from zero. Timestamps and durations are `google.protobuf`'s; in \
manifests and in what the command line prints they are written as `2026-01-31T12:00:00Z` and `250ms`.
";

// Numbers of fields in descriptor.proto, which locate comments.
const FILE_SYNTAX: i32 = 12;
const FILE_MESSAGES: i32 = 4;
const FILE_ENUMS: i32 = 5;
const FILE_SERVICES: i32 = 6;
const MESSAGE_FIELDS: i32 = 2;
const MESSAGE_ENUMS: i32 = 4;
const ENUM_VALUES: i32 = 2;
const SERVICE_METHODS: i32 = 2;

/// A file and its comments, by the path of their element.
struct File<'a> {
    proto: &'a FileDescriptorProto,
    comments: HashMap<&'a [i32], &'a str>,
}

fn main() {
    let set = FileDescriptorSet::decode(damper_proto::DESCRIPTORS)
        .expect("the descriptors were made by the compiler");
    let files: Vec<File<'_>> =
        set.file.iter().filter(|file| file.package() == PACKAGE).map(File::new).collect();
    println!("{HEAD}");
    for service in files.iter().flat_map(|file| &file.proto.service) {
        println!("- [{}](#{})", service.name(), service.name().to_lowercase());
    }
    for file in &files {
        file.print();
    }
}

/// Returns the access that a method requires.
fn access(path: &str) -> String {
    let method = damper_proto::methods::of_path(path).expect("it is in the table");
    let level = method.level.as_str_name().to_lowercase();
    if method.unscoped { format!("{level}, no scope") } else { level }
}

impl<'a> File<'a> {
    fn new(proto: &'a FileDescriptorProto) -> Self {
        let locations = proto.source_code_info.iter().flat_map(|info| &info.location);
        let comments = locations
            .filter_map(|location| Some((location.path.as_slice(), location.leading_comments.as_deref()?)))
            .collect();
        Self { proto, comments }
    }

    fn comment(&self, path: &[i32]) -> String {
        let text = self.comments.get(path).copied().unwrap_or_default();
        let paragraphs =
            text.trim().split("\n\n").map(|text| text.lines().map(str::trim).collect::<Vec<_>>().join(" "));
        paragraphs.collect::<Vec<_>>().join("\n\n")
    }

    fn print(&self) {
        let name = self.proto.name();
        println!("\n## {}\n", name.rsplit('/').next().unwrap_or(name));
        print_text(&self.comment(&[FILE_SYNTAX]));
        for (at, service) in (0..).zip(&self.proto.service) {
            self.service(service, &[FILE_SERVICES, at]);
        }
        for (at, message) in (0..).zip(&self.proto.message_type) {
            self.message(message, "", &[FILE_MESSAGES, at]);
        }
        for (at, choice) in (0..).zip(&self.proto.enum_type) {
            self.choice(choice, "", &[FILE_ENUMS, at]);
        }
    }

    fn service(&self, service: &ServiceDescriptorProto, path: &[i32]) {
        println!("\n### {}\n", service.name());
        print_text(&self.comment(path));
        println!("| method | request | response | access | |\n|---|---|---|---|---|");
        for (at, method) in (0..).zip(&service.method) {
            let stream = |streams: bool, name: &str| match streams {
                true => format!("stream of {}", link(name)),
                false => link(name),
            };
            println!(
                "| `{}` | {} | {} | {} | {} |",
                method.name(),
                stream(method.client_streaming(), method.input_type()),
                stream(method.server_streaming(), method.output_type()),
                access(&format!("/{PACKAGE}.{}/{}", service.name(), method.name())),
                cell(&self.comment(&[path, &[SERVICE_METHODS, at]].concat())),
            );
        }
    }

    fn message(&self, message: &DescriptorProto, parent: &str, path: &[i32]) {
        let name = format!("{parent}{}", message.name());
        println!("\n### {name}\n");
        print_text(&self.comment(path));
        if message.field.is_empty() {
            println!("Has no fields.");
        } else {
            println!("| field | type | |\n|---|---|---|");
        }
        for (at, field) in (0..).zip(&message.field) {
            let comment = self.comment(&[path, &[MESSAGE_FIELDS, at]].concat());
            println!(
                "| `{}` = {} | {} | {} |",
                field.name(),
                field.number(),
                kind(message, field),
                cell(&comment)
            );
        }
        for (at, choice) in (0..).zip(&message.enum_type) {
            self.choice(choice, &format!("{name}."), &[path, &[MESSAGE_ENUMS, at]].concat());
        }
    }

    fn choice(&self, choice: &EnumDescriptorProto, parent: &str, path: &[i32]) {
        println!("\n### {parent}{}\n", choice.name());
        print_text(&self.comment(path));
        println!("| value | |\n|---|---|");
        for (at, value) in (0..).zip(&choice.value) {
            let comment = self.comment(&[path, &[ENUM_VALUES, at]].concat());
            println!("| `{}` = {} | {} |", value.name(), value.number(), cell(&comment));
        }
    }
}

fn print_text(text: &str) {
    if !text.is_empty() {
        println!("{text}\n");
    }
}

/// Escapes bars and paragraphs in a table cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace("\n\n", "<br>")
}

fn kind(message: &DescriptorProto, field: &FieldDescriptorProto) -> String {
    let name = match field.r#type() {
        Type::Message | Type::Enum => link(field.type_name()),
        scalar => format!("{scalar:?}").to_lowercase(),
    };
    let one_of = field.oneof_index.filter(|_| !field.proto3_optional());
    let one_of = one_of.and_then(|index| message.oneof_decl.get(usize::try_from(index).ok()?));
    match (field.label(), one_of) {
        (Label::Repeated, _) => format!("list of {name}"),
        (_, Some(choice)) => format!("{name}, one of `{}`", choice.name()),
        (_, None) if field.proto3_optional() => format!("{name}, optional"),
        _ => name,
    }
}

/// Links own types to their headings.
fn link(full: &str) -> String {
    let full = full.trim_start_matches('.');
    match full.strip_prefix(PACKAGE).map(|name| name.trim_start_matches('.')) {
        Some(name) => format!("[{name}](#{})", name.to_lowercase().replace('.', "")),
        None => full.strip_prefix("google.protobuf.").unwrap_or(full).to_owned(),
    }
}
