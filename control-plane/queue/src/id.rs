//! Ids: of jobs, and of leases.
//!
//! A job id is 48 bits of milliseconds and 80 random bits, in the layout of UUID version 7 without its
//! version bits: ids of jobs sort by submission. A lease id is what a worker sends back: the store, the job,
//! the number of the delivery and the token of the lease. The server keeps nothing for a worker to name its
//! lease.

use std::fmt;

use damper_core::job::Wall;

use crate::store::JobId;

/// Bytes of a lease id.
const LEASE_BYTES: usize = 36;

impl JobId {
    /// Returns an id of this time with these random bytes.
    #[must_use]
    pub fn new(now: Wall, random: [u8; 10]) -> Self {
        let [_, _, millis @ ..] = now.0.to_be_bytes();
        let mut id = [0; 16];
        id[..6].copy_from_slice(&millis);
        id[6..].copy_from_slice(&random);
        Self(id)
    }

    /// Parses 32 hexadecimal characters.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u128::from_str_radix(text, 16).ok().filter(|_| is_hex)?;
        Some(Self(number.to_be_bytes()))
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// The right of a worker to one delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseId {
    /// Identity of the store: a lease of another one is void.
    pub store: u64,
    /// The job.
    pub job: JobId,
    /// Number of the delivery.
    pub delivery: u32,
    /// Random bits of the lease.
    pub token: u64,
}

impl LeaseId {
    /// Returns the id as bytes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; LEASE_BYTES] {
        let mut bytes = [0; LEASE_BYTES];
        bytes[..8].copy_from_slice(&self.store.to_be_bytes());
        bytes[8..24].copy_from_slice(&self.job.0);
        bytes[24..28].copy_from_slice(&self.delivery.to_be_bytes());
        bytes[28..].copy_from_slice(&self.token.to_be_bytes());
        bytes
    }

    /// Reads an id; `None` if the bytes are none.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (store, rest) = bytes.split_first_chunk()?;
        let (job, rest) = rest.split_first_chunk()?;
        let (delivery, token) = rest.split_first_chunk()?;
        Some(Self {
            store: u64::from_be_bytes(*store),
            job: JobId(*job),
            delivery: u32::from_be_bytes(*delivery),
            token: u64::from_be_bytes(token.try_into().ok()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_ids_sort_by_time() {
        let (early, late) = (JobId::new(Wall(1_000), [255; 10]), JobId::new(Wall(1_001), [0; 10]));
        assert!(early < late);
        assert_eq!(late.to_string(), "0000000003e900000000000000000000");
        assert_eq!(JobId::parse(&late.to_string()), Some(late));
    }

    #[test]
    fn text_that_is_no_job_id_is_rejected() {
        for text in ["", "12", "+000000003e900000000000000000000", &"g".repeat(32), &"0".repeat(33)] {
            assert_eq!(JobId::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn lease_id_survives_its_bytes() {
        let lease = LeaseId { store: 1, job: JobId([7; 16]), delivery: 3, token: u64::MAX - 1 };
        assert_eq!(LeaseId::from_bytes(&lease.to_bytes()), Some(lease));
        for length in [0, 35, 37] {
            assert_eq!(LeaseId::from_bytes(&vec![0; length]), None, "{length}");
        }
    }
}
