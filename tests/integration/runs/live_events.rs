//! FeedEvent events of agents: a loopback model server that streams and waits for the test, and a real
//! tool server.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use axum::{
    Json, Router,
    body::Body,
    extract::State,
    http::{Response, StatusCode},
    routing::post,
};
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::{sync::Semaphore, task::JoinSet, time::timeout};
use toolcrib::{
    Agent, HttpClients, LlmClient, LlmConfig, Outcome, RetryPolicy, Task,
    config::{AgentConfig, HttpConfig},
    recording::{Feed, FeedEvent, LiveEvent, LiveEvents},
};

use crate::{
    support::model_server::agent,
    support::program::{Bench, SECRET},
    support::{Lab, manager, served, within},
};

/// How long an event may take to come.
const DEADLINE: Duration = Duration::from_secs(30);

/// The server's answer to the n-th request, from 0: parts of a stream, each sent when the test lets it, or a status.
type Script = Vec<Result<Vec<Value>, u16>>;

struct Served {
    script: Script,
    asked: std::sync::atomic::AtomicUsize,
    go_on: Semaphore,
}

fn part(delta: &Value, finish: Option<&str>) -> Value {
    json!({"model": "served", "choices": [{"delta": delta, "finish_reason": finish}]})
}

fn say(text: &str) -> Value {
    part(&json!({"content": text}), None)
}

fn end() -> Value {
    part(&json!({}), Some("stop"))
}

fn call(name: &str, arguments: &Value) -> Value {
    let function = json!({"name": name, "arguments": arguments.to_string()});
    part(&json!({"tool_calls": [{"index": 0, "id": "c", "function": function}]}), Some("tool_calls"))
}

async fn answer(State(served): State<Arc<Served>>, Json(_): Json<Value>) -> Response<Body> {
    let n = served.asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    let parts = match &served.script[n.min(served.script.len() - 1)] {
        Ok(parts) => parts.clone(),
        Err(status) => {
            let body = json!({"error": {"message": "as the script says"}}).to_string();
            return Response::builder().status(*status).body(body.into()).unwrap();
        }
    };
    let parts = stream::iter(parts).then(move |part| {
        let served = Arc::clone(&served);
        async move {
            served.go_on.acquire().await.unwrap().forget();
            Ok::<_, std::convert::Infallible>(format!("data: {part}\n\n"))
        }
    });
    let response = Response::builder().status(StatusCode::OK).header("content-type", "text/event-stream");
    response.body(Body::from_stream(parts)).unwrap()
}

/// A model behind a real socket, and the permits of its parts.
async fn model(script: Script, permits: usize) -> (LlmClient, Arc<Served>, JoinSet<()>) {
    let (url, served, tasks) = address(script, permits).await;
    let mut config = LlmConfig::new(Some(url), "m");
    config.stream = true;
    config.retry = RetryPolicy::fast();
    config.retry.base = Duration::from_millis(1);
    // What is made up here looks like a model that goes round in circles.
    config.retry.reissue = 0;
    let http = HttpClients::new(&HttpConfig::default()).unwrap();
    (LlmClient::new(&config, &http, Path::new("/")).unwrap(), served, tasks)
}

async fn address(script: Script, permits: usize) -> (String, Arc<Served>, JoinSet<()>) {
    let served_to = Arc::new(Served { script, asked: 0.into(), go_on: Semaphore::new(permits) });
    let router = Router::new().route("/v1/chat/completions", post(answer)).with_state(Arc::clone(&served_to));
    let (url, tasks) = served(router).await;
    (url, served_to, tasks)
}

async fn next(events: &mut LiveEvents) -> FeedEvent {
    timeout(DEADLINE, events.next()).await.expect("no event came").expect("the stream ended")
}

