//! Files at a path: the file itself, or the manifests of a folder and its subfolders.

use std::io;
use std::path::{Path, PathBuf};

use crate::error::CliError;

/// Extensions of the files that are read from a folder.
const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];

/// Deepest folder; a link to a parent ends there.
const MAX_DEPTH: usize = 32;

/// Returns the file, or the manifests of a folder and its subfolders.
pub(crate) fn files_at(path: &Path) -> Result<Vec<PathBuf>, CliError> {
    if !std::fs::metadata(path).map_err(|error| unreadable(path, error))?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    files_below(path, 0, &mut files)?;
    files.sort();
    Ok(files)
}

/// Collects the manifests of a folder. Skips names that start with a dot: they belong to tools.
fn files_below(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<(), CliError> {
    let failed = |error| unreadable(folder, error);
    if depth > MAX_DEPTH {
        let folder = folder.display();
        return Err(CliError::data(format_args!("{folder}: more than {MAX_DEPTH} folders deep")));
    }
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let path = entry.path();
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        if path.is_dir() {
            files_below(&path, depth + 1, files)?;
        } else if EXTENSIONS.contains(&extension) && path.is_file() {
            files.push(path);
        }
    }
    Ok(())
}

/// Returns the error of a file that cannot be read.
pub(crate) fn unreadable(path: &Path, error: io::Error) -> CliError {
    match error.kind() {
        io::ErrorKind::NotFound => CliError::Missing(format!("{}: no such file or folder", path.display())),
        _ => CliError::io(path.display())(error),
    }
}
