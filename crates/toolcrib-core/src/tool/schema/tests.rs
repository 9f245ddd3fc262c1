//! Tests that what is no JSON Schema becomes one, and that what is one stays as it is.

use super::*;

fn mended(schema: &Value) -> (Value, Vec<String>) {
    let mut object = schema.as_object().unwrap().clone();
    let faults = mend(&mut object, SchemaUse::Arguments);
    (Value::Object(object), faults.into_iter().map(|fault| fault.path).collect())
}

#[cfg(feature = "schema")]
const KEYWORDS: [&str; 52] = [
    "$anchor",
    "$comment",
    "$defs",
    "$dynamicAnchor",
    "$dynamicRef",
    "$id",
    "$recursiveAnchor",
    "$ref",
    "$schema",
    "$vocabulary",
    "additionalProperties",
    "allOf",
    "anyOf",
    "const",
    "contains",
    "contentEncoding",
    "contentMediaType",
    "contentSchema",
    "default",
    "definitions",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "deprecated",
    "description",
    "else",
    "enum",
    "examples",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "if",
    "items",
    "maxContains",
    "maxItems",
    "maximum",
    "minLength",
    "multipleOf",
    "not",
    "oneOf",
    "pattern",
    "patternProperties",
    "prefixItems",
    "properties",
    "propertyNames",
    "readOnly",
    "required",
    "then",
    "title",
    "type",
    "unevaluatedItems",
    "uniqueItems",
];

#[cfg(feature = "schema")]
#[test]
fn any_value_of_any_keyword_becomes_valid() {
    let values = [
        json!(null),
        json!(true),
        json!(0),
        json!(-1.5),
        json!("text"),
        json!("("),
        json!("#"),
        json!("#/$defs/none"),
        json!([]),
        json!([null, "a", "a", 1]),
        json!({}),
        json!({"a": null, "(": {"type": "str"}, "b": [1, "x", "x"], "c": {"items": [{}, 5]}}),
    ];
    for keyword in KEYWORDS {
        for value in &values {
            let one = json!({keyword: value});
            for schema in [
                one.clone(),
                json!({"type": "object", "properties": {"a": one}}),
                json!({"$defs": {"x": {"items": {"anyOf": [one, {"$ref": "#/$defs/x"}]}}}}),
            ] {
                let (valid, _) = mended(&schema);
                let by_meta = jsonschema::draft202012::meta::validate(&valid);
                assert!(by_meta.is_ok(), "{schema}: {valid}: {by_meta:?}");
                assert_eq!(mended(&valid), (valid.clone(), vec![]), "{schema}");
                // These say which keywords there are, and where references lead.
                if !matches!(keyword, "$id" | "$vocabulary") {
                    let compiled = jsonschema::options().build(&valid);
                    assert!(compiled.is_ok(), "{schema}: {valid}: {:?}", compiled.err());
                }
            }
        }
    }
}

#[test]
fn an_invalid_keyword_is_left_out_alone() {
    let cases: [(Value, Value, &[&str]); 13] = [
        (json!({"required": "a"}), json!({}), &["required"]),
        (json!({"required": ["a", 1, "a"]}), json!({"required": ["a"]}), &["required/1"]),
        (json!({"type": ["string", "string"]}), json!({"type": ["string"]}), &[]),
        (json!({"type": ["string", "any"], "title": "t"}), json!({"title": "t"}), &["type"]),
        (json!({"anyOf": [{"type": "null"}, null]}), json!({"anyOf": [{"type": "null"}, {}]}), &["anyOf/1"]),
        (
            json!({"not": {"items": {"minItems": "1"}}}),
            json!({"not": {"items": {}}}),
            &["not/items/minItems"],
        ),
        (
            json!({"patternProperties": {"(": {}, "a": {}}}),
            json!({"patternProperties": {"a": {}}}),
            &["patternProperties/("],
        ),
        // What only looks like a keyword.
        (
            json!({"properties": {"type": {"type": "null"}}}),
            json!({"properties": {"type": {"type": "null"}}}),
            &[],
        ),
        (
            json!({"default": {"$ref": "#/none"}, "x": {"type": 5}}),
            json!({"default": {"$ref": "#/none"}, "x": {"type": 5}}),
            &[],
        ),
        // Older drafts.
        (
            json!({"type": "array", "items": [{}, true], "additionalItems": false}),
            json!({"type": "array", "prefixItems": [{}, true], "items": false}),
            &[],
        ),
        (json!({"maximum": 3, "exclusiveMaximum": true}), json!({"exclusiveMaximum": 3}), &[]),
        (json!({"minimum": 3, "exclusiveMinimum": false}), json!({"minimum": 3}), &[]),
        (json!({"type": ["array", "null"]}), json!({"type": ["array", "null"], "items": {}}), &[]),
    ];
    for (schema, valid, paths) in cases {
        let paths: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
        assert_eq!(mended(&schema), (valid, paths), "{schema}");
    }
}

