//! Estimates the work of an argument check without doing it. The schema is a server's and the arguments are a model's:
//! together they can ask for more than will ever end, by references that multiply, by recursion that branches at every
//! level of the arguments, by patterns that try every way.

use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};

use crate::tool::takes_objects;

/// Values of a schema that are looked at. One that has more is not checked.
const MOST_VALUES: u64 = 100_000;
/// A schema of so many values, references followed, is compiled and checked at once.
const FEW_VALUES: u64 = 4_000;
/// Arguments of more values, or of 16 bytes of text for each of so many, are large.
const MANY_VALUES: u64 = 10_000;
/// Longest pattern.
const LONGEST_PATTERN: usize = 4_096;
/// States of a pattern that is matched at once, by [`states`].
const FEW_STATES: usize = 500;
/// Schemas within each other, those of references included, that are checked at once.
const SHALLOW: u32 = 150;
/// The same on a thread that has room for it.
const DEEP: u32 = 1_500;
/// Distinct references of a schema: compiling recurses once for each.
const MOST_REFERENCES: usize = 1_500;

/// The work that a schema needs for any arguments.
#[derive(Debug)]
pub(super) struct SchemaRequirements {
    /// Its values, each counted as often as references lead to it; `None` if that is often.
    size: Option<u64>,
    patterns: Patterns,
    /// Whether it can be compiled at once.
    pub small: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Patterns {
    None,
    /// The length of the text and [`FEW_STATES`] limit the time of a match.
    Quick,
    Any,
}

/// The work is more than it may be.
#[derive(Debug)]
struct TooMuch;

type Bounded = Result<(), TooMuch>;
type Schema = Map<String, Value>;

impl SchemaRequirements {
    /// # Errors
    /// Why the schema cannot be checked.
    pub(super) fn of(schema: &Schema) -> Result<Self, &'static str> {
        match takes_objects(schema) {
            true => Self::of_any(schema),
            false => Err("its `type` is not \"object\", and arguments are never anything else"),
        }
    }

    /// Finds requirements like [`SchemaRequirements::of`], for values that are no arguments.
    ///
    /// # Errors
    /// The errors of [`SchemaRequirements::of`].
    pub(super) fn of_any(schema: &Schema) -> Result<Self, &'static str> {
        let mut look = SchemaContents {
            left: MOST_VALUES,
            patterns: Patterns::None,
            unevaluated: false,
            references: 0,
            ids: 0,
            old_ids: 0,
            old: false,
        };
        look.object(schema)?;
        let own = |key: &str| usize::from(schema.get(key).is_some_and(Value::is_string));
        let moved = look.ids > own("$id") || look.old && look.old_ids > own("id");
        if look.references > 0 && moved {
            return Err("it has references and a part with an `$id` of its own");
        }
        let mut count = Count::new(schema, FEW_VALUES, SHALLOW);
        let size = count.expanded(schema, 0).is_ok().then(|| FEW_VALUES - count.left);
        if look.unevaluated && size.is_none() {
            return Err("it has `unevaluated...`, and references that lead to very many parts");
        }
        if look.references > MOST_REFERENCES && size.is_none() {
            return Err("it has too many references");
        }
        let small = MOST_VALUES - look.left <= FEW_VALUES
            && look.patterns <= Patterns::Quick
            && (size.is_some() || look.references <= SHALLOW as usize);
        Ok(Self { size, patterns: look.patterns, small })
    }

    /// Whether a check of `arguments` takes less than `most` steps, as far as that is seen at once.
    pub(super) fn is_quick(&self, schema: &Schema, arguments: &Value, most: u64) -> bool {
        let mut left = most / self.size.unwrap_or(1).max(1);
        let per_byte = self.patterns != Patterns::None;
        self.small
            && weigh(arguments, per_byte, &mut left).is_ok()
            // What leads to very many parts may still need few of them, as a tree does.
            && (self.size.is_some() || self.steps(schema, arguments, most / 20, SHALLOW))
    }

    /// Whether a check of `arguments` takes less than `most` steps, counted one by one.
    pub(super) fn is_feasible(&self, schema: &Schema, arguments: &Value, most: u64) -> bool {
        self.steps(schema, arguments, most, DEEP)
    }

    /// Whether a check that is not feasible would be with fewer values or shorter texts: then it is for the size of the arguments.
    pub(super) fn is_for_size(schema: &Schema, arguments: &Value, most: u64) -> bool {
        let mut count = Count::new(schema, most, DEEP);
        count.per_byte = 0;
        is_large(arguments) || count.check(schema, arguments, 0).is_ok()
    }

    fn steps(&self, schema: &Schema, arguments: &Value, most: u64, depth: u32) -> bool {
        let mut count = Count::new(schema, most, depth);
        // A pattern that goes back and forth takes many steps for each letter.
        count.per_byte = if self.patterns == Patterns::Any { 100 } else { 1 };
        count.check(schema, arguments, 0).is_ok()
    }
}

