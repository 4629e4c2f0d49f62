//! Rules of Damper as configuration of meshes and gRPC clients, and back.
//!
//! [`to`] writes rules down for a target and reports each setting of each rule as kept, changed or lost.
//! [`from`] reads the configuration of a source as rules in observe mode, with a finding for each default
//! that the source leaves unsaid. Nothing here decides about a retry: the engine does, in the SDK, and the
//! target does what its own rules say. All is pure: texts and values in, values out.

mod backoff;
mod codes;
pub mod compare;
mod duration;
pub mod from;
mod options;
pub mod report;
mod selection;
pub mod to;

#[cfg(test)]
mod example;

/// Prefix of annotations on written objects.
pub(crate) const ANNOTATION: &str = "damper.dev";
