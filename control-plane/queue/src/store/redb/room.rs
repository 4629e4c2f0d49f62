//! Room on the disk: submissions are refused while there is still enough for settlements.

use std::path::PathBuf;

/// Submissions need this many free bytes, or a twentieth of a smaller disk.
const LEAST_FREE: u64 = 512 << 20;

/// The disk of a file; none for a store in memory.
pub(super) struct Room {
    pub(super) folder: Option<PathBuf>,
}

impl Room {
    /// Returns why there is no room for further jobs.
    pub(super) fn problem(&self) -> Option<String> {
        let folder = self.folder.as_ref()?;
        // A disk whose size cannot be read is no reason to refuse jobs: the commit shows whether it is full.
        let (free, total) = (fs2::available_space(folder).ok()?, fs2::total_space(folder).ok()?);
        problem(free, total)
    }
}

fn problem(free: u64, total: u64) -> Option<String> {
    let least = LEAST_FREE.min(total / 20);
    let mib = |bytes: u64| bytes >> 20;
    (free < least).then(|| format!("{} MiB free on its disk, {} MiB are required", mib(free), mib(least)))
}

#[cfg(test)]
mod tests {
    use super::problem;

    const GIB: u64 = 1 << 30;

    #[test]
    fn submissions_are_refused_below_the_least_free_bytes() {
        for (free, total, is_refused) in [
            (GIB / 2, 100 * GIB, false),
            (GIB / 2 - 1, 100 * GIB, true),
            (GIB / 20, GIB, false),
            (GIB / 20 - 1, GIB, true),
            (0, 100 * GIB, true),
        ] {
            assert_eq!(problem(free, total).is_some(), is_refused, "{free} of {total}");
        }
    }
}
