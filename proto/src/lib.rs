//! Wire format of Damper: messages and services of `damper.v1`.
//!
//! [`v1`] is generated from the .proto files, [`convert`] turns its messages into the engine's types and
//! back, [`codec`] is the codec of servers, [`methods`] lists the access of each method; the feature
//! `manifest` adds a text form. Ranges and defaults are the engine's.

pub mod codec;
pub mod convert;
#[cfg(feature = "manifest")]
pub mod manifest;
pub mod methods;

/// Generated messages and services of `damper.v1`.
pub mod v1 {
    #![allow(
        missing_docs,
        unreachable_pub,
        clippy::all,
        reason = "generated; documented in the .proto files"
    )]
    tonic::include_proto!("damper.v1");
    include!(concat!(env!("OUT_DIR"), "/clients/damper.v1.rs"));
}

/// The encoded `FileDescriptorSet` of `damper.v1`, for server reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
