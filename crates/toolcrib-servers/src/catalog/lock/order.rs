//! The order of keys in the schemas of tools. It has no meaning in a schema, but a model reads it: under a lockfile
//! it is the reviewed one, whichever order the server sends. Some servers change it at each start.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::ToolText;
use crate::tool::Tool;

type Object = Map<String, Value>;

/// `tool` with its keys in the order of the text that was reviewed. Keys that the text does not have come last, sorted:
/// all of them, if there is no text.
pub(super) fn reviewed(tool: &Tool, text: Option<&ToolText>) -> Tool {
    let text: Value = text.and_then(|text| serde_json::from_str(&text.schemas).ok()).unwrap_or_default();
    let schema = |one: &Arc<Object>, name| Arc::new(object((**one).clone(), text[name].as_object()));
    let mut tool = tool.clone();
    tool.input_schema = schema(&tool.input_schema, "input_schema");
    tool.output_schema = tool.output_schema.as_ref().map(|one| schema(one, "output_schema"));
    tool
}

fn object(mut map: Object, like: Option<&Object>) -> Object {
    let mut ordered = Object::with_capacity(map.len());
    for (key, like) in like.into_iter().flatten() {
        if let Some((key, member)) = map.swap_remove_entry(key) {
            ordered.insert(key, value(member, Some(like)));
        }
    }
    map.sort_keys();
    ordered.extend(map.into_iter().map(|(key, member)| (key, value(member, None))));
    ordered
}

/// Lists stay as they are: their order means something, and is locked.
fn value(one: Value, like: Option<&Value>) -> Value {
    match one {
        Value::Object(map) => Value::Object(object(map, like.and_then(Value::as_object))),
        Value::Array(items) => {
            let like = |index| like.and_then(|like| like.get(index));
            items.into_iter().enumerate().map(|(index, item)| value(item, like(index))).collect()
        }
        other => other,
    }
}
