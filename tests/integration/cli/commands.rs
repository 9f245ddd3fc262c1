//! The built program: what it prints, its exit codes, its end by signals.

use std::{
    io::{BufRead, BufReader, Read},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    support::program::{Bench, SECRET, code, err, out, up},
    support::signal,
};

const BUILTINS: &str = "[servers.time]\nbuiltin = \"time\"\n[servers.calc]\nbuiltin = \"calc\"\n";

#[test]
fn the_demo_answers_all_tasks_correctly() {
    let bench = Bench::new("");
    let output = bench.run(&["demo"]);
    assert_eq!(code(&output), 0, "{}", err(&output));
    assert!(err(&output).contains("8 tasks: 8 passed, 0 failed, 0 errored"), "{}", err(&output));
    assert!(err(&output).contains("SCRIPTED") && out(&output).contains("14.75"), "{}", out(&output));
    let run = std::fs::read_dir(bench.0.path().join("runs")).unwrap().next().unwrap().unwrap().path();
    let lines = std::fs::read_to_string(run.join("results.jsonl")).unwrap();
    assert_eq!(lines.lines().count(), 8);
    for line in lines.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!((&line["status"], &line["model_scripted"]), (&json!("passed"), &json!(true)), "{line}");
        let messages = run.join(line["messages"].as_str().unwrap());
        assert!(messages.is_file(), "{}", messages.display());
        let parts: f64 = line["time_ms"].as_object().unwrap().values().filter_map(Value::as_f64).sum();
        let wall = line["wall_ms"].as_f64().unwrap();
        assert!((parts - wall).abs() <= wall * 0.01 + 0.01, "{line}");
    }
}

#[test]
fn calls_exit_with_the_documented_codes() {
    let bench = Bench::new(BUILTINS);
    let sum = bench.run(&["call", "calc.evaluate", "expression=1/3 + 1/6"]);
    assert_eq!((code(&sum), out(&sum).trim()), (0, "0.5"));
    let cases: [(&[&str], i32, &str); 11] = [
        (&["call", "calc.evaluate", "expr=1"], 2, "do not match the tool's schema"),
        (&["call", "calc.evaluate", "expression=1 +"], 5, "reported an error"),
        (&["call", "calc.evalute", "expression=1"], 6, "did you mean `evaluate`?"),
        (&["call", "clac.evaluate", "expression=1"], 6, "did you mean `calc`?"),
        (&["call", "calc.evaluate", "expression"], 2, "has no `=`"),
        (&["call", "calc.evaluate", "expression=@none"], 2, "cannot read none for `expression`"),
        (&["call", "calc.evaluate", "expression=1", "--timeout", "0s"], 2, "must be longer than zero"),
        (&["-c", "none.toml", "check"], 3, "none.toml"),
        (&["run", "none.jsonl"], 2, "cannot read the tasks none.jsonl"),
        (&["run", "hello"], 78, "no model is configured"),
        (&["run", "hello", "--base-url", "http://127.0.0.1:1/v1"], 2, "--model NAME"),
    ];
    for (arguments, expected, words) in cases {
        let output = bench.run(arguments);
        assert_eq!(code(&output), expected, "{arguments:?}: {}", err(&output));
        assert!(err(&output).contains(words), "{arguments:?}: {}", err(&output));
    }
    let as_json = bench.run(&["--json", "call", "calc.evaluate", "expr=1"]);
    let error: Value = serde_json::from_str(&err(&as_json)).unwrap();
    assert_eq!((&error["error"]["code"], &error["error"]["exit"]), (&json!("arguments_invalid"), &json!(2)));
}

#[test]
fn a_broken_configuration_names_file_line_and_key() {
    let bench = Bench::new("[servers.time]\nbuiltn = \"time\"\n");
    let output = bench.run(&["check"]);
    assert_eq!(code(&output), 3);
    let text = err(&output);
    assert!(text.contains("servers.toml:2") && text.contains("servers.time.builtn"), "{text}");
    assert!(text.contains("did you mean `builtin`?"), "{text}");
}

