//! A server over HTTP that answers as a test says, and keeps what it was asked.

use std::sync::{Arc, Mutex};

use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{HeaderMap, Method, StatusCode},
    response::{IntoResponse as _, Response},
};
use serde_json::{Map, Value, json};
use tokio::{
    sync::{Notify, mpsc},
    task::JoinSet,
};
use toolcrib::Manager;

use crate::support::{object, served};

/// One request, as the server has got it.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) http: Method,
    pub(super) path: String,
    headers: HeaderMap,
    pub(super) body: Value,
}

impl Asked {
    pub(super) fn method(&self) -> &str {
        self.body["method"].as_str().unwrap_or_default()
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// Whether it is of the era of 2026-07-28.
    pub(super) fn is_modern(&self) -> bool {
        self.header("mcp-protocol-version") == Some("2026-07-28")
    }

    #[allow(clippy::needless_pass_by_value, reason = "made where it is passed")]
    pub(super) fn result(&self, result: Value) -> Value {
        json!({"jsonrpc": "2.0", "id": self.body["id"], "result": result})
    }

    #[allow(clippy::needless_pass_by_value, reason = "made where it is passed")]
    pub(super) fn error(&self, code: i32, data: Value) -> Value {
        let error = json!({"code": code, "message": "no", "data": data});
        json!({"jsonrpc": "2.0", "id": self.body["id"], "error": error})
    }

    /// The answer to a tool call.
    pub(super) fn says(&self, text: &str) -> Value {
        self.result(json!({"content": [{"type": "text", "text": text}], "isError": false}))
    }
}

type Handler = Arc<dyn Fn(&Asked) -> Option<Response> + Send + Sync>;

/// A server, and what it was asked.
#[derive(Clone)]
pub(super) struct Scripted {
    handler: Handler,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Scripted {
    pub(super) fn count(&self, is: impl Fn(&Asked) -> bool) -> usize {
        self.asked.lock().unwrap().iter().filter(|asked| is(asked)).count()
    }

    pub(super) fn find(&self, method: &str) -> Vec<Asked> {
        self.asked.lock().unwrap().iter().filter(|asked| asked.method() == method).cloned().collect()
    }
}

/// A server of the old era whose sessions are named by number. `handler` answers what it wants to, before that.
pub(super) async fn scripted(
    handler: impl Fn(&Asked) -> Option<Response> + Send + Sync + 'static,
) -> (String, Scripted, JoinSet<()>) {
    let script = Scripted { handler: Arc::new(handler), asked: Arc::default() };
    let router = Router::new().fallback(answer).with_state(script.clone());
    let (url, serving) = served(router).await;
    (url.replace("/v1", "/mcp"), script, serving)
}

async fn answer(State(script): State<Scripted>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 24).await.unwrap();
    let body = serde_json::from_slice(&body).unwrap_or_default();
    let path = head.uri.path().to_owned();
    let asked = Asked { http: head.method, path, headers: head.headers, body };
    script.asked.lock().unwrap().push(asked.clone());
    if let Some(answer) = (script.handler)(&asked) {
        if let Some(HeldBack(until)) = answer.extensions().get() {
            until.notified().await;
        }
        return answer;
    }
    if asked.http != Method::POST {
        return StatusCode::METHOD_NOT_ALLOWED.into_response();
    }
    let info = json!({"name": "scripted", "version": "1"});
    let result = match asked.method() {
        "initialize" => {
            let session = script.count(|asked| asked.method() == "initialize").to_string();
            let result = json!({
                "protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info,
            });
            return ([("mcp-session-id", session)], Json(asked.result(result))).into_response();
        }
        "tools/list" => json!({"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}),
        "tools/call" => return Json(asked.says("done")).into_response(),
        "ping" => json!({}),
        _ if asked.body.get("id").is_none() => return StatusCode::ACCEPTED.into_response(),
        _ if asked.body.get("method").is_none() => return StatusCode::ACCEPTED.into_response(),
        _ => return (StatusCode::BAD_REQUEST, Json(asked.error(-32601, Value::Null))).into_response(),
    };
    Json(asked.result(result)).into_response()
}

#[derive(Clone)]
struct HeldBack(Arc<Notify>);

/// An answer that is sent when `until` says so.
pub(super) fn held_back(mut answer: Response, until: Arc<Notify>) -> Response {
    answer.extensions_mut().insert(HeldBack(until));
    answer
}

/// The same in the era of 2026-07-28.
pub(super) fn modern(asked: &Asked, capabilities: &Value, tools: &Value) -> Option<Response> {
    let common = json!({"resultType": "complete", "ttlMs": 0, "cacheScope": "private"});
    let whole = |more: Value| {
        let mut result = common.clone();
        result.as_object_mut().unwrap().extend(object(more));
        Some(Json(asked.result(result)).into_response())
    };
    match asked.method() {
        "server/discover" => whole(json!({
            "supportedVersions": ["2026-07-28"], "capabilities": capabilities,
        })),
        "tools/list" if asked.is_modern() => whole(json!({"tools": tools})),
        "initialize" => Some(StatusCode::BAD_REQUEST.into_response()),
        _ => None,
    }
}

pub(super) fn events(text: String) -> Response {
    ([("content-type", "text/event-stream")], text).into_response()
}

pub(super) fn event(message: &Value) -> String {
    format!("event: message\ndata: {message}\n\n")
}

/// A stream of events that stays open, and what writes to it.
pub(super) fn open_events() -> (mpsc::UnboundedSender<String>, Response) {
    let (write, read) = mpsc::unbounded_channel::<String>();
    let stream = futures_util::stream::unfold(read, |mut read| async {
        let text = read.recv().await?;
        Some((Ok::<_, std::io::Error>(Bytes::from(text)), read))
    });
    (write, ([("content-type", "text/event-stream")], Body::from_stream(stream)).into_response())
}

pub(super) async fn call(manager: &Manager) -> toolcrib::Result<String> {
    manager.call("remote", "t", Map::new()).await.map(|result| result.text())
}
