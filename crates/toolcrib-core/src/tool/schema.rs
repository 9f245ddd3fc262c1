//! Makes the JSON Schema of a tool one that the meta-schema of 2020-12 takes, at every depth: APIs of models and libraries of
//! clients refuse a whole list of tools for one keyword that is none.
//!
//! A keyword with a wrong value is left out, which lets more arguments through and never fewer. What older drafts write
//! differently is written as the new one has it, and `$schema` names no draft that libraries of clients do not know.

mod keywords;

use std::collections::HashSet;

use percent_encoding::percent_decode_str;
use serde_json::{Map, Value, json};

use self::keywords::{Kind, draft, kind, wanted};
use crate::text::beginning;

/// Schemas within each other.
const DEPTH: usize = 64;
/// Faults that are told.
const MOST_FAULTS: usize = 50;
/// Patterns of one schema that are compiled, and the length of each. Others are left out.
const MOST_PATTERNS: usize = 100;
const LONGEST_PATTERN: usize = 4_096;
/// References that lead to references.
const LONGEST_CHAIN: usize = 32;
/// Parts with an `$id` of their own that references may lead into.
const MOST_IDS: usize = 20;
/// Letters of a value in a fault.
const MAX_SHOWN: usize = 60;

/// A keyword that was wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaFault {
    /// Path below the schema: `properties/a/type`.
    pub path: String,
    /// The fault, and what was done about it.
    pub problem: String,
    /// Whether the schema accepts the same values as before.
    pub is_harmless: bool,
}

/// Whose schema it is, and how closely it is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchemaUse {
    /// The schema of arguments. What APIs of models demand of valid ones is added too: the items of a list.
    Arguments,
    /// The schema of arguments whose patterns are not compiled, because that takes time.
    ArgumentsAtOnce,
    /// The schema of a structured result.
    Result,
}

impl SchemaUse {
    fn is_of_arguments(self) -> bool {
        match self {
            Self::Arguments | Self::ArgumentsAtOnce => true,
            Self::Result => false,
        }
    }
}

/// Makes `schema` valid; gives what was wrong.
pub fn mend(schema: &mut Map<String, Value>, of: SchemaUse) -> Vec<SchemaFault> {
    let mut mender = Mender { of, faults: Vec::new(), patterns: 0, is_rewritten: false };
    mender.schema(schema, 0);
    // Without it a schema of the protocol is one of 2020-12.
    if mender.is_rewritten {
        schema.shift_remove("$schema");
    }
    let mut root = Value::Object(std::mem::take(schema));
    if has_reference(&root) {
        let known = root.clone();
        mender.references(&mut root, &Targets::of(&known), false);
    }
    if let Value::Object(mended) = root {
        *schema = mended;
    }
    mender.faults
}

struct Mender {
    of: SchemaUse,
    faults: Vec<SchemaFault>,
    /// Number of patterns that were compiled.
    patterns: usize,
    /// Whether something is written as 2020-12 has it, and no older draft.
    is_rewritten: bool,
}

impl Mender {
    fn add(&mut self, problem: impl Into<String>) {
        self.add_fault(problem.into(), false);
    }

    fn add_fault(&mut self, problem: String, is_harmless: bool) {
        if self.faults.len() < MOST_FAULTS {
            self.faults.push(SchemaFault { path: String::new(), problem, is_harmless });
        }
    }

    /// Looks at what is called `name`.
    fn within<T>(&mut self, name: &str, look: impl FnOnce(&mut Self) -> T) -> T {
        let known = self.faults.len();
        let looked = look(self);
        for fault in &mut self.faults[known..] {
            let below = if fault.path.is_empty() { "" } else { "/" };
            let name: String = name.chars().take(MAX_SHOWN).collect();
            fault.path = format!("{name}{below}{}", fault.path);
        }
        looked
    }

