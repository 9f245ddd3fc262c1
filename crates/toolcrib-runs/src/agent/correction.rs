//! Corrects tool calls whose meaning is certain: a wrong server, tool or argument name is replaced, and a text with one reading
//! under the schema is read so. Any other call is left as it is, and the model gets an error message.
//!
//! Every rule is exact: equal apart from case and separators, the only one of its name, named in the alias table, or
//! forced by the schema. What is merely near is suggested to the model, and never called. Text that is broken is never
//! completed: half a command would become another command.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::{
    catalog::{CatalogEntry, Conversion},
    config::{Aliases, ArgumentCheck},
    recording::{Correction, CorrectionKind},
};

mod names;
mod text;

pub(super) use names::{FoundTool, WantedTool, aliased, find};
pub(super) use text::parse;

/// Letters and digits, in lower case: what is left of a name when case and separators do not count.
fn normalized(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// `arguments` as they fit the schema of `entry`, with what was done to them. `None`: they cannot be made to.
pub(super) fn arguments(
    entry: &CatalogEntry,
    arguments: &Map<String, Value>,
    aliases: &Aliases,
) -> Option<(Map<String, Value>, Vec<Correction>)> {
    let schema = Schema::of(entry)?;
    let mut fixed = arguments.clone();
    let mut done = Vec::new();
    for (from, to) in schema.renames(arguments, &aliases.arguments) {
        // In its place: the order of arguments is part of what a model sees of its call.
        fixed = fixed
            .into_iter()
            .map(|(key, value)| (if key == from { to.clone() } else { key }, value))
            .collect();
        done.push(Correction::new(CorrectionKind::Argument, from, to));
    }
    let empty =
        |(key, value): &(&String, &Value)| value.is_null() && !schema.required.contains(&key.as_str());
    let empties: Vec<String> = fixed.iter().filter(empty).map(|(key, _)| key.clone()).collect();
    for key in empties {
        fixed.shift_remove(&key);
        done.push(Correction::new(CorrectionKind::Null, key, ""));
    }
    for key in &schema.required {
        if let (false, Some(default)) = (fixed.contains_key(*key), schema.default(key)) {
            fixed.insert((*key).to_owned(), default.clone());
            done.push(Correction::new(CorrectionKind::Default, *key, default.to_string()));
        }
    }
    let fits = |fixed: &Map<String, Value>, done: &[Correction]| !done.is_empty() && entry.fits(fixed);
    if !fits(&fixed, &done) && entry.checked == ArgumentCheck::Convert {
        let (converted, texts) = entry.converted(&fixed);
        let text = |Conversion { path, from, to }| {
            Correction::new(CorrectionKind::Text, format!("{path}: {from}"), format!("{path}: {to}"))
        };
        done.extend(texts.into_iter().map(text));
        fixed = converted;
    }
    fits(&fixed, &done).then_some((fixed, done))
}

/// Pairs of names that are compared.
const MOST_COMPARED: usize = 20_000;

/// Arguments by name, as a schema describes them.
struct Schema<'a> {
    properties: &'a Map<String, Value>,
    required: Vec<&'a str>,
}

impl<'a> Schema<'a> {
    fn of(entry: &'a CatalogEntry) -> Option<Self> {
        let schema = &entry.tool.input_schema;
        let required = schema.get("required").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        Some(Self {
            properties: schema.get("properties")?.as_object()?,
            required: required.iter().filter_map(Value::as_str).collect(),
        })
    }

    fn default(&self, key: &str) -> Option<&'a Value> {
        self.properties.get(key)?.get("default")
    }

    /// New names for arguments with a wrong name. Each new name is given once at most, and none that is taken.
    fn renames(
        &self,
        given: &Map<String, Value>,
        aliases: &BTreeMap<String, String>,
    ) -> Vec<(String, String)> {
        let mut strange: Vec<(&String, &Value)> =
            given.iter().filter(|(key, _)| !self.properties.contains_key(*key)).collect();
        let mut free: Vec<&str> =
            self.properties.keys().map(String::as_str).filter(|key| !given.contains_key(*key)).collect();
        let mut renames = Vec::new();
        // Each is compared with each: so many were not misspelt.
        if strange.len().saturating_mul(free.len()) > MOST_COMPARED {
            return renames;
        }
        let mut settle =
            |strange: &mut Vec<(&String, &Value)>, free: &mut Vec<&str>, from: &str, to: &str| {
                strange.retain(|(key, _)| key.as_str() != from);
                free.retain(|key| *key != to);
                renames.push((from.to_owned(), to.to_owned()));
            };
        for (from, _) in strange.clone() {
            let alike: Vec<&str> =
                free.iter().filter(|key| normalized(key) == normalized(from)).copied().collect();
            if let [to] = alike[..] {
                settle(&mut strange, &mut free, from, to);
            }
        }
        for (from, _) in strange.clone() {
            let alias = aliases.get(from).map(String::as_str);
            if let Some(to) = alias.filter(|to| free.contains(to)) {
                settle(&mut strange, &mut free, from, to);
            }
        }
        // One that is required and missing, one that is there and strange, both of one kind: no other pair will do.
        let missing: Vec<&str> =
            self.required.iter().copied().filter(|key| self.default(key).is_none()).collect();
        let fits =
            |value: &Value, key: &str| self.properties.get(key).is_some_and(|schema| admits(schema, value));
        for (from, value) in strange.clone() {
            let homes: Vec<&str> =
                missing.iter().copied().filter(|key| free.contains(key) && fits(value, key)).collect();
            let [to] = homes[..] else { continue };
            if strange.iter().filter(|(_, other)| fits(other, to)).count() == 1 {
                settle(&mut strange, &mut free, from, to);
            }
        }
        renames
    }
}

/// Whether a schema names the kind of a value. One that names none says nothing, and that is not enough.
fn admits(schema: &Value, value: &Value) -> bool {
    let is = |name: &str| match name {
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "number" => value.is_number(),
        "integer" => value.is_i64() || value.is_u64(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    };
    match schema.get("type") {
        Some(Value::String(name)) => is(name),
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).any(is),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
