//! A token that is never printed.
//!
//! Accepts any text that fits into a header: a proxy may require tokens of another format.

use std::fmt;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use tonic::metadata::{Ascii, MetadataValue};

/// Limit in bytes, above the control plane's tokens and below the size of headers.
const MAX_BYTES: usize = 4096;

/// A credential, sent to control planes only.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Arc<str>);

impl Token {
    /// Parses a token, ignoring surrounding white space.
    ///
    /// # Errors
    /// The problem, without the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.is_empty() {
            return Err("is empty".to_owned());
        }
        if text.len() > MAX_BYTES {
            return Err(format!("has {} bytes, at most {MAX_BYTES} allowed", text.len()));
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("must contain visible ASCII characters only".to_owned());
        }
        Ok(Self(text.into()))
    }

    /// Reads a token file.
    ///
    /// # Errors
    /// The problem, without the content.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let named = |problem: &dyn fmt::Display| format!("the token file {}: {problem}", path.display());
        let file = std::fs::File::open(path).map_err(|error| named(&error))?;
        let mut text = Vec::new();
        // Allows for white space around the token.
        let most = 2 * MAX_BYTES as u64;
        file.take(most).read_to_end(&mut text).map_err(|error| named(&error))?;
        let text = std::str::from_utf8(&text).map_err(|_| named(&"is not text"))?;
        Self::parse(text).map_err(|problem| named(&problem))
    }

    /// Returns the value of the header `authorization`, marked as sensitive.
    #[must_use]
    pub fn bearer(&self) -> MetadataValue<Ascii> {
        let mut value: MetadataValue<Ascii> =
            format!("Bearer {}", self.0).parse().expect("visible ASCII fits into a header");
        value.set_sensitive(true);
        value
    }

    /// Removes the token from a text of the peer, which may echo it.
    #[must_use]
    pub fn hide_in(&self, text: &str) -> String {
        text.replace(&*self.0, "[token]")
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token([hidden])")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_not_printed_and_can_be_taken_out_of_a_text() {
        let token = Token::parse(" damper_1_secret\n").unwrap();
        assert_eq!(token.bearer(), "Bearer damper_1_secret");
        assert!(!format!("{token:?} {:?}", token.bearer()).contains("secret"));
        assert_eq!(token.hide_in("not damper_1_secret again"), "not [token] again");
    }

    #[test]
    fn what_can_be_no_token_is_refused_without_repeating_it() {
        for bad in ["", " \n", "two words", "se\u{301}cret", "a\r\nb", &"x".repeat(MAX_BYTES + 1)] {
            let problem = Token::parse(bad).unwrap_err();
            assert!(bad.trim().is_empty() || !problem.contains(bad.trim()), "{problem}");
        }
        assert!(Token::parse(&"x".repeat(MAX_BYTES)).is_ok());
    }

    #[test]
    fn a_file_that_holds_no_token_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        for content in [None, Some(b"".as_slice()), Some(b"\xff\xfe"), Some(&[b'x'; 9000])] {
            if let Some(content) = content {
                std::fs::write(&path, content).unwrap();
            }
            let problem = Token::read(&path).unwrap_err();
            assert!(problem.contains(&*path.to_string_lossy()), "{problem}");
        }
        std::fs::write(&path, "damper_1_s\r\n").unwrap();
        assert_eq!(Token::read(&path), Token::parse("damper_1_s"));
    }
}
