//! Writes the descriptor set of the wire to standard output, for `npm run generate`.
//!
//! It is the set the page was built from; the checkout keeps no generated message.

use std::io::{self, Write as _};

fn main() -> io::Result<()> {
    io::stdout().write_all(include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin")))
}