#[test]
fn a_draft_that_clients_do_not_know_is_not_named() {
    let shown = |dialect: Value, items: Value| {
        let (valid, paths) = mended(&json!({"$schema": dialect, "properties": {"a": {"items": items}}}));
        (valid.get("$schema").cloned(), paths)
    };
    for (dialect, named) in [
        (
            "https://json-schema.org/draft/2020-12/schema",
            Some("https://json-schema.org/draft/2020-12/schema"),
        ),
        (
            "http://json-schema.org/draft/2020-12/schema#",
            Some("https://json-schema.org/draft/2020-12/schema"),
        ),
        ("http://json-schema.org/draft-07/schema#", Some("http://json-schema.org/draft-07/schema#")),
        ("https://json-schema.org/draft-07/schema", Some("http://json-schema.org/draft-07/schema#")),
        // It is written as 2020-12 has it, and has no fault.
        ("https://json-schema.org/draft/2019-09/schema", None),
        ("http://json-schema.org/draft-06/schema#", None),
        ("http://json-schema.org/draft-04/schema", None),
        ("http://json-schema.org/schema#", None),
    ] {
        assert_eq!(shown(dialect.into(), json!({})), (named.map(Value::from), vec![]), "{dialect}");
        assert_eq!(shown(dialect.into(), json!([{}])), (None, vec![]), "{dialect}: a list of items");
    }
    for dialect in [
        json!("https://example.com/none"),
        json!("https://json-schema.org/draft/2077-01/schema"),
        json!("http://json-schema.org/draft-07/schema#/definitions"),
        json!("draft-07"),
        json!(""),
        json!(7),
        json!(null),
    ] {
        assert_eq!(shown(dialect.clone(), json!({})), (None, vec!["$schema".to_owned()]), "{dialect}");
    }
    let below = json!({"properties": {"a": {"$schema": "none"}, "$schema": {"type": "string"}}});
    let valid = json!({"properties": {"a": {}, "$schema": {"type": "string"}}});
    assert_eq!(mended(&below), (valid, vec!["properties/a/$schema".to_owned()]));
}

#[test]
fn references_lead_somewhere_or_are_left_out() {
    let parts = json!({
        "A": {"type": "null"}, "a b": {"$ref": "#/$defs/A"}, "list": {"anyOf": [{}]}, "named": {"$anchor": "here"},
        "own": {"$id": "https://example.com/own", "$defs": {"in": {}}},
        "loop": {"$ref": "#/$defs/pool"}, "pool": {"$ref": "#/$defs/loop"}, "title": {"title": "t"},
    });
    for (reference, leads) in [
        ("#", true),
        ("#/$defs/A", true),
        ("#/$defs/a%20b", true),
        ("#/$defs/list/anyOf/0", true),
        ("#here", true),
        ("https://example.com/own", true),
        ("https://example.com/own#/$defs/in", true),
        ("#/$defs/none", false),
        ("#/$defs/list/anyOf/1", false),
        ("#/$defs/title/title", false),
        ("#/$defs/loop", false),
        ("#there", false),
        ("A", false),
        ("https://example.com/other", false),
    ] {
        let (valid, paths) = mended(&json!({
            "properties": {"a": {"$ref": reference, "description": "d"}}, "$defs": parts,
        }));
        assert_eq!(valid["properties"]["a"].get("$ref").is_some(), leads, "{reference}");
        assert_eq!(valid["properties"]["a"]["description"], "d");
        assert_eq!(paths.iter().any(|path| path == "properties/a/$ref"), !leads, "{reference}: {paths:?}");
    }
}

#[test]
fn what_a_server_writes_is_bounded() {
    let mut deep = json!({"type": "str"});
    for _ in 0..120 {
        deep = json!({"not": deep});
    }
    let (valid, paths) = mended(&deep);
    assert_eq!(valid.to_string().matches("not").count(), DEPTH + 1);
    assert_eq!(paths.len(), 1);
    let many: Map<String, Value> =
        (0..10_000).map(|number| (number.to_string(), json!({"pattern": "[a]"}))).collect();
    let (valid, paths) = mended(&json!({"properties": many}));
    assert_eq!(paths.len(), MOST_FAULTS);
    let kept = valid.to_string().matches("pattern").count();
    assert_eq!(kept, MOST_PATTERNS);
    let (valid, _) = mended(&json!({"pattern": format!("[{}]", "a".repeat(5_000))}));
    assert_eq!(valid, json!({}));
}
