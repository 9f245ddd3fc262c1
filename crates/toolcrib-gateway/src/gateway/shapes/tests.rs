//! Each member of each table: what it may be, and what becomes of anything else.

use serde_json::json;

use super::*;

/// An item after it was made to fit, or `None`, and where something was wrong.
fn fitted_item(members: &[Member], item: &Value) -> (Option<Value>, Vec<String>) {
    let mut object = RawObject::parse(Some(&json_rpc::raw(item))).unwrap();
    let mut faults = Faults::default();
    let fits = fit(&mut object, members, &mut faults);
    let value = serde_json::from_str(object.into_raw().get()).unwrap();
    (fits.then_some(value), faults.found.into_iter().map(|fault| fault.path).collect())
}

/// A value that fits, and some that do not, whatever else they are.
fn examples(shape: &Shape) -> (Value, Vec<Value>) {
    let (text, object, number) = (json!("words"), json!({"a": 1}), json!(1));
    match shape {
        Shape::Any => (number, vec![]),
        Shape::Text => (text, vec![number, json!(true), json!([]), object]),
        Shape::Bool => (json!(false), vec![text, number, json!([]), object]),
        Shape::Integer => (json!(3), vec![json!("3"), json!(1.5), json!(true), json!([])]),
        Shape::Number => (json!(1.5), vec![json!("3"), json!(true), json!([])]),
        Shape::Token => (text, vec![json!(true), json!([]), object]),
        Shape::Share => (json!(0.5), vec![json!("1"), json!(2), json!(-0.1), json!([])]),
        Shape::Moment => (
            json!("2026-01-31T12:00:00.5+01:00"),
            vec![json!("today"), number, json!("2026-02-31T12:00:00Z")],
        ),
        Shape::Word(words) => (json!(words[0]), vec![json!("other"), number, json!([words[0]])]),
        Shape::List(entry) => (json!([examples(entry).0]), vec![text, number, object]),
        Shape::Object(members) => {
            let member = |member: &Member| (member.name.to_owned(), examples(&member.shape).0);
            (Value::Object(members.iter().map(member).collect()), vec![text, number, json!([1])])
        }
        Shape::Arguments | Shape::Output => {
            let schema = json!({"type": "object", "properties": {"a": {}}, "required": ["a"]});
            (schema, vec![text, number, json!([1])])
        }
    }
}

const TABLES: [&[Member]; 11] = [
    TOOL,
    PROMPT,
    RESOURCE,
    TEMPLATE,
    TEXT_BLOCK,
    MEDIA_BLOCK,
    RESOURCE_BLOCK,
    CONTENTS,
    COMPLETION,
    PROGRESS,
    CANCELLED,
];

#[test]
fn every_member_fits_is_left_out_or_takes_its_item_along() {
    for members in TABLES {
        let all = examples(&Shape::Object(&[])).0;
        assert!(all.is_object());
        let whole: Map<String, Value> =
            members.iter().map(|member| (member.name.to_owned(), examples(&member.shape).0)).collect();
        let whole = Value::Object(whole);
        assert_eq!(fitted_item(members, &whole), (Some(whole.clone()), vec![]));
        for member in members {
            let without = |value: Option<Value>| {
                let mut item = whole.clone();
                let object = item.as_object_mut().unwrap();
                match value {
                    Some(value) => drop(object.insert(member.name.to_owned(), value)),
                    None => drop(object.shift_remove(member.name)),
                }
                item
            };
            let missing = without(None);
            let kept = (!member.is_needed).then(|| missing.clone());
            let (item, faults) = fitted_item(members, &missing);
            assert_eq!((item, faults.is_empty()), (kept.clone(), !member.is_needed), "{}", member.name);
            let wrong = examples(&member.shape).1.into_iter().chain([Value::Null]);
            for value in wrong {
                let (item, faults) = fitted_item(members, &without(Some(value.clone())));
                assert_eq!(
                    (item, faults),
                    (kept.clone(), vec![member.name.to_owned()]),
                    "{}: {value}",
                    member.name
                );
            }
        }
    }
}

