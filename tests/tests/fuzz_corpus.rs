//! Every input of the committed corpus of the fuzz targets, without the fuzzer.
//!
//! What was once found stays found, and every path that fuzzing has reached is walked under the checks of its
//! target. New inputs come from `cargo xtask fuzz`, see `fuzz/README.md`.

use std::fs;
use std::path::Path;

#[test]
fn nothing_in_the_corpus_fails_any_more() {
    for (name, run) in damper_fuzz::TARGETS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(name);
        let inputs = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let mut count = 0;
        for input in inputs {
            let path = input.expect("the folder can be read").path();
            // The test shows this only where it fails.
            println!("{name}: {}", path.display());
            run(&fs::read(&path).expect("a file of the corpus can be read"));
            count += 1;
        }
        assert!(count > 0, "{} is empty", folder.display());
    }
}
