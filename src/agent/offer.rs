//! The tools that a model is offered, and what becomes of its calls before anything is run.

use std::{collections::HashMap, sync::Arc};

use serde_json::{Map, Value};

use crate::{
    catalog::{CatalogEntry, ToolCatalog},
    error::{Error, Result, nearest},
    llm::{Finish, ToolCall, ToolSpec},
};

/// So many names are told to a model that called an unknown tool.
const NAMES_SHOWN: usize = 50;

/// A call that may be run.
pub(super) struct Ready {
    pub entry: Arc<CatalogEntry>,
    pub arguments: Map<String, Value>,
}

/// The tools of one task. Made once, so that the prompt of all its turns begins with the same bytes, and again only
/// when the tools have changed: a server that was started by a call may list others than it did once.
pub(super) struct Offer {
    catalog: Arc<ToolCatalog>,
    entries: Vec<Arc<CatalogEntry>>,
    by_name: HashMap<String, usize>,
    specs: Arc<[ToolSpec]>,
}

impl Offer {
    /// The tools that one of `patterns` matches; without patterns all.
    pub(super) fn new(catalog: Arc<ToolCatalog>, patterns: Option<&[String]>) -> Result<Self> {
        let entries = match patterns {
            None => catalog.entries().to_vec(),
            Some(patterns) => catalog.select(patterns)?,
        };
        if let (Some(patterns), true) = (patterns, entries.is_empty())
            && !patterns.is_empty()
        {
            let help = "write them as `server.tool`, with `*` for any part";
            let what = format!("no tool matches `tools` = [{}]", patterns.join(", "));
            return Err(Error::input(what, Some(help.to_owned())));
        }
        let by_name =
            entries.iter().enumerate().map(|(index, entry)| (entry.visible_name.clone(), index)).collect();
        let specs = entries.iter().map(|entry| spec(entry)).collect();
        Ok(Self { catalog, entries, by_name, specs })
    }

