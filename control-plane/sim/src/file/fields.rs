//! The fields of a map, each read once, so that unknown fields are faults.
//!
//! An invalid field is recorded by its path and treated as absent, so one pass reports all faults. Paths are
//! completed on the way up, as the engine nests `Faults`.

use std::time::Duration;

use damper_core::fault::Faults;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// The fields of a map.
pub(super) struct Fields<'a> {
    /// `None`: no value, as in `crash:`.
    map: Option<&'a Map<String, Value>>,
    known: Vec<&'static str>,
    faults: Faults,
}

impl<'a> Fields<'a> {
    /// Reads a map; fields that `read` did not request are faults.
    pub(super) fn read<T>(
        value: &'a Value,
        faults: &mut Faults,
        read: impl FnOnce(&mut Self) -> T,
    ) -> Option<T> {
        let map = match value {
            Value::Object(map) => Some(map),
            Value::Null => None,
            other => {
                faults.add("", format!("must be a map, not {other}"));
                return None;
            }
        };
        let mut fields = Self { map, known: Vec::new(), faults: Faults::none() };
        let value = read(&mut fields);
        for name in map.into_iter().flat_map(Map::keys) {
            if !fields.known.contains(&name.as_str()) {
                let problem = format!("unknown (known: {})", fields.known.join(", "));
                fields.faults.add(name, problem);
            }
        }
        faults.nest("", fields.faults);
        Some(value)
    }

    fn get(&self, name: &str) -> Option<&'a Value> {
        self.map?.get(name)
    }

    /// True if the field exists.
    pub(super) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// True if the field exists and is text.
    pub(super) fn is_text(&self, name: &str) -> bool {
        self.get(name).is_some_and(Value::is_string)
    }

    /// Records a missing field, unless it was invalid.
    pub(super) fn missing(&mut self, name: &str) {
        if !self.has(name) {
            self.faults.add(name, "required");
        }
    }

    /// Records a fault of a field, or of the map as a whole.
    pub(super) fn problem(&mut self, name: &str, problem: &str) {
        self.faults.add(name, problem);
    }

    /// Reads a field with `read`.
    pub(super) fn part<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&'a Value, &mut Faults) -> Option<T>,
    ) -> Option<T> {
        self.known.push(name);
        let value = self.get(name)?;
        let mut inner = Faults::none();
        let read = read(value, &mut inner);
        self.faults.nest(name, inner);
        read
    }

    /// Reads a map of known fields.
    pub(super) fn fields<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&mut Fields<'a>) -> T,
    ) -> Option<T> {
        self.part(name, |value, faults| Fields::read(value, faults, read))
    }

    /// Reads a map of maps by name, in order of the names; empty if absent.
    pub(super) fn named<T>(
        &mut self,
        name: &'static str,
        read: impl Fn(&str, &mut Fields<'a>) -> T,
    ) -> Vec<T> {
        let parts = self.part(name, |value, faults| {
            let Value::Object(map) = value else {
                faults.add("", format!("must be a map, not {value}"));
                return None;
            };
            // The order must not depend on the storage of maps.
            let mut parts: Vec<_> = map.iter().collect();
            parts.sort_unstable_by_key(|(name, _)| *name);
            let read = parts.into_iter().filter_map(|(name, value)| {
                let mut inner = Faults::none();
                let part = Fields::read(value, &mut inner, |fields| read(name, fields));
                faults.nest(name, inner);
                part
            });
            Some(read.collect())
        });
        parts.unwrap_or_default()
    }

    /// Reads a list; empty if absent.
    pub(super) fn list<T>(
        &mut self,
        name: &'static str,
        read: impl Fn(&'a Value, &mut Faults) -> Option<T>,
    ) -> Vec<T> {
        self.known.push(name);
        let items = match self.get(name) {
            None => return Vec::new(),
            Some(Value::Array(items)) => items,
            Some(other) => {
                self.faults.add(name, format!("must be a list, not {other}"));
                return Vec::new();
            }
        };
        let read = items.iter().enumerate().filter_map(|(i, item)| {
            let mut inner = Faults::none();
            let item = read(item, &mut inner);
            self.faults.nest(&format!("{name}[{i}]"), inner);
            item
        });
        read.collect()
    }

    pub(super) fn text(&mut self, name: &'static str) -> Option<String> {
        self.plain(name, "text")
    }

    pub(super) fn flag(&mut self, name: &'static str) -> Option<bool> {
        self.plain(name, "true or false")
    }

    /// A whole number of at least 0.
    pub(super) fn number<T: DeserializeOwned>(&mut self, name: &'static str) -> Option<T> {
        self.plain(name, "a whole number of at least 0")
    }

    fn plain<T: DeserializeOwned>(&mut self, name: &'static str, what: &str) -> Option<T> {
        self.part(name, |value, faults| {
            let read = T::deserialize(value);
            if read.is_err() {
                faults.add("", format!("must be {what}, not {value}"));
            }
            read.ok()
        })
    }

    pub(super) fn duration(&mut self, name: &'static str) -> Option<Duration> {
        self.part(name, duration)
    }

    /// Reads a map of durations with any names; empty if absent.
    pub(super) fn durations(&mut self, name: &'static str) -> Vec<(String, Duration)> {
        let read = self.part(name, |value, faults| {
            let Value::Object(map) = value else {
                faults.add("", format!("must be a map, not {value}"));
                return None;
            };
            let mut read = Vec::new();
            for (name, value) in map {
                let mut inner = Faults::none();
                read.extend(duration(value, &mut inner).map(|length| (name.clone(), length)));
                faults.nest(name, inner);
            }
            // The order must not depend on the storage of maps.
            read.sort_unstable();
            Some(read)
        });
        read.unwrap_or_default()
    }

    pub(super) fn one_of<T: Copy>(&mut self, name: &'static str, choices: &[(&str, T)]) -> Option<T> {
        self.part(name, |value, faults| {
            let chosen = choices.iter().find(|(name, _)| value.as_str() == Some(*name));
            if chosen.is_none() {
                let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
                faults.add("", format!("must be one of {}, not {value}", names.join(", ")));
            }
            chosen.map(|(_, choice)| *choice)
        })
    }
}

/// `250ms`, `1h 30m`; whole microseconds.
pub(super) fn duration(value: &Value, faults: &mut Faults) -> Option<Duration> {
    let read = value.as_str().and_then(|text| humantime::parse_duration(text).ok());
    let whole = read.filter(|length| length.subsec_nanos() % 1_000 == 0);
    match (whole, read) {
        (None, None) => {
            faults.add("", format!("must be a duration with a unit, such as 250ms, 2s or 1h, not {value}"));
        }
        (None, Some(_)) => faults.add("", format!("must be in whole microseconds, not {value}")),
        _ => {}
    }
    whole
}

/// A number of at least 0 in whole parts of one.
pub(super) fn decimal(value: &Value, parts: u64, faults: &mut Faults) -> Option<u64> {
    let scaled = value.as_f64().map(|number| number * parts as f64);
    match scaled {
        Some(scaled) if (0.0..=9e15).contains(&scaled) => {
            let whole = libm::round(scaled);
            // Decimals are seldom exact in binary.
            if (whole - scaled).abs() > 1e-6 * whole.max(1.0) {
                faults.add("", format!("must be in steps of {}, not {value}", 1.0 / parts as f64));
                return None;
            }
            Some(whole as u64)
        }
        _ => {
            faults.add("", format!("must be a number of at least 0, not {value}"));
            None
        }
    }
}
