//! Makes a tool's schema one that every API takes: an object at the top without combinators, properties with plain names,
//! references that lead somewhere, and keywords as the meta-schema has them (`tool/schema.rs`). Servers write what JSON Schema
//! allows, or less; the APIs refuse a whole request for one tool.
//!
//! Only requests have it. What the server gets is by its own schema: names are mapped there and back.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, OnceLock},
};

use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::{
    llm::{Message, ToolCall, ToolSpec},
    text::beginning,
    tool::{
        schema::{SchemaUse, mend},
        takes_objects,
    },
};

/// Keywords that APIs refuse at the top of a schema.
const COMBINATORS: [&str; 13] = [
    "anyOf",
    "oneOf",
    "allOf",
    "not",
    "enum",
    "const",
    "if",
    "then",
    "else",
    "dependentSchemas",
    "dependentRequired",
    "dependencies",
    "patternProperties",
];
/// The longest name of a property.
const MOST: usize = 64;
/// The most characters of a condition that is told in words.
const MOST_TOLD: usize = 1000;
/// How deep a schema is looked through.
const DEPTH: usize = 48;

/// The form in which a tool's schema is sent.
struct Fitted {
    schema: Map<String, Value>,
    /// A note for the description, about what the sent schema cannot say.
    note: Option<String>,
    /// Names of arguments that are sent under another name: from the sent name to the real one.
    names: HashMap<String, String>,
}

impl Fitted {
    fn new(parameters: &Map<String, Value>) -> Self {
        let (schema, note) = fit(parameters);
        Self { schema, note, names: names_of(parameters) }
    }
}

/// The form in which a tool is sent, made with the first request that offers it, for all clones of it.
#[derive(Clone, Default)]
pub(in crate::llm) struct FittedOnce(Arc<OnceLock<FittedSchema>>);

/// A schema, and what it is sent as.
type FittedSchema = (Arc<Map<String, Value>>, Arc<Fitted>);

impl FittedOnce {
    fn of(&self, parameters: &Arc<Map<String, Value>>) -> Arc<Fitted> {
        let new = || Arc::new(Fitted::new(parameters));
        let (of, fitted) = self.0.get_or_init(|| (parameters.clone(), new()));
        // Whoever owns a tool may give it another schema.
        if Arc::ptr_eq(of, parameters) { fitted.clone() } else { new() }
    }
}

/// It follows from the schema.
impl PartialEq for FittedOnce {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl fmt::Debug for FittedOnce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FittedOnce")
    }
}

/// The schema of a tool as it is sent, and what its description has to say beside it.
fn fit(schema: &Map<String, Value>) -> (Map<String, Value>, Option<String>) {
    let mut valid = schema.clone();
    mend(&mut valid, SchemaUse::ArgumentsAtOnce);
    let schema = &valid;
    let root = Value::Object(schema.clone());
    let mut top = resolved(schema, &root).clone();
    for key in ["$defs", "definitions"] {
        if let Some(definitions) = schema.get(key).filter(|_| !top.contains_key(key)) {
            top.insert(key.to_owned(), definitions.clone());
        }
    }
    let mut note = None;
    if !takes_objects(&top) {
        note = Some(told("Its arguments are described so", &Value::Object(top.clone())));
        top = Map::new();
    }
    let conditions: Map<String, Value> =
        COMBINATORS.iter().filter_map(|key| Some(((*key).to_owned(), top.shift_remove(*key)?))).collect();
    let mut properties = match top.shift_remove("properties") {
        Some(Value::Object(properties)) => properties,
        _ => Map::new(),
    };
    let mut required: Vec<Value> = match top.shift_remove("required") {
        Some(Value::Array(required)) => required,
        _ => Vec::new(),
    };
    let merged = merge(&conditions, &root, &mut properties, &mut required);
    if !conditions.is_empty() && !merged {
        note = Some(told("Its arguments must match this too", &Value::Object(conditions)));
    }
    let mut fitted = Map::from_iter([("type".to_owned(), Value::from("object"))]);
    // OpenAI refuses an object without them.
    fitted.insert("properties".to_owned(), Value::Object(properties));
    if !required.is_empty() {
        fitted.insert("required".to_owned(), Value::Array(required));
    }
    top.shift_remove("type");
    top.shift_remove("$ref");
    fitted.extend(top);
    let mut fitted = Value::Object(fitted);
    plain(&mut fitted, &root, 0);
    match fitted {
        Value::Object(fitted) => (ordered(fitted, schema), note),
        _ => (Map::new(), note),
    }
}

