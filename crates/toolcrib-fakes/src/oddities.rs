//! Random but well-formed oddities: a JSON message with one node changed, as servers, models and clients of the real world
//! write them. The same seed always changes the same node in the same way.

use std::fmt;

use fastrand::Rng;
use serde_json::{Map, Value};

/// How many bytes, items or members a huge node has.
const HUGE_TEXT: usize = 200_000;
const HUGE_COUNT: usize = 3_000;
const HUGE_DEPTH: usize = 100;

/// A way in which a node is odd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Oddity {
    /// It is not there.
    Missing,
    /// It is null.
    Null,
    /// It has another type.
    OtherType,
    /// It has a sibling that nobody knows.
    Extra,
    /// It is there twice.
    Doubled,
    /// It is far larger, longer or deeper than usual.
    Huge,
}

impl Oddity {
    const ALL: [Self; 6] =
        [Self::Missing, Self::Null, Self::OtherType, Self::Extra, Self::Doubled, Self::Huge];
}

/// A step from a node to one of its children.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The step to the member with this name.
    Key(String),
    /// The step to the item at this position.
    Index(usize),
}

/// The node of a message that is odd, and its oddity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The way from the message to the node.
    pub path: Vec<Step>,
    /// The way in which it is odd.
    pub oddity: Oddity,
}

impl Change {
    /// The change of `message` by `seed`; nothing for a message without members.
    pub fn of(message: &Value, seed: u64) -> Option<Self> {
        let mut rng = Rng::with_seed(seed);
        let mut paths = Vec::new();
        collect(message, &mut Vec::new(), &mut paths);
        let (path, node) = paths.swap_remove(rng.usize(..=paths.len().checked_sub(1)?));
        let oddity = match Oddity::ALL[rng.usize(..Oddity::ALL.len())] {
            Oddity::Null if node.is_null() => Oddity::Missing,
            oddity => oddity,
        };
        Some(Self { path, oddity })
    }

    /// `message` with this change, as text: an object can have a member twice.
    pub fn apply(&self, message: &Value) -> String {
        let mut text = String::new();
        write(message, Some((&self.path, self.oddity)), &mut text);
        text
    }

    /// Whether the node is the one at `place`, or below it.
    pub fn is_within(&self, place: &[&str]) -> bool {
        self.path.len() >= place.len() && self.follows(place)
    }

    /// Whether the node is the one at `place`, or above it.
    pub fn leads_to(&self, place: &[&str]) -> bool {
        self.path.len() <= place.len() && self.follows(place)
    }

    fn follows(&self, place: &[&str]) -> bool {
        self.path.iter().zip(place).all(|(step, name)| step.to_string() == *name)
    }

    /// Whether what is there cannot be what it has to be: it is null or of another type, or a name that is missing. An item that is
    /// missing is one less, and a name that is too long is another one.
    pub fn is_unusable(&self) -> bool {
        let is_name = matches!(self.path.last(), Some(Step::Key(key)) if key == "name");
        matches!(self.oddity, Oddity::Null | Oddity::OtherType) || (self.oddity == Oddity::Missing && is_name)
    }

    /// Whether `words` name the node, or one above it. What makes a message has no name of its own, and an item that is there twice
    /// is called by its own.
    pub fn is_named(&self, words: &str) -> bool {
        let mut keys = self.path.iter().skip(1).filter_map(|step| match step {
            Step::Key(key) => Some(key),
            Step::Index(_) => None,
        });
        let is_twin = self.oddity == Oddity::Doubled && matches!(self.path.last(), Some(Step::Index(_)));
        self.path.len() == 1 || is_twin || keys.any(|key| words.contains(key.as_str()))
    }

    /// Whether nothing has another meaning than before: what nobody knows is passed over, and of a member that is written twice
    /// both say the same.
    pub fn is_harmless(&self) -> bool {
        let is_member = matches!(self.path.last(), Some(Step::Key(_)));
        self.oddity == Oddity::Extra || (self.oddity == Oddity::Doubled && is_member)
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(key) => f.write_str(key),
            Self::Index(index) => write!(f, "{index}"),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path: Vec<String> = self.path.iter().map(ToString::to_string).collect();
        write!(f, "{}: {:?}", path.join("/"), self.oddity)
    }
}

/// All nodes below `value`, with the ways to them.
fn collect<'a>(value: &'a Value, at: &mut Vec<Step>, paths: &mut Vec<(Vec<Step>, &'a Value)>) {
    let children: Vec<(Step, &Value)> = match value {
        Value::Object(members) => {
            members.iter().map(|(key, child)| (Step::Key(key.clone()), child)).collect()
        }
        Value::Array(items) => items.iter().enumerate().map(|(at, child)| (Step::Index(at), child)).collect(),
        _ => return,
    };
    for (step, child) in children {
        at.push(step);
        paths.push((at.clone(), child));
        collect(child, at, paths);
        at.pop();
    }
}

