//! Runs that are recorded and repeated without any server or model: the built program against a loopback model.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::Stdio,
    sync::{Arc, Mutex},
};

use axum::{Json, Router, extract::State, http::StatusCode, response::IntoResponse, routing::post};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{
    support::program::{Bench, SECRET, code, err, out},
    support::{served, signal, wait_for},
};

/// `spawns.txt` tells how often the fixture was started.
const CONFIG: &str = r#"
[servers.calc]
builtin = "calc"
[servers.fix]
command = FIXTURE
args = ["spawns=SPAWNS"]
env = { GIVEN = "${PLANTED_TOKEN}" }
tools = { deny = ["effect"] }
result_filter = { deny_args = [{ tool = "echo", arg = "text", match = "forbidden" }] }
[servers.broken]
command = "/bin/sh"
args = ["-c", "echo no luck >&2; exit 3"]
[agents.helper]
description = "helps"
tools = ["calc.*", "fix.*"]
[llm]
base_url = "URL"
model = "loopback"
api_key = "${PLANTED_TOKEN}"
retry = { base = "10ms", cap = "20ms" }
"#;

/// A model whose answer depends on the conversation alone, but for its first refusals.
struct Model {
    url: String,
    asked: Arc<Mutex<Vec<String>>>,
    _tasks: JoinSet<()>,
}

impl Model {
    async fn start() -> Self {
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let router = Router::new().route("/v1/chat/completions", post(answer)).with_state(asked.clone());
        let (url, tasks) = served(router).await;
        Self { url, asked, _tasks: tasks }
    }

    fn count(&self) -> usize {
        self.asked.lock().unwrap().len()
    }

    fn bench(&self) -> Bench {
        let bench = Bench::new("");
        let fixture = format!("{:?}", crate::support::FIXTURE);
        let spawns = bench.0.path().join("spawns.txt");
        let config = CONFIG
            .replace("FIXTURE", &fixture)
            .replace("SPAWNS", &spawns.display().to_string())
            .replace("URL", &self.url);
        bench.file("servers.toml", &config);
        bench
    }
}

