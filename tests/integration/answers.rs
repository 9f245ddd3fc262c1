//! A loopback model server whose answers are fixed in advance, and agents that ask it.

use std::{
    path::Path,
    sync::{Arc, Mutex},
};

use axum::{Json, Router, extract::State, http::StatusCode, routing::post};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinSet};
use toolcrib::{
    Agent, AgentConfig, CancellationToken, Config, HttpClients, HttpConfig, LlmClient, LlmConfig, Manager,
    RunReport, Task,
};

/// A model that gives its answers one after the other, the last one again and again.
pub(crate) struct Model {
    pub(crate) url: String,
    seen: Arc<Seen>,
    _tasks: JoinSet<()>,
}

struct Seen {
    answers: Vec<Value>,
    requests: Mutex<Vec<Value>>,
}

impl Model {
    pub(crate) async fn new(answers: impl IntoIterator<Item = Value>) -> Self {
        let answers = answers.into_iter().collect();
        let seen = Arc::new(Seen { answers, requests: Mutex::default() });
        let router = Router::new().route("/v1/chat/completions", post(serve)).with_state(Arc::clone(&seen));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, seen, _tasks: tasks }
    }

    /// The bodies of the requests so far.
    pub(crate) fn requests(&self) -> Vec<Value> {
        self.seen.requests.lock().unwrap().clone()
    }

    /// The messages of the n-th request, from 0, as `role: content`.
    pub(crate) fn messages(&self, request: usize) -> Vec<String> {
        let requests = self.requests();
        let messages = requests[request]["messages"].as_array().unwrap();
        let text = |message: &Value| {
            let content = message["content"].as_str().unwrap_or_default();
            format!("{}: {content}", message["role"].as_str().unwrap())
        };
        messages.iter().map(text).collect()
    }

    fn client(&self) -> LlmClient {
        let http = HttpClients::new(&HttpConfig::default()).unwrap();
        LlmClient::new(&LlmConfig::new(Some(self.url.clone()), "m"), &http, Path::new(".")).unwrap()
    }
}

async fn serve(State(seen): State<Arc<Seen>>, Json(body): Json<Value>) -> (StatusCode, Json<Value>) {
    let mut requests = seen.requests.lock().unwrap();
    let answer = seen.answers.get(requests.len()).or(seen.answers.last()).unwrap().clone();
    requests.push(body);
    let status = if answer.get("error").is_some() { StatusCode::BAD_REQUEST } else { StatusCode::OK };
    (status, Json(answer))
}

/// The server's word that the conversation is too long.
pub(crate) fn too_long() -> Value {
    json!({"error": {"message": "maximum context length is 512 tokens", "code": "context_length_exceeded"}})
}

fn choice(message: &Value, finish: &str) -> Value {
    json!({"choices": [{"message": message, "finish_reason": finish}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10}})
}

/// An answer of text.
pub(crate) fn say(text: &str) -> Value {
    choice(&json!({"role": "assistant", "content": text}), "stop")
}

/// An answer of native calls.
pub(crate) fn calls(calls: &[(&str, &str)]) -> Value {
    let call = |(index, (name, arguments)): (usize, &(&str, &str))| {
        json!({"id": format!("c{index}"), "type": "function",
            "function": {"name": name, "arguments": arguments}})
    };
    let calls: Vec<Value> = calls.iter().enumerate().map(call).collect();
    choice(&json!({"role": "assistant", "content": null, "tool_calls": calls}), "tool_calls")
}

/// A call in the text.
pub(crate) fn block(server: &str, tool: &str, arguments: &str) -> String {
    format!(
        "<use_mcp_tool>\n<server_name>{server}</server_name>\n<tool_name>{tool}</tool_name>\n<arguments>\n\
         {arguments}\n</arguments>\n</use_mcp_tool>"
    )
}

/// The `[agent]` table with these lines.
pub(crate) fn agent(lines: &str) -> AgentConfig {
    let text = format!("[agent]\n{lines}");
    let env = toolcrib::Env::new("/", [("PATH", "/bin")]);
    Config::parse(&text, None, Path::new("/"), &env).unwrap().agent
}

pub(crate) async fn run(manager: &Manager, model: &Model, config: AgentConfig, task: &Task) -> RunReport {
    let agent = Agent::new(model.client(), manager.toolbox(), config);
    agent.run(task, &CancellationToken::new()).await
}

pub(crate) fn question() -> Task {
    Task::question("q", "What is it?")
}
