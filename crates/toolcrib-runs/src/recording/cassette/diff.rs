//! The difference between two JSON values in a few short lines.

use serde_json::Value;

/// Differences that are shown; the rest is counted.
const SHOWN: usize = 4;
/// Letters of one value.
const LETTERS: usize = 100;
/// Letters before the first one that differs.
const BEFORE: usize = 20;

/// `- PLACE: recorded` and `+ PLACE: asked` for each place that differs.
pub(super) fn lines(recorded: &Value, asked: &Value) -> Vec<String> {
    let mut places = Vec::new();
    walk(String::new(), Some(recorded), Some(asked), &mut places);
    let more = places.len().saturating_sub(SHOWN);
    let mut lines: Vec<String> = places
        .into_iter()
        .take(SHOWN)
        .flat_map(|(place, recorded, asked)| {
            let from = differs_at(recorded, asked);
            let line = |sign: char, value: Option<&Value>| {
                let value = value.map_or_else(|| "(nothing)".to_owned(), |value| cut(&text(value), from));
                format!("{sign} {place}: {value}")
            };
            [line('-', recorded), line('+', asked)]
        })
        .collect();
    if more > 0 {
        lines.push(format!("and {more} more differences"));
    }
    lines
}

/// A value on one line, cut.
pub(super) fn shown(value: &Value) -> String {
    cut(&value.to_string(), 0)
}

type Place<'a> = (String, Option<&'a Value>, Option<&'a Value>);

fn walk<'a>(
    place: String,
    recorded: Option<&'a Value>,
    asked: Option<&'a Value>,
    places: &mut Vec<Place<'a>>,
) {
    let below = |key: &str| if place.is_empty() { key.to_owned() } else { format!("{place}/{key}") };
    match (recorded, asked) {
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            let new = b.keys().filter(|key| !a.contains_key(*key));
            for key in a.keys().chain(new) {
                walk(below(key), a.get(key), b.get(key), places);
            }
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) => {
            for index in 0..a.len().max(b.len()) {
                walk(below(&index.to_string()), a.get(index), b.get(index), places);
            }
        }
        (a, b) if a == b => {}
        (a, b) => places.push((place, a, b)),
    }
}

fn text(value: &Value) -> String {
    // Text without the marks of JSON: line breaks stay out of a line by `cut`.
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Letters that both begin with.
fn differs_at(a: Option<&Value>, b: Option<&Value>) -> usize {
    match (a, b) {
        (Some(a), Some(b)) => text(a).chars().zip(text(b).chars()).take_while(|(a, b)| a == b).count(),
        _ => 0,
    }
}

/// The letters around number `at`, on one line.
fn cut(text: &str, at: usize) -> String {
    let from = at.saturating_sub(BEFORE);
    let mut letters = text.chars().skip(from);
    let part: String = letters.by_ref().take(LETTERS).collect();
    let (before, after) =
        (if from > 0 { "..." } else { "" }, if letters.next().is_some() { "..." } else { "" });
    format!("{before}{}{after}", one_line(&part))
}

/// Removes line breaks, and what would steer a terminal.
fn one_line(text: &str) -> String {
    let mut line = String::new();
    for letter in text.chars() {
        match letter.is_control() {
            true => line.extend(letter.escape_default()),
            false => line.push(letter),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn differing_paths_and_characters_are_shown() {
        let long = "x".repeat(300);
        let then = json!({"tool": "calc", "args": {"a": format!("{long}1\n{long}"), "b": [1, 2]}});
        let now = json!({"tool": "calc", "args": {"a": format!("{long}2\n{long}"), "b": [1], "c": null}});
        let lines = lines(&then, &now);
        assert_eq!(lines[0][..35], format!("- args/a: ...{}1\\n", "x".repeat(20))[..35]);
        assert_eq!(lines[1][..35], format!("+ args/a: ...{}2\\n", "x".repeat(20))[..35]);
        assert!(lines[0].len() < 150 && lines[0].ends_with("..."), "{}", lines[0]);
        assert_eq!(
            lines[2..],
            ["- args/b/1: 2", "+ args/b/1: (nothing)", "- args/c: (nothing)", "+ args/c: null"]
        );
    }

    #[test]
    fn many_differences_are_counted() {
        let lines = lines(&json!([1, 2, 3, 4, 5, 6]), &json!([0, 0, 0, 0, 0, 0]));
        assert_eq!((lines.len(), lines[8].as_str()), (9, "and 2 more differences"));
    }
}
