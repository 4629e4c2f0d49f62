//! Input errors: all faults of an input at once, each with field path, problem, value and range.
//!
//! Input is rejected, never clamped. A fault names the field as the .proto files and manifests do
//! (`policy.retry.max_attempts`), so that the command line, the web UI and the API can point at it.

use std::fmt;
use std::time::Duration;

/// A problem of one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Path of the field from the root of the message: `policy.retry.max_attempts`.
    pub path: String,
    /// Problem with value and range: `must be between 1 and 10, not 11`.
    pub problem: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.problem)
    }
}

/// All faults of one input, in the order of its fields.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Faults(Vec<Fault>);

impl std::error::Error for Faults {}

impl Faults {
    /// Returns an empty list.
    #[must_use]
    pub const fn none() -> Self {
        Self(Vec::new())
    }

    /// Adds a fault of the field at `path`.
    pub fn add(&mut self, path: impl Into<String>, problem: impl Into<String>) {
        self.0.push(Fault { path: path.into(), problem: problem.into() });
    }

    /// Adds the faults of a part of the input at `path`.
    pub fn nest(&mut self, path: &str, inner: Self) {
        self.0.extend(inner.0.into_iter().map(|fault| Fault { path: join(path, &fault.path), ..fault }));
    }

    /// Returns the faults in the order of the fields.
    pub fn iter(&self) -> impl Iterator<Item = &Fault> {
        self.0.iter()
    }

    /// Returns the number of faults.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if there is no fault.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the value if there is no fault.
    ///
    /// # Errors
    /// The faults, if there are any.
    pub fn or<T>(self, value: T) -> Result<T, Self> {
        if self.is_empty() { Ok(value) } else { Err(self) }
    }
}

/// Same as `Display`, because `main() -> Result<(), Box<dyn Error>>` prints errors by `Debug`.
impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, fault) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("; ")?;
            }
            write!(f, "{fault}")?;
        }
        Ok(())
    }
}

/// Returns the path of a field within the part at `parent`.
#[must_use]
pub(crate) fn join(parent: &str, field: &str) -> String {
    match (parent, field) {
        ("", _) => field.to_owned(),
        (_, "") => parent.to_owned(),
        _ => format!("{parent}.{field}"),
    }
}

/// Inclusive range of a setting. The range of each setting is a constant next to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds<T> {
    /// Lowest accepted value.
    pub min: T,
    /// Highest accepted value.
    pub max: T,
}

/// A value with bounds, and how a fault shows it.
pub trait Bounded: Copy + PartialOrd {
    /// The displayed form.
    type Shown: fmt::Display;
    /// Returns the displayed form.
    fn shown(self) -> Self::Shown;
}

impl Bounded for u32 {
    type Shown = Self;

    fn shown(self) -> Self {
        self
    }
}

impl Bounded for u64 {
    type Shown = Self;

    fn shown(self) -> Self {
        self
    }
}

impl Bounded for Duration {
    type Shown = Millis;

    fn shown(self) -> Millis {
        Millis(self)
    }
}

impl Bounded for Ratio {
    type Shown = Self;

    fn shown(self) -> Self {
        self
    }
}

impl Bounded for Percent {
    type Shown = Self;

    fn shown(self) -> Self {
        self
    }
}

impl<T: Bounded> Bounds<T> {
    /// Adds a fault at `path` if `value` is out of range.
    pub fn check(&self, path: &str, value: T, faults: &mut Faults) {
        if value < self.min || value > self.max {
            faults.add(path, self.excludes(value.shown()));
        }
    }

    /// Returns the problem of a value out of range: `must be between 1 and 10, not 11`.
    pub fn excludes(&self, value: impl fmt::Display) -> String {
        format!("must be between {} and {}, not {value}", self.min.shown(), self.max.shown())
    }
}

impl<T: Bounded> fmt::Display for Bounds<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.min.shown(), self.max.shown())
    }
}

/// A number in steps of 0.0001, stored as ten-thousandths (basis points).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ratio {
    bp: u32,
}

impl Ratio {
    /// 1 = 10,000 basis points.
    pub const ONE: Self = Self::from_bp(10_000);

    /// Returns the ratio of this many ten-thousandths.
    #[must_use]
    pub const fn from_bp(bp: u32) -> Self {
        Self { bp }
    }

    /// Returns the ten-thousandths.
    #[must_use]
    pub const fn bp(self) -> u32 {
        self.bp
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_decimal(f, self.bp, 10_000, 4)
    }
}

/// Writes a number of `parts` of a unit as a decimal without trailing zeros.
fn write_decimal(f: &mut fmt::Formatter<'_>, number: u32, parts: u32, digits: usize) -> fmt::Result {
    let (whole, part) = (number / parts, number % parts);
    if part == 0 {
        return write!(f, "{whole}");
    }
    let digits = format!("{part:0digits$}");
    write!(f, "{whole}.{}", digits.trim_end_matches('0'))
}

/// A percentage in steps of 0.01, stored as hundredths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Percent {
    hundredths: u32,
}

impl Percent {
    /// Returns the percentage of this many hundredths of a percent.
    #[must_use]
    pub const fn from_hundredths(hundredths: u32) -> Self {
        Self { hundredths }
    }

    /// Returns the hundredths of a percent, which are ten-thousandths of the whole.
    #[must_use]
    pub const fn hundredths(self) -> u32 {
        self.hundredths
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_decimal(f, self.hundredths, 100, 2)
    }
}

/// A duration with its unit: `250ms`, `2s`, `24h`, `7d`, `1500us`. Days from two on.
#[derive(Clone, Copy, Debug)]
pub struct Millis(pub Duration);

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DAY: u128 = 86_400_000_000;
        let us = self.0.as_micros();
        match us {
            0 => f.write_str("0ms"),
            _ if us > DAY && us.is_multiple_of(DAY) => write!(f, "{}d", us / DAY),
            _ if us.is_multiple_of(3_600_000_000) => write!(f, "{}h", us / 3_600_000_000),
            _ if us.is_multiple_of(1_000_000) => write!(f, "{}s", us / 1_000_000),
            _ if us.is_multiple_of(1_000) => write!(f, "{}ms", us / 1_000),
            _ => write!(f, "{us}us"),
        }
    }
}
