//! Conversions from the SDK's types to ours.

use std::sync::Arc;

use rmcp::model;
use serde_json::{Map, Value};

use crate::tool::{Tool, ToolAnnotations, ToolResult};

/// A tool as the server describes it.
pub(in crate::session) fn tool(tool: model::Tool) -> Tool {
    let description = tool.description.as_deref().unwrap_or_default();
    let mut ours = Tool::new(tool.name.as_ref(), description, Map::new());
    ours.input_schema = to_size(tool.input_schema);
    ours.output_schema = tool.output_schema.map(to_size);
    if let Some(hints) = tool.annotations {
        ours.annotations = ToolAnnotations {
            read_only_hint: hints.read_only_hint,
            destructive_hint: hints.destructive_hint,
            idempotent_hint: hints.idempotent_hint,
            open_world_hint: hints.open_world_hint,
        };
    }
    ours
}

/// A schema in no more memory than it needs, since it stays for as long as its server: the decoder makes room for
/// three members or more in every object.
fn to_size(mut schema: Arc<Map<String, Value>>) -> Arc<Map<String, Value>> {
    fn object(map: &mut Map<String, Value>) {
        let mut exact = Map::with_capacity(map.len());
        for (name, mut member) in std::mem::take(map) {
            value(&mut member);
            exact.insert(name, member);
        }
        *map = exact;
    }
    fn value(one: &mut Value) {
        match one {
            Value::Object(map) => object(map),
            Value::Array(items) => {
                items.iter_mut().for_each(value);
                items.shrink_to_fit();
            }
            _ => {}
        }
    }
    object(Arc::make_mut(&mut schema));
    schema
}

/// A complete result.
pub(super) fn result(result: model::CallToolResult) -> ToolResult {
    let content = result.content.iter().map(|block| serde_json::to_value(block).unwrap_or_default());
    ToolResult::new(content.collect(), result.structured_content, result.is_error.unwrap_or(false))
}

/// A server's words in an error of ours: as long as a person reads.
pub(in crate::session) fn brief(message: &str) -> String {
    const MOST: usize = 2000;
    match message.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}... ({} bytes)", &message[..end], message.len()),
        None => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_strings_are_cut() {
        assert_eq!(brief("short ä"), "short ä");
        let long = brief(&"ä".repeat(3000));
        assert!(long.ends_with("ä... (6000 bytes)") && long.len() < 4100);
    }
}
