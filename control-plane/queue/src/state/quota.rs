//! Quotas: jobs and bytes of each queue, in all and per submitting service.
//!
//! The sums are those that the store returned last, once a second, and what was accepted here since. Other
//! servers' submissions of that second are not in them, so a quota can be exceeded by as many.

use std::collections::HashMap;

use damper_core::Ratio;
use damper_core::job::QueueSettings;

use crate::store::LaneCounts;

/// What is stored, of a queue or of one of its submitters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Used {
    /// Jobs that have not ended.
    jobs: u64,
    bytes: u64,
}

/// An accepted job that the sums may not contain yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reservation(u64);

#[derive(Debug)]
struct Reserved {
    queue: String,
    submitter: String,
    bytes: u64,
    /// Number of the last read when the commit was done.
    committed: Option<u64>,
}

/// Sums of all queues.
#[derive(Debug, Default)]
pub(crate) struct Quotas {
    /// By queue and submitter.
    used: HashMap<String, (Used, HashMap<String, Used>)>,
    reserved: HashMap<u64, Reserved>,
    next: u64,
}

impl Quotas {
    /// Reserves room for a job. Errors with the exceeded limit.
    pub(crate) fn reserve(
        &mut self,
        settings: &QueueSettings,
        (queue, submitter): (&str, &str),
        bytes: u64,
    ) -> Result<Reservation, String> {
        let (all, own) = self.used.entry(queue.to_owned()).or_default();
        let own = own.get(submitter).copied().unwrap_or_default();
        let (most_jobs, most_bytes) = (u64::from(settings.max_jobs), settings.max_bytes);
        let share = settings.max_submitter_share;
        if all.jobs >= most_jobs {
            return Err(format!("queue {queue} is full: max_jobs is {most_jobs}"));
        }
        if all.bytes + bytes > most_bytes {
            return Err(format!("queue {queue} is full: max_bytes is {most_bytes}"));
        }
        if own.jobs >= part(most_jobs, share) {
            let most = part(most_jobs, share);
            return Err(format!("{submitter} has {most} jobs in queue {queue}, its share of max_jobs"));
        }
        if own.bytes + bytes > part(most_bytes, share) {
            let most = part(most_bytes, share);
            return Err(format!("{submitter} has {most} bytes in queue {queue}, its share of max_bytes"));
        }
        self.next += 1;
        let (queue, submitter) = (queue.to_owned(), submitter.to_owned());
        let reserved = Reserved { queue, submitter, bytes, committed: None };
        add(&mut self.used, &reserved);
        self.reserved.insert(self.next, reserved);
        Ok(Reservation(self.next))
    }

    /// The job is stored, or may be.
    pub(crate) fn commit(&mut self, Reservation(number): Reservation, read: u64) {
        if let Some(reserved) = self.reserved.get_mut(&number) {
            reserved.committed = Some(read);
        }
    }

    /// The job was not stored.
    pub(crate) fn give_back(&mut self, Reservation(number): Reservation) {
        let Some(reserved) = self.reserved.remove(&number) else { return };
        let Some((all, own)) = self.used.get_mut(&reserved.queue) else { return };
        for used in [Some(all), own.get_mut(&reserved.submitter)].into_iter().flatten() {
            used.jobs = used.jobs.saturating_sub(1);
            used.bytes = used.bytes.saturating_sub(reserved.bytes);
        }
    }

    /// Takes over a read of all lanes.
    pub(crate) fn refresh(&mut self, lanes: &[LaneCounts], read: u64) {
        self.reserved.retain(|_, reserved| reserved.committed.is_none_or(|committed| committed >= read));
        self.used.clear();
        for counts in lanes {
            let jobs = counts.waiting + counts.behind + counts.leased;
            let (all, own) = self.used.entry(counts.lane.queue.clone()).or_default();
            let own = own.entry(counts.lane.route.caller_service().to_owned()).or_default();
            for used in [all, own] {
                used.jobs += jobs;
                used.bytes += counts.bytes;
            }
        }
        for reserved in self.reserved.values() {
            add(&mut self.used, reserved);
        }
    }
}

fn add(used: &mut HashMap<String, (Used, HashMap<String, Used>)>, reserved: &Reserved) {
    let (all, own) = used.entry(reserved.queue.clone()).or_default();
    for used in [all, own.entry(reserved.submitter.clone()).or_default()] {
        used.jobs += 1;
        used.bytes += reserved.bytes;
    }
}

/// Returns a share of a number; at least 1, so that small queues accept something.
fn part(whole: u64, share: Ratio) -> u64 {
    let part = u128::from(whole) * u128::from(share.bp()) / u128::from(Ratio::ONE.bp());
    u64::try_from(part).unwrap_or(whole).max(1)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use damper_core::{Mode, RouteKey};

    use super::*;
    use crate::store::Lane;

    fn settings(max_jobs: u32) -> QueueSettings {
        QueueSettings { max_jobs, ..QueueSettings::new(Mode::Enforce) }
    }

    fn counts(waiting: u64, dead: u64, bytes: u64) -> LaneCounts {
        let route = RouteKey::new("shop", "eu", "stock", "p.S/M").unwrap();
        LaneCounts {
            lane: Arc::new(Lane { queue: "q".to_owned(), route }),
            waiting,
            behind: 0,
            leased: 0,
            dead,
            ended: 0,
            bytes,
            next_due: None,
            next_first_due: None,
        }
    }

    #[test]
    fn submitter_gets_its_share_and_others_theirs() {
        let mut quotas = Quotas::default();
        let mut accepts = |who| quotas.reserve(&settings(4), ("q", who), 1).is_ok();
        assert_eq!([accepts("shop"), accepts("shop"), accepts("shop")], [true, true, false]);
        assert_eq!([accepts("mail"), accepts("mail"), accepts("bank")], [true, true, false], "4 in all");
    }

    #[test]
    fn refresh_keeps_what_it_cannot_contain() {
        let mut quotas = Quotas::default();
        let settings = settings(8);
        let reservations: Vec<_> =
            (0..3).map(|_| quotas.reserve(&settings, ("q", "shop"), 10).unwrap()).collect();
        quotas.commit(reservations[0], 5);
        quotas.commit(reservations[1], 6);
        // Read 6 began after read 5 had: it has the first, perhaps not the second, and the third is in
        // flight.
        quotas.refresh(&[counts(1, 0, 10)], 6);
        assert_eq!(quotas.used["q"].0, Used { jobs: 3, bytes: 30 });
        quotas.give_back(reservations[2]);
        assert_eq!(quotas.used["q"].0, Used { jobs: 2, bytes: 20 });
    }

    #[test]
    fn dead_jobs_count_as_bytes_only() {
        let mut quotas = Quotas::default();
        quotas.refresh(&[counts(0, 100, (1 << 30) - 1)], 1);
        let settings = QueueSettings { max_submitter_share: Ratio::ONE, ..settings(1) };
        let text = quotas.reserve(&settings, ("q", "shop"), 2).unwrap_err();
        assert!(text.contains("max_bytes"), "{text}");
        quotas.reserve(&settings, ("q", "shop"), 1).unwrap();
    }
}
