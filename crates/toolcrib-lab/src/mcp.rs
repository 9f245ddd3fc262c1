//! Bare MCP clients, over streamable HTTP and over lines: no more than measurements and checks need, and nothing of the
//! library that they measure.

mod http;
mod lines;

use std::fmt;

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use serde_json::{Map, Value, json};

pub(crate) use self::{http::HttpClient, lines::LineClient};

/// The versions of the protocol that are spoken.
const LEGACY: &str = "2025-11-25";
const MODERN: &str = "2026-07-28";

/// The two lifecycles of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Era {
    /// `initialize` and sessions.
    Legacy,
    /// Metadata in every request, and no session.
    Modern,
}

/// Who asks: what a request says of its client.
#[derive(Clone)]
pub(crate) struct Identity {
    pub(crate) era: Era,
    pub(crate) capabilities: Value,
}

/// A request without its id.
pub(crate) struct Request {
    method: &'static str,
    /// The tool, prompt or resource that it names, which is a header in the new era.
    name: Option<String>,
    /// The parameters, as JSON.
    params: String,
    /// Arguments that are headers too, in the new era.
    headers: Vec<(String, String)>,
}

/// An answer: a result, or an error of the protocol.
pub(crate) type Answer = Result<Value, Value>;

/// Answers what a server asks its client, by method and parameters.
pub(crate) type User<'a> = &'a (dyn Fn(&str, &Value) -> Option<Value> + Sync);

/// A client that can be asked for nothing.
pub(crate) fn nobody(_method: &str, _params: &Value) -> Option<Value> {
    None
}

impl fmt::Display for Era {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Legacy => LEGACY,
            Self::Modern => MODERN,
        })
    }
}

impl Identity {
    pub(crate) fn new(era: Era, capabilities: Value) -> Self {
        Self { era, capabilities }
    }

    pub(crate) fn request(&self, method: &'static str, mut params: Map<String, Value>) -> Request {
        let name = ["name", "uri"].iter().find_map(|key| params.get(*key)?.as_str()).map(ToOwned::to_owned);
        if self.era == Era::Modern {
            let meta = params.entry("_meta").or_insert_with(|| json!({}));
            meta["io.modelcontextprotocol/protocolVersion"] = json!(MODERN);
            meta["io.modelcontextprotocol/clientInfo"] = client_info();
            meta["io.modelcontextprotocol/clientCapabilities"] = self.capabilities.clone();
        }
        Request { method, name, params: Value::Object(params).to_string(), headers: Vec::new() }
    }

    /// A call of a tool.
    pub(crate) fn call(&self, tool: &str, arguments: &Value) -> Request {
        let params = Map::from_iter([("name".into(), json!(tool)), ("arguments".into(), arguments.clone())]);
        self.request("tools/call", params)
    }

    fn initialize(&self) -> Request {
        let params = json!({
            "protocolVersion": LEGACY, "clientInfo": client_info(), "capabilities": self.capabilities
        });
        Request { method: "initialize", name: None, params: params.to_string(), headers: Vec::new() }
    }
}

impl Request {
    /// Adds the arguments that the tool's schema marks with `x-mcp-header`.
    pub(crate) fn with_headers(mut self, schema: &Value, arguments: &Value) -> Self {
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let value = match &arguments[name] {
                Value::String(text) => text.clone(),
                value @ (Value::Bool(_) | Value::Number(_)) => value.to_string(),
                _ => continue,
            };
            if let Some(header) = property["x-mcp-header"].as_str() {
                let plain = value.bytes().all(|byte| (b' '..=b'~').contains(&byte)) && value.trim() == value;
                let value = if plain { value } else { format!("=?base64?{}?=", BASE64.encode(value)) };
                self.headers.push((format!("mcp-param-{header}"), value));
            }
        }
        self
    }

    fn text(&self, id: u64) -> String {
        let Self { method, params, .. } = self;
        format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)
    }
}

const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

fn client_info() -> Value {
    json!({"name": "toolcrib-lab", "version": env!("CARGO_PKG_VERSION")})
}

/// The meaning of a message for the sender of request `id`.
enum Message {
    Answer(Answer),
    /// A request of the server, answered by its user.
    Reply(String),
    Other,
}

/// Sorts a message, and has `user` answer if it is a request.
fn sort(mut message: Value, id: Option<u64>, user: User<'_>) -> Message {
    let Some(theirs) = message.get("id").cloned() else { return Message::Other };
    if let Some(method) = message.get("method").and_then(Value::as_str) {
        let answer = user(method, message.get("params").unwrap_or(&Value::Null));
        let refusal = || json!({"jsonrpc": "2.0", "id": theirs, "error": {"code": -32601, "message": "no"}});
        let result = |result| json!({"jsonrpc": "2.0", "id": theirs, "result": result});
        return Message::Reply(answer.map_or_else(refusal, result).to_string());
    }
    // An error whose request could not be read has no id.
    if id.is_some_and(|id| theirs.as_u64() != Some(id)) && !theirs.is_null() {
        return Message::Other;
    }
    match (message.get_mut("result").map(Value::take), message.get_mut("error").map(Value::take)) {
        (Some(result), _) => Message::Answer(Ok(result)),
        (None, Some(error)) => Message::Answer(Err(error)),
        (None, None) => Message::Other,
    }
}
