//! Arguments and files: keys, filters, manifests.

pub(crate) mod files;
pub(crate) mod filter;
pub(crate) mod key;
pub(crate) mod manifests;