/// The keys in the order that the server wrote them in, the others behind.
fn ordered(mut fitted: Map<String, Value>, like: &Map<String, Value>) -> Map<String, Value> {
    let known: Vec<(String, Value)> =
        like.keys().filter_map(|key| Some((key.clone(), fitted.shift_remove(key)?))).collect();
    known.into_iter().chain(fitted).collect()
}

fn told(what: &str, schema: &Value) -> String {
    format!("{what}: {}", beginning(&schema.to_string(), MOST_TOLD))
}

/// The schema that a bare reference leads to.
fn resolved<'a>(schema: &'a Map<String, Value>, root: &'a Value) -> &'a Map<String, Value> {
    let mut found = schema;
    for _ in 0..DEPTH {
        let Some(next) = found.get("$ref").and_then(Value::as_str).and_then(|to| target(to, root)) else {
            break;
        };
        found = next;
    }
    found
}

fn target<'a>(reference: &str, root: &'a Value) -> Option<&'a Map<String, Value>> {
    root.pointer(reference.strip_prefix('#')?)?.as_object()
}

/// Takes the properties of all variants in. Whether nothing of the conditions is lost by that.
fn merge(
    conditions: &Map<String, Value>,
    root: &Value,
    properties: &mut Map<String, Value>,
    required: &mut Vec<Value>,
) -> bool {
    let mut whole = true;
    for (key, condition) in conditions {
        let ("anyOf" | "oneOf" | "allOf", Value::Array(variants)) = (key.as_str(), condition) else {
            whole = false;
            continue;
        };
        whole &= key == "allOf" || variants.len() < 2;
        let objects = variants.iter().filter_map(Value::as_object).map(|variant| resolved(variant, root));
        let mut common: Option<Vec<Value>> = None;
        for variant in objects {
            if let Some(Value::Object(more)) = variant.get("properties") {
                for (name, schema) in more {
                    properties.entry(name.clone()).or_insert_with(|| schema.clone());
                }
            }
            whole &= COMBINATORS.iter().all(|key| !variant.contains_key(*key));
            let needs: Vec<Value> =
                variant.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
            common = Some(match common {
                None => needs,
                Some(known) if key == "allOf" => known.into_iter().chain(needs).collect(),
                Some(known) => known.into_iter().filter(|name| needs.contains(name)).collect(),
            });
        }
        for name in common.into_iter().flatten().filter(Value::is_string) {
            if !required.contains(&name) {
                required.push(name);
            }
        }
    }
    whole
}

