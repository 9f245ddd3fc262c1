//! `toolcrib runs`: lists, shows and removes the runs of a folder.

use std::{
    fs,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::support::{
    model_server::{Model, say},
    program::{Bench, Running, SECRET, code, err, out},
};

const CONFIG: &str = "[servers.fix]\ncommand = FIXTURE\n[llm]\nmodel = \"script:model.toml\"\n";
const MODEL: &str = "[[steps]]\nwhen = { role = \"user\", contains = \"sum\" }\nsay = \"2\"\n";

fn bench() -> Bench {
    let bench = Bench::new(CONFIG);
    bench.file("model.toml", MODEL);
    let tasks = [
        json!({"id": "right", "input": "sum", "target": "2"}),
        json!({"id": "wrong", "input": "sum", "target": "3"}),
        json!({"id": "lost", "input": "no step"}),
    ];
    bench.file("tasks.jsonl", &tasks.map(|task| task.to_string()).join("\n"));
    bench
}

fn list(bench: &Bench) -> Vec<Value> {
    let output = bench.run(&["--json", "runs"]);
    assert_eq!(code(&output), 0, "{}", err(&output));
    let document: Value = serde_json::from_str(&out(&output)).unwrap();
    document["runs"].as_array().unwrap().clone()
}

#[test]
fn runs_are_listed_shown_and_removed() {
    let bench = bench();
    let empty = bench.run(&["runs"]);
    assert!(code(&empty) == 0 && err(&empty).contains("there is no run in runs"), "{}", err(&empty));
    for _ in 0..2 {
        let run = bench.run(&["run", "tasks.jsonl"]);
        assert_eq!(code(&run), 101);
        assert!(err(&run).contains("50.0% of 2 judged, 33.3% of all 3"), "{}", err(&run));
    }
    let runs = list(&bench);
    assert_eq!(runs.len(), 2);
    let first = &runs[0];
    let counts = ["passed", "failed", "errored", "tasks_total"].map(|key| first[key].as_u64().unwrap());
    assert_eq!((counts, &first["state"]), ([1, 1, 1, 3], &json!("finished")));
    let id = first["run"].as_str().unwrap();
    let table = out(&bench.run(&["runs", "ls"]));
    assert!(table.starts_with("RUN   STATE     STARTED") && table.lines().count() == 3, "{table}");
    assert!(
        table.contains(&format!("{id}  finished")) && table.contains("  50.0%, 33.3% of all  "),
        "{table}"
    );

    let shown = bench.run(&["runs", "show", id]);
    let text = out(&shown);
    for part in [
        "3: 1 passed, 1 failed, 1 errored",
        "50.0% of 2 judged (95% interval 9.5 to 90.5), 33.3% of all 3",
        "1 wrong_answer",
        "FAIL   wrong",
        "answer \"2\"  expected \"3\"",
        "ERROR  lost",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let document: Value = serde_json::from_str(&out(&bench.run(&["--json", "runs", "show", id]))).unwrap();
    assert_eq!((&document["run"]["run"], &document["totals"]["failed"]), (&json!(id), &json!(1)));

    let refused = bench.run(&["runs", "remove", id]);
    assert!(code(&refused) == 2 && err(&refused).contains("add --yes"), "{}", err(&refused));
    let unknown = bench.run(&["runs", "rm", "zzzz", "--yes"]);
    assert!(code(&unknown) == 2 && err(&unknown).contains("neither a run in runs"), "{}", err(&unknown));
    let young = bench.run(&["runs", "rm", "--older-than", "1h", "--yes"]);
    assert!(code(&young) == 0 && list(&bench).len() == 2, "{}", err(&young));
    let removed = bench.run(&["--json", "runs", "rm", id, "--yes"]);
    assert_eq!(out(&removed).trim(), json!({"schema": 1, "removed": [id]}).to_string(), "{}", err(&removed));
    let all = bench.run(&["runs", "rm", "--older-than", "1ms", "--yes"]);
    assert!(code(&all) == 0 && list(&bench).is_empty(), "{}", err(&all));
    assert!(fs::read_dir(bench.0.path().join("runs")).unwrap().next().is_none());
}

#[test]
fn a_run_of_one_question_is_listed_by_it() {
    let bench = Bench::new(&CONFIG.replace("FIXTURE\n", "FIXTURE\nenv = { GIVEN = \"${PLANTED_TOKEN}\" }\n"));
    bench.file("model.toml", MODEL);
    let question = format!("What is\n  the sum of 1 and 1? {SECRET} {}", "and then ".repeat(40));
    let run = bench.run(&["run", &question]);
    assert_eq!(code(&run), 0, "{}", err(&run));
    let told = list(&bench)[0]["question"].as_str().unwrap().to_owned();
    assert!(
        told.starts_with("What is the sum of 1 and 1? **** and then ") && told.ends_with("..."),
        "{told}"
    );
    assert_eq!(told.chars().count(), 200);
    let table = out(&bench.run(&["runs"]));
    assert!(table.contains("\"What is the sum of 1 and 1? ****"), "{table}");
    let folder = bench.0.path().join("runs").join(list(&bench)[0]["run"].as_str().unwrap());
    let page = fs::read_to_string(folder.join("report.html")).unwrap();
    assert!(page.contains("<title>What is the sum of 1 and 1? ****"), "{page}");
}

#[test]
fn a_run_that_goes_on_is_listed_and_not_removed() {
    let bench = bench();
    let task = json!({"id": "slow", "calls": [{"tool": "fix.sleep", "args": {"ms": 600_000}}]});
    bench.file("tasks.jsonl", &task.to_string());
    let child = Running::from(bench.command(&["run", "tasks.jsonl", "-q"]).spawn().unwrap());
    let deadline = Instant::now() + Duration::from_secs(30);
    let run = loop {
        if let Some(run) = list(&bench).first().filter(|run| run["state"] == "running") {
            break run["run"].as_str().unwrap().to_owned();
        }
        assert!(Instant::now() < deadline, "{:?}", list(&bench));
        std::thread::sleep(Duration::from_millis(50));
    };
    let refused = bench.run(&["runs", "rm", &run, "--yes"]);
    assert!(code(&refused) == 2 && err(&refused).contains("a process works on the run"), "{}", err(&refused));
    let by_age = bench.run(&["runs", "rm", "--older-than", "1ms", "--yes"]);
    assert!(code(&by_age) == 0 && list(&bench).len() == 1, "{}", err(&by_age));
    drop(child);
    let deadline = Instant::now() + Duration::from_secs(30);
    while list(&bench)[0]["state"] != "interrupted" {
        assert!(Instant::now() < deadline, "{:?}", list(&bench));
        std::thread::sleep(Duration::from_millis(50));
    }
    let removed = bench.run(&["runs", "rm", &run, "--yes"]);
    assert!(code(&removed) == 0 && list(&bench).is_empty(), "{}", err(&removed));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_settings_samples_and_cost_of_a_run_are_shown() {
    let model = Model::new([say("2"), say("3"), say("2"), say("2")]);
    let config = format!(
        "[llm]\nmodel = \"m\"\nbase_url = \"{}\"\nprice = {{ in = 10_000, out = 100_000 }}\n[profile.quick]\nagent.max_turns = 3\n",
        model.url
    );
    let bench = Bench::new(&config);
    let task = |id: &str| json!({"id": id, "input": "sum", "target": "2"}).to_string();
    bench.file("tasks.jsonl", &[task("a"), task("b")].join("\n"));
    let arguments =
        ["run", "tasks.jsonl", "--k", "2", "--profile", "quick", "--set", "agent.max_time=90s", "-j", "1"];
    assert_eq!(code(&bench.run(&arguments)), 100);
    let listed = out(&bench.run(&["runs"]));
    assert!(listed.contains("m      tasks.jsonl k=2 profile=quick agent.max_time=90s"), "{listed}");
    let shown = out(&bench.run(&["runs", "show"]));
    for part in [
        "pass@1 75.0%",
        "pass@2 100.0%",
        "toolcrib run tasks.jsonl --k 2 --profile quick --set",
        "8.0000 USD",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert_eq!(shown.lines().filter(|line| line.starts_with("cost")).count(), 1, "{shown}");
    let run = &list(&bench)[0];
    let told = ["tasks_file", "profile", "samples", "set", "paused_ms"].map(|key| run[key].clone());
    assert_eq!(
        told,
        [json!("tasks.jsonl"), json!("quick"), json!(2), json!(["agent.max_time=90s"]), json!(0.0)]
    );
    // A model with a price that nobody asked has cost nothing that could be counted.
    bench.file("model.toml", MODEL);
    let scripted = bench.run(&["run", "tasks.jsonl", "--model", "script:model.toml"]);
    assert!(code(&scripted) == 0 && !err(&scripted).contains("Cost"), "{}", err(&scripted));
    let page = fs::read_to_string(
        bench.0.path().join("runs").join(list(&bench)[0]["run"].as_str().unwrap()).join("report.html"),
    );
    assert!(!page.unwrap().contains("$0.00"));
}

/// The time between an interruption and the command that continues the run is not one in which it worked.
#[test]
fn an_interruption_is_no_work() {
    let bench = bench();
    let task =
        |id: &str| json!({"id": id, "calls": [{"tool": "fix.sleep", "args": {"ms": 700}}]}).to_string();
    bench.file("tasks.jsonl", &[task("a"), task("b")].join("\n"));
    let mut child = Running::from(bench.command(&["run", "tasks.jsonl", "-q", "-j", "1"]).spawn().unwrap());
    let deadline = Instant::now() + Duration::from_secs(30);
    while list(&bench).first().is_none_or(|run| run["passed"] != 1) {
        assert!(Instant::now() < deadline, "{:?}", list(&bench));
        std::thread::sleep(Duration::from_millis(20));
    }
    crate::support::signal("KILL", child.id());
    child.wait().unwrap();
    // As if that had been two hours ago.
    let run = bench.0.path().join("runs").join(list(&bench)[0]["run"].as_str().unwrap());
    let events = fs::read_to_string(run.join("events.jsonl")).unwrap();
    let mut lines: Vec<Value> = events.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let last = lines.last_mut().unwrap();
    let at = std::time::SystemTime::now() - Duration::from_secs(7200);
    last["at"] = humantime::format_rfc3339_millis(at).to_string().into();
    fs::write(run.join("events.jsonl"), lines.iter().map(|line| line.to_string() + "\n").collect::<String>())
        .unwrap();

    let again = bench.run(&["run", "tasks.jsonl", "-j", "1"]);
    assert!(code(&again) == 0 && err(&again).contains("Resuming run"), "{}", err(&again));
    let listed = &list(&bench)[0];
    let (work, pause) = (listed["wall_ms"].as_f64().unwrap(), listed["paused_ms"].as_f64().unwrap());
    assert!(
        (1400.0..60_000.0).contains(&work) && (7_199_000.0..7_300_000.0).contains(&pause),
        "{work} {pause}"
    );
    let shown = out(&bench.run(&["runs", "show"]));
    assert!(shown.contains(", interrupted for 2h 00m"), "{shown}");
    let report: Value = serde_json::from_str(&out(&bench.run(&["--json", "report"]))).unwrap();
    let told = ["wall_ms", "paused_ms"].map(|key| report[key].as_f64().unwrap());
    assert!((told[0] - work).abs() < 2000.0 && (told[1] - pause).abs() < 2000.0, "{report}");
    for task in report["tasks"].as_array().unwrap() {
        assert!(task["wall_ms"].as_f64().unwrap() < 30_000.0, "{task}");
    }
    let page = fs::read_to_string(run.join("report.html")).unwrap();
    // Told among the figures, and drawn on the timeline.
    assert!(page.contains("<small>without 2 h 0 min interrupted</small>"), "{page}");
    assert!(
        page.contains("<div class=\"pause") && page.contains("<span>2 h 0 min interrupted</span>"),
        "{page}"
    );
}