    fn schema(&mut self, schema: &mut Map<String, Value>, depth: usize) {
        if depth > DEPTH {
            self.add("is too deep: anything is taken");
            return schema.clear();
        }
        self.is_rewritten |= of_old_drafts(schema);
        schema.retain(|keyword, value| match kind(keyword) {
            None => true,
            Some(kind) => self.within(keyword, |mender| {
                let shown = said(value);
                let is_kept = mender.keyword(kind, value, depth);
                if !is_kept {
                    let problem = format!("must be {}, not {shown}: left out", wanted(kind));
                    mender.add_fault(problem, matches!(kind, Kind::Dialect));
                }
                is_kept
            }),
        });
        let is_list = schema.get("type").is_some_and(|kind| {
            kind == "array" || kind.as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == "array"))
        });
        // OpenAI refuses a list without them.
        if is_list && self.of.is_of_arguments() && !schema.contains_key("items") {
            schema.insert("items".to_owned(), json!({}));
        }
    }

    /// Mends what is below a keyword. `false`: it has another kind of value.
    fn keyword(&mut self, kind: Kind, value: &mut Value, depth: usize) -> bool {
        match (kind, value) {
            (Kind::Schema, Value::Object(schema)) => self.schema(schema, depth + 1),
            (Kind::Schema | Kind::Bool, value) => return value.is_boolean(),
            (Kind::Schemas, Value::Array(schemas)) => {
                for (place, schema) in schemas.iter_mut().enumerate() {
                    self.within(&place.to_string(), |mender| mender.any_schema(schema, depth));
                }
                return !schemas.is_empty();
            }
            (Kind::Named, Value::Object(schemas)) => {
                for (name, schema) in schemas {
                    self.within(name, |mender| mender.any_schema(schema, depth));
                }
            }
            (Kind::ByPattern, Value::Object(schemas)) => schemas.retain(|pattern, schema| {
                self.within(pattern, |mender| {
                    mender.any_schema(schema, depth);
                    let is_kept = mender.compiles(pattern);
                    if !is_kept {
                        mender.add("is a regular expression that cannot be compiled: left out");
                    }
                    is_kept
                })
            }),
            (Kind::Dependencies, Value::Object(entries)) => {
                for (name, entry) in entries {
                    self.within(name, |mender| match entry {
                        Value::Array(_) => mender.texts(entry),
                        _ => mender.any_schema(entry, depth),
                    });
                }
            }
            (Kind::NamedTexts, Value::Object(entries)) => entries.retain(|name, entry| {
                self.within(name, |mender| {
                    mender.texts(entry);
                    entry.is_array()
                })
            }),
            (Kind::Texts, value) => {
                if !value.is_array() {
                    return false;
                }
                self.texts(value);
            }
            (Kind::Types, Value::Array(kinds)) => {
                unique(kinds);
                return !kinds.is_empty() && kinds.iter().all(is_type);
            }
            (Kind::Types, value) => return is_type(value),
            (Kind::List, value) => return value.is_array(),
            // One that takes nothing cannot be compiled.
            (Kind::Choices, Value::Array(list)) => {
                unique(list);
                return !list.is_empty();
            }
            (Kind::Number, value) => return value.is_number(),
            (Kind::Positive, value) => return value.as_f64().is_some_and(|number| number > 0.0),
            (Kind::Count, value) => {
                return value.as_f64().is_some_and(|number| number >= 0.0 && number.fract() == 0.0);
            }
            (Kind::Text, value) => return value.is_string(),
            (Kind::Dialect, value) => return value.as_str().is_some_and(|dialect| draft(dialect).is_some()),
            (Kind::Pattern, value) => return value.as_str().is_some_and(|pattern| self.compiles(pattern)),
            (Kind::Anchor, value) => return value.as_str().is_some_and(is_anchor),
            (Kind::Id, value) => {
                return value.as_str().is_some_and(|id| !id.trim_end_matches('#').contains('#'));
            }
            (Kind::Object, Value::Object(entries)) => return entries.values().all(Value::is_boolean),
            _ => return false,
        }
        true
    }

    /// Mends a value that must be a schema: any other value becomes a schema that takes anything.
    fn any_schema(&mut self, value: &mut Value, depth: usize) {
        match value {
            Value::Object(schema) => self.schema(schema, depth + 1),
            Value::Bool(_) => {}
            other => {
                self.add(format!("must be a schema, not {}: {{}} is shown", said(other)));
                *other = json!({});
            }
        }
    }

    /// Each text of a list once, and nothing else. What is no list is told.
    fn texts(&mut self, value: &mut Value) {
        let Value::Array(entries) = value else {
            return self.add(format!("must be {}, not {}: left out", wanted(Kind::Texts), said(value)));
        };
        let mut place = 0;
        entries.retain(|entry| {
            if !entry.is_string() {
                self.within(&place.to_string(), |mender| {
                    mender.add(format!("must be a text, not {}: left out", said(entry)));
                });
            }
            place += 1;
            entry.is_string()
        });
        unique(entries);
    }

    fn compiles(&mut self, pattern: &str) -> bool {
        // Most have nothing that could be wrong.
        let is_plain = |byte: u8| {
            byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b' ' | b'^' | b'$' | b'/')
        };
        if self.of == SchemaUse::ArgumentsAtOnce {
            return true;
        }
        if pattern.bytes().all(is_plain) {
            return true;
        }
        self.patterns += 1;
        self.patterns <= MOST_PATTERNS && pattern.len() <= LONGEST_PATTERN && can_be_compiled(pattern)
    }

    /// Takes references away that lead nowhere. `is_named`: the keys of `value` are not keywords.
    fn references(&mut self, value: &mut Value, targets: &Targets<'_>, is_named: bool) {
        match value {
            Value::Object(fields) => {
                for keyword in REFERENCES.iter().filter(|_| !is_named) {
                    let leads = |to: &Value| to.as_str().is_none_or(|to| targets.leads(to));
                    if fields.get(*keyword).is_some_and(|to| !leads(to)) {
                        let shown = fields.shift_remove(*keyword).map(|to| said(&to)).unwrap_or_default();
                        self.within(keyword, |mender| mender.add(format!("{shown} leads nowhere: left out")));
                    }
                }
                for (key, below) in fields {
                    // What stands there is no schema.
                    if is_named || !matches!(&**key, "enum" | "const" | "default" | "examples") {
                        let names = !is_named && matches!(kind(key), Some(Kind::Named | Kind::ByPattern));
                        self.within(key, |mender| mender.references(below, targets, names));
                    }
                }
            }
            Value::Array(list) => {
                for (place, below) in list.iter_mut().enumerate() {
                    self.within(&place.to_string(), |mender| mender.references(below, targets, false));
                }
            }
            _ => {}
        }
    }
}

