//! Reads JSON with comments and trailing commas, as editors write it, with the line of each value.

use jsonc_parser::{CollectOptions, ParseOptions, ast, common::Ranged, parse_to_ast};

use crate::{
    config::file::{
        node::{BYTE_ORDER_MARK, Entry, Lines, Node, Value},
        source_location::SourceLocation,
    },
    error::Result,
};

/// Reads JSON with comments and trailing commas, as editors write it.
pub(in crate::config) fn read(text: &str, origin: &SourceLocation) -> Result<Node> {
    let text = text.trim_start_matches(BYTE_ORDER_MARK);
    let lines = Lines::new(text);
    let parsed = parse_to_ast(text, &CollectOptions::default(), &ParseOptions::default());
    match parsed {
        Ok(parsed) => {
            let empty = Node { line: 1, value: Value::Table(Vec::new()) };
            Ok(parsed.value.as_ref().map_or(empty, |value| from_json(value, &lines)))
        }
        Err(error) => Err(origin.error(error.line_display(), None, error.kind().to_string(), None)),
    }
}

fn from_json(value: &ast::Value<'_>, lines: &Lines) -> Node {
    let line = lines.at(value.range().start);
    let value = match value {
        ast::Value::StringLit(text) => Value::Text(text.value.to_string()),
        ast::Value::NumberLit(number) => match number.value.parse() {
            Ok(int) => Value::Int(int),
            Err(_) => Value::Float(number.value.parse().unwrap_or(f64::NAN)),
        },
        ast::Value::BooleanLit(flag) => Value::Bool(flag.value),
        ast::Value::NullKeyword(_) => Value::Null,
        ast::Value::Array(array) => {
            Value::List(array.elements.iter().map(|item| from_json(item, lines)).collect())
        }
        ast::Value::Object(object) => Value::Table(
            object
                .properties
                .iter()
                .map(|property| Entry {
                    key: property.name.as_str().to_owned(),
                    line: lines.at(property.range.start),
                    node: from_json(&property.value, lines),
                })
                .collect(),
        ),
    };
    Node { line, value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_allowed_and_lines_kept() {
        let text = "\u{feff}{\n  // why\n  \"a\": null,\n  \"b\": {\"c\": -3},\n}\n";
        let root = read(text, &SourceLocation::default()).unwrap();
        let lines: Vec<_> = root.entries().iter().map(|entry| (entry.key.as_str(), entry.line)).collect();
        assert_eq!(lines, [("a", 3), ("b", 4)]);
        assert_eq!(root.get("b").unwrap().get("c").unwrap().value, Value::Int(-3));
    }

    #[test]
    fn a_syntax_error_names_the_line() {
        let error = read("{\n\"a\" 1}", &SourceLocation::named("f")).unwrap_err();
        assert!(error.to_string().starts_with("f:2: "), "{error}");
    }
}
