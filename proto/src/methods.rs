//! The methods of `damper.v1` with their access.
//!
//! `build.rs` makes the table from the .proto files: a method without the option `access` fails the build.

use crate::v1::access::Level;

/// A method and the access that it requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method {
    /// `/damper.v1.Rules/GetRule`
    pub path: &'static str,
    /// Required permission.
    pub level: Level,
    /// Denied to tokens with a scope.
    pub unscoped: bool,
    /// Served from reserved places when the limit of open requests is reached.
    pub urgent: bool,
    /// The request contains `WriteOptions`.
    pub is_write: bool,
    /// The request is a stream.
    pub client_streaming: bool,
    /// The response is a stream.
    pub server_streaming: bool,
}

/// All methods, sorted by path.
pub const ALL: &[Method] = include!(concat!(env!("OUT_DIR"), "/methods.rs"));

/// Returns the method at a path; `None` if there is none.
#[must_use]
pub fn of_path(path: &str) -> Option<&'static Method> {
    let at = ALL.binary_search_by_key(&path, |method| method.path).ok()?;
    ALL.get(at)
}