/// Gives all properties plain names and schemas, and takes references away that lead nowhere.
fn plain(schema: &mut Value, root: &Value, depth: usize) {
    let Value::Object(fields) = schema else {
        // `true` and what is no schema: anything goes.
        if *schema != Value::Bool(false) {
            *schema = json!({});
        }
        return;
    };
    if depth > DEPTH {
        *schema = json!({});
        return;
    }
    let leads = |reference: &Value| reference.as_str().and_then(|to| target(to, root)).is_some();
    if fields.get("$ref").is_some_and(|reference| !leads(reference)) {
        fields.shift_remove("$ref");
    }
    if let Some(Value::Object(properties)) = fields.get_mut("properties") {
        for (name, mut property) in std::mem::take(properties) {
            plain(&mut property, root, depth + 1);
            let sent = plain_name(&name);
            if let (Value::Object(property), true) = (&mut property, sent != name) {
                let known = property.get("description").and_then(Value::as_str).unwrap_or_default();
                let described = format!("{known} (its name: {name})").trim_start().to_owned();
                property.insert("description".to_owned(), described.into());
            }
            properties.insert(sent, property);
        }
    }
    if let Some(Value::Array(required)) = fields.get_mut("required") {
        for name in required {
            if let Some(sent) = name.as_str().filter(|name| !is_plain(name)).map(plain_name) {
                *name = sent.into();
            }
        }
    }
    for key in ["items", "additionalProperties", "contains", "not"] {
        if let Some(inner) = fields.get_mut(key).filter(|inner| inner.is_object()) {
            plain(inner, root, depth + 1);
        }
    }
    for key in ["anyOf", "oneOf", "allOf", "prefixItems"] {
        if let Some(Value::Array(variants)) = fields.get_mut(key) {
            for variant in variants {
                plain(variant, root, depth + 1);
            }
        }
    }
    for key in ["$defs", "definitions"] {
        if let Some(Value::Object(definitions)) = fields.get_mut(key) {
            definitions.values_mut().for_each(|definition| plain(definition, root, depth + 1));
        }
    }
}

fn is_plain(name: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    !name.is_empty() && name.len() <= MOST && name.bytes().all(legal)
}

/// A name that every API takes: the same for the same name, wherever it stands, and another one for another.
fn plain_name(name: &str) -> String {
    if is_plain(name) {
        return name.to_owned();
    }
    let legal = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-') { c } else { '_' };
    let begin: String = name.chars().map(legal).collect();
    let begin = begin.trim_matches('_');
    let begin = if begin.is_empty() { "arg" } else { &begin[..begin.len().min(MOST - 9)] };
    let [a, b, c, d, ..] = Sha256::digest(name.as_bytes())[..] else { unreachable!("a digest has 32 bytes") };
    format!("{begin}_{:08x}", u32::from_be_bytes([a, b, c, d]))
}

