//! Tests schemas whose check would take too long, and similar ones whose check would not.

use serde_json::json;

use super::*;

fn check(schema: Value) -> Arc<SchemaCheck> {
    let Value::Object(schema) = schema else { unreachable!() };
    Arc::new(SchemaCheck::new(String::new(), Arc::new(schema)))
}

/// The verdict, and whether it was there at once.
async fn judged(check: &Arc<SchemaCheck>, arguments: &Value) -> (Result<(), Vec<String>>, bool) {
    let (verdict, at_once) = match check.at_once(arguments) {
        Some(verdict) => (verdict, true),
        None => (on_thread(check, arguments).await, false),
    };
    (verdict.map(drop), at_once)
}

async fn on_thread(check: &Arc<SchemaCheck>, arguments: &Value) -> Verdict {
    Arc::clone(check).on_thread(Arc::new(arguments.clone()), &CheckThreads::default()).await
}

/// `levels` definitions, each made of `parts` references to the next.
fn doubling(keyword: &str, levels: usize) -> Value {
    let next = |level: usize| json!({"$ref": format!("#/$defs/d{}", level + 1)});
    let mut definitions: Map<String, Value> = (0..levels)
        .map(|level| (format!("d{level}"), json!({keyword: [next(level), next(level)]})))
        .collect();
    definitions.insert(format!("d{levels}"), json!({"type": "object"}));
    json!({"type": "object", "$defs": definitions, "$ref": "#/$defs/d0"})
}

fn nested(depth: usize) -> Value {
    (0..depth).fold(json!({}), |below, _| json!({"x": below}))
}

#[tokio::test]
async fn schemas_that_would_never_finish_are_not_checked() {
    // 2^60 steps each, of the schema alone or at the levels of the arguments.
    let by_schema = ["allOf", "anyOf", "oneOf"].map(|keyword| doubling(keyword, 60));
    let again = json!({"properties": {"x": {"$ref": "#"}}});
    let by_arguments = json!({"type": "object", "allOf": [again, again], "not": {"required": ["y"]}});
    let unevaluated = (0..60)
        .fold(json!({"type": "object"}), |below, _| json!({"allOf": [below], "unevaluatedProperties": true}));
    let mut referred = doubling("allOf", 60);
    referred["unevaluatedProperties"] = json!(false);
    for schema in [&by_schema[..], &[by_arguments, unevaluated, referred]].concat() {
        assert_eq!(judged(&check(schema.clone()), &nested(60)).await.0, Ok(()), "{schema}");
    }
}

#[tokio::test]
async fn recursive_schemas_are_checked() {
    let tree = json!({
        "type": "object", "required": ["name"],
        "properties": {"name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#"}}},
    });
    let check = check(tree);
    let mut arguments = json!({"name": "leaf"});
    for _ in 0..20 {
        arguments = json!({"name": "branch", "children": [arguments, {"name": "leaf"}]});
    }
    assert_eq!(judged(&check, &arguments).await, (Ok(()), true));
    arguments["children"][0]["children"][1]["name"] = json!(7);
    let (verdict, at_once) = judged(&check, &arguments).await;
    assert_eq!(verdict.unwrap_err(), ["`children/0/children/1/name` must be a string, not 7"]);
    assert!(at_once);
}

