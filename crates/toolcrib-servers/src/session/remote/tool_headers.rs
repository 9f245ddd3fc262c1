//! Headers that repeat what a request of the revision 2026-07-28 says, for those between us and the server:
//! `Mcp-Method`, `Mcp-Name`, and `Mcp-Param-*` for the arguments that a tool's schema marks with `x-mcp-header`.

use std::collections::HashSet;

use base64::{Engine, prelude::BASE64_STANDARD};
use hyper::{
    HeaderMap,
    header::{HeaderName, HeaderValue},
};
use serde_json::{Map, Value};

use super::http::PROTOCOL_VERSION;
use crate::{
    json_rpc::RawObject,
    session::{
        connect::handshake::PROTOCOL_VERSION_KEY,
        rpc::requests::{OutgoingRequest, RequestParams},
    },
};

const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");
const PARAM: &str = "mcp-param-";
/// The key in a schema.
const MARK: &str = "x-mcp-header";
/// The integers that may be marked: those that a double has exactly.
const MAX_INTEGER: f64 = 9_007_199_254_740_991.0;

type Object = Map<String, Value>;

/// Adds the headers of a request: its method, what it names, and marked arguments.
pub(super) fn add(headers: &mut HeaderMap, request: &OutgoingRequest<'_>) {
    headers.insert(METHOD, encoded(request.method));
    match request.params {
        RequestParams::Arguments(arguments, _) => {
            if let Some(tool) = request.tool {
                headers.insert(NAME, encoded(&tool.name));
                add_arguments(headers, &tool.input_schema, arguments);
            }
        }
        RequestParams::Written(params, meta) => {
            if let Some(name) = name(request.method, params) {
                headers.insert(NAME, encoded(&name));
            }
            if let Some(tool) = request.tool.filter(|tool| has_marks(&tool.input_schema))
                && let Some(arguments) = params.read("arguments")
            {
                add_arguments(headers, &tool.input_schema, &arguments);
            }
            // The header repeats what the request says.
            let version = meta.read::<String>(PROTOCOL_VERSION_KEY);
            if let Some(version) = version.and_then(|version| HeaderValue::try_from(version).ok()) {
                headers.insert(PROTOCOL_VERSION, version);
            }
        }
        RequestParams::Members(_) | RequestParams::Handshake(_) => {}
    }
}

/// The name that a request with these parameters has in the headers.
fn name(method: &str, params: &RawObject) -> Option<String> {
    params.read(match method {
        "tools/call" | "prompts/get" => "name",
        "resources/read" => "uri",
        "tasks/get" | "tasks/update" | "tasks/cancel" => "taskId",
        _ => return None,
    })
}

/// Whether a schema marks any argument.
fn has_marks(schema: &Object) -> bool {
    let properties = schema.get("properties").and_then(Value::as_object);
    let marks = |property: &Object| property.contains_key(MARK) || has_marks(property);
    properties.is_some_and(|properties| properties.values().filter_map(Value::as_object).any(marks))
}

/// Adds the arguments that the schema of a tool marks.
fn add_arguments(headers: &mut HeaderMap, schema: &Object, arguments: &Object) {
    let (Some(Value::Object(properties)), true) = (schema.get("properties"), !arguments.is_empty()) else {
        return;
    };
    for (name, property) in properties {
        let (Some(value), Some(property)) = (arguments.get(name), property.as_object()) else { continue };
        if let Some(Value::String(header)) = property.get(MARK)
            && let Ok(header) = HeaderName::try_from(format!("{PARAM}{header}"))
            && let Some(text) = text(value)
        {
            headers.insert(header, encoded(&text));
        }
        if let Value::Object(inner) = value {
            add_arguments(headers, property, inner);
        }
    }
}

/// A value as a header has it. `None`: it is no text, integer or flag.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Number(number) => {
            let whole = number.as_f64().filter(|number| number.fract() == 0.0 && number.abs() <= MAX_INTEGER);
            whole.map(|number| format!("{number:.0}"))
        }
        _ => None,
    }
}

/// A value of a header, wrapped if it cannot stand there as it is.
fn encoded(text: &str) -> HeaderValue {
    const BEGIN: &str = "=?base64?";
    const END: &str = "?=";
    let plain = text.bytes().all(|byte| (0x20..0x7f).contains(&byte))
        && text.trim_ascii().len() == text.len()
        && !(text.starts_with(BEGIN) && text.ends_with(END));
    let wrapped = || format!("{BEGIN}{}{END}", BASE64_STANDARD.encode(text));
    let value = HeaderValue::try_from(if plain { text.to_owned() } else { wrapped() });
    value.unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// Whether the marks in the schema of a tool are what they may be.
///
/// # Errors
/// Why the tool is not to be used, in words.
pub(super) fn check(schema: &Object) -> Result<(), String> {
    let mut known = HashSet::new();
    look(schema, true, true, &mut known)
}

/// Looks through a schema: `root`, or `reached` from it by `properties` alone.
fn look(schema: &Object, root: bool, reached: bool, known: &mut HashSet<String>) -> Result<(), String> {
    if let Some(mark) = schema.get(MARK) {
        if root || !reached {
            return Err(format!("its schema has `{MARK}` where it does not stand for one argument"));
        }
        check_mark(mark, schema, known)?;
    }
    for (key, value) in schema {
        match (key.as_str(), value) {
            // Data.
            (MARK | "default" | "const" | "enum" | "examples" | "dependentRequired", _) => {}
            ("properties", Value::Object(properties)) => look_each(properties.values(), reached, known)?,
            (
                "$defs" | "definitions" | "dependencies" | "dependentSchemas" | "patternProperties",
                Value::Object(schemas),
            ) => look_each(schemas.values(), false, known)?,
            (_, Value::Object(schema)) => look(schema, false, false, known)?,
            (_, Value::Array(schemas)) => look_each(schemas.iter(), false, known)?,
            _ => {}
        }
    }
    Ok(())
}

fn look_each<'a>(
    schemas: impl Iterator<Item = &'a Value>,
    reached: bool,
    known: &mut HashSet<String>,
) -> Result<(), String> {
    schemas.filter_map(Value::as_object).try_for_each(|schema| look(schema, false, reached, known))
}

