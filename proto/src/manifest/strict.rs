//! Values as serde reads them, without forms that serde would accept by accident.
//!
//! Derived code reads a struct from a list of its fields in order, and a oneof from a map whose second entry
//! it ignores.

use serde::de::value::{MapAccessDeserializer, MapDeserializer, SeqDeserializer};
use serde::de::{Deserializer, Error as _, IntoDeserializer, Unexpected, Visitor};
use serde_json::{Error, Value};

/// A value for strict reading.
#[derive(Clone, Copy)]
pub(super) struct Strict<'de>(pub(super) &'de Value);

impl<'de> IntoDeserializer<'de, Error> for Strict<'de> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Strict<'de> {
    type Error = Error;

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
            Value::Array(_) => Err(Error::invalid_type(Unexpected::Seq, &visitor)),
            _ => self.deserialize_any(visitor),
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
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        seq tuple tuple_struct map identifier ignored_any
    }
}
