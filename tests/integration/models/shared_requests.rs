//! Tasks of `toolcrib run` whose prompts share a request, and cached answers: counted at the server.

use std::sync::{Arc, Mutex};

use axum::{Json, Router, extract::State};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{
    support::program::{Bench, code, err, out},
    support::served,
};

type Seen = Arc<Mutex<Vec<Value>>>;

/// Says every prompt again.
async fn answer(State(seen): State<Seen>, Json(body): Json<Value>) -> Json<Value> {
    seen.lock().unwrap().push(body.clone());
    let choices: Vec<Value> = match (&body["prompt"], &body["messages"][0]["content"]) {
        (Value::Array(prompts), _) => prompts
            .iter()
            .enumerate()
            .map(|(index, prompt)| json!({"index": index, "text": prompt, "finish_reason": "stop"}))
            .collect(),
        (Value::Null, said) => vec![json!({"message": {"content": said}, "finish_reason": "stop"})],
        (prompt, _) => vec![json!({"index": 0, "text": prompt, "finish_reason": "stop"})],
    };
    Json(json!({"choices": choices, "usage": {"prompt_tokens": 1, "completion_tokens": 1}}))
}

async fn model() -> (String, Seen, JoinSet<()>) {
    let seen = Seen::default();
    let router = Router::new().fallback(answer).with_state(Arc::clone(&seen));
    let (url, tasks) = served(router).await;
    (url, seen, tasks)
}

/// Runs these questions, all at once. What their requests took, as the run tells it.
async fn run(config: String, questions: &[&str]) -> Value {
    let bench = Bench::new(&config);
    let lines: Vec<String> =
        questions.iter().map(|question| json!({"input": question}).to_string()).collect();
    bench.file("tasks.jsonl", &lines.join("\n"));
    let run = move || bench.run(&["--json", "run", "tasks.jsonl", "--jobs", "10"]);
    let output = tokio::task::spawn_blocking(run).await.unwrap();
    assert_eq!(code(&output), 0, "{}", err(&output));
    let summary: Value = serde_json::from_str(out(&output).lines().last().unwrap()).unwrap();
    assert_eq!((&summary["failed"], &summary["errored"]), (&json!(0), &json!(0)), "{summary}");
    summary["llm"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_tasks_share_a_request() {
    let (url, seen, _tasks) = model().await;
    let llm = format!("[llm]\nbase_url = '{url}'\nmodel = 'm'\napi = 'completions'\n");
    // Long enough for a slow machine: the requests go when they are full.
    let config = llm + "batch = { size = 3, interval = '1m' }\n";
    let told = run(config, &["a", "b", "c", "d", "e", "f"]).await;
    assert_eq!(
        (&told["request_count"], &told["batch_count"], &told["tries"], &told["retries"]),
        (&json!(6), &json!(2), &json!(2), &json!(0)),
        "{told}"
    );
    let seen = seen.lock().unwrap();
    assert!(
        seen.len() == 2 && seen.iter().all(|body| body["prompt"].as_array().unwrap().len() == 3),
        "{seen:?}"
    );
    let prompts = seen.iter().flat_map(|body| body["prompt"].as_array().unwrap());
    let mut prompts: Vec<&str> = prompts.filter_map(Value::as_str).collect();
    prompts.sort_unstable();
    assert_eq!(prompts, ["a", "b", "c", "d", "e", "f"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn cached_answers_are_requested_once() {
    let (url, seen, _tasks) = model().await;
    let llm = format!("[llm]\nbase_url = '{url}'\nmodel = 'm'\ntemperature = 0\n");
    let config = llm + "cache = { size = 10, ttl = '1h', single_flight = true }\n";
    let told = run(config, &["same", "same", "other", "same"]).await;
    assert_eq!((&told["cache_hits"], &told["cache_hit_rate"]), (&json!(2), &json!(0.5)), "{told}");
    assert_eq!(seen.lock().unwrap().len(), 2);
}
