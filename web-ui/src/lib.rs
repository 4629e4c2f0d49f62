//! The web UI as a table of files, built by this crate's build script and linked into the server.
//!
//! A crate of its own, so that a change of the web UI recompiles only this table. The server chooses routes,
//! headers and compression. The files work under `Content-Security-Policy: default-src 'self'`;
//! `index.html` belongs at `/`.

/// One file of the web UI.
#[derive(Clone, Copy, Debug)]
pub struct File {
    /// The content.
    pub bytes: &'static [u8],
    /// The content packed by gzip; `None` if that makes it no smaller.
    pub gzip: Option<&'static [u8]>,
    /// For the `content-type` header.
    pub content_type: &'static str,
    /// The path contains a hash of the content: browsers cache the file for good.
    pub immutable: bool,
    /// For the `etag` header, with its quotes. Weak, because it covers both `bytes` and `gzip`.
    pub etag: &'static str,
}

/// Sorted by path.
static FILES: &[(&str, File)] = include!(concat!(env!("OUT_DIR"), "/files.rs"));

/// Returns the file at a relative path such as `index.html`, without a leading slash.
pub fn file(path: &str) -> Option<File> {
    let at = FILES.binary_search_by_key(&path, |(known, _)| known).ok()?;
    Some(FILES[at].1)
}

/// The paths of all files.
pub fn paths() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(path, _)| *path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_found_by_its_path() {
        assert!(paths().count() > 0);
        for path in paths() {
            let found = file(path).unwrap_or_else(|| panic!("{path} is listed but not found"));
            assert!(!found.bytes.is_empty(), "{path} is empty");
            assert!(found.etag.starts_with("W/\"") && found.etag.ends_with('"'), "{path}: {}", found.etag);
        }
    }

    #[test]
    fn the_index_is_html_and_not_cached() {
        let index = file("index.html").expect("the build script requires it");
        assert_eq!(index.content_type, "text/html; charset=utf-8");
        assert!(!index.immutable);
    }

    fn packed_size<'a>(paths: impl Iterator<Item = &'a str>) -> usize {
        let code = paths.filter(|path| path.ends_with(".js") || path.ends_with(".css"));
        code.map(|path| file(path).and_then(|file| file.gzip).expect("code is packed").len()).sum()
    }

    /// What a browser needs for the first page: what the index links to, and the worker with the stream.
    #[test]
    fn first_page_is_at_most_200_kb_compressed() {
        let index = std::str::from_utf8(file("index.html").expect("there is an index").bytes).unwrap();
        let size = packed_size(paths().filter(|path| index.contains(path) || path.contains("worker")));
        assert!((100_000..=200_000).contains(&size), "{size}");
    }

    #[test]
    fn all_pages_are_at_most_300_kb_compressed() {
        let size = packed_size(paths());
        assert!(size <= 300_000, "{size}");
    }

    #[test]
    fn paths_outside_the_table_are_not_found() {
        for path in ["", "/", "/index.html", "../Cargo.toml", "index.htm", "assets"] {
            assert!(file(path).is_none(), "{path:?} was found");
        }
    }

    #[test]
    fn files_linked_by_the_index_exist() {
        let index = std::str::from_utf8(file("index.html").expect("there is an index").bytes).unwrap();
        for attribute in [" src=\"/", " href=\"/"] {
            for rest in index.split(attribute).skip(1) {
                let path = rest.split('"').next().expect("split yields at least one part");
                assert!(file(path).is_some(), "index.html links to /{path}");
            }
        }
    }

    #[test]
    fn the_index_works_under_a_csp_of_self() {
        let index = std::str::from_utf8(file("index.html").expect("there is an index").bytes).unwrap();
        assert!(!index.contains("<style") && !index.contains(" style="), "an inline style");
        assert!(!index.contains("http://") && !index.contains("https://"), "something from another origin");
        for script in index.split("<script").skip(1) {
            let tag = script.split('>').next().expect("split yields at least one part");
            assert!(tag.contains(" src="), "an inline script: {tag}");
        }
    }
}