/// Says whether arguments are large by themselves, under any schema.
pub(super) fn is_large(arguments: &Value) -> bool {
    let mut left = MANY_VALUES;
    weigh(arguments, false, &mut left).is_err()
}

/// Takes the size of `value` from `left`.
fn weigh(value: &Value, per_byte: bool, left: &mut u64) -> Bounded {
    let bytes = |text: &str| if per_byte { text.len() } else { text.len() / 16 };
    let take = |left: &mut u64, steps: usize| {
        *left = left.checked_sub(steps as u64).ok_or(TooMuch)?;
        Ok(())
    };
    match value {
        Value::Object(map) => {
            take(left, 1)?;
            map.iter().try_for_each(|(key, below)| {
                take(left, bytes(key))?;
                weigh(below, per_byte, left)
            })
        }
        Value::Array(list) => {
            take(left, 1)?;
            list.iter().try_for_each(|below| weigh(below, per_byte, left))
        }
        Value::String(text) => take(left, 1 + bytes(text)),
        _ => take(left, 1),
    }
}

/// Contents of a whole schema, at any depth.
struct SchemaContents {
    left: u64,
    patterns: Patterns,
    unevaluated: bool,
    references: usize,
    ids: usize,
    /// Number of ids as old drafts write them, and whether the schema is of an old draft.
    old_ids: usize,
    old: bool,
}

impl SchemaContents {
    fn object(&mut self, map: &Schema) -> Result<(), &'static str> {
        for (key, value) in map {
            match (key.as_str(), value) {
                ("$dynamicRef" | "$recursiveRef", Value::String(_)) => {
                    return Err("it has references that depend on where they are reached from");
                }
                ("$ref", Value::String(to)) if to == "#" || to.starts_with("#/") => self.references += 1,
                ("$ref", Value::String(_)) => return Err("it has a reference that is not a path within it"),
                ("$id", Value::String(_)) => self.ids += 1,
                ("id", Value::String(_)) => self.old_ids += 1,
                ("$schema", Value::String(draft)) => {
                    self.old |= draft.contains("draft-0") && !draft.contains("draft-07");
                }
                ("pattern", Value::String(pattern)) => self.pattern(pattern)?,
                ("patternProperties", Value::Object(patterns)) => {
                    patterns.keys().try_for_each(|pattern| self.pattern(pattern))?;
                }
                ("format", Value::String(name)) => {
                    let wanted = if name == "regex" { Patterns::Any } else { Patterns::Quick };
                    self.patterns = self.patterns.max(wanted);
                }
                ("contentMediaType" | "contentEncoding", _) => {
                    self.patterns = self.patterns.max(Patterns::Quick);
                }
                ("unevaluatedProperties" | "unevaluatedItems", _) => self.unevaluated = true,
                _ => {}
            }
            self.value(value)?;
        }
        Ok(())
    }

    fn value(&mut self, value: &Value) -> Result<(), &'static str> {
        self.left = self.left.checked_sub(1).ok_or("it has too many parts")?;
        match value {
            Value::Object(map) => self.object(map),
            Value::Array(list) => list.iter().try_for_each(|below| self.value(below)),
            _ => Ok(()),
        }
    }

    fn pattern(&mut self, pattern: &str) -> Result<(), &'static str> {
        if pattern.len() > LONGEST_PATTERN {
            return Err("it has a very long pattern");
        }
        let quick = states(pattern).is_some_and(|states| states <= FEW_STATES);
        self.patterns = self.patterns.max(if quick { Patterns::Quick } else { Patterns::Any });
        Ok(())
    }
}

