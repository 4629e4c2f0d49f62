//! The content of a job, as far as two submissions with the same key must share it.
//!
//! Callee, method, order key and body; of an encrypted body its tag. Metadata do not count: a trace differs
//! in each attempt. Each part is preceded by its length, so that no two contents give the same bytes.

use sha2::{Digest as _, Sha256};

use crate::submit::NewJob;

/// Returns the hash of the content.
pub(super) fn of(job: &NewJob) -> [u8; 32] {
    let mut hash = Sha256::new();
    let body = if job.body_key_id.is_empty() { &job.body.content } else { &job.body_tag };
    let names = [&job.callee_service, &job.callee_method, &job.order_key].map(String::as_bytes);
    for part in names.into_iter().chain([&body[..]]) {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}
