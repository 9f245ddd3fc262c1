//! The summary of a run: retries, times, cancelled tasks.

use std::{
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{Json, Router, extract::State, http::StatusCode, response::IntoResponse, routing::post};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{
    support::program::{Bench, code, err, out},
    support::{served, signal, wait_for},
};

/// A model that refuses with these statuses, one after the other, and then answers; to "wait" it never does.
async fn model(statuses: &'static [u16]) -> (String, Arc<AtomicUsize>, JoinSet<()>) {
    async fn answer(
        State((statuses, asked)): State<(&'static [u16], Arc<AtomicUsize>)>,
        Json(body): Json<Value>,
    ) -> impl IntoResponse {
        let number = asked.fetch_add(1, Ordering::SeqCst);
        if body["messages"][0]["content"].as_str().unwrap().contains("wait") {
            std::future::pending::<()>().await;
        }
        let status =
            statuses.get(number).map_or(StatusCode::OK, |status| StatusCode::from_u16(*status).unwrap());
        let message = json!({"role": "assistant", "content": "yes"});
        (status, Json(json!({"choices": [{"message": message, "finish_reason": "stop"}], "error": null})))
    }
    let asked = Arc::<AtomicUsize>::default();
    let router =
        Router::new().route("/v1/chat/completions", post(answer)).with_state((statuses, asked.clone()));
    let (url, tasks) = served(router).await;
    (url, asked, tasks)
}

fn bench(models: &[&str]) -> Bench {
    let client = |(number, url): (usize, &&str)| {
        format!(
            "[llm.clients.m{number}]\nbase_url = \"{url}\"\nmodel = \"m\"\nretry = {{ max = 4, base = \"1ms\", cap = \"2ms\" }}\n"
        )
    };
    let clients: String = models.iter().enumerate().map(client).collect();
    let names: Vec<String> = (0..models.len()).map(|number| format!("\"m{number}\"")).collect();
    let names = names.join(", ");
    Bench::new(&format!("[llm]\nclient = \"all\"\n[llm.strategies.all]\nfallback = [{names}]\n{clients}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn retries_are_summarised_with_their_reasons() {
    let (url, _, _tasks) = &model(&[429, 503, 429]).await;
    let bench = bench(&[url]);
    let output = tokio::task::block_in_place(|| bench.run(&["run", "Is it?"]));
    let text = err(&output);
    assert_eq!((code(&output), out(&output).trim()), (0, "yes"), "{text}");
    assert!(text.contains("Retried model requests 3 times: 2 after 429, 1 after 503 | waited "), "{text}");
    assert!(!text.contains("another client"), "{text}");
    let (_, page) = text.split_once("Report ").unwrap();
    let page = std::fs::read_to_string(bench.0.path().join(page.lines().next().unwrap())).unwrap();
    assert!(page.contains("2 after <code>429</code>, 1 after <code>503</code>"), "{page}");
    assert!(page.contains(r#""retries":[{"after":"429","n":2},{"after":"503","n":1}]"#), "{page}");

    // Now it answers at once, and there is nothing to tell.
    let output = tokio::task::block_in_place(|| bench.run(&["--json", "run", "Is it?"]));
    let document: Value = serde_json::from_str(out(&output).lines().last().unwrap()).unwrap();
    assert_eq!((&document["llm_retry_reasons"], &document["llm_fallbacks"]), (&json!({}), &json!(0)));
    let quiet = tokio::task::block_in_place(|| bench.run(&["run", "Is it?"]));
    assert!(!err(&quiet).contains("Retried"), "{}", err(&quiet));

    let results = std::fs::read_dir(bench.0.path().join("runs")).unwrap().flatten();
    let results: Vec<Value> = results
        .map(|run| std::fs::read_to_string(run.path().join("results.jsonl")).unwrap())
        .map(|text| serde_json::from_str(text.trim()).unwrap())
        .collect();
    let again: Vec<&Value> = results.iter().filter(|line| line["llm_retries"] == 3).collect();
    assert_eq!(again.len(), 1);
    assert_eq!(again[0]["llm_retry_reasons"], json!({"429": 2, "503": 1}));
}

#[tokio::test(flavor = "multi_thread")]
async fn fallback_answers_are_summarised() {
    let (first, _, _refusing) = &model(&[429; 9]).await;
    let (second, _, _answering) = &model(&[]).await;
    let bench = bench(&[first, second]);
    let output = tokio::task::block_in_place(|| bench.run(&["run", "Is it?"]));
    assert_eq!((code(&output), out(&output).trim()), (0, "yes"), "{}", err(&output));
    assert!(err(&output).contains(" | 1 time with another client"), "{}", err(&output));
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_tasks_are_summarised_in_one_line() {
    let (url, asked, _tasks) = &model(&[]).await;
    let bench = bench(&[url]);
    let lines: Vec<String> =
        (1..=12).map(|n| json!({"id": format!("t{n}"), "input": "wait"}).to_string()).collect();
    bench.file("tasks.jsonl", &lines.join("\n"));
    let mut command = bench.command(&["run", "tasks.jsonl", "-j", "12"]);
    let child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let output = tokio::task::block_in_place(|| {
        wait_for("twelve requests", || asked.load(Ordering::SeqCst) == 12);
        signal("INT", child.id());
        child.wait_with_output().unwrap()
    });
    let text = err(&output);
    assert_eq!(code(&output), 130, "{text}");
    assert_eq!(text.matches("CANCELLED").count(), 1, "{text}");
    assert!(text.contains("CANCELLED 12 tasks: t") && text.contains(", ...\n"), "{text}");
    assert!(text.contains("the run was stopped, 12 tasks left: the same command continues it"), "{text}");
}

#[test]
fn a_slow_task_is_named_with_what_it_waits_for() {
    let bench = Bench::new("[servers.fix]\ncommand = FIXTURE\n");
    let task = json!({"id": "long", "calls": [{"tool": "fix.sleep", "args": {"ms": 4500}}]});
    bench.file("tasks.jsonl", &task.to_string());
    let output = bench.run(&["run", "tasks.jsonl", "--slow", "900ms"]);
    let lines: Vec<String> =
        err(&output).lines().filter(|line| line.contains("SLOW")).map(str::to_owned).collect();
    // Named again when it has taken twice as long.
    assert!(code(&output) == 0 && (2..=3).contains(&lines.len()), "{}", err(&output));
    assert!(lines[0].contains("] long  turn 0: waits ") && lines[0].ends_with(" for fix.sleep"), "{lines:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_taken_up_again_counts_what_is_left() {
    let (url, _, _tasks) = &model(&[503, 200, 400, 400, 400, 200, 503]).await;
    let bench = bench(&[url]);
    let task = |n: usize| json!({"id": format!("t{n}"), "input": "Is it?", "target": "yes"}).to_string();
    bench.file("tasks.jsonl", &(0..5).map(task).collect::<Vec<_>>().join("\n"));
    let run = |arguments: &[&str]| tokio::task::block_in_place(|| bench.run(arguments));
    let first = run(&["run", "tasks.jsonl", "-j", "1"]);
    assert!(err(&first).contains("Running 5 tasks, 1 at once: 5 waves"), "{}", err(&first));
    assert!(err(&first).contains("2 passed, 0 failed, 3 errored"), "{}", err(&first));
    let text = err(&run(&["run", "tasks.jsonl", "-j", "2", "--retry-errored"]));
    for part in [
        "Running 3 of 5 tasks, 2 at once: 2 waves",
        "Requests since the run was continued: 3 to the model",
        ", 1 retry\n",
        "Retried in the whole run: model requests 2 times: 2 after 503",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // The time between was none of an interruption: the run had finished.
    let listed: Value = serde_json::from_str(&out(&run(&["--json", "runs"]))).unwrap();
    let listed = &listed["runs"][0];
    assert!(listed["interrupted_ms"] == 0.0 && listed["paused_ms"].as_f64() > Some(0.0), "{listed}");
    let shown = out(&run(&["runs", "show"]));
    assert!(!shown.contains("interrupted"), "{shown}");
    let folder = bench.0.path().join("runs").join(listed["run"].as_str().unwrap());
    let page = std::fs::read_to_string(folder.join("report.html")).unwrap();
    assert!(!page.contains("interrupted<") && page.contains(" after its end</span>"), "{page}");
}