/// About how many states a pattern has when it is compiled; `None` for one that looks around or back, which is not
/// matched in one go, and for classes of thousands of letters.
fn states(pattern: &str) -> Option<usize> {
    let around = ["(?=", "(?!", "(?<", "(?>", "\\k", "\\p", "\\P", "\\b", "\\B"];
    let back = pattern.as_bytes().windows(2).any(|pair| pair[0] == b'\\' && matches!(pair[1], b'1'..=b'9'));
    if back || around.iter().any(|construct| pattern.contains(construct)) {
        return None;
    }
    // Repeated letters add up, repeated groups multiply.
    let (mut sum, mut product) = (pattern.len(), 1_usize);
    for (at, _) in pattern.match_indices('{') {
        let most = pattern[at + 1..].split(['}', ',']).take(2).filter_map(|number| number.parse().ok()).max();
        match (most, pattern[..at].ends_with(')')) {
            (None, _) => {}
            (Some(most), true) => product = product.saturating_mul(most),
            (Some(most), false) => sum = sum.saturating_add(most),
        }
    }
    Some(sum.saturating_mul(product.max(1)))
}

/// Steps that are counted down.
struct Count<'a> {
    root: &'a Schema,
    left: u64,
    depth: u32,
    per_byte: u64,
}

impl<'a> Count<'a> {
    fn new(root: &'a Schema, left: u64, depth: u32) -> Self {
        Self { root, left, depth, per_byte: 1 }
    }

    fn spend(&mut self, steps: usize) -> Bounded {
        self.left = self.left.checked_sub(steps as u64).ok_or(TooMuch)?;
        Ok(())
    }

    fn spend_on(&mut self, text: &str) -> Bounded {
        self.spend(1)?;
        self.left = self.left.checked_sub(text.len() as u64 * self.per_byte).ok_or(TooMuch)?;
        Ok(())
    }

