//! The plainest answer to a call, decoded in one pass without the SDK's types: a result of text. Whatever is not
//! exactly that goes the SDK's way, which decodes it to the same.

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::tool::ToolResult;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer<'a> {
    jsonrpc: &'a str,
    id: i64,
    result: Plain<'a>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Plain<'a> {
    content: Vec<Text>,
    #[serde(default, deserialize_with = "present")]
    structured_content: Option<Value>,
    is_error: Option<bool>,
    /// Of the revision 2026-07-28.
    result_type: Option<&'a str>,
    #[serde(rename = "_meta")]
    _meta: Option<Ignored>,
}

/// An object that is passed over.
#[derive(Deserialize)]
struct Ignored {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    r#type: Kind,
    text: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Text,
}

/// The request that `line` answers, and its result.
pub(super) fn decode(line: &[u8]) -> Option<(i64, ToolResult)> {
    let Answer { jsonrpc: "2.0", id, result } = serde_json::from_slice(line).ok()? else { return None };
    if result.result_type.is_some_and(|kind| kind != "complete") {
        return None;
    }
    let content = result.content.into_iter().map(block).collect();
    Some((id, ToolResult::new(content, result.structured_content, result.is_error.unwrap_or(false))))
}

fn block(Text { r#type: Kind::Text, text }: Text) -> Value {
    Value::Object(Map::from_iter([("type".to_owned(), "text".into()), ("text".to_owned(), text.into())]))
}

/// A member that is there, `null` too.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use rmcp::model::ServerResult;
    use serde_json::json;

    use super::{super::reply::Reply, *};

    fn by_the_sdk(result: Value) -> Option<ToolResult> {
        match Reply::from(serde_json::from_value::<ServerResult>(result).ok()?) {
            Reply::Result(result) => Some(result),
            Reply::Refused(_) | Reply::Other(_) => None,
        }
    }

    #[test]
    fn it_decodes_what_the_sdk_does_or_leaves_it_alone() {
        let text = json!({"type": "text", "text": "a\"\u{e9}\n"});
        let results = [
            (true, json!({"content": [text]})),
            (true, json!({"content": [], "structuredContent": null})),
            (true, json!({"content": [text, text], "structuredContent": {"a": [1.5]}, "isError": true})),
            (true, json!({"content": [text], "resultType": "complete", "isError": null})),
            (false, json!({"content": [text], "resultType": "task"})),
            (false, json!({"content": [{"type": "text", "text": "a", "annotations": {"priority": 0.5}}]})),
            (false, json!({"content": [{"type": "image", "data": "", "mimeType": "a/b"}]})),
            (true, json!({"content": [text], "_meta": {"a": {"b": 1}}})),
            (false, json!({"content": [text], "_meta": 1})),
            (false, json!({"structuredContent": {}})),
            (false, json!({})),
        ];
        for (plain, result) in results {
            let line = json!({"jsonrpc": "2.0", "id": 7, "result": result}).to_string();
            let ours = decode(line.as_bytes());
            assert_eq!(ours.is_some(), plain, "{line}");
            if let Some((id, ours)) = ours {
                assert_eq!((id, Some(ours)), (7, by_the_sdk(result)), "{line}");
            }
        }
    }

    #[test]
    fn it_takes_nothing_but_answers_to_calls() {
        let result = r#""result":{"content":[]}"#;
        for line in [
            format!(r#"{{"jsonrpc":"2.0","id":"7",{result}}}"#),
            format!(r#"{{"jsonrpc":"1.0","id":7,{result}}}"#),
            format!(r#"{{"jsonrpc":"2.0","id":7,"method":"x",{result}}}"#),
            format!(r#"{{"jsonrpc":"2.0","id":7,"error":{{}},{result}}}"#),
        ] {
            assert!(decode(line.as_bytes()).is_none(), "{line}");
        }
    }
}
