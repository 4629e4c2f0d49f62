//! Generates the messages and services of the demo's shop; protox compiles them, so no `protoc` is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=demo/shop.proto");
    let descriptors = protox::compile(["demo/shop.proto"], ["demo"])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
