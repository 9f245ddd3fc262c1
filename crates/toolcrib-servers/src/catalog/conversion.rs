//! Converts arguments that are texts where the schema wants something else, as servers do themselves: models and clients write
//! `"5"` for a number and `"[1]"` for a list. Only what has exactly one reading under the schema is converted, and never
//! where a text is allowed; what comes of it is checked once more.

use serde_json::{Map, Value};

use super::CatalogEntry;

/// Schemas and values that are looked at for one call.
const MOST_STEPS: usize = 20_000;
/// Values within each other.
const DEEPEST: usize = 64;
/// References that are followed in a row.
const MOST_REFERENCES: usize = 16;
/// Longest text that is read as a list or an object.
const LONGEST: usize = 4 << 20;

/// A text that was converted: where it was, what it was, and what it is.
#[derive(Debug, PartialEq)]
pub struct Conversion {
    /// The place in the arguments.
    pub path: String,
    /// The type that the model wrote.
    pub from: String,
    /// The type that the schema wants.
    pub to: String,
}

impl CatalogEntry {
    /// `arguments` with texts read as the schema wants them, and which those were. They may still not fit.
    #[doc(hidden)]
    pub fn converted(&self, arguments: &Map<String, Value>) -> (Map<String, Value>, Vec<Conversion>) {
        let root = &self.tool.input_schema;
        let mut work = Work { root, steps: 0, at: Vec::new(), done: Vec::new() };
        let mut arguments = arguments.clone();
        work.object(root, &mut arguments);
        (arguments, work.done)
    }
}

struct Work<'s> {
    root: &'s Map<String, Value>,
    steps: usize,
    at: Vec<String>,
    done: Vec<Conversion>,
}

impl<'s> Work<'s> {
    fn within(&mut self, name: String, schema: &'s Value, value: &mut Value) {
        self.steps += 1;
        if self.steps <= MOST_STEPS && self.at.len() < DEEPEST {
            self.at.push(name);
            self.value(schema, value);
            self.at.pop();
        }
    }

    fn object(&mut self, schema: &'s Map<String, Value>, object: &mut Map<String, Value>) {
        let properties = schema.get("properties").and_then(Value::as_object);
        let others = schema.get("additionalProperties").filter(|others| others.is_object());
        for (name, value) in object {
            if let Some(of) = properties.and_then(|properties| properties.get(name)).or(others) {
                self.within(name.clone(), of, value);
            }
        }
    }

    fn value(&mut self, schema: &'s Value, value: &mut Value) {
        let mut forms = Vec::new();
        self.forms(schema, MOST_REFERENCES, &mut forms);
        if let Value::String(text) = value {
            let mut kinds = Kinds::default();
            for form in &forms {
                kinds.add(form);
            }
            let Some(read) = kinds.read(text) else { return };
            let to =
                if read.is_object() || read.is_array() { text.trim().to_owned() } else { read.to_string() };
            let from = Value::String(std::mem::take(text)).to_string();
            self.done.push(Conversion { path: self.at.join("/"), from, to });
            *value = read;
        }
        // With several forms it is not known which of them is meant.
        let mut fitting = forms.into_iter().filter(|form| may_be(form, value));
        let (Some(form), None) = (fitting.next(), fitting.next()) else { return };
        match value {
            Value::Object(object) => self.object(form, object),
            Value::Array(entries) => {
                let first = form.get("prefixItems").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
                for (place, entry) in entries.iter_mut().enumerate() {
                    if let Some(of) = first.get(place).or(form.get("items")) {
                        self.within(place.to_string(), of, entry);
                    }
                }
            }
            _ => {}
        }
    }

