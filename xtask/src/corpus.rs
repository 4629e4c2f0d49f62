//! Archives of the fuzz corpus: one `fuzz/corpus/TARGET.tar.gz` per target.
//!
//! The same inputs give the same bytes: names are sorted, times and owners are zero.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

use crate::command::root;

const SUFFIX: &str = ".tar.gz";

/// Returns the names of all targets, sorted: each has an archive.
pub(crate) fn targets() -> Result<Vec<String>> {
    let names = sorted_files(&folder())?;
    Ok(names.iter().filter_map(|name| name.strip_suffix(SUFFIX)).map(str::to_owned).collect())
}

/// Returns the archive of a target.
pub(crate) fn archive(target: &str) -> PathBuf {
    folder().join(format!("{target}{SUFFIX}"))
}

/// Adds the inputs of an archive to a folder, which is created if it is missing.
pub(crate) fn unpack(archive: &Path, folder: &Path) -> Result<()> {
    let file = File::open(archive).with_context(|| format!("cannot open {}", archive.display()))?;
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    tar::Archive::new(GzDecoder::new(file))
        .unpack(folder)
        .with_context(|| format!("cannot unpack {} into {}", archive.display(), folder.display()))
}

/// Replaces an archive by the files of a folder and returns their number.
pub(crate) fn pack(folder: &Path, archive: &Path) -> Result<usize> {
    let names = sorted_files(folder)?;
    let mut tar = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::best()));
    for name in &names {
        let input = fs::read(folder.join(name)).with_context(|| format!("cannot read {name}"))?;
        let mut header = tar::Header::new_ustar();
        header.set_size(input.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, name, input.as_slice())?;
    }
    let packed = tar.into_inner()?.finish()?;
    fs::write(archive, packed).with_context(|| format!("cannot write {}", archive.display()))?;
    Ok(names.len())
}

fn sorted_files(folder: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names = names.collect::<Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

fn folder() -> PathBuf {
    root().join("fuzz/corpus")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_twice_gives_the_same_bytes() -> Result<()> {
        let scratch = tempfile::tempdir()?;
        for target in targets()? {
            let mut source = archive(&target);
            let mut packed = Vec::new();
            for round in 0..2 {
                let inputs = scratch.path().join(format!("{target}-{round}"));
                unpack(&source, &inputs)?;
                source = inputs.with_extension("packed");
                assert!(pack(&inputs, &source)? > 0, "{target}");
                packed.push(fs::read(&source)?);
            }
            assert!(packed[0] == packed[1], "{target}: packed differently");
        }
        Ok(())
    }

    #[test]
    fn archive_does_not_depend_on_times_or_order() -> Result<()> {
        let scratch = tempfile::tempdir()?;
        let archives = ["ab", "ba"].map(|order| -> Result<Vec<u8>> {
            let inputs = scratch.path().join(order);
            fs::create_dir(&inputs)?;
            for (at, name) in order.chars().enumerate() {
                let file = File::create(inputs.join(name.to_string()))?;
                file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(at as u64))?;
            }
            let packed = scratch.path().join("packed");
            assert_eq!(pack(&inputs, &packed)?, 2);
            Ok(fs::read(packed)?)
        });
        let [one, other] = archives;
        assert_eq!(one?, other?);
        Ok(())
    }
}
