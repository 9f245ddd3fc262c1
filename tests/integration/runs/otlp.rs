//! Spans that are sent to an OpenTelemetry collector, and the trace context that servers get.

use std::{
    fs,
    path::PathBuf,
    process::Output,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use axum::{Router, body::Bytes, http::HeaderMap, http::StatusCode, routing::post};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::export::read;
use crate::support::{
    program::{Bench, code, err},
    remote_server::serve,
    served,
};

const MODEL: &str = r#"
[[steps]]
when = { role = "user", contains = "sum" }
calls = [{ tool = "fix__echo", args = { text = "1" } }]
[[steps]]
when = { role = "tool" }
say = "done"
"#;

/// The fixture, whose input is kept in a file, and a server behind a URL.
async fn bench() -> Bench {
    let url = serve(false).await;
    let bench = Bench::new(&format!(
        r#"
[servers.fix]
command = "/bin/sh"
args = ["-c", "tee input.jsonl | \"$0\"", FIXTURE]
[servers.remote]
url = "{url}"
headers = {{ x-key = "open sesame" }}
[llm]
model = "script:model.toml"
"#
    ));
    bench.file("model.toml", MODEL);
    let tasks = [
        json!({"id": "one", "input": "sum", "target": "done"}),
        json!({"id": "two", "calls": [{"tool": "remote.era", "args": {"trace": true}}]}),
    ];
    bench.file("tasks.jsonl", &tasks.map(|task| task.to_string()).join("\n"));
    bench
}

/// A collector that keeps what it gets: headers, and bodies in `folder`.
async fn collector(folder: PathBuf) -> (String, JoinSet<()>, Arc<Mutex<Vec<HeaderMap>>>) {
    let seen = Arc::<Mutex<Vec<HeaderMap>>>::default();
    let kept = seen.clone();
    let take = post(async move |headers: HeaderMap, body: Bytes| {
        let mut seen = seen.lock().unwrap();
        fs::write(folder.join(format!("{:03}", seen.len())), body).unwrap();
        seen.push(headers);
        StatusCode::OK
    });
    let (url, tasks) = served(Router::new().route("/v1/traces", take)).await;
    (url.trim_end_matches("/v1").to_owned(), tasks, kept)
}

async fn run(bench: &Bench, variables: &[(&str, &str)]) -> Output {
    let mut command = bench.command(&["run", "tasks.jsonl", "--fresh"]);
    command.envs(variables.iter().copied());
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

fn results(bench: &Bench) -> Vec<Value> {
    let runs = fs::read_dir(bench.0.path().join("runs")).unwrap().flatten();
    let mut runs: Vec<PathBuf> = runs.map(|run| run.path()).collect();
    runs.sort_by_key(|run| run.metadata().unwrap().modified().unwrap());
    let text = fs::read_to_string(runs.last().unwrap().join("results.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[toolcrib_testing::requires(export_readers)]
#[tokio::test(flavor = "multi_thread")]
async fn a_collector_gets_the_spans_of_a_run() {
    let bench = bench().await;
    let folder = bench.0.path().join("received");
    fs::create_dir(&folder).unwrap();
    let (url, _tasks, seen) = collector(folder.clone()).await;
    let output = run(
        &bench,
        &[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &url),
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20abc"),
            ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test"),
        ],
    )
    .await;
    assert_eq!(code(&output), 0, "{}", err(&output));
    assert!(!err(&output).contains("not sent"), "{}", err(&output));
    let headers = seen.lock().unwrap()[0].clone();
    assert_eq!(headers["authorization"], "Bearer abc");
    assert_eq!(headers["content-type"], "application/x-protobuf");
    let spans = read("received", &folder);
    let spans = spans.as_array().unwrap();
    let resource = &spans[0]["resource"];
    assert_eq!(resource["service.name"], "toolcrib");
    assert_eq!(resource["deployment.environment.name"], "test");
    let of = |trace: &Value, name: &str| -> Vec<&Value> {
        spans.iter().filter(|span| span["trace"] == *trace && span["name"] == name).collect()
    };
    let results = results(&bench);
    for (result, call) in results.iter().zip(["tools/call echo", "tools/call era"]) {
        let [task] = of(&result["trace_id"], "invoke_agent main")[..] else {
            panic!("{result} in {spans:?}")
        };
        assert_eq!(task["attributes"]["toolcrib.task"], result["task"]);
        assert_eq!(task["attributes"]["toolcrib.outcome"], "passed");
        let [call] = of(&result["trace_id"], call)[..] else { panic!("{call} in {spans:?}") };
        assert_eq!(call["parent"], task["id"]);
    }
    assert!(spans.iter().any(|span| span["name"] == "server.start fix"));
    assert!(spans.iter().any(|span| span["name"] == "server.stop fix"), "those of the end are sent too");
    // Both servers were told which span called them.
    let input = fs::read_to_string(bench.0.path().join("input.jsonl")).unwrap();
    let asked = input.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let asked: Vec<Value> = asked.filter(|line| line["method"] == "tools/call").collect();
    let expected = |result: &Value, call: &str| {
        let span = of(&result["trace_id"], call)[0];
        format!("00-{}-{}-01", span["trace"].as_str().unwrap(), span["id"].as_str().unwrap())
    };
    assert_eq!(asked[0]["params"]["_meta"]["traceparent"], expected(&results[0], "tools/call echo"));
    assert_eq!(results[1]["answer"], expected(&results[1], "tools/call era"));
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_get_no_trace_context_without_traces() {
    let bench = bench().await;
    for variables in
        [&[][..], &[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9"), ("OTEL_SDK_DISABLED", "true")]]
    {
        let output = run(&bench, variables).await;
        assert_eq!(code(&output), 0, "{}", err(&output));
        let input = fs::read_to_string(bench.0.path().join("input.jsonl")).unwrap();
        assert!(input.contains("tools/call") && !input.contains("traceparent"), "{input}");
        let results = results(&bench);
        assert_eq!((&results[1]["answer"], results[1].get("trace_id")), (&json!("none"), None));
    }
}

#[cfg_attr(not(feature = "otlp"), ignore = "needs the feature otlp")]
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_collector_costs_a_run_nothing_but_a_warning() {
    let bench = bench().await;
    // Accepts connections and never answers.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = format!("http://{}", listener.local_addr().unwrap());
    for url in ["http://127.0.0.1:9", &silent] {
        let began = Instant::now();
        let output = run(&bench, &[("OTEL_EXPORTER_OTLP_ENDPOINT", url)]).await;
        assert_eq!(code(&output), 0, "{}", err(&output));
        assert!(err(&output).contains("spans not sent: "), "{}", err(&output));
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    }
    let output =
        run(&bench, &[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"), ("OTEL_TRACES_EXPORTER", "otlp")]).await;
    assert!(
        code(&output) == 2 && err(&output).contains("OTEL_EXPORTER_OTLP_PROTOCOL is `grpc`"),
        "{}",
        err(&output)
    );
}
