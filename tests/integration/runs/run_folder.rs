//! The folder of a run: documented events, logs, private files without secrets.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::PathBuf,
    process::Stdio,
};

use serde_json::{Value, json};

use crate::{
    support::program::{Bench, SECRET, code, err},
    support::{signal, wait_for},
};

const CONFIG: &str = r#"
[servers.calc]
builtin = "calc"
[servers.fix]
command = FIXTURE
env = { GIVEN = "${PLANTED_TOKEN}" }
[servers.loud]
command = "/bin/sh"
args = ["-c", "echo \"loud line one $GIVEN\" >&2; echo half >&2; exec FIXTURE"]
env = { GIVEN = "${PLANTED_TOKEN}" }
[servers.bad]
command = "/bin/sh"
args = ["-c", "echo dying words >&2; exit 3"]
[llm]
model = "script:model.toml"
"#;

const MODEL: &str = r#"
[[steps]]
when = { role = "user", contains = "sum" }
[[steps.calls]]
tool = "calc__evaluate"
args = { expression = "1+1" }
[[steps.calls]]
tool = "fix__Env"
args = {}
[[steps]]
when = { role = "tool" }
say = "done"
"#;

fn bench() -> Bench {
    let fixture = crate::support::FIXTURE;
    let bench = Bench::new(&CONFIG.replace("exec FIXTURE", &format!("exec {fixture}")));
    bench.file("model.toml", MODEL);
    bench
}

fn run_dir(bench: &Bench) -> Option<PathBuf> {
    let runs = fs::read_dir(bench.0.path().join("runs")).ok()?;
    runs.flatten().map(|entry| entry.path()).next()
}

fn events(bench: &Bench) -> Vec<Value> {
    let Some(dir) = run_dir(bench) else { return Vec::new() };
    let text = fs::read_to_string(dir.join("events.jsonl")).unwrap_or_default();
    // The last line may be half written while the run goes on.
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn all_files(folder: PathBuf) -> Vec<PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![folder]);
    while let Some(folder) = folders.pop() {
        assert_eq!(
            fs::metadata(&folder).unwrap().permissions().mode() & 0o777,
            0o700,
            "{}",
            folder.display()
        );
        for entry in fs::read_dir(folder).unwrap().flatten() {
            match entry.file_type().unwrap().is_dir() {
                true => folders.push(entry.path()),
                false => files.push(entry.path()),
            }
        }
    }
    files
}

#[test]
fn events_are_documented_and_files_private_without_secrets() {
    let bench = bench();
    let die = json!({"id": "dies", "calls": [{"tool": "fix.die"}]});
    let sum = json!({"id": "sum", "input": format!("sum it, {SECRET}")});
    let lost = json!({"id": "lost", "input": "no step for this"});
    bench.file("tasks.jsonl", &format!("{sum}\n{die}\n{lost}\n"));
    let output = bench.run(&["run", "tasks.jsonl", "-j", "1", "--record"]);
    assert_eq!(code(&output), 101, "{}", err(&output));

    let events = events(&bench);
    let documented = include_str!("../../../docs/run-folder.md");
    let row = |event: &str| {
        let row = documented.lines().find(|line| line.starts_with(&format!("| `{event}` |")));
        row.unwrap_or_else(|| panic!("`{event}` has no row"))
    };
    let mut seen = BTreeSet::new();
    let mut last = 0;
    for line in &events {
        let name = line["event"].as_str().unwrap();
        seen.insert(name);
        let (ns, row) = (line["ns"].as_u64().unwrap(), row(name));
        assert!(ns >= last && line["at"].as_str().unwrap().ends_with('Z'), "{line}");
        last = ns;
        for (key, value) in line.as_object().unwrap() {
            let known = ["ns", "at", "event"].contains(&key.as_str()) || row.contains(&format!("`{key}`"));
            assert!(known, "`{key}` of `{name}` is not in: {row}");
            if key == "took_ns" {
                assert!(value.as_u64().unwrap() <= ns, "{line}");
            }
        }
        let tries = line["tries"].as_array().into_iter().flatten();
        for one in tries.chain(line.get("try")) {
            for key in one.as_object().unwrap().keys() {
                assert!(documented.contains(&format!("`{key}`")), "{key}");
            }
        }
    }
    for name in [
        "run_started",
        "server_starting",
        "server_ready",
        "server_failed",
        "task_started",
        "model_started",
        "model_try_failed",
        "model_ended",
        "call_started",
        "call_ended",
        "agent",
        "task_ended",
        "server_lost",
        "server_restarted",
        "server_stopped",
        "run_ended",
    ] {
        assert!(seen.contains(name), "no `{name}` among {seen:?}");
    }
    let of = |name: &'static str| events.iter().filter(move |line| line["event"] == name);
    assert_eq!(of("call_started").count(), of("call_ended").count());
    let sum: Vec<&Value> = of("call_ended").filter(|line| line["task"] == "sum").collect();
    assert_eq!((sum.len(), &sum[0]["turn"], &sum[0]["agent"]), (2, &json!(1), &json!("main")));
    let decided = of("agent").next().unwrap();
    assert_eq!((&decided["task"], &decided["happened"]["event"]), (&json!("sum"), &json!("corrected")));
    let died = of("call_ended").find(|line| line["tool"] == "die").unwrap();
    assert_eq!((&died["is_error"], &died["error"]["code"]), (&json!(true), &json!("session_lost")));
    assert_eq!(of("model_ended").find(|line| line["task"] == "lost").unwrap()["error"]["code"], "script");
    assert_eq!(events[events.len() - 1]["status"], "finished");

    let dir = run_dir(&bench).unwrap();
    let loud = fs::read_to_string(dir.join("servers/loud.stderr.log")).unwrap();
    let lines: Vec<&str> = loud.lines().map(|line| line.split_once(' ').unwrap().1).collect();
    assert_eq!(lines[..2], ["loud line one ****", "half"], "{loud}");
    let bad = fs::read_to_string(dir.join("servers/bad.stderr.log")).unwrap();
    assert!(bad.ends_with("dying words\n"), "{bad}");
    let files = all_files(dir);
    assert!(files.len() >= 9, "{files:?}");
    for file in files {
        let mode = fs::metadata(&file).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{}", file.display());
        let bytes = fs::read(&file).unwrap();
        assert!(!String::from_utf8_lossy(&bytes).contains(SECRET), "{} holds a secret", file.display());
    }
}

