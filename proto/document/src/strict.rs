//! Values as serde reads them, without forms that serde would accept by accident.
//!
//! Derived code reads a struct from a list of its fields in order, and an enum from a map whose second entry
//! it ignores. Its faults name types of Rust; those here name the allowed values.

use std::fmt::Display;

use serde::de::value::{MapAccessDeserializer, MapDeserializer, SeqDeserializer};
use serde::de::{Deserializer, Error as _, IntoDeserializer, Visitor};
use serde_json::{Error, Value};

/// A value for strict reading.
#[derive(Clone, Copy)]
pub(crate) struct Strict<'de>(pub(crate) &'de Value);

impl<'de> IntoDeserializer<'de, Error> for Strict<'de> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

/// Reads these only from values of their kind.
macro_rules! only {
    ($($deserialize:ident: $kind:pat $(if $holds:expr)?, $expected:expr;)*) => {$(
        fn $deserialize<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            match self.0 {
                $kind $(if $holds)? => self.deserialize_any(visitor),
                other => Err(unexpected(&$expected, other)),
            }
        }
    )*};
}

fn unexpected(expected: &dyn Display, found: &Value) -> Error {
    match found {
        Value::Object(_) => Error::custom(format!("must be {expected}, not a map")),
        Value::Array(_) => Error::custom(format!("must be {expected}, not a list")),
        scalar => Error::custom(format!("must be {expected}, not {scalar}")),
    }
}

fn whole(most: impl Display) -> String {
    format!("a whole number from 0 to {most}")
}

impl<'de> Deserializer<'de> for Strict<'de> {
    type Error = Error;

    only! {
        deserialize_bool: Value::Bool(_), "true or false";
        deserialize_str: Value::String(_), "text";
        deserialize_string: Value::String(_), "text";
        deserialize_u32: Value::Number(number) if number.as_u64().is_some_and(|n| u32::try_from(n).is_ok()), whole(u32::MAX);
        deserialize_u64: Value::Number(number) if number.is_u64(), whole(u64::MAX);
        deserialize_seq: Value::Array(_), "a list";
        deserialize_map: Value::Object(_), "a map";
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Array(items) => SeqDeserializer::new(items.iter().map(Self)).deserialize_any(visitor),
            Value::Object(fields) => {
                let fields = fields.iter().map(|(name, value)| (name.as_str(), Self(value)));
                MapDeserializer::new(fields).deserialize_any(visitor)
            }
            scalar => scalar.deserialize_any(visitor),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.0 {
            Value::Object(_) => self.deserialize_any(visitor),
            other => Err(unexpected(&"a map", other)),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        choices: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let one = match self.0 {
            Value::Object(fields) if fields.len() == 1 => fields,
            _ => return Err(Error::custom(format!("must be a map with one of {}", choices.join(", ")))),
        };
        let one = one.iter().map(|(name, value)| (name.as_str(), Self(value)));
        visitor.visit_enum(MapAccessDeserializer::new(MapDeserializer::new(one)))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u16 u128 f32 f64 char bytes byte_buf unit unit_struct tuple tuple_struct
        identifier ignored_any
    }
}
