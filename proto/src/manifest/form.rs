//! Text form of wire types that serde does not know: short names, durations with units, RFC 3339.
//!
//! `build.rs` selects these per field. All values of the wire can be written, including those rejected by
//! conversion (a negative duration, NaN), so that its fault contains the field and its range.

use std::fmt;
use std::marker::PhantomData;

use damper_core::fault::Millis;
use prost_types::{Duration, Timestamp};
use serde::de::{Deserializer, Error as _, Unexpected, Visitor};
use serde::ser::{SerializeSeq as _, Serializer};
use serde::{Deserialize, Serialize};

use crate::v1;

/// True for values that can be omitted.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// An enum of the wire and the common prefix of its names.
pub(crate) trait Named: Copy + TryFrom<i32> + Into<i32> {
    const PREFIX: &'static str;
    const UPPER_CASE: bool = false;

    fn wire_name(self) -> &'static str;

    fn name(self) -> String {
        let name = self.wire_name();
        let name = name.strip_prefix(Self::PREFIX).unwrap_or(name);
        if Self::UPPER_CASE { name.to_owned() } else { name.to_lowercase() }
    }

    /// Returns every value except "unspecified", which is written by omitting the field.
    fn all() -> impl Iterator<Item = Self> {
        (0..64).filter_map(|number| Self::try_from(number).ok()).filter(|value| value.name() != "unspecified")
    }
}

macro_rules! named {
    ($($name:path, $prefix:literal, $upper:literal;)*) => {$(
        impl Named for $name {
            const PREFIX: &'static str = $prefix;
            const UPPER_CASE: bool = $upper;

            fn wire_name(self) -> &'static str {
                self.as_str_name()
            }
        }
    )*};
}

named! {
    v1::Mode, "MODE_", false;
    v1::Jitter, "JITTER_", false;
    v1::OverMax, "OVER_MAX_", false;
    v1::RetryBreakerMode, "RETRY_BREAKER_MODE_", false;
    v1::HedgeCeiling, "HEDGE_CEILING_", false;
    v1::ObjectKind, "OBJECT_KIND_", false;
    v1::Role, "ROLE_", false;
    v1::Code, "CODE_", true;
    v1::Fate, "FATE_", false;
    v1::Source, "SOURCE_", false;
    v1::Via, "VIA_", false;
    v1::rule_result::Change, "CHANGE_", false;
    v1::prediction::Callee, "CALLEE_", false;
    v1::Prune, "PRUNE_", false;
    v1::Severity, "SEVERITY_", false;
    v1::CircuitState, "CIRCUIT_STATE_", false;
    v1::laggard::Reason, "REASON_", false;
    v1::OnStop, "ON_STOP_", false;
    v1::JobState, "JOB_STATE_", false;
    v1::JobChange, "JOB_CHANGE_", false;
    v1::JobActionKind, "JOB_ACTION_KIND_", false;
}

/// A number of an enum, by its short name.
struct Name<E>(i32, PhantomData<E>);

impl<E: Named> Serialize for Name<E> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match E::try_from(self.0) {
            Ok(value) => serializer.serialize_str(&value.name()),
            // From a newer peer.
            Err(_) => serializer.serialize_i32(self.0),
        }
    }
}

impl<'de, E: Named> Deserialize<'de> for Name<E> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let known = E::all().find(|value| value.name() == text);
        let number = known.map(Into::into).ok_or_else(|| {
            let names: Vec<_> = E::all().map(E::name).collect();
            D::Error::custom(format!("must be one of {}, not {text:?}", names.join(", ")))
        })?;
        Ok(Self(number, PhantomData))
    }
}

/// A field with a number of an enum.
pub(crate) struct One<E>(PhantomData<E>);

impl<E: Named> One<E> {
    pub(crate) fn serialize<S: Serializer>(number: &i32, serializer: S) -> Result<S::Ok, S::Error> {
        Name::<E>(*number, PhantomData).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
        Name::<E>::deserialize(deserializer).map(|name| name.0)
    }
}

/// An optional number of an enum.
pub(crate) struct Optional<E>(PhantomData<E>);

impl<E: Named> Optional<E> {
    pub(crate) fn serialize<S: Serializer>(number: &Option<i32>, serializer: S) -> Result<S::Ok, S::Error> {
        number.map(|number| Name::<E>(number, PhantomData)).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i32>, D::Error> {
        Ok(Option::<Name<E>>::deserialize(deserializer)?.map(|name| name.0))
    }
}

/// A field with a list of numbers of an enum.
pub(crate) struct Many<E>(PhantomData<E>);

impl<E: Named> Many<E> {
    pub(crate) fn serialize<S: Serializer>(numbers: &[i32], serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(numbers.len()))?;
        for number in numbers {
            list.serialize_element(&Name::<E>(*number, PhantomData))?;
        }
        list.end()
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<i32>, D::Error> {
        Ok(Vec::<Name<E>>::deserialize(deserializer)?.into_iter().map(|name| name.0).collect())
    }
}

/// Reads a scalar as text, for a type with a text form.
struct Text<F>(&'static str, F);

impl<T, F: FnOnce(&str) -> Result<T, String>> Visitor<'_> for Text<F> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Option<T>, E> {
        (self.1)(text).map(Some).map_err(E::custom)
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Option<T>, E> {
        Ok(None)
    }
}

/// `250ms`, `1h 30m`, `-2s`.
struct Human(Duration);

impl Human {
    const EXPECTED: &str = "a duration with its unit, such as 250ms, 2s or 1h";