fn check_mark(mark: &Value, schema: &Object, known: &mut HashSet<String>) -> Result<(), String> {
    let Some(header) = mark.as_str().filter(|header| !header.is_empty()) else {
        return Err(format!("`{MARK}` in its schema is not a name"));
    };
    // What a name of a header may hold.
    if !header.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)) {
        return Err(format!("`{MARK}` in its schema is not the name of a header: {header:?}"));
    }
    if !known.insert(header.to_ascii_lowercase()) {
        return Err(format!("its schema has `{MARK}` = {header:?} more than once"));
    }
    match schema.get("type").and_then(Value::as_str) {
        Some("string" | "integer" | "boolean") => Ok(()),
        _ => Err(format!("`{MARK}` = {header:?} is for an argument that is no string, integer or boolean")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: &Value) -> Object {
        value.as_object().cloned().unwrap()
    }

    #[test]
    fn marked_arguments_become_headers() {
        let marked = |name: &str, kind: &str| json!({"type": kind, "x-mcp-header": name});
        let schema = object(&json!({"properties": {
            "region": marked("Region", "string"), "priority": marked("Priority", "integer"),
            "verbose": marked("Verbose", "boolean"), "empty": marked("Empty", "string"),
            "greeting": marked("Greeting", "string"), "padded": marked("Padded", "string"),
            "tab": marked("Tab", "string"), "literal": marked("Literal", "string"),
            "null": marked("Null", "string"), "missing": marked("Missing", "string"),
            "query": {"type": "string"},
            "inner": {"type": "object", "properties": {"deep": marked("Deep", "string")}},
        }}));
        assert_eq!(check(&schema), Ok(()));
        let arguments = object(&json!({
            "region": "us-west1", "priority": 42.0, "verbose": false, "empty": "", "greeting": "Hello, 世界",
            "padded": " padded ", "tab": "a\tb", "literal": "=?base64?literal?=", "null": null, "query": "x",
            "inner": {"deep": "in here"},
        }));
        let mut headers = HeaderMap::new();
        add_arguments(&mut headers, &schema, &arguments);
        let mut found: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        found.sort_unstable();
        let expected = [
            ("mcp-param-deep", "in here"),
            ("mcp-param-empty", ""),
            ("mcp-param-greeting", "=?base64?SGVsbG8sIOS4lueVjA==?="),
            ("mcp-param-literal", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
            ("mcp-param-padded", "=?base64?IHBhZGRlZCA=?="),
            ("mcp-param-priority", "42"),
            ("mcp-param-region", "us-west1"),
            ("mcp-param-tab", "=?base64?YQli?="),
            ("mcp-param-verbose", "false"),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn marks_that_the_protocol_forbids_are_found() {
        let good = json!({"type": "string", "x-mcp-header": "Region"});
        for bad in [
            json!({"properties": {"a": {"type": "string", "x-mcp-header": ""}}}),
            json!({"properties": {"a": {"type": "string", "x-mcp-header": 1}}}),
            json!({"properties": {"a": {"type": "string", "x-mcp-header": "My Region"}}}),
            json!({"properties": {"a": {"type": "string", "x-mcp-header": "Région"}}}),
            json!({"properties": {"a": {"type": "string", "x-mcp-header": "Region\t1"}}}),
            json!({"properties": {"a": {"type": "number", "x-mcp-header": "A"}}}),
            json!({"properties": {"a": {"type": "object", "x-mcp-header": "A"}}}),
            json!({"properties": {"a": good, "b": {"type": "string", "x-mcp-header": "region"}}}),
            json!({"properties": {"a": {"type": "array", "items": good}}}),
            json!({"anyOf": [{"properties": {"a": good}}]}),
            json!({"$defs": {"a": good}}),
            json!({"dependencies": {"x-mcp-header": {"properties": {"a": good}}}}),
            json!({"x-mcp-header": "Root", "type": "object"}),
        ] {
            assert!(check(&object(&bad)).is_err(), "{bad}");
        }
        for fine in [
            json!({"properties": {"a": good, "x-mcp-header": {"type": "string"}}}),
            json!({"properties": {"a": {"type": "string", "default": {"x-mcp-header": ""}}}}),
            json!({"properties": {"a": good}, "dependentRequired": {"x-mcp-header": ["a"]}}),
            json!({"properties": {"a": good}, "dependencies": {"x-mcp-header": ["a"]}}),
        ] {
            assert_eq!(check(&object(&fine)), Ok(()), "{fine}");
        }
    }
}
