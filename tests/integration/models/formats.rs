//! A task of `toolcrib run` in every API format. The model server calls a tool, answers with its result, and keeps
//! the requests.

use std::sync::{Arc, Mutex};

use axum::{Json, Router, extract::State, http::Uri};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{
    support::program::{Bench, code, err, out},
    support::served,
};

type Seen = Arc<Mutex<Vec<(String, Value)>>>;

/// Calls `calc__evaluate` first; when the result is there, says it.
async fn answer(State(seen): State<Seen>, uri: Uri, Json(body): Json<Value>) -> Json<Value> {
    let path = uri.path().to_owned();
    seen.lock().unwrap().push((path.clone(), body.clone()));
    let first = seen.lock().unwrap().len() == 1;
    let arguments = json!({"expression": "2^10"});
    Json(match (path.as_str(), first) {
        ("/v1/chat/completions", true) => json!({"choices": [{"finish_reason": "tool_calls", "message": {
            "content": null, "tool_calls": [{"id": "c1", "type": "function", "function":
                {"name": "calc__evaluate", "arguments": arguments.to_string()}}]}}]}),
        ("/v1/chat/completions", false) => {
            let text = body["messages"].as_array().unwrap().last().unwrap()["content"].clone();
            json!({"choices": [{"finish_reason": "stop", "message": {"content": text}}]})
        }
        ("/v1/responses", true) => json!({"status": "completed", "output": [{"type": "function_call",
            "call_id": "c1", "name": "calc__evaluate", "arguments": arguments.to_string()}]}),
        ("/v1/responses", false) => {
            let text = body["input"].as_array().unwrap().last().unwrap()["output"].clone();
            json!({"status": "completed", "output": [{"type": "message", "content":
                [{"type": "output_text", "text": text}]}]})
        }
        ("/v1/messages", true) => json!({"stop_reason": "tool_use", "content": [{"type": "tool_use",
            "id": "c1", "name": "calc__evaluate", "input": arguments}]}),
        ("/v1/messages", false) => {
            let turn = body["messages"].as_array().unwrap().last().unwrap().clone();
            let text = turn["content"][0]["content"].clone();
            json!({"stop_reason": "end_turn", "content": [{"type": "text", "text": text}]})
        }
        other => panic!("nobody asks for {other:?}"),
    })
}

async fn model() -> (String, Seen, JoinSet<()>) {
    let seen = Seen::default();
    let router = Router::new().fallback(answer).with_state(Arc::clone(&seen));
    let (url, tasks) = served(router).await;
    (url, seen, tasks)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_with_a_tool_runs_in_every_format() {
    for api in ["chat", "responses", "messages"] {
        let (url, seen, _tasks) = model().await;
        let bench = Bench::new(&format!(
            "servers.calc.builtin = 'calc'\n[llm]\nbase_url = '{url}'\nmodel = 'm'\napi = '{api}'"
        ));
        let run = move || bench.run(&["run", "what is 2^10?"]);
        let output = tokio::task::spawn_blocking(run).await.unwrap();
        assert_eq!((code(&output), out(&output).trim()), (0, "1024"), "{api}: {}", err(&output));
        let seen = seen.lock().unwrap();
        assert_eq!(seen.len(), 2, "{api}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_falls_back_to_the_next_client_and_reports_it() {
    let (url, seen, _tasks) = model().await;
    // Nothing listens on port 1 of the loopback interface.
    let bench = Bench::new(&format!(
        "servers.calc.builtin = 'calc'
        [llm]
        client = 'main'
        retry = {{ max = 2, base = '10ms', cap = '10ms' }}
        [llm.clients.gone]
        base_url = 'http://127.0.0.1:1/v1'
        model = 'm'
        [llm.clients.there]
        base_url = '{url}'
        model = 'm'
        api = 'responses'
        [llm.strategies.main]
        fallback = ['gone', 'there']"
    ));
    let run = move || {
        let asked = bench.run(&["--json", "run", "what is 2^10?"]);
        let wrong = bench.run(&["run", "what?", "--client", "other"]);
        (asked, wrong, bench.run(&["doctor"]), bench)
    };
    let (asked, wrong, doctor, bench) = tokio::task::spawn_blocking(run).await.unwrap();
    assert_eq!((code(&asked), seen.lock().unwrap().len()), (0, 2), "{}", err(&asked));
    let document: Value = serde_json::from_str(&out(&asked)).unwrap();
    let results = bench.0.path().join(document["dir"].as_str().unwrap()).join("results.jsonl");
    let report: Value = serde_json::from_str(std::fs::read_to_string(results).unwrap().trim()).unwrap();
    assert_eq!(report["llm_clients"], json!({"there": 2}));
    let text = err(&wrong);
    assert!(text.contains("there is no client or strategy `other` in [llm]"), "{text}");
    assert!(text.contains("there are: gone, there, main"), "{text}");
    let text = out(&doctor);
    assert!(text.contains("main: falls back over gone, there"), "{text}");
    for client in ["gone", "there"] {
        assert!(text.contains(&format!("{client} (m): 2 attempts, waits up to 10ms")), "{text}");
    }
}