#[test]
fn a_missing_server_is_a_warning_and_a_required_one_an_error() {
    let dead = "[servers.dead]\ncommand = FIXTURE\nargs = [\"die-now\"]\n";
    let optional = Bench::new(&format!("{BUILTINS}{dead}"));
    let output = optional.run(&["check"]);
    assert_eq!(code(&output), 0, "{}", err(&output));
    assert!(err(&output).contains("exited with code 3") && err(&output).contains("missing API key FOO"));
    assert!(err(&output).contains("2 of 3 ready") && err(&output).contains("0 processes left"));
    assert_eq!(code(&optional.run(&["check", "--strict"])), 4);
    assert_eq!(code(&optional.run(&["check", "--strict", "time"])), 0);
    let required = Bench::new(&format!("{BUILTINS}{dead}required = true\n"));
    let output = required.run(&["check"]);
    assert_eq!(code(&output), 4, "{}", err(&output));
    // Why is said once, and the error is the last word.
    let told = err(&output);
    assert_eq!(
        (told.matches("missing API key FOO").count(), told.matches("= help").count()),
        (1, 1),
        "{told}"
    );
    assert!(told.trim_end().ends_with("error: 1 required server is not available: dead"), "{told}");
}

#[test]
fn planned_calls_need_no_model_and_classify_failures() {
    let bench = Bench::new(BUILTINS);
    bench.file(
        "smoke.jsonl",
        concat!(
            r#"{"id":"good","calls":[{"tool":"calc.evaluate","args":{"expression":"2+2"},"expect":{"equals":"4"}}]}"#,
            "\n",
            r#"{"id":"wrong","calls":[{"tool":"calc.evaluate","args":{"expression":"2+2"},"expect":{"equals":"5"}}]}"#,
            "\n",
        ),
    );
    let output = bench.run(&["--json", "run", "smoke.jsonl"]);
    assert_eq!(code(&output), 100, "{}", err(&output));
    let summary: Value = serde_json::from_str(out(&output).lines().last().unwrap()).unwrap();
    assert_eq!(
        (&summary["passed"], &summary["failed"], &summary["errored"]),
        (&json!(1), &json!(1), &json!(0))
    );
    bench.file("broken.jsonl", "{\"id\":\"x\"}\nnot json\n");
    let output = bench.run(&["run", "broken.jsonl"]);
    assert_eq!(code(&output), 2);
    assert!(err(&output).contains("broken.jsonl:2"), "{}", err(&output));
}

#[test]
fn secrets_are_in_no_environment_and_no_output() {
    let config = "[servers.plain]\ncommand = FIXTURE\n\
        [servers.given]\ncommand = FIXTURE\nenv = { GIVEN = \"${PLANTED_TOKEN}\" }\n";
    let bench = Bench::new(config);
    let plain = bench.run(&["--json", "call", "plain.env"]);
    assert_eq!(code(&plain), 0, "{}", err(&plain));
    assert!(
        out(&plain).contains("TOOLCRIB_OWNER") && !out(&plain).contains("PLANTED_TOKEN"),
        "{}",
        out(&plain)
    );
    let given = bench.run(&["--json", "call", "given.env"]);
    assert!(out(&given).contains("GIVEN") && out(&given).contains("****"), "{}", out(&given));
    bench.file("t.jsonl", r#"{"id":"leak","calls":[{"tool":"given.env","args":{}}]}"#);
    let run = bench.run(&["--json", "run", "t.jsonl"]);
    assert_eq!(code(&run), 0, "{}", err(&run));
    for output in [&plain, &given, &run] {
        assert!(!out(output).contains(SECRET) && !err(output).contains(SECRET));
    }
    let mut searched = 0;
    search(&bench.0.path().join("runs"), &mut searched);
    assert!(searched >= 3, "run.json, results.jsonl and the conversation");
}

fn search(folder: &Path, searched: &mut usize) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            search(&path, searched);
        } else {
            *searched += 1;
            let bytes = std::fs::read(&path).unwrap();
            let text = String::from_utf8_lossy(&bytes);
            assert!(!text.contains(SECRET), "{} holds the secret", path.display());
        }
    }
}

#[test]
fn signals_tear_everything_down_and_say_so() {
    let config = "[servers.stubborn]\ncommand = \"/bin/sh\"\nargs = [\"-c\", \"\\\"$@\\\"; true\", \"sh\", FIXTURE, \"ignore-eof\"]\n\
        eof_grace = \"200ms\"\nterm_grace = \"5s\"\n[servers.polite]\ncommand = FIXTURE\n";
    for (name, expected) in [("INT", 130), ("TERM", 143)] {
        let bench = Bench::new(config);
        let (mut child, mut reader, _) = up(&bench);
        signal(name, child.id());
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(expected), "{rest}");
        assert!(rest.contains("0 processes left"), "{rest}");
        assert!(rest.contains("stubborn") && rest.contains("polite"), "{rest}");
    }
}