    fn read(text: &str) -> Result<Duration, String> {
        Self::parse(text).ok_or_else(|| format!("{text:?} is not {}", Self::EXPECTED))
    }

    fn parse(text: &str) -> Option<Duration> {
        let (sign, magnitude) = text.strip_prefix('-').map_or((1, text), |magnitude| (-1, magnitude));
        let duration = humantime::parse_duration(magnitude).ok()?;
        Some(Duration {
            seconds: sign * i64::try_from(duration.as_secs()).ok()?,
            nanos: i32::try_from(sign).ok()? * duration.subsec_nanos().cast_signed(),
        })
    }
}

impl fmt::Display for Human {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = i128::from(self.0.seconds) * 1_000_000_000 + i128::from(self.0.nanos);
        let sign = if nanos < 0 { "-" } else { "" };
        let magnitude = nanos.unsigned_abs();
        if !magnitude.is_multiple_of(1000) {
            let (seconds, nanos) = (magnitude / 1_000_000_000, magnitude % 1_000_000_000);
            return if seconds == 0 {
                write!(f, "{sign}{nanos}ns")
            } else {
                write!(f, "{sign}{seconds}s {nanos}ns")
            };
        }
        let seconds = u64::try_from(magnitude / 1_000_000_000).unwrap_or(u64::MAX);
        let subsecond = u32::try_from(magnitude % 1_000_000_000).unwrap_or_default();
        write!(f, "{sign}{}", Millis(std::time::Duration::new(seconds, subsecond)))
    }
}

impl Serialize for Human {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Human {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let read = from.deserialize_any(Text(Self::EXPECTED, Self::read))?;
        read.map(Self).ok_or_else(|| D::Error::invalid_type(Unexpected::Unit, &Self::EXPECTED))
    }
}

/// An optional duration.
pub(crate) mod duration {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(
        wire: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        wire.map(Human).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        from.deserialize_any(Text(Human::EXPECTED, Human::read))
    }
}

/// A oneof field with a duration.
pub(crate) mod one_duration {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(wire: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        Human(*wire).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        Human::deserialize(from).map(|human| human.0)
    }
}

/// A field with a list of durations.
pub(crate) mod many_durations {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(wire: &[Duration], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(wire.iter().copied().map(Human))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Duration>, D::Error> {
        Ok(Vec::<Human>::deserialize(from)?.into_iter().map(|human| human.0).collect())
    }
}

/// RFC 3339.
pub(crate) mod timestamp {
    use super::*;

    const EXPECTED: &str = "a time, such as 2026-01-31T12:00:00Z";

    pub(crate) fn serialize<S: Serializer>(
        wire: &Option<Timestamp>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        wire.as_ref().map(ToString::to_string).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Timestamp>, D::Error> {
        from.deserialize_any(Text(EXPECTED, |text: &str| {
            text.parse().map_err(|_| format!("{text:?} is not {EXPECTED}"))
        }))
    }
}

/// A number, or a text for a special value: conversion rejects those with the field's range.
struct Number(f64);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;

        impl Visitor<'_> for Read {
            type Value = f64;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number")
            }

            fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<f64, E> {
                Ok(value)
            }

            #[allow(clippy::cast_precision_loss, reason = "numbers that long are out of every range")]
            fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<f64, E> {
                Ok(value as f64)
            }

            #[allow(clippy::cast_precision_loss, reason = "numbers that long are out of every range")]
            fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<f64, E> {
                Ok(value as f64)
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<f64, E> {
                match text {
                    ".nan" => Ok(f64::NAN),
                    ".inf" => Ok(f64::INFINITY),
                    "-.inf" => Ok(f64::NEG_INFINITY),
                    _ => Err(E::invalid_type(Unexpected::Str(text), &self)),
                }
            }
        }

        deserializer.deserialize_any(Read).map(Self)
    }
}

/// A field with a number.
pub(crate) mod one_number {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        value.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        Number::deserialize(deserializer).map(|number| number.0)
    }
}

/// An optional number.
pub(crate) mod optional_number {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(value: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
        value.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
        Ok(Option::<Number>::deserialize(deserializer)?.map(|number| number.0))
    }
}