/// Changes the names of arguments to those that are sent, or back. `names`: from one to the other.
fn rename(value: &mut Value, names: &HashMap<String, String>) {
    match value {
        Value::Object(fields) => {
            for (name, mut inner) in std::mem::take(fields) {
                rename(&mut inner, names);
                fields.insert(names.get(&name).cloned().unwrap_or(name), inner);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| rename(item, names)),
        _ => {}
    }
}

/// The names of properties in `schema`, at any depth, that are sent as others.
fn renamed(schema: &Value, depth: usize, found: &mut HashMap<String, String>) {
    match schema {
        Value::Object(fields) if depth <= DEPTH => {
            if let Some(Value::Object(properties)) = fields.get("properties") {
                let strange = properties.keys().filter(|name| !is_plain(name));
                found.extend(strange.map(|name| (plain_name(name), name.clone())));
            }
            fields.values().for_each(|inner| renamed(inner, depth + 1, found));
        }
        Value::Array(items) if depth <= DEPTH => {
            for item in items {
                renamed(item, depth + 1, found);
            }
        }
        _ => {}
    }
}

/// The names of the arguments of a tool that are sent as others: what is sent, and what is meant.
fn names_of(parameters: &Map<String, Value>) -> HashMap<String, String> {
    let mut found = HashMap::new();
    for inner in parameters.values() {
        renamed(inner, 0, &mut found);
    }
    if let Some(Value::Object(properties)) = parameters.get("properties") {
        let strange = properties.keys().filter(|name| !is_plain(name));
        found.extend(strange.map(|name| (plain_name(name), name.clone())));
    }
    found
}

/// Gives the arguments of a model's calls the names that their tools know.
pub(in crate::llm) fn restore(calls: &mut [ToolCall], tools: &[ToolSpec]) {
    for call in calls {
        let Some(spec) = tools.iter().find(|spec| spec.name == call.name) else { continue };
        let names = &spec.fitted.of(&spec.parameters).names;
        if names.is_empty() || !names.keys().any(|sent| call.arguments.contains(sent.as_str())) {
            continue;
        }
        if let Ok(mut arguments) = serde_json::from_str::<Value>(&call.arguments) {
            rename(&mut arguments, names);
            call.arguments = arguments.to_string();
        }
    }
}

/// The conversation with the arguments of its calls named as they are sent. `None`: there is no difference.
pub(in crate::llm) fn sent(messages: &[Message], tools: &[ToolSpec]) -> Option<Vec<Message>> {
    let fitted = tools.iter().map(|spec| (spec.name.as_str(), spec.fitted.of(&spec.parameters)));
    let back = |fitted: &Fitted| -> HashMap<String, String> {
        fitted.names.iter().map(|(sent, name)| (name.clone(), sent.clone())).collect()
    };
    let strange: Vec<(&str, HashMap<String, String>)> = fitted
        .filter(|(_, fitted)| !fitted.names.is_empty())
        .map(|(name, fitted)| (name, back(&fitted)))
        .collect();
    if strange.is_empty() {
        return None;
    }
    let mut messages = messages.to_vec();
    for message in &mut messages {
        let Message::Assistant { tool_calls, .. } = message else { continue };
        for call in tool_calls {
            let names = strange.iter().find(|(name, _)| *name == call.name).map(|(_, names)| names);
            if let (Some(names), Ok(mut arguments)) = (names, serde_json::from_str::<Value>(&call.arguments))
            {
                rename(&mut arguments, names);
                call.arguments = arguments.to_string();
            }
        }
    }
    Some(messages)
}

/// A tool as it is sent: its description, and the schema of its arguments.
pub(super) fn described(spec: &ToolSpec) -> (String, Map<String, Value>) {
    let fitted = spec.fitted.of(&spec.parameters);
    let description = match &fitted.note {
        Some(note) if spec.description.is_empty() => note.clone(),
        Some(note) => format!("{}\n{note}", spec.description),
        None => spec.description.clone(),
    };
    (description, fitted.schema.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fitted(schema: Value) -> (Value, Option<String>) {
        let Value::Object(schema) = schema else { panic!("a schema is an object") };
        let (schema, note) = fit(&schema);
        (Value::Object(schema), note)
    }

    #[test]
    fn every_schema_becomes_a_plain_object() {
        for schema in [
            json!({}),
            json!({"type": "string", "description": "the title"}),
            json!({"type": ["object", "null"], "properties": null}),
            json!({"type": null, "properties": [], "required": null}),
            json!({"anyOf": [{"type": "object", "properties": {"a": {"type": "string"}}}, {"properties": {"b": true}}]}),
            json!({"type": "object", "not": {"required": ["a"]}, "properties": {"a": null, "b": 7}}),
            json!({"enum": [1, 2]}),
            json!({"$ref": "#/$defs/A", "$defs": {"A": {"type": "object", "properties": {"x": {"$ref": "#/$defs/B"}}}}}),
            json!({"$ref": "https://example.com/schema.json"}),
            json!({"type": "object", "properties": {"$filter": {"type": "string"}, "\u{67e5}": {}}, "required": ["$filter", 3]}),
        ] {
            let (fit, _) = fitted(schema.clone());
            assert_eq!(fit["type"], "object", "{schema}");
            assert!(COMBINATORS.iter().all(|key| fit.get(*key).is_none()), "{schema}: {fit}");
            assert!(fit.get("$ref").is_none(), "{schema}: {fit}");
            let properties = fit.get("properties").map(|properties| properties.as_object().unwrap());
            for (name, property) in properties.into_iter().flatten() {
                assert!(is_plain(name) && property.is_object(), "{schema}: {fit}");
                assert_ne!(property.get("$ref"), Some(&json!("#/$defs/B")), "{schema}: {fit}");
            }
            let required = fit.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
            assert!(required.iter().all(|name| is_plain(name.as_str().unwrap())), "{schema}: {fit}");
            let Value::Object(once) = fit.clone() else { unreachable!() };
            assert_eq!(Value::Object(fit_again(&once)), fit, "{schema}");
        }
        let plain = json!({"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {"a": {"type": "string"}},
            "required": ["a"], "additionalProperties": false});
        assert_eq!(fitted(plain.clone()), (plain, None), "nothing changes where nothing has to");
    }

    #[test]
    fn a_schema_is_fitted_once_and_anew_for_another() {
        let parameters = |name: &str| match json!({"type": "object", "properties": {name: {}}}) {
            Value::Object(schema) => Arc::new(schema),
            _ => unreachable!(),
        };
        let spec = ToolSpec::new("t", "", parameters("a"));
        let (first, mut clone) = (spec.fitted.of(&spec.parameters), spec.clone());
        assert!(Arc::ptr_eq(&first, &clone.fitted.of(&clone.parameters)));
        clone.parameters = parameters("b");
        assert!(described(&clone).1["properties"].get("b").is_some());
        assert!(described(&spec).1["properties"].get("a").is_some());
    }

    fn fit_again(schema: &Map<String, Value>) -> Map<String, Value> {
        fit(schema).0
    }

    #[test]
    fn keywords_that_are_none_reach_no_api() {
        let (fit, note) = fitted(
            json!({"$schema": "https://example.com/none", "type": "thing", "required": true, "properties": {
                "a": {"type": "str", "required": true}, "b": {"$ref": "#/none", "description": "kept"}, "c": {"type": "array"},
            }}),
        );
        let properties = json!({"a": {}, "b": {"description": "kept"}, "c": {"type": "array", "items": {}}});
        assert_eq!((fit, note), (json!({"type": "object", "properties": properties}), None));
    }

    #[test]
    fn variants_are_merged_and_conditions_told() {
        let object = |name: &str| json!({"type": "object", "properties": {name: {"type": "string"}}, "required": [name, "z"]});
        let (any, note) = fitted(json!({"anyOf": [object("a"), object("b")]}));
        let keys: Vec<&str> = any["properties"].as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!((keys, &any["required"]), (vec!["a", "b"], &json!(["z"])));
        assert!(note.unwrap().contains("anyOf"));
        let (all, note) = fitted(json!({"allOf": [object("a"), object("b")]}));
        assert_eq!((&all["required"], note), (&json!(["a", "z", "b"]), None));
    }

    #[test]
    fn names_of_arguments_are_mapped_there_and_back() {
        let Value::Object(schema) = json!({"type": "object", "properties": {
            "$filter": {"type": "string"}, "list": {"type": "array", "items": {"type": "object",
            "properties": {"\u{67e5}\u{8be2}": {"type": "string"}}}}}, "required": ["$filter"]})
        else {
            unreachable!()
        };
        let spec = ToolSpec::new("t", "", Arc::new(schema));
        let (_, sent_schema) = described(&spec);
        let filter = plain_name("$filter");
        assert_eq!(sent_schema["required"], json!([filter]));
        let inner = sent_schema["properties"]["list"]["items"]["properties"].as_object().unwrap();
        let query = inner.keys().next().unwrap().clone();
        assert!(is_plain(&query) && query.starts_with("arg_"), "{query}");
        let own = r#"{"$filter":"x","list":[{"\u{67e5}\u{8be2}":"y"}]}"#
            .replace("\\u{67e5}\\u{8be2}", "\u{67e5}\u{8be2}");
        let own = ToolCall::new("c", "t", own);
        let messages = sent(&[Message::said("", vec![own.clone()])], std::slice::from_ref(&spec)).unwrap();
        let Message::Assistant { tool_calls, .. } = &messages[0] else { unreachable!() };
        assert!(tool_calls[0].arguments.contains(&filter) && tool_calls[0].arguments.contains(&query));
        let mut back = tool_calls.clone();
        restore(&mut back, std::slice::from_ref(&spec));
        assert_eq!(back, [own]);
        let none = ToolSpec::new("u", "", Arc::new(Map::new()));
        assert!(sent(&[], &[none]).is_none());
    }
}