/// Writes `value`, of which a node below may be odd.
fn write(value: &Value, change: Option<(&[Step], Oddity)>, text: &mut String) {
    let Some(([first, rest @ ..], oddity)) = change else {
        return text.push_str(&value.to_string());
    };
    let mut parts: Vec<String> = Vec::new();
    let mut child = |key: Option<&str>, step: &Step, value: &Value| {
        let name = key.map(|key| format!("{}:", Value::from(key))).unwrap_or_default();
        if step != first {
            return parts.push(format!("{name}{value}"));
        }
        if !rest.is_empty() {
            let mut inner = String::new();
            write(value, Some((rest, oddity)), &mut inner);
            return parts.push(format!("{name}{inner}"));
        }
        match oddity {
            Oddity::Missing => {}
            Oddity::Null => parts.push(format!("{name}null")),
            Oddity::OtherType => parts.push(format!("{name}{}", other_type(value))),
            Oddity::Huge => parts.push(format!("{name}{}", huge(value))),
            Oddity::Doubled => parts.extend([format!("{name}{value}"), format!("{name}{value}")]),
            Oddity::Extra => {
                parts.push(format!("{name}{value}"));
                let unknown = r#"{"deep":[1,null,{"x-odd":true}]}"#;
                parts.push(if key.is_some() { format!("\"x-odd\":{unknown}") } else { unknown.to_owned() });
            }
        }
    };
    match value {
        Value::Object(members) => {
            members.iter().for_each(|(key, value)| child(Some(key), &Step::Key(key.clone()), value));
            *text += &format!("{{{}}}", parts.join(","));
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(at, value)| child(None, &Step::Index(at), value));
            *text += &format!("[{}]", parts.join(","));
        }
        _ => *text += &value.to_string(),
    }
}

/// Gives what a careless program writes in place of `value`.
fn other_type(value: &Value) -> Value {
    match value {
        Value::Null => Value::from(false),
        Value::Bool(value) => Value::from(value.to_string()),
        Value::Number(number) => Value::from(number.to_string()),
        // A number where it was one, as of ids, and else a list, as some write texts.
        Value::String(text) => {
            text.parse::<i64>().map_or_else(|_| Value::from(vec![text.as_str()]), Value::from)
        }
        // What PHP makes of an empty object.
        Value::Object(members) if members.is_empty() => Value::Array(Vec::new()),
        Value::Object(members) => Value::from(Value::Object(members.clone()).to_string()),
        Value::Array(items) => items.first().cloned().unwrap_or_else(|| Value::Object(Map::new())),
    }
}

fn huge(value: &Value) -> String {
    match value {
        Value::Null | Value::Bool(_) => {
            format!("{}{value}{}", "[".repeat(HUGE_DEPTH), "]".repeat(HUGE_DEPTH))
        }
        Value::Number(_) => "1234567890".repeat(5),
        Value::String(text) => {
            Value::from(text.chars().chain("x".repeat(HUGE_TEXT).chars()).collect::<String>()).to_string()
        }
        Value::Array(items) => {
            let nulls = std::iter::repeat_n(Value::Null, HUGE_COUNT);
            Value::Array(items.iter().cloned().chain(nulls).collect()).to_string()
        }
        Value::Object(members) => {
            let many = (0..HUGE_COUNT).map(|number| (format!("x-odd-{number}"), Value::from(number)));
            Value::Object(members.clone().into_iter().chain(many).collect()).to_string()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn changed(oddity: Oddity, path: &[Step]) -> String {
        let message = json!({"id": 1, "list": ["a", {"b": true}]});
        Change { path: path.to_vec(), oddity }.apply(&message)
    }

    #[test]
    fn each_oddity_changes_its_node_alone() {
        let id = [Step::Key("id".into())];
        let inner = [Step::Key("list".into()), Step::Index(1), Step::Key("b".into())];
        assert_eq!(changed(Oddity::Missing, &id), r#"{"list":["a",{"b":true}]}"#);
        assert_eq!(changed(Oddity::Null, &inner), r#"{"id":1,"list":["a",{"b":null}]}"#);
        assert_eq!(changed(Oddity::OtherType, &id), r#"{"id":"1","list":["a",{"b":true}]}"#);
        assert_eq!(changed(Oddity::Doubled, &inner), r#"{"id":1,"list":["a",{"b":true,"b":true}]}"#);
        assert_eq!(changed(Oddity::Doubled, &inner[..2]), r#"{"id":1,"list":["a",{"b":true},{"b":true}]}"#);
        assert!(changed(Oddity::Extra, &inner).contains(r#"{"b":true,"x-odd":{"#));
        assert!(changed(Oddity::Huge, &inner[..1]).contains(r#"{"b":true},null,null"#));
    }

    #[test]
    fn what_is_odd_is_well_formed_and_the_same_for_a_seed() {
        let message =
            json!({"id": 1, "result": {"tools": [{"name": "a", "inputSchema": {}}, null], "n": 0.5}});
        for seed in 0..500 {
            let change = Change::of(&message, seed).expect("it has members");
            let text = change.apply(&message);
            serde_json::from_str::<Value>(&text).unwrap_or_else(|error| panic!("{change}: {error}"));
            assert_eq!(Change::of(&message, seed).map(|change| change.apply(&message)), Some(text));
        }
        assert_eq!(Change::of(&json!({}), 1), None);
    }
}