async fn answer(State(asked): State<Arc<Mutex<Vec<String>>>>, Json(body): Json<Value>) -> impl IntoResponse {
    let messages = body["messages"].as_array().unwrap();
    let question = messages[0]["content"].as_str().unwrap().to_owned();
    let turns = messages.iter().filter(|message| message["role"] == "assistant").count();
    let before = {
        let mut asked = asked.lock().unwrap();
        asked.push(question.clone());
        asked.iter().filter(|earlier| **earlier == question).count()
    };
    let refuse = |status: u16, why: &str| {
        let status = StatusCode::from_u16(status).unwrap();
        (status, Json(json!({"error": {"message": why, "type": "test"}})))
    };
    if question.contains("refused") {
        return refuse(400, "not this one");
    }
    if question.contains("busy") && before == 1 {
        return refuse(429, "one moment");
    }
    let call = |n: usize, name: &str, arguments: Value| {
        json!({"id": format!("c{n}"), "type": "function",
            "function": {"name": name, "arguments": arguments.to_string()}})
    };
    let message = if turns == 0 && question.contains("asks others") {
        let ask = |n, what: &str| call(n, "agent__helper", json!({"task": what}));
        json!({"role": "assistant", "content": null, "tool_calls": [ask(0, "busy one"), ask(1, "plain two")]})
    } else if turns == 0 {
        let calls = [
            call(0, "fix__sleep", json!({"ms": 30})),
            call(1, "fix__calls", json!({})),
            call(2, "fix__env", json!({})),
            call(3, "calc__evaluate", json!({"expression": "1 +"})),
            call(4, "nobody__knows", json!({})),
            call(5, "fix__effect", json!({"n": 1})),
        ];
        json!({"role": "assistant", "content": null, "tool_calls": calls})
    } else if turns == 1 && question.contains("dies") {
        json!({"role": "assistant", "content": null, "tool_calls": [call(9, "fix__die", json!({}))]})
    } else {
        // What the tools said is part of the answer: another result would be another answer.
        let said: Vec<&str> = messages.iter().filter_map(|message| message["content"].as_str()).collect();
        json!({"role": "assistant", "content": format!("{} things were said: {}", said.len(), said[2])})
    };
    let usage = json!({"prompt_tokens": 10 * (turns + 1), "completion_tokens": 3});
    (
        StatusCode::OK,
        Json(json!({"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage})),
    )
}

fn tasks() -> String {
    let mut lines: Vec<String> = [
        "plain",
        "busy",
        "refused",
        "dies",
        "busy again",
        "plain too",
        "asks others",
    ]
    .iter()
    .enumerate()
    .map(|(n, what)| json!({"id": format!("q/{n}"), "input": format!("{what} {n}"), "target": "things"}))
    .map(|task| task.to_string())
    .collect();
    let calls = json!([{"tool": "calc.evaluate", "args": {"expression": "6*7"}, "expect": {"equals": "42"}},
        {"tool": "fix.pid"}, {"tool": "fix.gone"}]);
    lines.push(json!({"id": "calls", "calls": calls}).to_string());
    let denied = json!({"tool": "fix.echo", "args": {"text": "forbidden"},
        "expect": {"is_error": true, "contains": "may not be called"}});
    lines.push(json!({"id": "denied", "calls": [denied]}).to_string());
    lines.push(json!({"id": "none", "calls": [{"tool": "broken.any"}]}).to_string());
    lines.join("\n") + "\n"
}

/// The lines of results in the order of the tasks, without what is of one run only.
fn results(bench: &Bench, run: &Value) -> Vec<Value> {
    let dir = bench.0.path().join(run["dir"].as_str().unwrap());
    let text = std::fs::read_to_string(dir.join("results.jsonl")).unwrap();
    let mut lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for line in &mut lines {
        for key in ["run", "started", "ended", "wall_ms", "time_ms"] {
            assert!(line.as_object_mut().unwrap().remove(key).is_some(), "{key}");
        }
        for tool in line["tools"].as_object_mut().unwrap().values_mut() {
            tool.as_object_mut().unwrap().remove("ms");
        }
        if let Some(path) = line["messages"].as_str() {
            line["conversation"] = std::fs::read_to_string(dir.join(path)).unwrap().into();
        }
    }
    lines.sort_by_key(|line| line["task"].as_str().unwrap().to_owned());
    lines
}

fn run(bench: &Bench, arguments: &[&str]) -> (i32, String, Value) {
    let output = bench.run(&[&["--json", "run", "tasks.jsonl"], arguments].concat());
    let last = out(&output).lines().last().map(|line| serde_json::from_str(line).unwrap());
    (code(&output), err(&output), last.unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_repeats_byte_for_byte_without_servers_and_model() {
    let model = Model::start().await;
    let bench = model.bench();
    bench.file("tasks.jsonl", &tasks());
    let (status, said, first) = run(&bench, &["-j", "4", "--record=tape.jsonl"]);
    assert_eq!(status, 101, "{said}");
    let (asked, spawns) = (model.count(), bench.0.path().join("spawns.txt"));
    assert!(asked > 10 && spawns.is_file());
    let started = std::fs::read_to_string(&spawns).unwrap();
    let wanted = results(&bench, &first);
    let statuses: Vec<&str> = wanted.iter().map(|line| line["status"].as_str().unwrap()).collect();
    assert_eq!(
        statuses,
        [
            "errored", "passed", "errored", "passed", "passed", "errored", "passed", "passed", "passed",
            "passed"
        ],
        "{wanted:#?}"
    );
    assert!(wanted.iter().any(|line| line["llm_retries"] == 1), "{wanted:#?}");
    let tape = std::fs::read_to_string(bench.0.path().join("tape.jsonl")).unwrap();
    for agent in ["main/1-1-helper", "main/1-2-helper"] {
        assert!(tape.contains(agent), "no {agent}");
    }

    for jobs in ["1", "7"] {
        let (status, said, again) = run(&bench, &["-j", jobs, "--replay", "tape.jsonl"]);
        assert_eq!(status, 101, "{said}");
        for (then, now) in wanted.iter().zip(results(&bench, &again)) {
            assert_eq!(then.to_string(), now.to_string());
        }
    }
    assert_eq!(model.count(), asked);
    assert_eq!(std::fs::read_to_string(&spawns).unwrap(), started);
    assert!(!tape.contains(SECRET) && tape.contains("****"));

    // The secret is not needed for a replay, nor is the configuration of the servers.
    let mut bare = bench.command(&["--json", "run", "tasks.jsonl", "--replay", "tape.jsonl"]);
    let output = bare.env_remove("PLANTED_TOKEN").output().unwrap();
    assert_eq!(code(&output), 101, "{}", err(&output));
    let last: Value = serde_json::from_str(out(&output).lines().last().unwrap()).unwrap();
    assert_eq!(results(&bench, &last), wanted);
}

/// A model that takes its time: never the same for two requests, and never the same again.
async fn unsteady(Json(body): Json<Value>) -> Json<Value> {
    tokio::time::sleep(std::time::Duration::from_millis(fastrand::u64(0..60))).await;
    let messages = body["messages"].as_array().unwrap();
    let message = match messages.len() {
        1 => {
            let arguments = json!({"expression": messages[0]["content"]}).to_string();
            let function = json!({"name": "calc__evaluate", "arguments": arguments});
            json!({"content": null, "tool_calls": [{"id": "c", "type": "function", "function": function}]})
        }
        _ => json!({"content": messages.last().unwrap()["content"]}),
    };
    Json(json!({"choices": [{"message": message, "finish_reason": "stop"}]}))
}

/// `results.jsonl` as it is, but for what belongs to one run: its name and its times.
fn without_times(bench: &Bench, run: &Value) -> String {
    let text =
        std::fs::read_to_string(bench.0.path().join(run["dir"].as_str().unwrap()).join("results.jsonl"));
    let own =
        regex::Regex::new(r#""(run|started|ended)":"[^"]*"|"(wall_ms|ms)":[0-9.e-]+|"time_ms":\{[^}]*\}"#);
    own.unwrap().replace_all(&text.unwrap(), "").into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_and_its_replays_write_the_same_results() {
    let router = Router::new().route("/v1/chat/completions", post(unsteady));
    let (url, _tasks) = served(router).await;
    let bench =
        Bench::new(&format!("servers.calc.builtin = 'calc'\n[llm]\nbase_url = '{url}'\nmodel = 'm'\n"));
    // Their order is not that of the alphabet.
    let lines =
        (0..20).map(|n| json!({"id": format!("t{}", (n * 7) % 20), "input": format!("{n} + 1")}).to_string());
    bench.file("tasks.jsonl", &lines.collect::<Vec<_>>().join("\n"));
    let (status, said, recorded) = run(&bench, &["-j", "8", "--record=tape.jsonl"]);
    assert_eq!(status, 0, "{said}");
    let wanted = without_times(&bench, &recorded);
    for (number, line) in wanted.lines().enumerate() {
        let task = format!(r#""task":"t{}""#, (number * 7) % 20);
        assert!(line.contains(&task), "the order is that of the tasks: no {task} in {line}");
    }
    for jobs in ["8", "3"] {
        let (status, said, replayed) = run(&bench, &["-j", jobs, "--replay", "tape.jsonl"]);
        assert_eq!(status, 0, "{said}");
        assert_eq!(without_times(&bench, &replayed), wanted);
    }
}

/// Addresses of the sockets that a process has for a network.
#[cfg(target_os = "linux")]
fn network_sockets(pid: u32) -> Vec<String> {
    let links = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let own: Vec<String> = links
        .filter_map(|link| std::fs::read_link(link.path()).ok()?.to_str().map(str::to_owned))
        .filter_map(|target| Some(target.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let tables = ["tcp", "tcp6", "udp", "udp6", "raw", "raw6"].map(|name| format!("/proc/{pid}/net/{name}"));
    let lines = tables.iter().flat_map(|table| {
        let text = std::fs::read_to_string(table).unwrap_or_default();
        text.lines().skip(1).map(str::to_owned).collect::<Vec<_>>()
    });
    lines
        .filter(|line| line.split_whitespace().nth(9).is_some_and(|inode| own.iter().any(|own| own == inode)))
        .collect()
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_replay_has_no_child_or_socket_and_ends_on_ctrl_c() {
    let model = Model::start().await;
    let bench = model.bench();
    bench.file("tasks.jsonl", &tasks());
    run(&bench, &["--record=tape.jsonl"]);
    // Nobody waited for the last answer of `q/0`: so the replay does not end by itself, and can be looked at.
    let path = bench.0.path().join("tape.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    let held: Vec<String> = text
        .lines()
        .map(|line| {
            let mut line: Value = serde_json::from_str(line).unwrap();
            if line["whose"]["task"] == "q/0" && line["n"] == 6 {
                line.as_object_mut().unwrap().remove("answer").unwrap();
                line["abandoned_ns"] = 3_600_000_000_000_u64.into();
            }
            line.to_string() + "\n"
        })
        .collect();
    bench.file("held.jsonl", &held.concat());
    let asked = model.count();
    let mut child = bench
        .command(&["run", "tasks.jsonl", "--replay", "held.jsonl"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    // All others are done.
    let done =
        lines.by_ref().filter(|line| ["PASS ", "FAIL ", "ERROR "].iter().any(|verb| line.contains(verb)));
    assert_eq!(done.take(8).count(), 8);
    let pid = child.id();
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten() {
        let children = std::fs::read_to_string(task.path().join("children")).unwrap();
        assert_eq!(children, "");
    }
    assert_eq!(network_sockets(pid), Vec::<String>::new());
    signal("INT", pid);
    let rest: Vec<String> = lines.collect();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{rest:?}");
    assert_eq!(model.count(), asked);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_difference_ends_a_replay_and_is_shown() {
    let model = Model::start().await;
    let bench = model.bench();
    let tasks = tasks();
    bench.file("tasks.jsonl", &tasks);
    run(&bench, &["--record=tape.jsonl"]);
    let tape = std::fs::read_to_string(bench.0.path().join("tape.jsonl")).unwrap();
    let differs = |tasks: &str, tape: &str, wanted: &[&str]| {
        bench.file("tasks.jsonl", tasks);
        bench.file("other.jsonl", tape);
        let (status, said, _) = run(&bench, &["-j", "1", "--replay", "other.jsonl"]);
        assert_eq!(status, 2, "{said}");
        for part in wanted {
            assert!(said.contains(part), "`{part}` is not in: {said}");
        }
        assert!(!said.contains(SECRET), "{said}");
    };
    differs(
        &tasks.replace("plain 0", "plane 0"),
        &tape,
        &[
            "task `q/0`, request 1, a request to the model",
            "- messages/0/content: plain 0",
            "+ messages/0/content: plane 0",
        ],
    );
    differs(
        &tasks.replace("6*7", "6*8"),
        &tape,
        &[
            "task `calls`, request 1, a tool call",
            "- arguments/expression: 6*7",
            "+ arguments/expression: 6*8",
        ],
    );
    differs(&tasks.replace("q/3", "q/33"), &tape, &["it has no tools of task `q/33`"]);
    // A task that asks for less than was recorded, and one that asks for more.
    let calls = r#",{"tool":"fix.pid"},{"tool":"fix.gone"}"#;
    assert!(tasks.contains(calls));
    differs(
        &tasks.replace(calls, ""),
        &tape,
        &["task `calls` ended without request 2, a tool call", r#"\"tool\":\"pid\""#],
    );
    let shorter = tape
        .lines()
        .filter(|line| !line.contains(r#""n":6"#))
        .map(|line| format!("{line}\n"))
        .collect::<Vec<String>>()
        .concat();
    differs(
        &tasks,
        &shorter,
        &["nothing after its 5 requests was recorded, and a request to the model came"],
    );

    bench.file("tasks.jsonl", &tasks);
    for (text, wanted) in [
        (
            tape.replacen("\"cassette\":1", "\"cassette\":2", 1),
            "a cassette of version 2; this toolcrib reads version 1",
        ),
        ("{}\n".to_owned(), "is not a cassette"),
        (String::new(), "is not a cassette"),
        (
            tape.replacen("{\"line\":\"saw\"", "{\"line\":\"sow\"", 1),
            "not an entry of a cassette of version 1",
        ),
    ] {
        bench.file("other.jsonl", &text);
        let (status, said, _) = run(&bench, &["--replay", "other.jsonl"]);
        assert!(status == 2 && said.contains(wanted), "{status} {said}");
    }
    let (status, said, _) = run(&bench, &["--record=tape.jsonl"]);
    assert!(status == 2 && said.contains("tape.jsonl is there already"), "{status} {said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_run_can_be_replayed_up_to_its_end() {
    let model = Model::start().await;
    let bench = model.bench();
    let hang = json!({"id": "hangs", "calls": [{"tool": "fix.pid"}, {"tool": "fix.sleep", "args": {"ms": 3_600_000}}]});
    bench.file("tasks.jsonl", &format!("{}{hang}\n", tasks()));
    // One by one: the server that dies in another task would take this call with it.
    let arguments = ["run", "tasks.jsonl", "-j", "1", "--record", "--out", "kept"];
    let mut child = bench.command(&arguments).stderr(Stdio::null()).spawn().unwrap();
    let dir = || {
        let entries = std::fs::read_dir(bench.0.path().join("kept")).ok()?;
        entries.flatten().map(|entry| entry.path()).find(|path| path.join("events.jsonl").is_file())
    };
    let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    wait_for("ten results and a call that hangs", || {
        dir().is_some_and(|dir| {
            let hangs = |line: &str| {
                line.contains("call_started") && line.contains("\"hangs\"") && line.contains("sleep")
            };
            read(&dir.join("results.jsonl")).lines().count() == 10
                && read(&dir.join("events.jsonl")).lines().any(hangs)
        })
    });
    signal("KILL", child.id());
    child.wait().unwrap();
    let dir = dir().unwrap();
    for file in ["events.jsonl", "results.jsonl", "cassette.jsonl"] {
        for line in read(&dir.join(file)).lines() {
            serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{file}: {error}: {line}"));
        }
    }
    let page = bench.run(&["--json", "report", dir.to_str().unwrap()]);
    assert_eq!(code(&page), 0, "{}", err(&page));
    let document: Value = serde_json::from_str(&out(&page)).unwrap();
    assert_eq!((&document["end"], &document["counts"]["unfinished"]), (&Value::Null, &json!(1)));
    // Up to the call that was never answered.
    let (status, said, _) = run(&bench, &["-j", "1", "--replay", dir.to_str().unwrap()]);
    assert_eq!(status, 2, "{said}");
    assert!(
        said.contains("task `hangs`: nothing after its 1 requests was recorded, and a tool call came"),
        "{said}"
    );
}

#[test]
fn a_replay_refuses_options_that_have_no_effect() {
    let bench = Bench::new("");
    for other in [&["--record"][..], &["--model", "m"], &["--base-url", "http://x/v1"], &["--locked"]] {
        let output = bench.run(&[&["run", "x", "--replay", "y"], other].concat());
        assert!(code(&output) == 2 && err(&output).contains("cannot be used with"), "{}", err(&output));
    }
}