/// In one word, with what tells it from others.
fn short(live: &FeedEvent) -> String {
    let json = serde_json::to_value(live).unwrap();
    let name = json["event"].as_str().unwrap().to_owned();
    let what = match &live.event {
        LiveEvent::Text { text, .. } | LiveEvent::Thinking { text, .. } => text.clone(),
        LiveEvent::ModelStarted { turn, .. } | LiveEvent::ModelEnded { turn, .. } => turn.to_string(),
        LiveEvent::CallStarted { call, server, tool, .. }
        | LiveEvent::CallEnded { call, server, tool, .. } => {
            format!("{call} {server}.{tool}")
        }
        LiveEvent::AgentStarted { .. } | LiveEvent::AgentEnded { .. } => live.agent.to_string(),
        _ => String::new(),
    };
    format!("{name} {what}").trim().to_owned()
}

#[tokio::test]
async fn events_arrive_while_an_agent_works() {
    let lab = Lab::new();
    let manager = manager([lab.server("lab", &[])]).await;
    let script = vec![
        Ok(vec![say("Let me "), say("look."), call("lab__echo", &json!({"text": "fact"}))]),
        Err(503),
        Ok(vec![part(&json!({"reasoning_content": "hm"}), None), say("It is fact."), end()]),
    ];
    let (llm, served, _tasks) = model(script, 0).await;
    let (feed, mut events) = Feed::open(1 << 20);
    let agent = Agent::new(llm, manager.toolbox(), AgentConfig::default()).watched(feed);
    let mut work = JoinSet::new();
    work.spawn(async move { agent.run(&Task::question("t", "What is it?")).await });

    let mut told = Vec::new();
    let mut expect = async |count: usize| {
        for _ in 0..count {
            told.push(next(&mut events).await);
        }
        told.iter().map(short).collect::<Vec<_>>()
    };
    // Nothing more can come before the server is let.
    let first = ["task_started", "agent_started main", "model_started 1"];
    assert_eq!(expect(3).await, first);
    served.go_on.add_permits(1);
    assert_eq!(expect(1).await.last().unwrap(), "text Let me");
    served.go_on.add_permits(2);
    let then = ["text look.", "model_ended 1", "call_started 1 lab.echo", "call_ended 1 lab.echo"];
    assert_eq!(expect(4).await[4..], then);
    assert_eq!(expect(2).await[8..], ["model_started 2", "model_try_failed"]);
    served.go_on.add_permits(3);
    let rest = ["thinking hm", "text It is fact.", "model_ended 2", "agent_ended main", "task_ended"];
    assert_eq!(expect(5).await[10..], rest);
    assert!(events.next().await.is_none());

    assert!(told.iter().all(|live| &*live.task == "t" && live.missed.is_nothing()));
    assert!(told.is_sorted_by_key(|live| live.ns));
    let json: Vec<Value> = told.iter().map(|live| serde_json::to_value(live).unwrap()).collect();
    let (input, result) = (&json[6], &json[7]);
    assert_eq!((&input["arguments"], &result["text"]), (&json!({"text": "fact"}), &json!("fact")));
    assert_eq!(
        (&json[5]["text"], &json[5]["tool_calls"][0]["name"]),
        (&json!("Let me look."), &json!("lab__echo"))
    );
    assert_eq!((&json[9]["try"]["status"], &json[9]["try"]["class"]), (&json!(503), &json!("overloaded")));
    assert_eq!((&json[12]["thinking"], json[12]["tries"].as_array().unwrap().len()), (&json!("hm"), 2));
    let report = work.join_next().await.unwrap().unwrap();
    assert_eq!(json[14]["answer"].as_str(), report.answer.as_deref());
    assert!(manager.shutdown().await.survivors.is_empty());
}

