//! Items that the fixture lists and gives, from `content.json`, and the pages of its lists.

use std::{collections::HashMap, sync::LazyLock};

use rmcp::{
    ErrorData,
    model::{CallToolResult, PaginatedRequestParams, Prompt, Resource, ResourceTemplate, Tool},
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// An image of one pixel, as `PNG` in `content.json`.
pub(crate) const PNG: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
/// A sound of no samples, as `WAV`.
const WAV: &str = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA=";

#[derive(Deserialize)]
pub(crate) struct Content {
    pub(crate) tools: Vec<Tool>,
    pub(crate) results: HashMap<String, CallToolResult>,
    pub(crate) resources: Vec<Resource>,
    contents: HashMap<String, Map<String, Value>>,
    pub(crate) templates: Vec<ResourceTemplate>,
    pub(crate) prompts: Vec<Prompt>,
}

pub(crate) static CONTENT: LazyLock<Content> = LazyLock::new(|| {
    let text = include_str!("content.json");
    let text = text.replace("\"PNG\"", &format!("{PNG:?}")).replace("\"WAV\"", &format!("{WAV:?}"));
    let mut content: Value = serde_json::from_str(&text).expect("content.json is JSON");
    for tool in content["tools"].as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        tool.entry("inputSchema").or_insert_with(|| json!({"type": "object", "properties": {}}));
    }
    // Taken away again for clients of the old era.
    for result in content["results"].as_object_mut().into_iter().flat_map(Map::values_mut) {
        result["resultType"] = json!("complete");
    }
    serde_json::from_value(content).expect("content.json has what the fixture gives")
});

impl Content {
    pub(crate) fn tool(&self, name: &str) -> Option<Tool> {
        self.tools.iter().find(|tool| tool.name == name).cloned()
    }

    /// The content of a resource, as one entry of `contents`.
    pub(crate) fn resource(&self, uri: &str) -> Option<Value> {
        let mut content = match self.contents.get(uri) {
            Some(content) => content.clone(),
            None => {
                let id = uri.strip_prefix("test://template/")?.strip_suffix("/data")?;
                let text = json!({"id": id, "templateTest": true, "data": format!("Data for ID: {id}")});
                let content = json!({"mimeType": "application/json", "text": text.to_string()});
                content.as_object().cloned()?
            }
        };
        content.insert("uri".to_owned(), uri.into());
        Some(content.into())
    }
}

/// A page of `all`, and the cursor of the next one, which is the number of entries before it.
pub(crate) fn page<T: Clone>(
    all: &[T],
    request: Option<&PaginatedRequestParams>,
    length: Option<usize>,
) -> Result<(Vec<T>, Option<String>), ErrorData> {
    let start = match request.and_then(|request| request.cursor.as_deref()) {
        None => 0,
        Some(cursor) => cursor
            .parse()
            .ok()
            .filter(|start| *start < all.len())
            .ok_or_else(|| ErrorData::invalid_params(format!("no such cursor: {cursor}"), None))?,
    };
    let end = length.map_or(all.len(), |length| all.len().min(start + length));
    Ok((all[start..end].to_vec(), (end < all.len()).then(|| end.to_string())))
}
