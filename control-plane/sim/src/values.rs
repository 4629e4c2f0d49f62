//! Values of a scenario that serde has no form for: durations, shares, rates, codes, names.
//!
//! [`plain`], [`optional`] and [`list`] read a field as such a value, [`present`] a map that may be empty.

use std::time::Duration;

use damper_core::{Code, Ratio};
use damper_document::Value;
use serde::de::{Deserialize, Deserializer, Error as _};

/// A type that is written as one value.
pub(crate) trait Plain: Sized {
    /// Reads the value; the error starts with the allowed values.
    fn read(value: &Value) -> Result<Self, String>;
}

/// Calls per second, in thousandths.
pub(crate) struct RateMilli(pub(crate) u64);

/// A plain value within a list or map.
pub(crate) struct Of<T>(pub(crate) T);

impl<'de, T: Plain> Deserialize<'de> for Of<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        T::read(&Value::deserialize(from)?).map(Self).map_err(D::Error::custom)
    }
}

pub(crate) fn plain<'de, D: Deserializer<'de>, T: Plain>(from: D) -> Result<T, D::Error> {
    Of::deserialize(from).map(|Of(value)| value)
}

pub(crate) fn optional<'de, D: Deserializer<'de>, T: Plain>(from: D) -> Result<Option<T>, D::Error> {
    Ok(Option::<Of<T>>::deserialize(from)?.map(|Of(value)| value))
}

pub(crate) fn list<'de, D: Deserializer<'de>, T: Plain>(from: D) -> Result<Vec<T>, D::Error> {
    Ok(Vec::<Of<T>>::deserialize(from)?.into_iter().map(|Of(value)| value).collect())
}

/// Reads a map that is present without content too, as in `crash:`.
pub(crate) fn present<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    from: D,
) -> Result<Option<T>, D::Error> {
    Ok(Some(Option::<T>::deserialize(from)?.unwrap_or_default()))
}

impl Plain for Duration {
    /// `250ms`, `1h 30m`; whole microseconds.
    fn read(value: &Value) -> Result<Self, String> {
        match value.as_str().and_then(|text| humantime::parse_duration(text).ok()) {
            Some(length) if length.subsec_nanos() % 1_000 == 0 => Ok(length),
            Some(_) => Err(format!("must be in whole microseconds, not {value}")),
            None => Err(format!("must be a duration with a unit, such as 250ms, 2s or 1h, not {value}")),
        }
    }
}

impl Plain for Ratio {
    /// A number in steps of 0.0001.
    fn read(value: &Value) -> Result<Self, String> {
        let parts = decimal(value, 10_000)?;
        let bp = u32::try_from(parts);
        bp.map(Self::from_bp).map_err(|_| format!("must be at most {}, not {value}", u32::MAX / 10_000))
    }
}

impl Plain for RateMilli {
    /// Calls per second, in steps of 0.001.
    fn read(value: &Value) -> Result<Self, String> {
        decimal(value, 1_000).map(Self)
    }
}

impl Plain for Code {
    fn read(value: &Value) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|code| value.as_str() == Some(code.name()));
        known.ok_or_else(|| format!("must be a gRPC code, such as UNAVAILABLE, not {value}"))
    }
}

/// Returns the choice of this name.
pub(crate) fn one_of<T: Copy>(value: &Value, choices: &[(&str, T)]) -> Result<T, String> {
    let chosen = choices.iter().find(|(name, _)| value.as_str() == Some(*name));
    chosen.map(|(_, choice)| *choice).ok_or_else(|| {
        let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
        format!("must be one of {}, not {value}", names.join(", "))
    })
}

/// Reads a number of at least 0 in whole parts of one.
fn decimal(value: &Value, parts: u64) -> Result<u64, String> {
    let scaled = value.as_f64().map(|number| number * parts as f64);
    let Some(scaled) = scaled.filter(|scaled| (0.0..=9e15).contains(scaled)) else {
        return Err(format!("must be a number of at least 0, not {value}"));
    };
    let whole = libm::round(scaled);
    // Decimals are seldom exact in binary.
    if (whole - scaled).abs() > 1e-6 * whole.max(1.0) {
        return Err(format!("must be in steps of {}, not {value}", 1.0 / parts as f64));
    }
    Ok(whole as u64)
}
