//! Reads YAML (Goose, Continue, LibreChat) with the line of each value. The parser bounds depth, nodes and the copies
//! that aliases make.

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_saphyr::Spanned;

use crate::{
    config::file::{
        node::{BYTE_ORDER_MARK, Entry, Node, Value},
        source_location::SourceLocation,
    },
    error::Result,
};

pub(in crate::config) fn read(text: &str, origin: &SourceLocation) -> Result<Node> {
    let text = text.trim_start_matches(BYTE_ORDER_MARK);
    // As the parsers of these programs do: `y`, `no` and the like are texts.
    let options = serde_saphyr::options! { strict_booleans: true };
    match serde_saphyr::from_str_with_options::<Option<Spanned<Part>>>(text, options) {
        Ok(Some(root)) => Ok(node(root)),
        Ok(None) => Ok(Node { line: 1, value: Value::Table(Vec::new()) }),
        Err(error) => {
            let line = error.location().map_or(1, |location| location.line());
            let words = error.without_snippet().to_string();
            let reason = words.lines().next().unwrap_or_default().to_owned();
            Err(origin.error(usize::try_from(line).unwrap_or(usize::MAX), None, reason, None))
        }
    }
}

/// A value whose parts know their place.
enum Part {
    One(Value),
    List(Vec<Spanned<Part>>),
    Table(Vec<(String, Spanned<Part>)>),
}

fn node(part: Spanned<Part>) -> Node {
    let line = usize::try_from(part.referenced.line()).unwrap_or(usize::MAX);
    let value = match part.value {
        Part::One(value) => value,
        Part::List(items) => Value::List(items.into_iter().map(node).collect()),
        Part::Table(members) => {
            let entry = |(key, member): (String, Spanned<Part>)| {
                let node = node(member);
                Entry { key, line: node.line, node }
            };
            Value::Table(members.into_iter().map(entry).collect())
        }
    };
    Node { line, value }
}

impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PartVisitor)
    }
}

struct PartVisitor;

impl<'de> Visitor<'de> for PartVisitor {
    type Value = Part;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a value")
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Part, E> {
        Ok(Part::One(Value::Bool(flag)))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Part, E> {
        Ok(Part::One(Value::Int(number)))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Part, E> {
        Ok(Part::One(i64::try_from(number).map_or(Value::Float(number as f64), Value::Int)))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Part, E> {
        Ok(Part::One(Value::Float(number)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Part, E> {
        Ok(Part::One(Value::Text(text.to_owned())))
    }

    fn visit_unit<E>(self) -> Result<Part, E> {
        Ok(Part::One(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Part, E> {
        Ok(Part::One(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Part, D::Error> {
        Part::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Part, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Part::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Part, A::Error> {
        let mut table = Vec::new();
        while let Some(member) = members.next_entry()? {
            table.push(member);
        }
        Ok(Part::Table(table))
    }
}