#[tokio::test]
async fn long_and_circular_references_end() {
    for length in [100, 1_000, 20_000] {
        let mut definitions: Map<String, Value> = (0..length)
            .map(|number| (format!("d{number}"), json!({"$ref": format!("#/$defs/d{}", number + 1)})))
            .collect();
        definitions.insert(format!("d{length}"), json!({"required": ["x"]}));
        let schema = json!({"type": "object", "$defs": definitions, "$ref": "#/$defs/d0"});
        let _ = judged(&check(schema), &json!({})).await;
    }
    for circle in [
        json!({"type": "object", "$ref": "#"}),
        json!({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
        json!({"$ref": "#/nowhere"}),
        json!({"$ref": "https://example.com/schema.json"}),
        json!({"$dynamicRef": "#x", "$dynamicAnchor": "x"}),
        json!({"$ref": "#/$defs/a", "$defs": {"a": {"$id": "https://example.com/", "$ref": "#"}}}),
    ] {
        assert_eq!(judged(&check(circle), &json!({"x": 1})).await.0, Ok(()));
    }
}

#[tokio::test]
async fn patterns_lists_and_texts_are_bounded() {
    let backwards: Vec<Value> =
        (0..200).map(|number| json!({"pattern": format!("^(?=((a|a|b|.)*)*c{number}$)(a|a)*$")})).collect();
    let huge = "((((\\w{99}){99}){99}){99})";
    let numbers: Vec<usize> = (0..100_000).collect();
    let texts: Vec<String> = numbers.iter().map(|number| format!("{number:01000}")).collect();
    let any = |part: Value| json!({"type": "object", "properties": {"x": part}});
    for (schema, arguments) in [
        (any(json!({"allOf": backwards})), json!({"x": "a".repeat(100_000)})),
        (any(json!({"allOf": backwards})), json!({"x": "a".repeat(30)})),
        (any(json!({"pattern": huge})), json!({"x": "a"})),
        (any(json!({"pattern": "(((a{60}){60}){60}){60}"})), json!({"x": "a"})),
        (any(json!({"format": "regex"})), json!({"x": huge})),
        (any(json!({"enum": numbers})), json!({"x": -1})),
        (any(json!({"enum": texts[..5_000]})), json!({"x": -1})),
        (any(json!({"uniqueItems": true})), json!({"x": numbers})),
        (any(json!({"items": {"type": "string"}})), json!({"x": numbers})),
        (any(json!({"items": {"pattern": "^b"}})), json!({"x": texts[..5_000]})),
    ] {
        if let Err(lines) = judged(&check(schema), &arguments).await.0 {
            assert!(lines.len() <= MOST_LINES + 1 && lines.iter().all(|line| line.len() < LONGEST_LINE + 10));
        }
    }
}

#[tokio::test]
async fn large_arguments_are_checked_on_a_thread() {
    let check = check(json!({"type": "object", "properties": {"x": {"items": {"type": "integer"}}}}));
    let mut arguments = json!({"x": (0..100_000).collect::<Vec<usize>>()});
    assert_eq!(judged(&check, &arguments).await, (Ok(()), false));
    arguments["x"][99_999] = json!("a");
    let (verdict, at_once) = judged(&check, &arguments).await;
    assert!(!at_once && verdict.unwrap_err()[0].contains("do not fit"));
    // No check waits for a thread for ever.
    let threads = CheckThreads::default();
    let all = u32::try_from(THREADS).unwrap();
    let _taken = threads.0.acquire_many(all).await.unwrap();
    tokio::time::pause();
    let refused = Arc::clone(&check).on_thread(Arc::new(arguments), &threads).await.unwrap_err();
    assert!(refused[0].contains("too large to be checked"), "{refused:?}");
    assert_eq!(Arc::clone(&check).on_thread(Arc::new(json!({"x": [1]})), &threads).await, UNCHECKED);
}

#[tokio::test]
async fn no_check_is_left_out_for_the_size_of_arguments() {
    let properties = json!({"mode": {"enum": ["safe"]}, "word": {"pattern": "^(?=((a|a|b|.)*)*c)(a|a)*$"}});
    let check = check(json!({"type": "object", "properties": properties}));
    for large in [
        json!({"mode": "no", "pad": "p".repeat(3_000_000)}),
        json!({"mode": "no", "pad": vec![0; 2_000_000]}),
    ] {
        assert!(on_thread(&check, &large).await.is_err());
    }
    // More than can be checked: refused, and the next one is checked as before.
    for length in [100_000, 2_000_000] {
        let endless = json!({"mode": "safe", "word": "a".repeat(length)});
        let refused = on_thread(&check, &endless).await.unwrap_err();
        assert!(refused[0].contains("too large to be checked"), "{refused:?}");
    }
    assert!(judged(&check, &json!({"mode": "no"})).await.0.is_err());
}

#[tokio::test]
async fn usual_schemas_are_checked_at_once() {
    let schema = json!({
        "$schema": "http://json-schema.org/draft-07/schema#", "$id": "https://example.com/tool.json",
        "type": "object", "required": ["path", "edits"], "additionalProperties": false,
        "properties": {
            "path": {"type": "string", "pattern": "^[A-Za-z0-9_./-]{1,64}$"},
            "id": {"type": "string", "pattern": "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
            "edits": {"type": "array", "items": {"$ref": "#/definitions/Edit"}},
            "url": {"type": "string", "format": "uri"},
        },
        "definitions": {
            "Edit": {"type": "object", "properties": {"old": {"type": "string"}, "at": {"$ref": "#/definitions/Place"}}},
            "Place": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        },
    });
    let check = check(schema);
    let edits: Vec<Value> = (0..20).map(|at| json!({"old": "x".repeat(10), "at": at})).collect();
    let good = json!({"path": "src/lib.rs", "edits": edits, "id": "01234567-89ab-cdef-0123-456789abcdef"});
    assert_eq!(judged(&check, &good).await, (Ok(()), true));
    let bad = json!({"path": "a b", "edits": [{"at": "x"}]});
    let (verdict, at_once) = judged(&check, &bad).await;
    assert_eq!((verdict.unwrap_err().len(), at_once), (2, true));
}

#[tokio::test]
async fn a_schema_of_another_type_does_not_stop_its_tool() {
    for schema in [
        json!({"type": "string", "description": "the title"}),
        json!({"type": ["array", "null"]}),
        json!({"type": null}),
        json!({"type": "object", "properties": []}),
    ] {
        let check = check(schema.clone());
        assert_eq!(judged(&check, &json!({"a": 1})).await, (Ok(()), true), "{schema}");
    }
    let check = check(json!({"type": ["object", "null"], "required": ["a"]}));
    assert!(judged(&check, &json!({})).await.0.is_err(), "it may be an object, and has to fit then");
}