#[tokio::test]
async fn events_cover_called_agents_and_end_with_an_error() {
    let lab = Lab::new();
    let manager = manager([lab.server("lab", &[])]).await;
    let script = vec![
        Ok(vec![call("agent__finder", &json!({"task": "find"}))]),
        Ok(vec![call("lab__nope", &json!({}))]),
        Ok(vec![call("lab__echo", &json!({"text": "fact"}))]),
        Ok(vec![say("found"), end()]),
        Err(400),
    ];
    let (llm, _served, _tasks) = model(script, 100).await;
    let config = agent("[agent.rollback]\non = ['invalid_call']\n[agents.finder]\ndescription = 'Finds.'");
    let (feed, mut events) = Feed::open(1 << 20);
    let agent = Agent::new(llm, manager.toolbox(), config).watched(feed);
    let report = agent.run(&Task::question("t", "go")).await;
    drop(agent);
    let mut told = Vec::new();
    while let Some(live) = events.next().await {
        told.push((live.agent.to_string(), short(&live)));
    }
    let of = |agent: &str| -> Vec<&str> {
        told.iter().filter(|(whose, _)| whose == agent).map(|(_, what)| what.as_str()).collect()
    };
    assert_eq!(
        of("main/1-1-finder"),
        [
            "agent_started main/1-1-finder",
            "model_started 1",
            "model_ended 1",
            "rolled_back",
            "model_started 2",
            "model_ended 2",
            "call_started 1 lab.echo",
            "call_ended 1 lab.echo",
            "recovered",
            "model_started 3",
            "text found",
            "model_ended 3",
            "agent_ended main/1-1-finder"
        ]
    );
    assert_eq!(
        of("main")[4..],
        [
            "handed_over",
            "model_started 2",
            "model_try_failed",
            "model_ended 2",
            "agent_ended main",
            "task_ended"
        ]
    );
    assert_eq!(report.status, Outcome::Errored);
    assert_eq!(told.last().unwrap().1, "task_ended");
    assert!(manager.shutdown().await.survivors.is_empty());
}

