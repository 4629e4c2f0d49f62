//! What the end-to-end tests share: real components, started for one test and stopped with it.
//!
//! Nothing here stands in for a part of Damper. The control plane is the `damper` binary or the server
//! library on a port of its own, etcd is etcd, services are tonic servers on loopback sockets.

pub mod binary;
pub mod control_plane;
#[cfg(target_os = "linux")]
pub mod disk;
pub mod etcd;
pub mod foreign;
pub mod guide;
pub mod hop;
pub mod lab;
pub mod machine;
pub mod peer;
pub mod sled;
pub mod spread;
pub mod victim;
