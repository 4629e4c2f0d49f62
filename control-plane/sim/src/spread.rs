//! Distributions of a duration, and draws from them.
//!
//! A draw is a whole number of microseconds. Logarithm, exponential and cosine come from `libm` in pure Rust,
//! all else is IEEE 754 arithmetic: the same seed draws the same durations on every platform and in every
//! build.
//!
//! Log-normal: `median x e^(s x z)` with z standard normal (Box-Muller) and `s = ln(p99 / median) / 2.3263`,
//! so that the two values commonly known of a service are the settings.

use std::fmt;
use std::time::Duration;

use damper_core::fault::{Bounds, Faults};
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

use crate::random::Random;
use crate::values::{Plain as _, list, plain};

/// Any parameter of a distribution.
pub const LENGTH: Bounds<Duration> = Bounds { min: Duration::ZERO, max: Duration::from_secs(3600) };
/// Entries of a list.
pub const LIST: Bounds<u32> = Bounds { min: 1, max: 10_000 };

/// The 99th percentile of the standard normal distribution.
const Z99: f64 = 2.326_347_874_040_841;

/// A distribution of durations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spread {
    /// Constant.
    Fixed(Duration),
    /// Uniform from `min` to `max`, both included.
    Uniform {
        /// Minimum.
        min: Duration,
        /// Maximum.
        max: Duration,
    },
    /// Exponential, as between independent events.
    Exponential {
        /// Mean.
        mean: Duration,
    },
    /// Log-normal, as latencies of most services.
    LogNormal {
        /// Median.
        median: Duration,
        /// 99th percentile.
        p99: Duration,
    },
    /// One of these measured values, equally likely.
    List(Vec<Duration>),
}

