//! Digests of requests, for page tokens and repeated request ids.

/// An FNV-1a digest, stable across machines and versions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Digest(u64);

impl Digest {
    pub(crate) fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    pub(crate) fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    pub(crate) fn hash(bytes: &[u8]) -> u64 {
        let mut digest = Self::new();
        digest.add(bytes);
        digest.value()
    }

    pub(crate) fn value(self) -> u64 {
        self.0
    }
}