    /// The alternatives of a schema, references followed.
    fn forms(&mut self, schema: &'s Value, left: usize, forms: &mut Vec<&'s Map<String, Value>>) {
        self.steps += 1;
        let Value::Object(schema) = schema else { return };
        if left == 0 || self.steps > MOST_STEPS {
            return;
        }
        if let Some(target) = schema.get("$ref").and_then(Value::as_str).and_then(|path| self.target(path)) {
            return self.forms(target, left - 1, forms);
        }
        let list = |key: &str| schema.get(key).and_then(Value::as_array);
        match (list("anyOf").or(list("oneOf")), list("allOf").map(Vec::as_slice)) {
            (Some(several), _) => several.iter().for_each(|one| self.forms(one, left - 1, forms)),
            // As some libraries write a reference with a description.
            (None, Some([one])) if !schema.contains_key("type") => self.forms(one, left - 1, forms),
            _ => forms.push(schema),
        }
    }

    /// The schema that a reference within the schema leads to.
    fn target(&self, path: &str) -> Option<&'s Value> {
        let path = path.strip_prefix("#/")?;
        // The root is a map, which has no pointers.
        let (first, rest) = path.split_at(path.find('/').unwrap_or(path.len()));
        self.root.get(&first.replace("~1", "/").replace("~0", "~"))?.pointer(rest)
    }
}

/// The kinds of values that a schema allows.
#[derive(Debug, Default)]
struct Kinds {
    names: Vec<&'static str>,
    /// Some form does not say.
    is_open: bool,
}

const KINDS: [&str; 7] = ["string", "integer", "number", "boolean", "null", "array", "object"];

impl Kinds {
    fn add(&mut self, form: &Map<String, Value>) {
        let known = self.names.len();
        match form.get("type") {
            Some(Value::String(kind)) => self.names.extend(KINDS.iter().filter(|known| *known == kind)),
            Some(Value::Array(kinds)) => {
                self.names.extend(KINDS.iter().filter(|known| kinds.iter().any(|kind| kind == **known)));
            }
            _ => {
                let values = form.get("enum").and_then(Value::as_array).map(Vec::as_slice);
                let one = form.get("const").map(std::slice::from_ref);
                self.names.extend(values.or(one).unwrap_or_default().iter().map(kind_of));
            }
        }
        self.is_open |= self.names.len() == known;
    }

    fn has(&self, name: &str) -> bool {
        self.names.contains(&name)
    }

    /// The one value that `text` can mean.
    fn read(&self, text: &str) -> Option<Value> {
        if self.is_open || self.names.is_empty() || self.has("string") || text.len() > LONGEST {
            return None;
        }
        let text = text.trim();
        let value = match text {
            "True" => Value::Bool(true),
            "False" => Value::Bool(false),
            "None" => Value::Null,
            text => serde_json::from_str(text).ok()?,
        };
        let written = value.to_string();
        let is_wanted = match kind_of(&value) {
            "integer" => (self.has("integer") || self.has("number")) && written == text,
            "number" => self.has("number") && is_exact(text),
            kind => self.has(kind),
        };
        is_wanted.then_some(value)
    }
}