/// Has a command interrupted once it has said `words`; all that it says.
fn interrupted(bench: &Bench, arguments: &[&str], words: &str) -> String {
    let mut child = bench.command(arguments).stderr(Stdio::piped()).spawn().unwrap();
    let mut reader = BufReader::new(child.stderr.take().unwrap());
    let mut text = String::new();
    while !text.contains(words) {
        assert!(reader.read_line(&mut text).unwrap() > 0, "ended early: {text}");
    }
    signal("INT", child.id());
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{text}");
    text
}

#[test]
fn an_interrupted_start_is_undone() {
    let bench = Bench::new(
        "[servers.polite]\ncommand = FIXTURE\n[servers.mute]\ncommand = FIXTURE\nargs = [\"never-init\"]\n",
    );
    let text = interrupted(&bench, &["up"], "Ready polite");
    assert!(text.contains("Stopped polite") && text.contains("0 processes left"), "{text}");
}

#[test]
fn a_silent_model_is_reported_while_it_is_awaited() {
    let bench = Bench::new(
        "[servers.time]\nbuiltin = \"time\"\n[llm]\nbase_url = \"http://127.0.0.1:1/v1\"\nmodel = \"gone\"\n",
    );
    let text = interrupted(&bench, &["run", "hello"], "requests wait for the model: gone: ");
    assert!(text.contains("refused"), "{text}");
}

