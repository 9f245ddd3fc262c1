//! Finds model servers on this machine. Used only when no model is configured, and reported.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::Value;
use url::Url;

use super::transport::{MAX_ANSWER, read};
use crate::http::{HttpClients, ModelPool};

/// The ports that model servers listen on by default: llama.cpp, vLLM, Ollama, LM Studio.
pub const DETECT_PORTS: [u16; 4] = [8080, 8000, 11434, 1234];

/// How long a port may take to answer.
const LIMIT: Duration = Duration::from_millis(200);

/// Base URLs of the model servers that answer on the loopback interface, asked all at once.
pub async fn detect(http: &HttpClients) -> Vec<String> {
    detect_on(http, &DETECT_PORTS, LIMIT).await
}

async fn detect_on(http: &HttpClients, ports: &[u16], limit: Duration) -> Vec<String> {
    let found = join_all(ports.iter().map(|port| async move {
        let base = format!("http://127.0.0.1:{port}/v1");
        let lists = tokio::time::timeout(limit, lists_models(http, &base)).await;
        (lists == Ok(Some(true))).then_some(base)
    }));
    found.await.into_iter().flatten().collect()
}

/// Whether `base` answers as a model server does: a web server on the same port would not.
async fn lists_models(http: &HttpClients, base: &str) -> Option<bool> {
    let models = Url::parse(&format!("{base}/models")).ok()?;
    let answer = http.model_server(&models, ModelPool::default()).ok()?.get(&models).await.ok()?;
    // 401 and 403 do not count: any protected web application answers so.
    let good = answer.status.is_success();
    let json: Value = serde_json::from_slice(&read(answer, MAX_ANSWER).await.ok()?).ok()?;
    Some(good && (json["data"].is_array() || json["models"].is_array()))
}

#[cfg(test)]
mod tests {
    use axum::{Json, Router, routing::get};
    use serde_json::json;
    use tokio::{net::TcpListener, task::JoinSet};

    use super::*;
    use crate::config::HttpConfig;

    #[tokio::test]
    async fn only_model_servers_are_found() {
        let mut servers = JoinSet::new();
        let mut ports = Vec::new();
        for router in [
            Router::new().route("/v1/models", get(|| async { Json(json!({"object": "list", "data": []})) })),
            Router::new().route("/", get(|| async { "hello" })),
            Router::new().route("/v1/models", get(|| async { Json(json!({"status": "ok"})) })),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            ports.push(listener.local_addr().unwrap().port());
            servers.spawn(async move { axum::serve(listener, router).await.unwrap() });
        }
        // Nothing listens on port 1 of the loopback interface.
        ports.push(1);
        let clients = HttpClients::new(&HttpConfig::default()).unwrap();
        let found = detect_on(&clients, &ports, Duration::from_secs(60)).await;
        assert_eq!(found, [format!("http://127.0.0.1:{}/v1", ports[0])]);
    }
}