/// Rewrites what older drafts write otherwise, as 2020-12 has it. Returns whether older drafts would read it in another way
/// now.
fn of_old_drafts(schema: &mut Map<String, Value>) -> bool {
    let mut is_rewritten = false;
    match schema.get("$schema").and_then(Value::as_str).and_then(draft) {
        None => {}
        Some("") => drop(schema.shift_remove("$schema")),
        Some(known) => drop(schema.insert("$schema".to_owned(), known.into())),
    }
    if schema.get("items").is_some_and(Value::is_array) && !schema.contains_key("prefixItems") {
        if let Some(items) = schema.shift_remove("items") {
            schema.insert("prefixItems".to_owned(), items);
            is_rewritten = true;
        }
        if let Some(others) = schema.shift_remove("additionalItems") {
            schema.insert("items".to_owned(), others);
        }
    }
    for (exclusive, bound) in [("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")] {
        let Some(is_exclusive) = schema.get(exclusive).and_then(Value::as_bool) else { continue };
        schema.shift_remove(exclusive);
        if is_exclusive && let Some(number) = schema.shift_remove(bound) {
            schema.insert(exclusive.to_owned(), number);
        }
    }
    if schema.get("$recursiveAnchor").is_some_and(Value::is_boolean) {
        schema.shift_remove("$recursiveAnchor");
    }
    is_rewritten
}

