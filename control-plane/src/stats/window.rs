//! The last minute of one route or of one served method.
//!
//! A report is spread evenly over the seconds that it covers, so that a process that reports every five
//! seconds looks steady. Each recent second has a slot; older ones are joined ten by ten, since only the
//! window of a minute needs them. A slot lists only counters that changed: a busy route takes a few
//! kilobytes, an idle one almost nothing. Latencies are kept at the arrival of their report, the end of their
//! period, and a window of them ends with that of the counters.

use std::time::Duration;

use damper_core::latency;

use crate::stats::counters::SparseCounters;

/// The longest time between the end of the window and now.
pub(super) const MAX_LAG: Duration = Duration::from_secs(60);
const LONGEST_SECONDS: i64 = 60;
/// Age of the oldest second that is kept: the longest window, plus the longest lag of its end.
pub(super) const REACH: Duration = Duration::from_secs(LONGEST_SECONDS as u64 + MAX_LAG.as_secs());
/// The time for which a second has its own slot: the windows up to 10 s, and the usual lag.
const FINE_SECONDS: i64 = 20;
/// The number of older seconds per slot.
pub(super) const JOINED: i64 = 10;

/// Slots in the order of their times.
#[derive(Debug)]
pub(super) struct Window {
    slots: Vec<Slot>,
    began: i64,
}

#[derive(Debug)]
struct Slot {
    start: i64,
    length: i64,
    counts: CounterDeltas,
    latency: CounterDeltas,
}

/// Counts by their index, in order. Fractions occur, because differences are spread.
#[derive(Debug, Default)]
pub(crate) struct CounterDeltas(Vec<Count>);

/// As bytes, because a pair would take eight instead of five, and there are millions.
#[derive(Clone, Copy, Debug)]
struct Count {
    number: u8,
    bytes: [u8; 4],
}

/// Sums over a window, by counter.
#[derive(Clone, Debug)]
pub(super) struct WindowSums<const N: usize>([f64; N]);

impl<const N: usize> WindowSums<N> {
    pub(super) fn of(&self, counter: u8) -> f64 {
        self.0.get(usize::from(counter)).copied().unwrap_or(0.0)
    }
}

impl Window {
    pub(super) fn new(began: Duration) -> Self {
        Self { slots: Vec::new(), began: second(began) }
    }

    /// Spreads counts over a period, whose end may be slightly in the past; `left` is called as in
    /// [`Self::forget`].
    pub(super) fn add(
        &mut self,
        (from, to): (Duration, Duration),
        now: Duration,
        counted: &[(u8, u64)],
        latency: &SparseCounters,
        left: impl FnMut(i64, &CounterDeltas, &CounterDeltas),
    ) {
        self.began = self.began.min(second(from));
        self.forget(now, left);
        let (now, last) = (second(now), second(to));
        let length = to.saturating_sub(from).as_secs_f64();
        if !counted.is_empty() {
            let mut start = unit(second(from).max(oldest(now)), now).0;
            while start <= last {
                let (at, seconds) = unit(start, now);
                let begin = from.as_secs_f64().max(at as f64);
                let end = to.as_secs_f64().min((at + seconds) as f64);
                let share = match length > 0.0 {
                    true => (end - begin).max(0.0) / length,
                    false => f64::from(u8::from((at..at + seconds).contains(&last))),
                };
                if share > 0.0 {
                    let slot = self.slot(at, seconds);
                    counted
                        .iter()
                        .for_each(|(number, n)| slot.counts.add(*number, (*n as f64 * share) as f32));
                }
                start = at + seconds;
            }
        }
        if latency.iter().next().is_some() {
            let (at, seconds) = unit(last, now);
            let slot = self.slot(at, seconds);
            latency.iter().for_each(|(bucket, n)| slot.latency.add(bucket, n as f32));
        }
    }

    /// Drops old slots, and joins those that only the longest window needs. `left` is called for dropped ones
    /// with the start of their ten seconds, counts and latencies.
    pub(super) fn forget(
        &mut self,
        now: Duration,
        mut left: impl FnMut(i64, &CounterDeltas, &CounterDeltas),
    ) {
        let now = second(now);
        let is_due = |slot: &Slot| slot.end() <= oldest(now) || unit(slot.start, now).1 != slot.length;
        if !self.slots.iter().any(is_due) {
            return;
        }
        let mut joined: Vec<Slot> = Vec::new();
        for mut slot in std::mem::take(&mut self.slots) {
            let (start, length) = unit(slot.start, now);
            match joined.last_mut().filter(|last| last.start == start) {
                Some(last) => {
                    last.counts.add_all(&slot.counts);
                    last.latency.add_all(&slot.latency);
                }
                None => {
                    (slot.start, slot.length) = (start, length);
                    joined.push(slot);
                }
            }
        }
        let old = joined.partition_point(|slot| slot.end() <= oldest(now));
        joined.drain(..old).for_each(|slot| left(slot.start, &slot.counts, &slot.latency));
        for slot in &mut joined {
            slot.counts.0.shrink_to_fit();
            slot.latency.0.shrink_to_fit();
        }
        joined.shrink_to_fit();
        self.slots = joined;
    }

