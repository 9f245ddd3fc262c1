//! Results of a run: pass rates, reasons, tasks that never began, and statistics of model requests.
//! A loopback model server and the built program.

use std::{fs, path::PathBuf, process::Stdio, time::Duration};

use axum::{Json, Router, extract::State, routing::post};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinSet};

use crate::{
    support::program::{Bench, code, err, out},
    support::{served, signal, wait_for},
};

/// Answers by what the question says. `slow` takes longer than any test.
async fn chat(State(format): State<&'static str>, Json(body): Json<Value>) -> Json<Value> {
    let question = body["messages"][0]["content"].to_string();
    let turns = body["messages"].as_array().unwrap().iter().filter(|message| message["role"] == "assistant");
    let turns = turns.count();
    if question.contains("slow") {
        tokio::time::sleep(Duration::from_secs(3600)).await;
    }
    if format == "messages" {
        return Json(json!({"type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
            "content": [{"type": "text", "text": "It is 4."}],
            "usage": {"input_tokens": 10, "cache_creation_input_tokens": 2000, "cache_read_input_tokens": 700,
                "output_tokens": 5}}));
    }
    let circles = "and then the engine said the same thing once again; ".repeat(9);
    let (content, calls) = match () {
        () if question.contains("many") && turns < 40 => {
            let call = json!({"name": "calc__evaluate", "arguments": "{\"expression\": \"2+2\"}"});
            let call = |n| json!({"id": format!("c{turns}-{n}"), "type": "function", "function": call});
            ("", (0..10).map(call).collect())
        }
        () if question.contains("loop") || (question.contains("twice") && turns == 0) => {
            let call = json!({"name": "calc__evaluate", "arguments": "{\"expression\": \"2+2\"}"});
            ("", json!([{"id": format!("c{turns}"), "type": "function", "function": call}]))
        }
        () if question.contains("empty") => ("", Value::Null),
        () if question.contains("wrong") => ("It is 14.", Value::Null),
        () if question.contains("circles") => (circles.as_str(), Value::Null),
        () => ("It is 4.", Value::Null),
    };
    let message = json!({"role": "assistant", "content": content, "tool_calls": calls});
    Json(json!({"choices": [{"message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 2}}))
}

async fn model(format: &'static str) -> (String, JoinSet<()>) {
    let router = Router::new().route("/v1/chat/completions", post(chat)).route("/v1/messages", post(chat));
    served(router.with_state(format)).await
}

fn bench(url: &str, lines: &str) -> Bench {
    Bench::new(&format!(
        "[servers.calc]\nbuiltin = 'calc'\n[servers.fix]\ncommand = FIXTURE\n\
         [llm]\nbase_url = '{url}'\nmodel = 'm'\n{lines}"
    ))
}

/// Runs the questions, each with the target 4, once for people and once for scripts: the exit code, what was said to
/// people, and the document of the second run.
fn run(bench: &Bench, questions: &[&str], arguments: &[&str]) -> (i32, String, Value) {
    let task = |(n, question): (usize, &&str)| {
        json!({"id": format!("{n}-{question}"), "input": question, "target": "4"}).to_string()
    };
    let tasks: Vec<String> = questions.iter().enumerate().map(task).collect();
    bench.file("tasks.jsonl", &tasks.join("\n"));
    let said = bench.run(&[&["run", "tasks.jsonl"], arguments].concat());
    let output = bench.run(&[&["--json", "run", "tasks.jsonl"], arguments].concat());
    assert_eq!(code(&output), code(&said), "{}{}", err(&said), err(&output));
    let last = out(&output).lines().last().map(|line| serde_json::from_str(line).unwrap());
    (code(&output), err(&said), last.unwrap_or_default())
}

fn dir(bench: &Bench, run: &Value) -> PathBuf {
    bench.0.path().join(run["dir"].as_str().unwrap())
}

fn results(bench: &Bench, run: &Value) -> Vec<Value> {
    let text = fs::read_to_string(dir(bench, run).join("results.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The report of the latest run: its document, its page, and what was said.
fn report(bench: &Bench) -> (Value, String, String) {
    let said = bench.run(&["report", "-o", "page.html"]);
    let output = bench.run(&["--json", "report", "-o", "page.html"]);
    assert_eq!((code(&said), code(&output)), (0, 0), "{}{}", err(&said), err(&output));
    let page = fs::read_to_string(bench.0.path().join("page.html")).unwrap();
    (serde_json::from_str(&out(&output)).unwrap(), page, err(&said))
}

/// A port without a listener.
async fn dead() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("http://{}/v1", listener.local_addr().unwrap())
}

const SIX: [&str; 6] = ["right", "right", "wrong", "wrong", "loop", "loop"];

#[tokio::test(flavor = "multi_thread")]
async fn model_mistakes_are_failed_and_dead_endpoints_errored() {
    let (url, _tasks) = model("chat").await;
    let alive = bench(&url, "[agent]\nmax_turns = 2\n");
    let (exit, said, document) = run(&alive, &SIX, &[]);
    assert_eq!(exit, 100, "{said}");
    assert!(said.contains("6 tasks: 2 passed, 4 failed, 0 errored | 33.3% of 6 judged"), "{said}");
    assert!(said.contains("Reasons 2 turns_used_up, 2 wrong_answer"), "{said}");
    assert!(said.contains("turns_used_up: the task reached its limit (turns = 2)"), "{said}");
    let reasons = json!({"turns_used_up": 2, "wrong_answer": 2});
    assert_eq!((&document["reasons"], &document["errored"]), (&reasons, &json!(0)), "{document}");
    assert!((document["pass_rate"]["value"].as_f64().unwrap() - 1.0 / 3.0).abs() < 1e-9, "{document}");
    let lines = results(&alive, &document);
    let seen: Vec<(&str, &Value, &Value)> = lines
        .iter()
        .map(|line| (line["status"].as_str().unwrap(), &line["score"], &line["reason"]))
        .collect();
    let (used_up, wrong) = (json!("turns_used_up"), json!("wrong_answer"));
    let (zero, one) = (json!(0.0), json!(1.0));
    assert_eq!(
        seen,
        [
            ("passed", &one, &Value::Null),
            ("passed", &one, &Value::Null),
            ("failed", &zero, &wrong),
            ("failed", &zero, &wrong),
            ("failed", &zero, &used_up),
            ("failed", &zero, &used_up),
        ]
    );
    // Nobody has configured a price.
    assert!(lines.iter().all(|line| line["cost_usd"].is_null()), "nothing has a price");
    let (told, page, _) = report(&alive);
    assert_eq!((&told["reasons"], &told["pass_rate"]), (&reasons, &document["pass_rate"]));
    assert!(
        page.contains("4 tasks failed or errored: 2 <code>turns_used_up</code>, 2 <code>wrong_answer</code>")
    );

    let retry = "retry = { profile = 'fast', max = 2, base = '10ms' }\n[agent]\nmax_turns = 2\n";
    let gone = bench(&dead().await, retry);
    let (exit, said, document) = run(&gone, &SIX, &[]);
    assert_eq!(exit, 101, "{said}");
    assert!(
        said.contains("0 passed, 0 failed, 6 errored |") && said.contains("Reasons 6 llm_failed"),
        "{said}"
    );
    let rated = (&document["errored"], &document["pass_rate"], &document["reasons"]);
    assert_eq!(rated, (&json!(6), &Value::Null, &json!({"llm_failed": 6})), "{document}");
    let lines = results(&gone, &document);
    assert!(lines.iter().all(|line| line["score"].is_null() && line["reason"] == "llm_failed"), "{lines:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn timeouts_and_loops_count_as_failures_of_the_model() {
    let (url, _tasks) = model("chat").await;
    let limits = "[agent]\nmax_time = '1s'\n";
    let (exit, said, document) = run(&bench(&url, limits), &["slow"], &[]);
    assert_eq!((exit, &document["reasons"]), (100, &json!({"time_used_up": 1})), "{said}");
    // Asked once more, the model still goes round in circles.
    let (exit, said, document) = run(&bench(&url, ""), &["circles"], &[]);
    assert_eq!((exit, &document["reasons"]), (100, &json!({"repetition": 1})), "{said}");
    assert!(said.contains("repetition: answer"), "{said}");
    // The policy would wait for minutes.
    let patient = format!("retry = 'patient'\n{limits}");
    let (exit, said, document) = run(&bench(&dead().await, &patient), &["right", "wrong"], &[]);
    assert_eq!((exit, &document["reasons"]), (101, &json!({"llm_failed": 2})), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_one_row_for_all_its_attempts() {
    let (url, _tasks) = model("chat").await;
    let bench = bench(&url, "[agent]\nattempts = 3\nrollback = { on = [] }\n");
    // The first attempt is empty, and so is what is learnt from it: there is no second one.
    let (exit, said, document) = run(&bench, &["empty"], &[]);
    assert_eq!((exit, &document["reasons"]), (100, &json!({"empty_answer": 1})), "{said}");
    // Two turns for each: the first attempt uses them up, and the model says what went wrong.
    bench.file(
        "model.toml",
        "[[steps]]\nwhen = { contains = \"Try another way\" }\nsay = \"It is 4.\"\n\
         [[steps]]\nwhen = { contains = \"This attempt ends\" }\nsay = \"No turns left.\"\n\
         [[steps]]\ncalls = [{ tool = \"calc__evaluate\", args = { expression = \"2+2\" } }]\n",
    );
    let tasks = json!({"id": "q", "input": "go", "target": "4", "limits": {"turns": 2}});
    bench.file("tasks.jsonl", &tasks.to_string());
    let output = bench.run(&["--json", "run", "tasks.jsonl", "--model", "script:model.toml"]);
    assert_eq!(code(&output), 0, "{}", err(&output));
    let document: Value = serde_json::from_str(out(&output).lines().last().unwrap()).unwrap();
    let line = &results(&bench, &document)[0];
    assert_eq!((&line["attempt"], &line["messages"]), (&json!(2), &json!("tasks/q/2/messages.json")));
    let first = fs::read_to_string(dir(&bench, &document).join("tasks/q/1/messages.json")).unwrap();
    assert!(first.contains("calc__evaluate") && !first.contains("It is 4."), "{first}");
    let (told, ..) = report(&bench);
    let rows = told["tasks"].as_array().unwrap();
    assert_eq!((rows.len(), &rows[0]["attempt"], &told["tasks_total"]), (1, &json!(2), &json!(1)));
    assert_eq!((&told["counts"]["passed"], &told["counts"]["unfinished"]), (&json!(1), &json!(0)));
}

#[test]
fn the_report_of_a_killed_run_counts_unstarted_tasks() {
    let bench = bench("http://127.0.0.1:1/v1", "");
    let call = |tool: &str, args: Value| json!([{"tool": tool, "args": args}]);
    let quick = json!({"id": "quick", "calls": call("calc.evaluate", json!({"expression": "1"}))});
    let slow = json!({"id": "slow", "calls": call("fix.sleep", json!({"ms": 3_600_000}))});
    let later = (0..3).map(|n| json!({"id": n.to_string(), "calls": call("fix.pid", json!({}))}));
    let tasks: Vec<String> = [quick, slow].into_iter().chain(later).map(|task| task.to_string()).collect();
    bench.file("tasks.jsonl", &tasks.join("\n"));
    let mut child = bench.command(&["run", "tasks.jsonl", "-j", "1"]).stderr(Stdio::null()).spawn().unwrap();
    let events = || {
        let runs = fs::read_dir(bench.0.path().join("runs")).ok()?;
        let run = runs.flatten().next()?.path();
        fs::read_to_string(run.join("events.jsonl")).ok()
    };
    wait_for("a call under way", || events().is_some_and(|text| text.contains("\"tool\":\"sleep\"")));
    signal("KILL", child.id());
    child.wait().unwrap();
    let text = events().unwrap();
    let first: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!((&first["event"], &first["tasks_total"]), (&json!("run_started"), &json!(5)));
    let (told, page, said) = report(&bench);
    let counts = &told["counts"];
    assert_eq!(
        (&counts["passed"], &counts["unfinished"], &counts["not_begun"], &told["tasks_total"]),
        (&json!(1), &json!(1), &json!(3), &json!(5))
    );
    for card in ["<b>? 3</b><span>never began</span>", "<b>5</b><span>tasks</span><small>1 at once</small>"] {
        assert!(page.contains(card), "{card}: {page}");
    }
    assert!(said.contains("5 tasks: 1 passed, 1 unfinished, 3 never began"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_reports_how_long_requests_took() {
    let (url, _tasks) = model("chat").await;
    let kept = bench(&url, "cache = { size = 10, sampled = true, single_flight = true }\n");
    let (exit, said, document) = run(&kept, &["twice", "twice", "right"], &["-j", "1"]);
    assert_eq!(exit, 0, "{said}");
    let llm = &document["llm"];
    let number = |key: &str| llm[key].as_u64().unwrap_or_else(|| panic!("no {key}: {llm}"));
    // Two turns, the same two again out of the cache, and one.
    assert_eq!((number("request_count"), number("tries"), number("cache_hits")), (5, 3, 2), "{llm}");
    assert_eq!((number("retries"), number("batch_count"), number("peak_in_flight")), (0, 0, 1), "{llm}");
    assert_eq!(number("connections_opened") + number("connections_reused"), 3, "{llm}");
    assert!(number("connections_reused") >= 1, "{llm}");
    assert!((llm["cache_hit_rate"].as_f64().unwrap() - 0.4).abs() < 1e-9, "{llm}");
    let line = said.lines().find(|line| line.trim_start().starts_with("Requests")).unwrap_or_default();
    assert!(line.contains("5 to the model, peak 1 in flight") && line.contains("2 cache hits"), "{said}");
    assert!(!line.contains("retr") && !line.contains("batch"), "{line}");
    let (told, page, _) = report(&kept);
    assert_eq!(&told["llm"], llm);
    assert!(page.contains("Requests: 5 to the model"));

    // A script has no connections: nothing to say, but the counters are there.
    kept.file("model.toml", "[[steps]]\nsay = \"It is 4.\"\n");
    let (exit, said, document) = run(&kept, &["right"], &["--model", "script:model.toml"]);
    assert_eq!((exit, &document["llm"]["connections_opened"]), (0, &json!(0)), "{said}");
    // Tasks of planned calls have no model.
    kept.file("tasks.jsonl", &json!({"calls": [{"tool": "fix.pid"}]}).to_string());
    let output = kept.run(&["--json", "run", "tasks.jsonl"]);
    let document: Value = serde_json::from_str(out(&output).lines().last().unwrap()).unwrap();
    assert_eq!((document.get("llm"), err(&output).contains("Requests")), (Some(&Value::Null), false));
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_written_to_the_cache_are_counted_apart() {
    let (url, _tasks) = model("messages").await;
    let bench = bench(&url, "api = 'messages'\n");
    let (exit, said, document) = run(&bench, &["right", "right too"], &["-j", "1"]);
    assert_eq!(exit, 0, "{said}");
    let tokens = json!({"in": 2710, "out": 5, "cached": 700, "cache_write": 2000, "reasoning": 0});
    assert!(results(&bench, &document).iter().all(|line| line["tokens"] == tokens), "{said}");
    assert_eq!((&document["usage"]["cache_write"], &document["tokens"]), (&json!(4000), &json!(5430)));
    let line = "5420 in (1400 read from the cache, 4000 written to the cache), 10 out";
    assert!(said.contains(line), "{said}");
    let (told, page, _) = report(&bench);
    assert_eq!((&told["tokens"]["cache_write"], page.contains(line)), (&json!(4000), true));
}

#[tokio::test(flavor = "multi_thread")]
async fn four_hundred_tool_calls_are_within_the_default_limits() {
    let (url, _tasks) = model("chat").await;
    let bench = bench(&url, "");
    let (exit, said, document) = run(&bench, &["many"], &[]);
    assert_eq!((exit, &results(&bench, &document)[0]["tool_calls"]), (0, &json!(400)), "{said}");
}

#[test]
fn planned_calls_ignore_the_limits_of_agents() {
    let bench = bench("http://127.0.0.1:1/v1", "[agent]\nmax_tool_calls = 5\n");
    let call = json!({"tool": "calc.evaluate", "args": {"expression": "1+1"}, "expect": {"equals": "2"}});
    let task = |limits: Value| json!({"id": "many", "calls": vec![call.clone(); 250], "limits": limits});
    bench.file("tasks.jsonl", &task(json!({})).to_string());
    let output = bench.run(&["--json", "run", "tasks.jsonl"]);
    assert_eq!(code(&output), 0, "{}", err(&output));
    let document: Value = serde_json::from_str(out(&output).lines().last().unwrap()).unwrap();
    assert_eq!(results(&bench, &document)[0]["tool_calls"], 250);
    // A limit of the task's own that its calls cannot keep is a mistake of the file.
    bench.file("tasks.jsonl", &task(json!({"tool_calls": 3})).to_string());
    let output = bench.run(&["run", "tasks.jsonl"]);
    assert_eq!(code(&output), 2, "{}", err(&output));
    assert!(err(&output).contains("`limits.tool_calls` is 3, but `calls` has 250"), "{}", err(&output));
}