    /// Goes over to `catalog`; says whether a model is offered something else from now on. What matches nothing any
    /// more stays: its calls say best what is wrong.
    pub(super) fn renew(&mut self, catalog: Arc<ToolCatalog>, patterns: Option<&[String]>) -> bool {
        if Arc::ptr_eq(&catalog, &self.catalog) {
            return false;
        }
        let Ok(next) = Self::new(catalog, patterns) else { return false };
        let other = *next.specs != *self.specs;
        *self = next;
        other
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn specs(&self) -> Arc<[ToolSpec]> {
        self.specs.clone()
    }

    /// The servers of these tools, each once, in order.
    pub(super) fn servers(&self) -> Vec<String> {
        let mut servers: Vec<String> = Vec::new();
        for entry in &self.entries {
            if !servers.iter().any(|known| known == entry.server.as_str()) {
                servers.push(entry.server.to_string());
            }
        }
        servers
    }

    /// A call as it can be run, or what the model is told instead.
    pub(super) fn check(&self, call: &ToolCall, finish: Finish) -> Result<Ready, String> {
        let entry = self.find(&call.name)?;
        if finish == Finish::Length {
            return Err(format!(
                "error: the answer was cut at the limit of tokens, so the arguments of `{}` may be incomplete; \
                 nothing was run. Call it again, with shorter arguments.",
                call.name
            ));
        }
        let text = if call.arguments.trim().is_empty() { "{}" } else { &call.arguments };
        let arguments = match serde_json::from_str::<Value>(text) {
            Ok(Value::Object(arguments)) => arguments,
            Ok(other) => {
                let found = shown(&other.to_string());
                return Err(format!(
                    "error: the arguments must be a JSON object, found `{found}`; nothing was run"
                ));
            }
            Err(error) => {
                return Err(format!("error: the arguments are not JSON: {error}; nothing was run"));
            }
        };
        match entry.check(&arguments) {
            Ok(()) => Ok(Ready { entry: entry.clone(), arguments }),
            Err(error) => Err(misfit(entry, &arguments, &error)),
        }
    }

    fn find(&self, name: &str) -> Result<&Arc<CatalogEntry>, String> {
        if let Some(index) = self.by_name.get(name) {
            return Ok(&self.entries[*index]);
        }
        let visible = || self.entries.iter().map(|entry| entry.visible_name.as_str());
        // Models write `server.tool` or the bare tool name: the right one is told, not guessed.
        let meant = self.entries.iter().find(|entry| entry.path() == name || entry.tool.name == name);
        let meant = meant.map(|entry| entry.visible_name.clone()).or_else(|| nearest(name, visible()));
        let mut text = format!("error: there is no tool `{name}`; nothing was run.");
        if let Some(meant) = meant {
            text.extend([" Did you mean `", meant.as_str(), "`?"]);
        }
        let names: Vec<&str> = visible().take(NAMES_SHOWN).collect();
        if !names.is_empty() {
            let more = if self.entries.len() > names.len() { ", ..." } else { "" };
            text.extend([" Tools: ", names.join(", ").as_str(), more]);
        }
        Err(text)
    }
}

fn misfit(entry: &CatalogEntry, arguments: &Map<String, Value>, error: &Error) -> String {
    let mut text = format!("error: {error}; nothing was run");
    for problem in error.causes() {
        text.extend(["\n- ", problem.as_str()]);
    }
    let Some(properties) = entry.tool.input_schema.get("properties").and_then(Value::as_object) else {
        return text;
    };
    for unknown in arguments.keys().filter(|name| !properties.contains_key(*name)) {
        let free = properties.keys().filter(|name| !arguments.contains_key(*name)).map(String::as_str);
        if let Some(meant) = nearest(unknown, free) {
            text.extend(["\n- did you mean `", meant.as_str(), "` instead of `", unknown.as_str(), "`?"]);
        }
    }
    text
}

fn shown(text: &str) -> String {
    text.chars().take(100).collect()
}

fn spec(entry: &CatalogEntry) -> ToolSpec {
    let tool = &entry.tool;
    let mut spec = ToolSpec::new(&entry.visible_name, &tool.description, tool.input_schema.clone());
    spec.strict = closed(&tool.input_schema);
    spec
}

/// Whether a schema is one of those that servers can hold a model to: objects all the way down that allow
/// nothing further and require everything.
fn closed(schema: &Map<String, Value>) -> bool {
    if schema.get("type") != Some(&Value::from("object")) || !closed_object(schema) {
        return false;
    }
    let definitions = ["$defs", "definitions"].iter().filter_map(|key| schema.get(*key)?.as_object());
    definitions.flat_map(Map::values).all(closed_value)
}

fn closed_object(schema: &Map<String, Value>) -> bool {
    let nothing_further = schema.get("additionalProperties") == Some(&Value::Bool(false));
    let empty = Map::new();
    let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&empty);
    let required = schema.get("required").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    nothing_further
        && properties.keys().all(|name| required.iter().any(|listed| listed == name))
        && properties.values().all(closed_value)
}

fn closed_value(schema: &Value) -> bool {
    let Value::Object(schema) = schema else { return false };
    if ["oneOf", "allOf", "not", "if", "patternProperties"].iter().any(|key| schema.contains_key(*key)) {
        return false;
    }
    let is_object = match schema.get("type") {
        Some(Value::String(name)) => name == "object",
        Some(Value::Array(names)) => names.iter().any(|name| name == "object"),
        _ => schema.contains_key("properties"),
    };
    let variants = schema.get("anyOf").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    // A schema that says nothing allows everything.
    let says = ["type", "anyOf", "enum", "const", "$ref", "properties"];
    says.iter().any(|key| schema.contains_key(*key))
        && (!is_object || closed_object(schema))
        && schema.get("items").is_none_or(closed_value)
        && variants.iter().all(closed_value)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn is_closed(schema: &Value) -> bool {
        schema.as_object().is_some_and(closed)
    }

    #[test]
    fn strict_needs_everything_required_at_every_depth() {
        let inner = |more: bool| json!({"type": "object", "properties": {}, "additionalProperties": more});
        let schema = |inner: Value, required: &[&str]| {
            json!({
                "type": "object", "additionalProperties": false, "required": required,
                "properties": {"a": {"type": "string"}, "b": {"type": "array", "items": inner}},
            })
        };
        assert!(is_closed(&schema(inner(false), &["a", "b"])));
        assert!(!is_closed(&schema(inner(true), &["a", "b"])));
        assert!(!is_closed(&schema(inner(false), &["a"])));
        assert!(!is_closed(&schema(json!({}), &["a", "b"])));
        assert!(!is_closed(&json!({"type": "object", "properties": {}})));
    }
}
