//! Page tokens: the start of the next page, bound to the filter of the request.
//!
//! A token contains the fingerprint of the filter and the last key of the previous page. If the list changes
//! between pages, no entry is listed twice, and no entry that was always there is omitted.

use damper_core::Pattern;
use damper_store::key;

use crate::state::error::ApiError;
use crate::state::resource_key::decoded;

const DEFAULT_SIZE: u32 = 100;
const MAX_SIZE: u32 = 1000;
/// The most bytes of one page, even if more entries were requested.
pub(crate) const PAGE_BYTES: usize = 256 << 10;

/// Returns the number of entries per page.
pub(crate) fn size(asked: u32) -> Result<usize, ApiError> {
    match asked {
        0 => Ok(DEFAULT_SIZE as usize),
        1..=MAX_SIZE => Ok(asked as usize),
        _ => Err(ApiError::fault("page_size", format!("must be between 0 and {MAX_SIZE}, not {asked}"))),
    }
}

/// Returns the token of the page after `last`.
pub(crate) fn token<const N: usize>(filter: u64, last: [&str; N]) -> String {
    format!("{filter:016x}/{}", key(last))
}

/// Returns the last key before the page; `None` for the first page.
pub(crate) fn start<const N: usize>(filter: u64, token: &str) -> Result<Option<[String; N]>, ApiError> {
    if token.is_empty() {
        return Ok(None);
    }
    let bad = || ApiError::fault("page_token", "is not a token of a list with this filter");
    let (digest, last) = token.split_once('/').ok_or_else(bad)?;
    if digest != format!("{filter:016x}") {
        return Err(bad());
    }
    let names: Option<Vec<String>> = last.split('/').map(decoded).collect();
    names.and_then(|names| names.try_into().ok()).map(Some).ok_or_else(bad)
}

/// Returns the last key before the page as a pattern.
pub(crate) fn start_pattern(filter: u64, token: &str) -> Result<Option<Pattern>, ApiError> {
    let Some([caller, cluster, callee, method]) = start(filter, token)? else { return Ok(None) };
    let parsed = Pattern::parse(&caller, &cluster, &callee, &method);
    parsed.map(Some).map_err(|_| ApiError::fault("page_token", "is not a token of this list"))
}

/// Returns the entries of one page, and whether there are more. A page ends at its size in entries or bytes.
pub(crate) fn page<'a, T: prost::Message + Clone + 'a>(
    entries: impl Iterator<Item = &'a T>,
    size: usize,
) -> (Vec<T>, bool) {
    let mut page = Vec::new();
    let mut bytes = 0;
    for entry in entries {
        if page.len() == size || bytes > PAGE_BYTES {
            return (page, true);
        }
        bytes += entry.encoded_len();
        page.push(entry.clone());
    }
    (page, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_gives_back_its_key_for_its_own_filter_only() {
        let last = ["a", "*", "c", "p.S/%M"];
        let token = token(7, last);
        assert_eq!(start(7, &token).unwrap().unwrap(), last);
        assert!(start::<4>(8, &token).is_err());
        assert!(start::<3>(7, &token).is_err());
        assert!(start::<4>(7, "nonsense").is_err());
        assert!(start::<4>(7, "").unwrap().is_none());
    }
}