/// A distribution as a map: one of these.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct SpreadMap {
    uniform: Option<Uniform>,
    exponential: Option<Exponential>,
    lognormal: Option<LogNormal>,
    list: Option<List>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Uniform {
    #[serde(default, deserialize_with = "plain")]
    min: Duration,
    #[serde(deserialize_with = "plain")]
    max: Duration,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Exponential {
    #[serde(deserialize_with = "plain")]
    mean: Duration,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LogNormal {
    #[serde(deserialize_with = "plain")]
    median: Duration,
    #[serde(deserialize_with = "plain")]
    p99: Duration,
}

#[derive(Deserialize)]
#[serde(transparent)]
struct List(#[serde(deserialize_with = "list")] Vec<Duration>);

impl<'de> Deserialize<'de> for Spread {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Read;

        impl<'de> Visitor<'de> for Read {
            type Value = Spread;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration, or one of uniform, exponential, lognormal, list")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Spread, E> {
                Duration::read(&text.into()).map(Spread::Fixed).map_err(E::custom)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Spread, A::Error> {
                let read = SpreadMap::deserialize(MapAccessDeserializer::new(map))?;
                let kinds = [
                    read.uniform.map(|Uniform { min, max }| Spread::Uniform { min, max }),
                    read.exponential.map(|Exponential { mean }| Spread::Exponential { mean }),
                    read.lognormal.map(|LogNormal { median, p99 }| Spread::LogNormal { median, p99 }),
                    read.list.map(|List(all)| Spread::List(all)),
                ];
                let mut kinds = kinds.into_iter().flatten();
                match (kinds.next(), kinds.next()) {
                    (Some(only), None) => Ok(only),
                    _ => Err(A::Error::custom("must be one of uniform, exponential, lognormal, list")),
                }
            }
        }

        from.deserialize_any(Read)
    }
}

impl Spread {
    /// Records values out of range by path.
    pub(crate) fn check(&self, path: &str, faults: &mut Faults) {
        let mut length =
            |field: &str, value: Duration| LENGTH.check(&format!("{path}{field}"), value, faults);
        match self {
            Self::Fixed(always) => length("", *always),
            Self::Uniform { min, max } => {
                length(".uniform.min", *min);
                length(".uniform.max", *max);
                ordered(path, "uniform.max", *min, *max, faults);
            }
            Self::Exponential { mean } => length(".exponential.mean", *mean),
            Self::LogNormal { median, p99 } => {
                length(".lognormal.median", *median);
                length(".lognormal.p99", *p99);
                ordered(path, "lognormal.p99", *median, *p99, faults);
                if median.is_zero() {
                    faults.add(format!("{path}.lognormal.median"), "must be greater than 0");
                }
            }
            Self::List(all) => {
                all.iter().enumerate().for_each(|(i, one)| length(&format!(".list[{i}]"), *one));
                let entries = u32::try_from(all.len()).unwrap_or(u32::MAX);
                LIST.check(&format!("{path}.list"), entries, faults);
            }
        }
    }

    /// Draws one duration, in microseconds.
    pub(crate) fn draw(&self, random: &mut Random) -> u64 {
        match self {
            Self::Fixed(always) => us(*always),
            Self::Uniform { min, max } => us(*min) + random.below(us(*max) - us(*min) + 1),
            Self::Exponential { mean } => whole(exponential(random) * us(*mean) as f64),
            Self::LogNormal { median, p99 } => {
                let (median, p99) = (us(*median) as f64, us(*p99) as f64);
                whole(median * libm::exp(libm::log(p99 / median) / Z99 * normal(random)))
            }
            Self::List(all) => us(all[random.index(all.len())]),
        }
    }
}

/// Exponential with mean 1.
pub(crate) fn exponential(random: &mut Random) -> f64 {
    -libm::log(1.0 - random.unit())
}

fn normal(random: &mut Random) -> f64 {
    let radius = libm::sqrt(2.0 * exponential(random));
    radius * libm::cos(std::f64::consts::TAU * random.unit())
}

/// Rounds to a whole number; saturates.
pub(crate) fn whole(value: f64) -> u64 {
    libm::round(value) as u64
}

/// Whole microseconds.
pub(crate) fn us(length: Duration) -> u64 {
    u64::try_from(length.as_micros()).unwrap_or(u64::MAX)
}

fn ordered(path: &str, field: &str, less: Duration, more: Duration, faults: &mut Faults) {
    if more < less {
        let (less, more) = (damper_core::fault::Millis(less), damper_core::fault::Millis(more));
        faults.add(format!("{path}.{field}"), format!("must be at least {less}, not {more}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(spread: &Spread) -> Vec<u64> {
        let mut random = Random::new(7, 0);
        let mut all: Vec<_> = (0..100_000).map(|_| spread.draw(&mut random)).collect();
        all.sort_unstable();
        all
    }

    fn near(found: u64, expected: u64) {
        assert!(found.abs_diff(expected) * 50 <= expected, "{found} is not within 2 % of {expected}");
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn lognormal_has_the_median_and_the_p99_it_is_written_with() {
        let all = drawn(&Spread::LogNormal { median: ms(20), p99: ms(200) });
        near(all[50_000], 20_000);
        near(all[99_000] / 10, 20_000);
    }

    #[test]
    fn exponential_has_its_mean_and_its_median() {
        let all = drawn(&Spread::Exponential { mean: ms(100) });
        near(all.iter().sum::<u64>() / 100_000, 100_000);
        near(all[50_000], 69_315);
    }

    #[test]
    fn uniform_reaches_both_its_ends_and_nothing_beyond() {
        let (min, max) = (Duration::from_micros(3), Duration::from_micros(9));
        let all = drawn(&Spread::Uniform { min, max });
        assert_eq!((all[0], all[99_999]), (3, 9));
        near(all.iter().sum::<u64>() / 1_000, 600);
    }

    #[test]
    fn list_draws_each_of_its_entries_alike() {
        let all = drawn(&Spread::List(vec![ms(1), ms(2), ms(2), ms(5)]));
        assert_eq!((all[0], all[99_999]), (1_000, 5_000));
        near(all.iter().filter(|us| **us == 2_000).count() as u64, 50_000);
    }

    #[test]
    fn the_same_seed_draws_the_same_on_every_platform() {
        let mut random = Random::new(1, 3);
        let spread = Spread::LogNormal { median: ms(10), p99: ms(90) };
        let drawn: Vec<_> = (0..4).map(|_| spread.draw(&mut random)).collect();
        assert_eq!(drawn, [11_863, 8_234, 11_850, 4_794]);
    }
}
