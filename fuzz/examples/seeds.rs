//! Writes the first inputs of three targets, each into a folder of its name: `cargo run --example seeds -- FOLDER`.

use std::path::Path;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let folder = env::args().nth(1).ok_or_else(|| io::Error::other("usage: seeds FOLDER"))?;
    let seeds = [
        ("admin_requests", damper_fuzz::admin_requests::seeds()),
        ("manifests", damper_fuzz::manifests::seeds()),
        ("proxy_connect", damper_fuzz::proxy_connect::seeds()),
    ];
    for (target, inputs) in seeds {
        let folder = Path::new(&folder).join(target);
        fs::create_dir_all(&folder)?;
        for (number, input) in inputs.iter().enumerate() {
            fs::write(folder.join(format!("seed-{number}")), input)?;
        }
    }
    Ok(())
}