#[test]
fn cut_errors_hold_no_part_of_a_secret() {
    let bench = bench();
    // With so many lengths before it, the secret lies across the cut in some of them. The bracket is what is wrong:
    // the tool says no more of what follows than all of it.
    let calls = |before: usize| {
        let text = format!("){}{SECRET}", "a".repeat(before));
        let call =
            json!({"tool": "calc.evaluate", "args": {"expression": text}, "expect": {"is_error": true}});
        json!({"id": before.to_string(), "calls": [call]})
    };
    let tasks: Vec<String> = (380..500).step_by(SECRET.len() / 2).map(|n| calls(n).to_string()).collect();
    bench.file("tasks.jsonl", &(tasks.join("\n") + "\n"));
    let output = bench.run(&["run", "tasks.jsonl"]);
    assert_eq!(code(&output), 0, "{}", err(&output));
    let ended = events(&bench).into_iter().filter(|line| line["event"] == "call_ended");
    let said: Vec<String> = ended.map(|line| line["error"]["message"].to_string()).collect();
    assert!(said.iter().any(|text| text.contains("**")), "{said:?}");
    for file in all_files(run_dir(&bench).unwrap()) {
        let text = String::from_utf8_lossy(&fs::read(&file).unwrap()).into_owned();
        assert!(!text.contains(&SECRET[..6]), "{} holds a part of a secret", file.display());
    }
}

#[test]
fn the_recorded_command_line_holds_no_url_password() {
    let bench = bench();
    bench.file("tasks.jsonl", "{\"id\": \"t\", \"calls\": [{\"tool\": \"fix.pid\"}]}\n");
    let mut command = bench.command(&[
        "run",
        "tasks.jsonl",
        "--base-url",
        "http://me:hidden-word@127.0.0.1:1/v1?api_key=mykey-1",
    ]);
    // A folder may be named so.
    let runs = OsStr::from_bytes(b"runs\xff");
    let output = command.arg("--out").arg(runs).output().unwrap();
    assert_eq!(code(&output), 0, "{}", err(&output));
    let mut kept = fs::read_dir(bench.0.path().join(runs)).unwrap().flatten();
    let dir = kept.next().unwrap().path();
    let files = all_files(dir);
    let run = files.iter().find(|file| file.ends_with("run.json")).unwrap();
    let run: Value = serde_json::from_slice(&fs::read(run).unwrap()).unwrap();
    let arguments: Vec<&str> =
        run["arguments"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(
        arguments[3..],
        ["--base-url", "http://me:****@127.0.0.1:1/v1?api_key=****", "--out", "runs\u{fffd}"]
    );
    for file in files {
        let text = String::from_utf8_lossy(&fs::read(&file).unwrap()).into_owned();
        assert!(!text.contains("hidden-word") && !text.contains("mykey-1"), "{}", file.display());
    }
}

#[test]
fn an_interrupted_run_records_calls_in_flight() {
    for name in ["INT", "KILL"] {
        let bench = bench();
        let slow = json!({"id": "slow", "calls": [{"tool": "fix.sleep", "args": {"ms": 3_600_000}}]});
        let quick = json!({"id": "quick", "calls": [{"tool": "calc.evaluate", "args": {"expression": "1"}}]});
        bench.file("tasks.jsonl", &format!("{quick}\n{slow}\n"));
        let mut child = bench.command(&["run", "tasks.jsonl"]).stderr(Stdio::null()).spawn().unwrap();
        let is = |line: &Value, event: &str, task: &str| line["event"] == event && line["task"] == task;
        wait_for("one task done and one in a call", || {
            let events = events(&bench);
            events.iter().any(|line| is(line, "call_started", "slow"))
                && events.iter().any(|line| is(line, "task_ended", "quick"))
        });
        signal(name, child.id());
        let status = child.wait().unwrap();
        let events = events(&bench);
        let ended = events.iter().find(|line| is(line, "call_ended", "slow"));
        let last = &events[events.len() - 1];
        if name == "INT" {
            assert_eq!(status.code(), Some(130));
            assert_eq!(ended.unwrap()["error"]["code"], "cancelled");
            assert_eq!((&last["event"], &last["status"]), (&json!("run_ended"), &json!("stopped")));
            let page = fs::read_to_string(run_dir(&bench).unwrap().join("report.html")).unwrap();
            assert!(page.contains("The run was stopped before its end."));
        } else {
            assert!(ended.is_none() && last["event"] != "run_ended", "{last}");
            let output = bench.run(&["report"]);
            assert_eq!(code(&output), 0, "{}", err(&output));
            let page = fs::read_to_string(run_dir(&bench).unwrap().join("report.html")).unwrap();
            assert!(page.contains("it was killed, or is still running") && page.contains("no end"));
        }
    }
}
