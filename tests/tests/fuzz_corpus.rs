//! Replay of the committed inputs of the fuzz targets, without the fuzzer.
//!
//! The corpus has an input for each path that fuzzing has reached; the regressions are inputs that failed once. New
//! inputs come from `cargo xtask fuzz`, see `fuzz/README.md`.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::PathBuf;

use damper_fuzz::{TARGETS, Target};
use flate2::read::GzDecoder;

#[test]
fn corpus_passes() {
    for (name, run) in TARGETS {
        let archive = folder("corpus").join(format!("{name}.tar.gz"));
        let file = File::open(&archive).unwrap_or_else(|error| panic!("{}: {error}", archive.display()));
        let mut archive = tar::Archive::new(GzDecoder::new(file));
        let mut count = 0;
        for input in archive.entries().expect("an archive") {
            let mut input = input.expect("an entry of the archive");
            let mut bytes = Vec::new();
            input.read_to_end(&mut bytes).expect("an entry of the archive");
            replay(name, run, &input.path_bytes(), &bytes);
            count += 1;
        }
        println!("{name}: {count} inputs");
        assert!(count > 0, "{name}: the archive is empty");
    }
}

#[test]
fn regressions_pass() {
    let mut count = 0;
    for target in fs::read_dir(folder("regressions")).expect("the folder of the regressions") {
        let target = target.expect("an entry of the folder");
        let found = TARGETS.into_iter().find(|(name, _)| target.file_name() == *name);
        let (name, run) = found.unwrap_or_else(|| panic!("{}: no such target", target.path().display()));
        for input in fs::read_dir(target.path()).expect("a folder for each target") {
            let input = input.expect("an entry of the folder");
            let bytes = fs::read(input.path()).expect("a readable file");
            replay(name, run, input.file_name().as_encoded_bytes(), &bytes);
            count += 1;
        }
    }
    assert!(count > 0, "no regressions");
}

/// Names the input first: the test runner shows it if the target panics.
fn replay(target: &str, run: Target, input: &[u8], bytes: &[u8]) {
    println!("{target}: {}", String::from_utf8_lossy(input));
    run(bytes);
}

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fuzz").join(name)
}
