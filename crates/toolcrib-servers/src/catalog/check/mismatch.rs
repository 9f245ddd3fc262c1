//! Describes mismatches of arguments: the argument, what it must be, and what it is.

use jsonschema::{
    ValidationError,
    error::{TypeKind, ValidationErrorKind as Kind},
};
use serde_json::Value;

use crate::text::beginning;

/// Characters of a value that are shown.
const SHOWN: usize = 60;

/// One mismatch in a line, or a line for each key that is too much.
pub(super) fn lines(error: &ValidationError<'_>) -> Vec<String> {
    let place = error.instance_path().to_string();
    let place = place.trim_start_matches('/');
    let key = |name: &str| match place {
        "" => format!("`{name}`"),
        place => format!("`{place}/{name}`"),
    };
    match error.kind() {
        Kind::AdditionalProperties { unexpected } | Kind::UnevaluatedProperties { unexpected } => {
            unexpected.iter().map(|name| format!("{} is unknown", key(name))).collect()
        }
        Kind::Required { property } => {
            let name = property.as_str().map_or_else(|| property.to_string(), str::to_owned);
            vec![format!("{} is missing", key(&name))]
        }
        _ => {
            let subject = if place.is_empty() { "the object".to_owned() } else { format!("`{place}`") };
            vec![match must(error) {
                None if matches!(error.kind(), Kind::FalseSchema) => {
                    format!("{subject} has no place for {}", shown(error.instance()))
                }
                Some(must) => format!("{subject} must {must}, not {}", shown(error.instance())),
                None => format!("{subject}: {error}"),
            }]
        }
    }
}

/// The requirement that a value does not meet, as the rest of a sentence with "must". `None`: it is rarely met with, and the
/// words of the checker do.
fn must(error: &ValidationError<'_>) -> Option<String> {
    Some(match error.kind() {
        Kind::Type { .. } | Kind::AnyOf { .. } | Kind::OneOfNotValid { .. } => match kinds(error) {
            Some(kinds) => format!("be {}", listed(&kinds)),
            None => "have one of the forms of its schema".to_owned(),
        },
        Kind::Enum { options } => match options.as_array() {
            Some(options) => format!("be {}", listed(&options.iter().map(shown).collect::<Vec<_>>())),
            None => return None,
        },
        Kind::Constant { expected_value } => format!("be {}", shown(expected_value)),
        Kind::Minimum { limit } => format!("be at least {limit}"),
        Kind::Maximum { limit } => format!("be at most {limit}"),
        Kind::ExclusiveMinimum { limit } => format!("be more than {limit}"),
        Kind::ExclusiveMaximum { limit } => format!("be less than {limit}"),
        Kind::MultipleOf { multiple_of } => format!("be a multiple of {multiple_of}"),
        Kind::MinLength { limit } => format!("have at least {}", counted(*limit, "character")),
        Kind::MaxLength { limit } => format!("have at most {}", counted(*limit, "character")),
        Kind::MinItems { limit } => format!("have at least {}", counted(*limit, "entry")),
        Kind::MaxItems { limit } => format!("have at most {}", counted(*limit, "entry")),
        Kind::UniqueItems => "have no entry twice".to_owned(),
        Kind::Pattern { pattern } => format!("match the pattern `{pattern}`"),
        Kind::Format { format } => format!("have the format `{format}`"),
        _ => return None,
    })
}

/// The types of which a value may have one, each with its article. `None` if there is more to it than types.
fn kinds(error: &ValidationError<'_>) -> Option<Vec<String>> {
    match error.kind() {
        Kind::Type { kind: TypeKind::Single(kind) } => Some(vec![named(kind.as_str())]),
        Kind::Type { kind: TypeKind::Multiple(kinds) } => {
            Some(kinds.iter().map(|kind| named(kind.as_str())).collect())
        }
        Kind::AnyOf { context } | Kind::OneOfNotValid { context } => {
            let form = |errors: &Vec<ValidationError<'static>>| match &errors[..] {
                [one] if one.instance_path() == error.instance_path() => kinds(one),
                _ => None,
            };
            Some(context.iter().map(form).collect::<Option<Vec<_>>>()?.concat())
        }
        _ => None,
    }
}

fn named(kind: &str) -> String {
    match kind {
        "null" => "null".to_owned(),
        "array" => "a list".to_owned(),
        "integer" => "a whole number".to_owned(),
        "object" => "an object".to_owned(),
        kind => format!("a {kind}"),
    }
}

/// `a`, `a or b`, `a, b or c`.
fn listed(words: &[String]) -> String {
    match words {
        [] => "nothing".to_owned(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

fn counted(count: u64, what: &str) -> String {
    match (count, what) {
        (1, what) => format!("1 {what}"),
        (count, "entry") => format!("{count} entries"),
        (count, what) => format!("{count} {what}s"),
    }
}

fn shown(value: &Value) -> String {
    beginning(&value.to_string(), SHOWN)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_mismatch_names_argument_and_expectation() {
        let schema = json!({
            "type": "object", "additionalProperties": false, "required": ["text"],
            "properties": {
                "text": {"type": "string", "minLength": 2, "pattern": "^a"},
                "n": {"type": "integer", "minimum": 1, "maximum": 9},
                "mode": {"enum": ["fast", "slow", 3]},
                "zone": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "list": {"type": "array", "maxItems": 1, "items": {"type": ["number", "boolean"]}},
                "deep": {"type": "object", "required": ["x"], "additionalProperties": false},
                "form": {"anyOf": [{"type": "object", "required": ["a"]}, {"type": "string"}]},
            },
        });
        let validator = jsonschema::validator_for(&schema).unwrap();
        let told = |arguments: &Value| -> Vec<String> {
            validator.iter_errors(arguments).flat_map(|error| lines(&error)).collect()
        };
        for (arguments, wanted) in [
            (json!({"txt": "abc"}), vec!["`txt` is unknown", "`text` is missing"]),
            (json!({"text": 5}), vec!["`text` must be a string, not 5"]),
            (
                json!({"text": "b"}),
                vec![
                    "`text` must have at least 2 characters, not \"b\"",
                    "`text` must match the pattern `^a`, not \"b\"",
                ],
            ),
            (json!({"text": "ab", "n": 0}), vec!["`n` must be at least 1, not 0"]),
            (json!({"text": "ab", "n": 10}), vec!["`n` must be at most 9, not 10"]),
            (json!({"text": "ab", "n": 1.5}), vec!["`n` must be a whole number, not 1.5"]),
            (json!({"text": "ab", "mode": "f"}), vec!["`mode` must be \"fast\", \"slow\" or 3, not \"f\""]),
            (json!({"text": "ab", "zone": 1}), vec!["`zone` must be a string or null, not 1"]),
            (
                json!({"text": "ab", "list": [1, true]}),
                vec!["`list` must have at most 1 entry, not [1,true]"],
            ),
            (
                json!({"text": "ab", "deep": {"y": 1}}),
                vec!["`deep` has no place for 1", "`deep/x` is missing"],
            ),
            (
                json!({"text": "ab", "form": {}}),
                vec!["`form` must have one of the forms of its schema, not {}"],
            ),
        ] {
            let mut told = told(&arguments);
            let mut wanted = wanted.clone();
            told.sort_unstable();
            wanted.sort_unstable();
            assert_eq!(told, wanted, "{arguments}");
        }
        let nested = told(&json!({"text": "ab", "list": ["x".repeat(100)]}));
        assert!(nested[0].starts_with("`list/0` must be a "), "{nested:?}");
        assert!(nested[0].ends_with("x...") && nested[0].len() < 130, "{nested:?}");
    }
}
