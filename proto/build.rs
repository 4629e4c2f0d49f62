//! Generates the messages and services from `proto/damper/v1`.
//!
//! The files are compiled by protox, so that building needs no `protoc`. The descriptor set is kept for
//! server reflection. Nothing generated is in git.

use std::{env, path::PathBuf};

use prost::Message as _;

const FILES: [&str; 4] = [
    "damper/v1/policy.proto",
    "damper/v1/rules.proto",
    "damper/v1/distribution.proto",
    "damper/v1/fleet.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(FILES, ["proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