    /// Where a reference leads; `None` if that is `true` or `false`. Of one that leads nowhere nothing can be said.
    fn target(&mut self, reference: &str) -> Result<Option<&'a Schema>, TooMuch> {
        self.spend(1 + reference.len() / 32)?;
        target(self.root, reference)
    }

    /// `map` with everything in it and everything that it refers to.
    fn expanded(&mut self, map: &'a Schema, depth: u32) -> Bounded {
        self.spend(1)?;
        if depth > self.depth {
            return Err(TooMuch);
        }
        let before = self.left;
        for (key, value) in map {
            match value {
                Value::String(to) if key == "$ref" => {
                    if let Some(target) = self.target(to)? {
                        self.expanded(target, depth + 1)?;
                    }
                }
                _ => self.expanded_value(value, depth)?,
            }
        }
        self.again_for_unevaluated(map, before)
    }

    fn expanded_value(&mut self, value: &'a Value, depth: u32) -> Bounded {
        match value {
            Value::Object(map) => self.expanded(map, depth + 1),
            Value::Array(list) => {
                self.spend(1 + list.len())?;
                list.iter().try_for_each(|below| self.expanded_value(below, depth + 1))
            }
            _ => Ok(()),
        }
    }

    /// Doubles the work that was counted since `before` if the schema has `unevaluatedProperties` or `unevaluatedItems`: what
    /// is left over is found by checking the rest again.
    fn again_for_unevaluated(&mut self, schema: &Schema, before: u64) -> Bounded {
        let again = ["unevaluatedProperties", "unevaluatedItems"].iter().any(|key| schema.contains_key(*key));
        let used = before - self.left;
        self.left = self.left.checked_sub(if again { used.saturating_mul(2) } else { 0 }).ok_or(TooMuch)?;
        Ok(())
    }

    /// The check of `value` by `schema`, as if no part of it could be left out.
    fn check(&mut self, schema: &'a Schema, value: &Value, depth: u32) -> Bounded {
        self.spend(1)?;
        if depth > self.depth {
            return Err(TooMuch);
        }
        let before = self.left;
        for (key, part) in schema {
            self.keyword(key, part, value, depth + 1)?;
        }
        self.again_for_unevaluated(schema, before)
    }

    fn check_by(&mut self, schema: &'a Value, value: &Value, depth: u32) -> Bounded {
        match schema {
            Value::Object(schema) => self.check(schema, value, depth),
            _ => self.spend(1),
        }
    }

    fn keyword(&mut self, key: &str, part: &'a Value, value: &Value, depth: u32) -> Bounded {
        match (key, part, value) {
            ("$ref", Value::String(to), _) => match self.target(to)? {
                Some(target) => self.check(target, value, depth),
                None => Ok(()),
            },
            ("allOf" | "anyOf" | "oneOf", Value::Array(parts), _) => {
                parts.iter().try_for_each(|part| self.check_by(part, value, depth))
            }
            ("not" | "if" | "then" | "else", _, _) => self.check_by(part, value, depth),
            ("dependentSchemas" | "dependencies", Value::Object(parts), _) => {
                parts.values().try_for_each(|part| self.check_by(part, value, depth))
            }
            ("enum" | "const" | "required" | "dependentRequired", _, _) => self.size(part),
            ("uniqueItems", Value::Bool(true), _) => self.size(value),
            ("pattern" | "format" | "contentMediaType" | "contentEncoding", _, Value::String(text)) => {
                self.spend_on(text)
            }
            ("properties", Value::Object(parts), Value::Object(values)) => {
                self.spend(parts.len().min(values.len()))?;
                values.iter().try_for_each(|(name, value)| match parts.get(name) {
                    Some(part) => self.check_by(part, value, depth),
                    None => Ok(()),
                })
            }
            ("patternProperties", Value::Object(parts), Value::Object(values)) => {
                parts.values().try_for_each(|part| {
                    values.iter().try_for_each(|(name, value)| {
                        self.spend_on(name)?;
                        self.check_by(part, value, depth)
                    })
                })
            }
            ("propertyNames", _, Value::Object(values)) => {
                values.keys().try_for_each(|name| self.check_by(part, &Value::String(name.clone()), depth))
            }
            ("additionalProperties" | "unevaluatedProperties", _, Value::Object(values)) => {
                values.values().try_for_each(|value| self.check_by(part, value, depth))
            }
            ("items" | "prefixItems", Value::Array(parts), Value::Array(values)) => {
                parts.iter().zip(values).try_for_each(|(part, value)| self.check_by(part, value, depth))
            }
            (
                "items" | "additionalItems" | "unevaluatedItems" | "contains",
                Value::Object(_),
                Value::Array(values),
            ) => values.iter().try_for_each(|value| self.check_by(part, value, depth)),
            _ => Ok(()),
        }
    }

    /// Counts the values that a comparison with `value` looks at.
    fn size(&mut self, value: &Value) -> Bounded {
        match value {
            Value::Object(map) => {
                self.spend(1 + map.len())?;
                map.values().try_for_each(|below| self.size(below))
            }
            Value::Array(list) => {
                self.spend(1)?;
                list.iter().try_for_each(|below| self.size(below))
            }
            Value::String(text) => self.spend(1 + text.len() / 64),
            _ => self.spend(1),
        }
    }
}

/// Where a reference leads: `#`, or `#/$defs/...` as a JSON pointer. Nothing, if that is no object.
fn target<'a>(root: &'a Schema, reference: &str) -> Result<Option<&'a Schema>, TooMuch> {
    let pointer = reference.strip_prefix('#').map(|pointer| percent_decode_str(pointer).decode_utf8());
    let Some(Ok(pointer)) = pointer else { return Err(TooMuch) };
    if pointer.is_empty() {
        return Ok(Some(root));
    }
    let mut segments = pointer.split('/').map(|segment| segment.replace("~1", "/").replace("~0", "~"));
    if segments.next().is_none_or(|before| !before.is_empty()) {
        return Err(TooMuch);
    }
    let mut at = segments.next().and_then(|segment| root.get(&segment)).ok_or(TooMuch)?;
    for segment in segments {
        let below = match at {
            Value::Object(map) => map.get(&segment),
            Value::Array(list) => segment.parse::<usize>().ok().and_then(|index| list.get(index)),
            _ => None,
        };
        at = below.ok_or(TooMuch)?;
    }
    Ok(at.as_object())
}