fn is_type(value: &Value) -> bool {
    const TYPES: [&str; 7] = ["array", "boolean", "integer", "null", "number", "object", "string"];
    value.as_str().is_some_and(|name| TYPES.contains(&name))
}

fn is_anchor(name: &str) -> bool {
    let mut letters = name.chars();
    letters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && letters.all(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-' | '.'))
}

/// Each entry once.
fn unique(entries: &mut Vec<Value>) {
    let mut known = HashSet::new();
    entries.retain(|entry| known.insert(entry.to_string()));
}

/// Whether clients can compile a pattern.
#[cfg(feature = "schema")]
fn can_be_compiled(pattern: &str) -> bool {
    const SIZE: usize = 2 << 20;
    let options = jsonschema::PatternOptions::fancy_regex().size_limit(SIZE).dfa_size_limit(SIZE);
    jsonschema::options().with_pattern_options(options).build(&json!({"pattern": pattern})).is_ok()
}

/// Patterns are not looked at.
#[cfg(not(feature = "schema"))]
fn can_be_compiled(_: &str) -> bool {
    true
}

const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];

fn has_reference(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields
            .iter()
            .any(|(key, below)| (REFERENCES.contains(&&**key) && below.is_string()) || has_reference(below)),
        Value::Array(list) => list.iter().any(has_reference),
        _ => false,
    }
}

/// Where references of a schema may lead.
struct Targets<'a> {
    root: &'a Value,
    ids: Vec<(&'a str, &'a Value)>,
    anchors: HashSet<&'a str>,
}

impl<'a> Targets<'a> {
    fn of(root: &'a Value) -> Self {
        let mut targets = Self { root, ids: Vec::new(), anchors: HashSet::new() };
        targets.collect(root);
        targets
    }

    fn collect(&mut self, value: &'a Value) {
        match value {
            Value::Object(fields) => {
                if let Some(id) = fields.get("$id").and_then(Value::as_str)
                    && self.ids.len() < MOST_IDS
                {
                    self.ids.push((id.trim_end_matches('#'), value));
                }
                for anchor in ["$anchor", "$dynamicAnchor"] {
                    self.anchors.extend(fields.get(anchor).and_then(Value::as_str));
                }
                for below in fields.values() {
                    self.collect(below);
                }
            }
            Value::Array(list) => {
                for below in list {
                    self.collect(below);
                }
            }
            _ => {}
        }
    }

    /// Whether a reference ends at a schema. One that comes back to itself does not.
    fn leads(&self, reference: &str) -> bool {
        let Some(mut at) = self.target(reference) else { return false };
        for _ in 0..LONGEST_CHAIN {
            // What leads nowhere from there takes anything.
            let next = REFERENCES.iter().find_map(|keyword| at.get(*keyword)?.as_str());
            let next = next.and_then(|to| self.target(to));
            let Some(next) = next else { return true };
            at = next;
        }
        false
    }

    fn target(&self, reference: &str) -> Option<&'a Value> {
        let (of, place) = reference.split_once('#').unwrap_or((reference, ""));
        let place = percent_decode_str(place).decode_utf8().ok()?;
        let root = of.is_empty().then_some(self.root);
        let parts = self.ids.iter().filter(|(id, _)| of.is_empty() || *id == of).map(|(_, part)| *part);
        let found = root.into_iter().chain(parts).find_map(|part| match &*place {
            "" => Some(part),
            pointer if pointer.starts_with('/') => part.pointer(pointer),
            anchor => self.anchors.contains(anchor).then_some(part),
        });
        found.filter(|found| found.is_object() || found.is_boolean())
    }
}

/// A value in a few words.
fn said(value: &Value) -> String {
    match value {
        Value::Object(_) => "an object".to_owned(),
        Value::Array(list) if list.is_empty() => "an empty list".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        other => beginning(&other.to_string(), MAX_SHOWN),
    }
}

#[cfg(test)]
mod tests;
