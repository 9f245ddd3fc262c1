//! JSON texts before they become values: what the values will take, and names that are written twice.

use std::{borrow::Cow, collections::HashSet, fmt};

use serde::{
    Deserialize,
    de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor},
};

/// Bytes of one value in a list; of the least list that is not empty; of an object, which has a table of its names; of one more
/// member; and of a text besides its letters. As `serde_json` keeps them, with what the allocator adds.
const ENTRY: usize = 80;
const LIST: usize = 304;
const OBJECT: usize = 560;
const MEMBER: usize = 160;
const TEXT: usize = 32;

/// About how many bytes a JSON text takes as a tree of values: up to 150 times its length.
pub fn tree_size(json: &str) -> usize {
    let bytes = json.as_bytes();
    let (mut size, mut at) = (bytes.len(), 0);
    while let Some(byte) = bytes.get(at) {
        at += 1;
        size += match byte {
            b'[' => LIST,
            b'{' => OBJECT,
            b',' => ENTRY,
            b':' => MEMBER,
            b'"' => {
                at = end_of_text(bytes, at);
                TEXT
            }
            _ => 0,
        };
    }
    size
}

/// The place behind the text whose first letter is at `at`.
fn end_of_text(bytes: &[u8], mut at: usize) -> usize {
    while let Some(next) = bytes.get(at..).and_then(|rest| memchr::memchr2(b'"', b'\\', rest)) {
        at += next + 1;
        if bytes[at - 1] == b'"' {
            return at;
        }
        // What is escaped is no end.
        at += 1;
    }
    bytes.len()
}

/// A name that an object has twice, at any depth, with the way to it: `a/b`. `None`: there is none, or the text is no JSON.
///
/// Readers take different values of such a name: toolcrib the last one, a server perhaps the first.
pub fn repeated_name(json: &str) -> Option<String> {
    let mut found = None;
    let mut reader = serde_json::Deserializer::from_str(json);
    let _ = Names { found: &mut found, way: None }.deserialize(&mut reader);
    found
}

/// The way to a value.
#[derive(Clone, Copy)]
struct Way<'a> {
    name: &'a str,
    above: Option<&'a Self>,
}

struct Names<'a> {
    found: &'a mut Option<String>,
    way: Option<&'a Way<'a>>,
}

impl Names<'_> {
    fn is_twice(&mut self, name: &str) {
        let mut names = vec![name];
        let mut at = self.way;
        while let Some(way) = at {
            names.push(way.name);
            at = way.above;
        }
        names.reverse();
        *self.found = Some(names.join("/"));
    }
}

impl<'de> DeserializeSeed<'de> for Names<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

/// The name of a member, borrowed where it can be.
#[derive(Deserialize, PartialEq, Eq, Hash)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Visitor<'de> for Names<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(Names { found: &mut *self.found, way: self.way })?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        let mut names: HashSet<Name<'de>> = HashSet::new();
        while let Some(name) = map.next_key::<Name<'de>>()? {
            if names.contains(&name) {
                self.is_twice(&name.0);
                return Err(A::Error::custom("a name is written twice"));
            }
            let way = Way { name: &name.0, above: self.way };
            map.next_value_seed(Names { found: &mut *self.found, way: Some(&way) })?;
            names.insert(name);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_written_twice_is_found_at_any_depth() {
        for (json, found) in [
            (r#"{"a":1,"b":{"a":1}}"#, None),
            (r#"[{"a":1},{"a":1}]"#, None),
            (r#"{"a":1,"b":2,"a":1}"#, Some("a")),
            (r#"{"url":"x","\u0075rl":"y"}"#, Some("url")),
            (r#"{"a":[0,{"b":{"c":null,"d":1.5,"c":true}}]}"#, Some("a/b/c")),
            (r#"{"":{"":1,"":2}}"#, Some("/")),
            (r#"{"a":1,"A":2}"#, None),
            (r#"{"a":-1,"a"#, None),
        ] {
            assert_eq!(repeated_name(json).as_deref(), found, "{json}");
        }
        let deep = format!("{}{{\"a\":1,\"a\":2}}{}", "[".repeat(100), "]".repeat(100));
        assert_eq!(repeated_name(&deep).as_deref(), Some("a"));
        assert_eq!(repeated_name(&"[".repeat(100_000)), None, "the reader gives up");
    }

    #[test]
    fn what_a_tree_takes_is_known_from_its_text() {
        let zeros = format!("[{}0]", "0,".repeat(999_999));
        assert!(tree_size(&zeros) > 72_000_000 && tree_size(&zeros) < 90_000_000, "{}", tree_size(&zeros));
        let text = format!("\"{}\"", "a,[{\\\",\\\\".repeat(1000));
        assert!(tree_size(&text) < text.len() + 100, "{}", tree_size(&text));
        assert!(tree_size(&"[0],".repeat(1000)) > 300_000);
        assert!(tree_size("\"open") < 100 && tree_size("\"\\") < 100 && tree_size("") == 0);
    }
}