#[test]
fn what_is_within_a_member_is_left_out_alone() {
    let empty = || json!({"type": "object", "properties": {}});
    let tool = |member: &str, value: Value| {
        let mut tool = json!({"name": "t", "inputSchema": {"type": "object"}});
        tool[member] = value;
        let (tool, faults) = fitted_item(TOOL, &tool);
        (tool.map(|mut tool| tool[member].take()), faults)
    };
    for (member, value, kept, path) in [
        ("icons", json!([{"src": "a"}, {"sizes": ["1x1"]}]), json!([{"src": "a"}]), "icons/1/src"),
        ("icons", json!([{"src": "a", "theme": "blue"}]), json!([{"src": "a"}]), "icons/0/theme"),
        ("icons", json!([{"src": "a", "sizes": "1x1"}]), json!([{"src": "a"}]), "icons/0/sizes"),
        (
            "annotations",
            json!({"title": null, "readOnlyHint": true}),
            json!({"readOnlyHint": true}),
            "annotations/title",
        ),
        ("execution", json!({"taskSupport": "maybe"}), json!({}), "execution/taskSupport"),
        ("inputSchema", json!({}), empty(), "inputSchema/type"),
        ("inputSchema", json!({"type": "string"}), empty(), "inputSchema/type"),
        ("inputSchema", json!({"type": ["object"]}), empty(), "inputSchema/type"),
        (
            "inputSchema",
            json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/none", "description": "d"}}}),
            json!({"type": "object", "properties": {"a": {"description": "d"}}}),
            "inputSchema/properties/a/$ref",
        ),
        (
            "inputSchema",
            json!({"type": "object", "properties": {"a": {"items": {"pattern": "("}}}}),
            json!({"type": "object", "properties": {"a": {"items": {}}}}),
            "inputSchema/properties/a/items/pattern",
        ),
        (
            "inputSchema",
            json!({"type": "object", "properties": null, "required": null}),
            empty(),
            "inputSchema/properties",
        ),
        (
            "inputSchema",
            json!({"type": "object", "properties": {"a": true, "b": {}}}),
            json!({"type": "object", "properties": {"a": {}, "b": {}}}),
            "inputSchema/properties/a",
        ),
        (
            "inputSchema",
            json!({"type": "object", "properties": {"a": false}, "required": ["a", 1]}),
            json!({"type": "object", "properties": {"a": {"not": {}}}, "required": ["a"]}),
            "inputSchema/properties/a",
        ),
        (
            "outputSchema",
            json!({"type": "object", "properties": {"a": true}}),
            json!({"type": "object", "properties": {"a": {}}}),
            "outputSchema/properties/a",
        ),
    ] {
        let (shown, faults) = tool(member, value.clone());
        assert_eq!((shown, faults[0].as_str()), (Some(kept), path), "{value}");
    }
    // Of PHP, an object without members; of the new era, a list.
    assert_eq!(tool("_meta", json!([])), (Some(json!({})), vec![]));
    assert_eq!(tool("inputSchema", json!([])).0, Some(empty()));
    assert_eq!(tool("inputSchema", json!({"type": "object"})), (Some(empty()), vec![]));
    let list = json!({"type": "array", "items": true});
    assert_eq!(tool("outputSchema", list.clone()), (Some(list), vec![]));
    let prompt =
        json!({"name": "p", "arguments": [{"name": "a", "required": null}, {"description": "b"}, 3]});
    let kept = json!({"name": "p", "arguments": [{"name": "a"}]});
    let paths = ["arguments/0/required", "arguments/1/name", "arguments/2"].map(ToOwned::to_owned);
    assert_eq!(fitted_item(PROMPT, &prompt), (Some(kept), paths.to_vec()));
}

#[test]
fn schemas_of_results_are_whole_or_left_out() {
    let compiled = |schema: &Value| {
        let (mut mended, mut faults) = (schema.as_object().unwrap().clone(), Faults::default());
        let is_kept = result_schema(&mut mended, &mut faults);
        let paths: Vec<String> = faults.found.into_iter().map(|fault| fault.path).collect();
        (is_kept.then_some(Value::Object(mended)), paths)
    };
    for right in [
        json!({}),
        json!({"type": "array", "items": true}),
        json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"pattern": "^a+$"}}}),
    ] {
        assert_eq!(compiled(&right), (Some(right), vec![]));
    }
    let old = json!({"type": "object", "properties": {"a": {"minimum": 1, "exclusiveMinimum": true}}});
    let new = json!({"type": "object", "properties": {"a": {"exclusiveMinimum": 1}}});
    assert_eq!(compiled(&old), (Some(new), vec![]));
    // Which draft it is of says nothing of values.
    let unknown = json!({"$schema": "https://example.com/none", "type": "object"});
    assert_eq!(compiled(&unknown), (Some(json!({"type": "object"})), vec!["$schema".to_owned()]));
    for (wrong, path) in [
        (json!({"type": "thing"}), "type"),
        (json!({"type": "object", "properties": {"a": {"required": true}}}), "properties/a/required"),
        (json!({"type": "object", "properties": {"a": {"$ref": "#/none"}}}), "properties/a/$ref"),
        (json!({"type": "object", "properties": {"a": {"pattern": "("}}}), "properties/a/pattern"),
    ] {
        assert_eq!(compiled(&wrong), (None, vec![path.to_owned()]));
    }
}

#[test]
fn what_no_table_names_passes_as_it_is_written() {
    let text = r#"{"uri":"a:b","name":"n","size":12345678901234567890123,"x":1.50,"_meta":{"y":1e2}}"#;
    let mut item: RawObject = serde_json::from_str(text).unwrap();
    let mut faults = Faults::default();
    assert!(fit(&mut item, RESOURCE, &mut faults));
    assert_eq!(faults.found, []);
    assert_eq!(item.into_raw().get(), text);
}

#[test]
fn moments_are_those_of_rfc_3339() {
    for (text, right) in [
        ("2026-11-25T23:27:05Z", true),
        ("2026-11-25T23:27:05.123456-08:30", true),
        ("2026-11-25T23:27:05", false),
        ("2026-11-25 23:27:05Z", false),
        ("2026-13-25T23:27:05Z", false),
        ("2026-11-25T23:27:05+25:00", false),
        ("2026-11-25", false),
        ("", false),
        ("ä-Z", false),
    ] {
        assert_eq!(is_moment(text), right, "{text}");
    }
}