/// Whether a number keeps all its digits.
fn is_exact(text: &str) -> bool {
    let digits = text.split(['e', 'E']).next().unwrap_or_default();
    digits.bytes().filter(u8::is_ascii_digit).count() <= 15
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "string",
        Value::Number(number) => {
            let is_whole = !number.to_string().contains(['.', 'e', 'E']);
            if is_whole { "integer" } else { "number" }
        }
        Value::Bool(_) => "boolean",
        Value::Null => "null",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Whether a form allows a value of this kind, as far as it says.
fn may_be(form: &Map<String, Value>, value: &Value) -> bool {
    let mut kinds = Kinds::default();
    kinds.add(form);
    kinds.is_open || kinds.has(kind_of(value))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tool::{ServerName, Tool};

    fn entry(properties: &Value) -> CatalogEntry {
        let schema = json!({"type": "object", "properties": properties, "$defs": {
            "count": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"},
            "tree": {"type": "object", "properties": {"n": {"type": "integer"}, "of": {"$ref": "#/$defs/tree"}}},
        }});
        let Value::Object(schema) = schema else { unreachable!() };
        CatalogEntry::new("s__t".to_owned(), ServerName::new("s").unwrap(), Tool::new("t", "", schema))
    }

    /// The value that an argument of this schema is converted to.
    fn read(schema: &Value, value: &Value) -> Value {
        let arguments = Map::from_iter([("a".to_owned(), value.clone())]);
        let (converted, done) = entry(&json!({"a": schema})).converted(&arguments);
        assert_eq!(converted["a"] == *value, done.is_empty());
        converted["a"].clone()
    }

    #[test]
    fn texts_with_one_reading_are_converted() {
        let (whole, number, truth) =
            (json!({"type": "integer"}), json!({"type": "number"}), json!({"type": "boolean"}));
        let list = json!({"type": "array", "items": whole});
        let maybe = json!({"anyOf": [whole, {"type": "null"}]});
        let tree = json!({"$ref": "#/$defs/tree"});
        for (schema, text, value) in [
            (&whole, "5", json!(5)),
            (&whole, " -5 ", json!(-5)),
            (&whole, "18446744073709551615", json!(u64::MAX)),
            (&number, "1.5", json!(1.5)),
            (&number, "5", json!(5)),
            (&truth, "true", json!(true)),
            (&truth, "False", json!(false)),
            (&maybe, "null", json!(null)),
            (&maybe, "7", json!(7)),
            (&list, "[1, \"2\"]", json!([1, 2])),
            (&tree, "{\"n\":\"1\",\"of\":\"{\\\"n\\\":\\\"2\\\"}\"}", json!({"n": 1, "of": {"n": 2}})),
            (&json!({"$ref": "#/$defs/count"}), "3", json!(3)),
            (&json!({"allOf": [{"$ref": "#/$defs/count"}], "description": "d"}), "3", json!(3)),
            (&json!({"enum": [1, 2]}), "2", json!(2)),
            (&json!({"type": ["integer", "null"]}), "2", json!(2)),
        ] {
            assert_eq!(read(schema, &json!(text)), value, "{schema} {text}");
        }
        let within = json!({"type": "object", "additionalProperties": {"type": "array", "prefixItems": [whole], "items": truth}});
        assert_eq!(read(&within, &json!({"x": ["1", "true"]})), json!({"x": [1, true]}));
    }

    #[test]
    fn what_may_be_a_text_or_has_no_reading_stays() {
        let (whole, number) = (json!({"type": "integer"}), json!({"type": "number"}));
        for (schema, text) in [
            (json!({"type": "string"}), "5"),
            (json!({"type": ["string", "integer"]}), "5"),
            (json!({"anyOf": [{"type": "integer"}, {"type": "string"}]}), "5"),
            (json!({"anyOf": [{"type": "integer"}, {"description": "anything"}]}), "5"),
            (json!({"enum": ["1", 1]}), "1"),
            (json!({}), "5"),
            (json!(true), "5"),
            (json!({"$ref": "#/$defs/loop"}), "5"),
            (json!({"$ref": "other.json"}), "5"),
            (whole.clone(), "five"),
            (whole.clone(), "5.0"),
            (whole.clone(), "05"),
            (whole.clone(), "1e3"),
            (whole.clone(), ""),
            (whole.clone(), "null"),
            (whole, "[5]"),
            (number, "0.12345678901234567890"),
            (json!({"type": "array"}), "a, b"),
            (json!({"type": "array"}), "[1"),
            (json!({"type": "object"}), "[]"),
        ] {
            assert_eq!(read(&schema, &json!(text)), json!(text), "{schema}");
        }
        // Digits that cannot be kept are not lost.
        let kept = read(&json!({"type": "integer"}), &json!("123456789012345678901234567890"));
        assert_eq!(kept.to_string().trim_matches('"'), "123456789012345678901234567890");
    }

    #[test]
    fn each_conversion_says_where_and_what() {
        let list = json!({"type": "array", "items": {"type": "integer"}});
        let arguments = Map::from_iter([("l".to_owned(), json!("[\"1\"]")), ("t".to_owned(), json!("1"))]);
        let (_, done) = entry(&json!({"l": list, "t": {"type": "string"}})).converted(&arguments);
        let said: Vec<_> = done.iter().map(|it| (&*it.path, &*it.from, &*it.to)).collect();
        assert_eq!(said, [("l", r#""[\"1\"]""#, r#"["1"]"#), ("l/0", "\"1\"", "1")]);
    }
}
