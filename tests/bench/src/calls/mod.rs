//! One call to a ready service in this process, bare and through the layers that are compared.
//!
//! The request is what tonic makes of a unary call: a static path, `te`, `content-type` and one piece of metadata,
//! and a message in one chunk. The service reads it to its end and answers at once with a message and trailers, which
//! are read to their end: a call is over only then.

mod closures;
mod drive;
mod governed;
mod stock;
mod subject;
mod tower_retry;

pub use closures::{Closures, Library};
pub use governed::{control_plane, service};
pub(crate) use subject::CALLEE;
pub use subject::{Bench, Subject};
