//! Entries in the text of a JSON file, with or without comments. All other text stays as it is.

use jsonc_parser::{
    ParseOptions,
    cst::{CstInputValue, CstObject, CstRootNode},
};
use serde_json::{Map, Value};

use super::TextProblem;

/// Some editors write it at the beginning.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// JSON as editors write it: with comments and trailing commas, and no other liberty.
const OPTIONS: ParseOptions = ParseOptions {
    allow_comments: true,
    allow_trailing_commas: true,
    allow_loose_object_property_names: false,
    allow_missing_commas: false,
    allow_single_quoted_strings: false,
    allow_hexadecimal_numbers: false,
    allow_unary_plus_numbers: false,
    allow_bare_decimal_point_numbers: false,
    allow_non_finite_numbers: false,
    allow_extended_string_escapes: false,
};

/// The text of a file with this entry alone.
pub(super) fn alone(table: &str, name: &str, entry: &Value) -> String {
    let servers = Value::from(Map::from_iter([(name.to_owned(), entry.clone())]));
    let root = Value::from(Map::from_iter([(table.to_owned(), servers)]));
    format!("{root:#}\n")
}

pub(super) fn find(text: &str, table: &str, name: &str) -> Result<Option<Value>, TextProblem> {
    let root = parse(text)?;
    let Some(servers) = servers(&root, table)? else { return Ok(None) };
    let entry = servers.get(name).and_then(|entry| entry.value());
    Ok(entry.map(|entry| entry.to_serde_value().unwrap_or_default()))
}

pub(super) fn with(text: &str, table: &str, name: &str, entry: &Value) -> Result<String, TextProblem> {
    let root = parse(text)?;
    let is_new = servers(&root, table)?.is_none();
    let object = root.object_value_or_create().ok_or_else(|| not_an_object("the file"))?;
    let servers = object.object_value_or_create(table).ok_or_else(|| not_an_object(table))?;
    if is_new {
        servers.ensure_multiline();
    }
    match servers.get(name) {
        Some(present) => present.set_value(input(entry)),
        None => drop(servers.append(name, input(entry))),
    }
    Ok(marked(text, root.to_string()))
}

pub(super) fn without(text: &str, table: &str, name: &str) -> Result<String, TextProblem> {
    let root = parse(text)?;
    if let Some(entry) = servers(&root, table)?.and_then(|servers| servers.get(name)) {
        entry.remove();
    }
    Ok(marked(text, root.to_string()))
}

/// The table of servers, if there is one.
fn servers(root: &CstRootNode, table: &str) -> Result<Option<CstObject>, TextProblem> {
    let Some(value) = root.value() else { return Ok(None) };
    let object = value.as_object().ok_or_else(|| not_an_object("the file"))?;
    let Some(entry) = object.get(table) else { return Ok(None) };
    entry.object_value().map(Some).ok_or_else(|| not_an_object(table))
}

fn not_an_object(what: &str) -> TextProblem {
    let what = if what == "the file" { what.to_owned() } else { format!("`{what}`") };
    TextProblem::new(format!("{what} is not a JSON object"))
}

fn parse(text: &str) -> Result<CstRootNode, TextProblem> {
    CstRootNode::parse(text.trim_start_matches(BYTE_ORDER_MARK), &OPTIONS).map_err(|error| TextProblem {
        line: error.line_display(),
        column: error.column_display(),
        what: error.kind().to_string(),
    })
}

/// The new text with the mark that the old one begins with.
fn marked(before: &str, after: String) -> String {
    if before.starts_with(BYTE_ORDER_MARK) { format!("{BYTE_ORDER_MARK}{after}") } else { after }
}

fn input(value: &Value) -> CstInputValue {
    match value {
        Value::Null => CstInputValue::Null,
        Value::Bool(flag) => CstInputValue::Bool(*flag),
        Value::Number(number) => CstInputValue::Number(number.to_string()),
        Value::String(text) => CstInputValue::String(text.clone()),
        Value::Array(items) => CstInputValue::Array(items.iter().map(input).collect()),
        Value::Object(fields) => {
            CstInputValue::Object(fields.iter().map(|(key, value)| (key.clone(), input(value))).collect())
        }
    }
}
