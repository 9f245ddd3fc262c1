//! `--metrics`: what a run and `up` show to Prometheus.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    net::TcpStream,
    process::{ChildStderr, Stdio},
};

use serde_json::json;

use crate::support::{
    model_server::{Model, calls, say},
    program::{Bench, Running, code, err},
    scrape::{check_with_promtool, get, metrics_address, value},
    wait_for,
};

const CONFIG: &str = r#"
[servers.calc]
builtin = "calc"
[servers.fix]
command = FIXTURE
[llm]
model = "script:model.toml"
"#;

const MODEL: &str = r#"
[[steps]]
when = { role = "user", contains = "sum" }
calls = [{ tool = "calc__evaluate", args = { expression = "1+1" } }, { tool = "calc__evaluate", args = { expression = "1+" } }]
[[steps]]
when = { role = "tool" }
say = "2"
"#;

/// Starts a command with `--metrics`; gives it and the address of its metrics once it serves them.
fn started(bench: &Bench, arguments: &[&str]) -> (Running, BufReader<ChildStderr>, String) {
    let mut command = bench.command(&[arguments, &["--metrics", "127.0.0.1:0"]].concat());
    let mut child = Running::from(command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap());
    let mut reader = BufReader::new(child.stderr.take().unwrap());
    let mut text = String::new();
    loop {
        assert!(reader.read_line(&mut text).unwrap() > 0, "ended early: {text}");
        if let Some(address) = metrics_address(&text) {
            return (child, reader, address);
        }
    }
}

/// A run with one task that is done and one that waits for a slow tool, and its metrics by then.
fn busy_run() -> (Bench, (Running, BufReader<ChildStderr>), String, String) {
    let bench = Bench::new(CONFIG);
    bench.file("model.toml", MODEL);
    let tasks = [
        json!({"id": "done", "input": "sum", "target": "2"}),
        json!({"id": "slow", "calls": [{"tool": "fix.sleep", "args": {"ms": 20_000}}]}),
    ];
    bench.file("tasks.jsonl", &tasks.map(|task| task.to_string()).join("\n"));
    let (child, reader, address) = started(&bench, &["run", "tasks.jsonl"]);
    let mut text = String::new();
    wait_for("the metrics of both tasks", || {
        text = get(&address, "/metrics");
        text.contains("toolcrib_tasks_total{outcome=\"passed\"} 1")
            && text.contains("toolcrib_tasks_in_flight 1")
    });
    // Without a reader of its stderr the program would end.
    (bench, (child, reader), address, text)
}

#[test]
fn a_run_shows_its_calls_requests_and_tasks() {
    let (_bench, _child, address, text) = busy_run();
    assert!(text.contains("content-type: text/plain; version=0.0.4"), "{text}");
    for line in [
        "toolcrib_tool_calls_total{server=\"calc\",tool=\"evaluate\",outcome=\"ok\"} 1",
        "toolcrib_tool_calls_total{server=\"calc\",tool=\"evaluate\",outcome=\"tool_error\"} 1",
        "toolcrib_tool_call_seconds_count{server=\"calc\",tool=\"evaluate\"} 2",
        "toolcrib_tool_calls_in_flight{server=\"fix\"} 1",
        "toolcrib_tool_calls_in_flight{server=\"calc\"} 0",
        "toolcrib_server_start_seconds_count{server=\"fix\"} 1",
        "toolcrib_llm_tokens_total{direction=\"output\"} 0",
        "toolcrib_server_start_phase_seconds_count{server=\"fix\",phase=\"queue\"} 1",
        "toolcrib_server_start_phase_seconds_count{server=\"fix\",phase=\"handshake\"} 1",
        "toolcrib_server_up{server=\"fix\"} 1",
        "toolcrib_server_state{server=\"fix\",state=\"busy\"} 1",
        "toolcrib_server_state{server=\"fix\",state=\"ready\"} 0",
        "toolcrib_server_state{server=\"calc\",state=\"ready\"} 1",
        "toolcrib_tool_calls_waiting{server=\"fix\"} 0",
        // A script answers in place of a model.
        "toolcrib_http_connections_opened_total 0",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(text.contains("outcome=\"ok\"} 2\n"), "two model requests: {text}");
    for (series, least) in [
        ("toolcrib_process_resident_memory_bytes{server=\"fix\"}", 100_000.0),
        ("toolcrib_owned_resident_memory_bytes", 100_000.0),
        ("process_resident_memory_bytes", 1_000_000.0),
        ("process_cpu_seconds_total", 0.001),
        ("process_open_fds", 5.0),
        ("toolcrib_owned_processes", 1.0),
        ("toolcrib_server_processes{server=\"fix\"}", 1.0),
        ("toolcrib_server_tools{server=\"fix\"}", 5.0),
    ] {
        assert!(value::<f64>(&text, series) >= least, "{series}: {text}");
    }
    // It runs in this process.
    assert!(!text.contains("memory_bytes{server=\"calc\"}"), "{text}");
    assert!(get(&address, "/").starts_with("HTTP/1.1 404"));
}

#[toolcrib_testing::requires(promtool)]
#[test]
fn promtool_accepts_the_metrics() {
    let (_bench, _child, _, text) = busy_run();
    check_with_promtool(&text);
}

#[test]
fn up_serves_metrics_until_it_ends() {
    let bench = Bench::new(CONFIG);
    bench.file("model.toml", MODEL);
    let (mut child, mut reader, address) = started(&bench, &["up"]);
    wait_for("both servers", || {
        let text = get(&address, "/metrics");
        text.contains("start_seconds_count{server=\"calc\"} 1")
            && text.contains("start_seconds_count{server=\"fix\"} 1")
    });
    crate::support::signal("INT", child.id());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let mut rest = String::new();
    reader.read_to_string(&mut rest).unwrap();
    assert!(TcpStream::connect(&address).is_err(), "{rest}");
}

#[test]
fn connections_to_a_model_are_counted() {
    let model = Model::new([calls(&[("fix__sleep", r#"{"ms": 20000}"#)]), say("awake")]);
    let bench = Bench::new(&format!(
        "[servers.fix]\ncommand = FIXTURE\n[llm]\nmodel = \"m\"\nbase_url = {:?}\n",
        model.url
    ));
    bench.file("tasks.jsonl", &json!({"id": "a", "input": "sleep"}).to_string());
    let (_child, _reader, address) = started(&bench, &["run", "tasks.jsonl"]);
    let mut text = String::new();
    wait_for("the call", || {
        text = get(&address, "/metrics");
        text.contains("toolcrib_tool_calls_in_flight{server=\"fix\"} 1")
    });
    assert_eq!(value::<u64>(&text, "toolcrib_http_connections_opened_total"), 1, "{text}");
    assert_eq!(value::<u64>(&text, "toolcrib_http_requests"), 0, "its answer was read: {text}");
    assert_eq!(value::<u64>(&text, "toolcrib_llm_requests_total{model=\"m\",outcome=\"ok\"}"), 1, "{text}");
}

#[test]
fn an_address_that_is_taken_is_told() {
    let bench = Bench::new(CONFIG);
    bench.file("model.toml", MODEL);
    bench.file("tasks.jsonl", "{\"id\": \"a\", \"input\": \"sum\"}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = bench.run(&["run", "tasks.jsonl", "--metrics", &address]);
    assert!(
        code(&output) != 0 && err(&output).contains(&format!("cannot serve metrics on {address}")),
        "{}",
        err(&output)
    );
    assert!(!bench.0.path().join("runs").exists(), "nothing was begun");
}