    fn slot(&mut self, start: i64, length: i64) -> &mut Slot {
        let at = self.slots.partition_point(|slot| slot.start < start);
        if self.slots.get(at).is_none_or(|slot| slot.start != start) {
            self.slots.reserve_exact(1);
            self.slots.insert(
                at,
                Slot { start, length, counts: CounterDeltas::default(), latency: CounterDeltas::default() },
            );
        }
        &mut self.slots[at]
    }

    /// Returns the sums of the whole seconds before `end`, and the number of seconds.
    pub(super) fn sums<const N: usize>(&self, end: Duration, length: Duration) -> (WindowSums<N>, f64) {
        let end = second(end);
        let start = end - second(length);
        let mut sums = WindowSums([0.0; N]);
        for slot in &self.slots {
            let share = slot.overlap(start, end) as f64 / slot.length as f64;
            for (number, n) in slot.counts.iter().filter(|_| share > 0.0) {
                if let Some(sum) = sums.0.get_mut(usize::from(number)) {
                    *sum += f64::from(n) * share;
                }
            }
        }
        let seconds = (end - start.max(self.began).max(0)).max(1);
        (sums, seconds as f64)
    }

    /// Returns the latencies of the reports that arrived in a window, by bucket; slots at its edge count if
    /// more than half of them lies inside.
    pub(super) fn latency(&self, end: Duration, length: Duration) -> Vec<(usize, u64)> {
        // The report that ends a window arrives within the second of its end.
        let end = second(end) + 1;
        let start = end - second(length);
        let mut sums = [0.0_f64; latency::BUCKETS];
        for slot in self.slots.iter().filter(|slot| 2 * slot.overlap(start, end) > slot.length) {
            for (bucket, n) in slot.latency.iter() {
                if let Some(sum) = sums.get_mut(usize::from(bucket)) {
                    *sum += f64::from(n);
                }
            }
        }
        sums.into_iter().map(|n| n as u64).enumerate().filter(|(_, n)| *n > 0).collect()
    }

    /// Returns its parts in order: first second, counts, latencies.
    pub(super) fn slots(&self) -> impl Iterator<Item = (i64, &CounterDeltas, &CounterDeltas)> {
        self.slots.iter().map(|slot| (slot.start, &slot.counts, &slot.latency))
    }

    /// The memory in bytes, without allocator overhead.
    pub(super) fn bytes(&self) -> usize {
        let lists = self.slots.iter().map(|slot| slot.counts.0.capacity() + slot.latency.0.capacity());
        size_of::<Self>()
            + self.slots.capacity() * size_of::<Slot>()
            + lists.sum::<usize>() * size_of::<Count>()
    }
}

impl CounterDeltas {
    pub(super) fn add_all(&mut self, more: &Self) {
        more.iter().for_each(|(number, n)| self.add(number, n));
    }

    fn add(&mut self, to: u8, n: f32) {
        match self.0.binary_search_by_key(&to, |count| count.number) {
            Ok(at) => self.0[at].bytes = (f32::from_le_bytes(self.0[at].bytes) + n).to_le_bytes(),
            Err(at) => self.0.insert(at, Count { number: to, bytes: n.to_le_bytes() }),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u8, f32)> + Clone {
        self.0.iter().map(|count| (count.number, f32::from_le_bytes(count.bytes)))
    }
}

impl Slot {
    fn end(&self) -> i64 {
        self.start + self.length
    }

    /// Returns the number of its seconds between two others.
    fn overlap(&self, start: i64, end: i64) -> i64 {
        (end.min(self.end()) - start.max(self.start)).max(0)
    }
}

/// Returns the slot of a second at a time: its start and length.
fn unit(at: i64, now: i64) -> (i64, i64) {
    let fine_from = (now - FINE_SECONDS).div_euclid(JOINED) * JOINED;
    if at < fine_from { (at.div_euclid(JOINED) * JOINED, JOINED) } else { (at, 1) }
}

fn oldest(now: i64) -> i64 {
    now - second(REACH)
}

fn second(at: Duration) -> i64 {
    i64::try_from(at.as_secs()).unwrap_or(i64::MAX)
}