#[test]
fn imported_servers_are_written_once() {
    let bench = Bench::new("[servers.time]\nbuiltin = \"time\"");
    bench.file("mcp.json", r#"{"mcpServers": {"far": {"url": "http://127.0.0.1:1/mcp"}}}"#);
    let shown = bench.run(&["import", "mcp.json", "--json"]);
    let shown: Value = serde_json::from_str(&out(&shown)).unwrap();
    assert!(shown["toml"].as_str().unwrap().contains("[servers.far]"), "{shown}");
    let import = || bench.run(&["import", "mcp.json", "--write", "servers.toml"]);
    assert_eq!(code(&import()), 0);
    let once = std::fs::read_to_string(bench.0.path().join("servers.toml")).unwrap();
    assert!(once.contains("\"time\"\n") && once.contains("[servers.far]"), "{once}");
    let fresh = bench.run(&["import", "mcp.json", "--write", "fresh.toml"]);
    assert_eq!(code(&fresh), 0);
    let mode = std::fs::metadata(bench.0.path().join("fresh.toml")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "it may hold keys");
    let twice = import();
    assert_eq!(code(&twice), 2);
    assert!(err(&twice).contains("has these servers already: far"), "{}", err(&twice));
    assert_eq!(std::fs::read_to_string(bench.0.path().join("servers.toml")).unwrap(), once);
}

#[test]
fn a_builtin_server_ends_with_its_input() {
    let bench = Bench::new("");
    let mut child =
        bench.command(&["builtin", "time"]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    drop(child.stdin.take());
    let deadline = Instant::now() + Duration::from_secs(30);
    while child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "still there");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(err(&bench.run(&["builtin", "tme"])).contains("did you mean `time`?"));
}

#[toolcrib_testing::requires(init_adopts_orphans)]
#[test]
fn the_doctor_reports_orphans_and_ends_none() {
    let bench = Bench::new(BUILTINS);
    let name = format!("mcp-server-orphan-{}", std::process::id());
    // The shell ends at once and does not end its child.
    let script = "(exec -a \"$0\" sleep 600 >/dev/null 2>&1 & echo $!)";
    let output = Command::new("bash").args(["-c", script, &name]).output().unwrap();
    let pid: i32 = out(&output).trim().parse().unwrap();
    let orphan = rustix::process::Pid::from_raw(pid).unwrap();
    // Until then it is a shell that will become the orphan.
    let command = || std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let deadline = Instant::now() + Duration::from_secs(30);
    while !command().starts_with(&name) {
        assert!(Instant::now() < deadline, "{:?}", command());
        std::thread::sleep(Duration::from_millis(5));
    }
    let found = out(&bench.run(&["doctor"]));
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    rustix::process::kill_process(orphan, rustix::process::Signal::KILL).unwrap();
    assert_eq!(stat.rsplit(')').next().unwrap().split_whitespace().nth(1), Some("1"), "its parent");
    assert!(found.contains(&format!("orphan           pid {pid}, ")) && found.contains(&name), "{found}");
}

#[test]
fn the_doctor_names_missing_requirements() {
    let config = "[servers.good]\ncommand = FIXTURE\n[servers.gone]\ncommand = \"no-such-program\"\n\
        [servers.rude]\ncommand = FIXTURE\nargs = [\"helper\"]\n\
        [servers.chatty]\ncommand = FIXTURE\nargs = [\"junk\"]\n\
        [servers.keyless]\ncommand = \"sh\"\nargs = [\"-c\", \"echo first >&2; echo no key for me >&2; exit 3\"]\n\
        [servers.closed]\ncommand = FIXTURE\nsandbox = { read = [\"/no/such/folder\"] }\n";
    let bench = Bench::new(config);
    let output = bench.run(&["doctor", "--deep", "--json"]);
    assert_eq!(code(&output), 4, "{}", err(&output));
    let document: Value = serde_json::from_str(&out(&output)).unwrap();
    let found = |mark: &str, subject: &str, text: &str| {
        document["findings"].as_array().unwrap().iter().any(|row| {
            row["mark"] == mark && row["subject"] == subject && row["text"].as_str().unwrap().contains(text)
        })
    };
    assert!(found("ok", "config", "6 servers"), "{document}");
    let told = out(&bench.run(&["doctor", "keyless"]));
    assert!(told.contains("| first\n") && told.contains("| no key for me\n"), "{told}");
    let is_told = |row: &Value| row["stderr_tail"] == serde_json::json!(["first", "no key for me"]);
    assert!(document["findings"].as_array().unwrap().iter().any(is_told), "{document}");
    let welcome = "it wrote a line to stdout that is not a message: \"Welcome to the fixture!\"";
    assert!(found("warn", "chatty", welcome), "{document}");
    assert!(found("ok", "good", "exited at the end of its input"), "{document}");
    // Looked at, and started.
    let closed = |row: &&Value| row["subject"] == "closed" && row["mark"] == "fail";
    let closed: Vec<_> = document["findings"].as_array().unwrap().iter().filter(closed).collect();
    assert_eq!(closed.len(), 2, "{document}");
    assert_eq!(closed[0]["help"], closed[1]["help"], "{document}");
    assert!(found("fail", "gone", "could not find the program `no-such-program`"), "{document}");
    assert!(found("warn", "rude", "left processes behind"), "{document}");
    assert_eq!(document["schema"], 1);
    let model = "[llm]\nbase_url = \"http://127.0.0.1:1/v1\"\nmodel = \"m\"\nmax_in_flight = 6\n\
        retry = { profile = \"fast\", total = \"5m\" }\n[servers.time]\nbuiltin = \"time\"\n";
    let shallow = Bench::new(model).run(&["doctor"]);
    assert_eq!(code(&shallow), 0, "{}", err(&shallow));
    assert!(out(&shallow).contains("ok    time             built in"), "{}", out(&shallow));
    let schedule = "m: 3 attempts, waits up to 50ms, 100ms (drawn from 0), 5m in all; Retry-After up to 2m;";
    assert!(out(&shallow).contains(schedule), "{}", out(&shallow));
    assert!(out(&shallow).contains("ok    model requests   at most 6 at once"), "{}", out(&shallow));
}

#[test]
fn the_example_of_a_scripted_model_runs() {
    let page = include_str!("../../../docs/scripted-models.md");
    let file = |name: &str| {
        let (_, rest) = page.split_once(&format!("`{name}`:\n\n```")).unwrap();
        let (_, text) = rest.split_once('\n').unwrap();
        text.split_once("```").unwrap().0.to_owned()
    };
    let bench = Bench::new(&file("servers.toml"));
    bench.file("model.toml", &file("model.toml"));
    bench.file("tasks.jsonl", &file("tasks.jsonl"));
    let output = bench.run(&["--json", "run", "tasks.jsonl"]);
    assert_eq!(code(&output), 0, "{}", err(&output));
    let document: Value = serde_json::from_str(out(&output).lines().last().unwrap()).unwrap();
    assert_eq!((&document["passed"], &document["tasks"]), (&json!(3), &json!(3)), "{document}");
}

#[test]
fn a_hanging_call_is_reported_on_stderr() {
    let config = "[defaults]\nslow_call_notice = \"100ms\"\n[servers.one]\ncommand = FIXTURE\n";
    let called = Bench::new(config).run(&["call", "one.sleep", "ms=1000"]);
    assert_eq!((code(&called), out(&called).trim()), (0, "awake"), "{}", err(&called));
    assert!(err(&called).contains("one.sleep has had no answer for 0."), "{}", err(&called));
}
