//! Configured headers on model requests, and the session header.

use std::{
    path::Path,
    sync::{Arc, Mutex},
};

use axum::{Json, Router, extract::State, http::HeaderMap, routing::post};
use serde_json::Value;
use toolcrib::{
    Agent, Config, Env, HttpClients, LlmClient, Manager, Task,
    config::{AgentConfig, HttpConfig},
};

use crate::{
    support::model_server::{calls, say},
    support::served,
};

type Seen = Arc<Mutex<Vec<HeaderMap>>>;

/// Asks for a tool, and has enough of what comes back.
async fn serve(State(seen): State<Seen>, headers: HeaderMap, Json(body): Json<Value>) -> Json<Value> {
    seen.lock().unwrap().push(headers);
    let again = body["messages"].as_array().unwrap().len() > 2;
    Json(if again { say("done") } else { calls(&[("nope", "{}")]) })
}

fn parse(llm: &str) -> Config {
    let env = Env::new("/", [("PATH", "/bin"), ("TEAM", "evals")]);
    Config::parse(llm, None, Path::new("/"), &env).unwrap()
}

#[tokio::test]
async fn a_header_can_identify_the_task_of_a_request() {
    let seen = Seen::default();
    let router = Router::new().route("/v1/chat/completions", post(serve)).with_state(seen.clone());
    let (url, _tasks) = served(router).await;
    let config = parse(&format!(
        "[llm]\nbase_url = '{url}'\nmodel = 'm'\nheaders = {{ X-Team = '${{TEAM}}' }}\nsession_header = 'x-session'"
    ));
    let http = HttpClients::new(&HttpConfig::default()).unwrap();
    let llm = LlmClient::new(&config.llm.unwrap().unwrap(), &http, Path::new("/")).unwrap();
    let manager = Manager::start(&Config::default()).await.unwrap();
    let agent = Agent::new(llm, manager.toolbox(), AgentConfig::default());
    for id in ["one", "tw\u{f6}\n"] {
        let report = agent.run(&Task::question(id, "What now?")).await;
        assert_eq!(report.answer.as_deref(), Some("done"), "{report:?}");
    }
    let text = |headers: &HeaderMap, name: &str| headers[name].to_str().unwrap().to_owned();
    let seen = seen.lock().unwrap();
    assert!(seen.iter().all(|headers| text(headers, "x-team") == "evals"));
    let sessions: Vec<String> = seen.iter().map(|headers| text(headers, "x-session")).collect();
    let [first, same, other, other_same] = &sessions[..] else { panic!("{sessions:?}") };
    assert_eq!((first, other), (same, other_same));
    assert!(first.starts_with("one-") && other.starts_with("tw-"), "{sessions:?}");
}

#[test]
fn an_invalid_header_value_is_reported_with_its_line() {
    for (line, wanted) in [
        ("headers = { \"a b\" = 'x' }", "`llm.headers.a b`: is not the name of a header"),
        (
            "headers = { a = \"x\\ny\" }",
            "`llm.headers.a`: contains a character that is not allowed in a header",
        ),
        ("session_header = 'a b'", "`llm.session_header`: is not the name of a header"),
    ] {
        let config = parse(&format!("[llm]\nbase_url = 'http://h/v1'\nmodel = 'm'\n{line}"));
        let error = config.llm.unwrap().unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
}
