//! JSON objects as they are written: in order, and with the names that come twice.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

/// The members of a JSON object.
///
/// A map would silently keep the last of two equal names, and a checkpoint with two tensors of one
/// name is not one to guess about.
pub(crate) struct Members<V>(pub(crate) Vec<(String, V)>);

/// The value of a member, whose type may depend on the name.
pub(crate) trait Member: Sized {
    /// Takes the value that is next in the map.
    fn read<'de, A: MapAccess<'de>>(name: &str, map: &mut A) -> Result<Self, A::Error>;
}

impl Member for String {
    fn read<'de, A: MapAccess<'de>>(_: &str, map: &mut A) -> Result<Self, A::Error> {
        map.next_value()
    }
}

impl<V> Members<V> {
    /// A name that comes twice.
    pub(crate) fn duplicate(&self) -> Option<&str> {
        let mut names: Vec<&str> = self.0.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        names
            .windows(2)
            .find(|pair| pair[0] == pair[1])
            .map(|pair| pair[0])
    }
}

impl<'de, V: Member> Deserialize<'de> for Members<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MembersVisitor(PhantomData))
    }
}

struct MembersVisitor<V>(PhantomData<V>);

impl<'de, V: Member> Visitor<'de> for MembersVisitor<V> {
    type Value = Members<V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            let value = V::read(&name, &mut map)
                .map_err(|error| A::Error::custom(format_args!("`{name}`: {error}")))?;
            members.push((name, value));
        }
        Ok(Members(members))
    }
}