#[tokio::test]
async fn a_slow_or_gone_reader_of_events_blocks_nothing() {
    let lab = Lab::new();
    let manager = manager([lab.server("lab", &[])]).await;
    let pieces: Vec<Value> =
        (0..500).map(|n| say(&format!("piece {n} {}", "x".repeat(100)))).chain([end()]).collect();
    let (llm, _served, _tasks) = model(vec![Ok(pieces)], Semaphore::MAX_PERMITS).await;
    let agent = Agent::new(llm, manager.toolbox(), AgentConfig::default());
    let task = Task::question("t", "go");

    // Nobody reads before the end: there is room for the answer, which is told twice at the end, and not for its pieces
    // too.
    let (feed, mut events) = Feed::open(150_000);
    let watched = agent.watched(feed);
    let report = timeout(DEADLINE, watched.run(&task)).await.unwrap();
    drop(watched);
    let mut told = Vec::new();
    let mut missed = 0;
    while let Some(live) = events.next().await {
        missed += live.missed.pieces;
        assert_eq!(live.missed.events, 0);
        told.push(live);
    }
    let pieces = told.iter().filter(|live| matches!(live.event, LiveEvent::Text { .. })).count() as u64;
    assert_eq!(pieces + missed, 500);
    assert!(missed > 0);
    let whole = told.iter().find_map(|live| match &live.event {
        LiveEvent::ModelEnded { text, .. } => Some(text.clone()),
        _ => None,
    });
    assert_eq!(whole, report.answer);

    let (feed, events) = Feed::open(1 << 20);
    drop(events);
    let report = timeout(DEADLINE, agent.watched(feed).run(&task)).await.unwrap();
    assert_eq!((report.status, report.answer), (Outcome::Unscored, whole));

    // Given up from outside: what had begun has its ends.
    let (feed, mut events) = Feed::open(1 << 20);
    let (llm, _served, _tasks) = model(vec![Ok(vec![end()])], 0).await;
    let mut work = JoinSet::new();
    let agent = Agent::new(llm, manager.toolbox(), AgentConfig::default()).watched(feed);
    work.spawn(async move { agent.run(&task).await });
    for wanted in ["task_started", "agent_started main", "model_started 1"] {
        assert_eq!(short(&next(&mut events).await), wanted);
    }
    work.shutdown().await;
    for wanted in ["model_ended 1", "agent_ended main", "task_ended"] {
        let live = next(&mut events).await;
        assert_eq!(short(&live), wanted);
        if let LiveEvent::TaskEnded { status, error, .. } = live.event {
            assert_eq!((status, error.unwrap().code.as_str()), (Outcome::Cancelled, "cancelled"));
        }
    }
    assert!(events.next().await.is_none());
    assert!(manager.shutdown().await.survivors.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_writes_events_at_once_without_secrets() {
    // The secret comes in two pieces.
    let (half, rest) = SECRET.split_at(7);
    let script = vec![
        Ok(vec![say("Looking"), call("calc__Evaluate", &json!({"expression": "6*7"}))]),
        Err(503),
        Ok(vec![say(&format!("It is {half}")), say(&format!("{rest} 42 {half}")), end()]),
    ];
    let (url, served, _tasks) = address(script, 0).await;
    let bench = Bench::new(&format!(
        "[servers.calc]\nbuiltin = 'calc'\n[llm]\nbase_url = '{url}'\nmodel = 'm'\napi_key = '${{PLANTED_TOKEN}}'\n\
         stream = true\nretry = {{ profile = 'fast', base = '1ms' }}"
    ));
    let mut child =
        bench.command(&["run", "What is it?", "--events", "-"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut told: Vec<Value> = Vec::new();
    let mut until = |wanted: &str| {
        let line: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        told.push(line);
        let all: Vec<&str> = told.iter().map(|line| line["event"].as_str().unwrap()).collect();
        assert_eq!(all.last().unwrap(), &wanted, "{all:?}");
    };
    ["task_started", "agent_started", "model_started"].into_iter().for_each(&mut until);
    served.go_on.add_permits(1);
    until("text");
    served.go_on.add_permits(1);
    ["model_ended", "corrected", "call_started", "call_ended", "model_started", "model_try_failed"]
        .into_iter()
        .for_each(&mut until);
    // So is the file of the run, where nothing of the task has ended.
    let folder = std::fs::read_dir(bench.0.path().join("runs")).unwrap().next().unwrap().unwrap().path();
    let file = std::fs::read_to_string(folder.join("events.jsonl")).unwrap();
    for wanted in ["\"agent\"", "\"model_try_failed\""] {
        assert!(file.contains(&format!("\"event\":{wanted}")), "{file}");
    }
    assert!(!folder.join("tasks").exists());
    served.go_on.add_permits(3);
    ["text", "text", "text", "model_ended", "agent_ended", "task_ended"].into_iter().for_each(&mut until);
    assert!(lines.next().is_none());
    assert!(child.wait().unwrap().success());

    assert_eq!((&told[3]["text"], &told[3]["agent"]), (&json!("Looking"), &json!("main")));
    assert_eq!((&told[6]["arguments"]["expression"], &told[7]["text"]), (&json!("6*7"), &json!("42")));
    let pieces: Vec<&str> = told[10..13].iter().map(|line| line["text"].as_str().unwrap()).collect();
    assert_eq!(pieces, ["It is ", "**** 42 ", half]);
    assert_eq!(told[15]["answer"], json!(format!("It is **** 42 {half}")));
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_events_do_not_block_a_run() {
    // Far more than a pipe holds.
    let pieces = (0..3000).map(|n| say(&format!("piece {n} of a long answer; "))).chain([end()]).collect();
    let (url, _served, _tasks) = address(vec![Ok(pieces)], Semaphore::MAX_PERMITS).await;
    let bench = Bench::new(&format!(
        "[llm]\nbase_url = '{url}'\nmodel = 'm'\nstream = true\nretry = {{ reissue = 0 }}"
    ));
    let mut child =
        bench.command(&["run", "What is it?", "--events", "-"]).stdout(Stdio::piped()).spawn().unwrap();
    let results = || {
        let runs = std::fs::read_dir(bench.0.path().join("runs")).into_iter().flatten().flatten();
        runs.filter_map(|run| std::fs::read_to_string(run.path().join("results.jsonl")).ok())
            .collect::<String>()
    };
    within("the end of the task", || results().ends_with('\n')).await;
    let lines: Vec<String> =
        BufReader::new(child.stdout.take().unwrap()).lines().collect::<Result<_, _>>().unwrap();
    assert!(child.wait().unwrap().success());
    let last: Value = serde_json::from_str(lines.last().unwrap()).unwrap();
    assert_eq!((&last["event"], lines.len()), (&json!("task_ended"), 3006));

    // Who leaves ends nothing either.
    let mut child =
        bench.command(&["run", "What is it?", "--events", "-"]).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
    assert_eq!(results().lines().count(), 2);
}
