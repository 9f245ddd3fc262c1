//! What people get wrong in the files that they write, and what they are told.

use serde_json::Value;

use crate::program::{Bench, code, err, out};

/// Rules that concern nothing, and some that do. The tools of `dead` are not known.
const RULES: &str = r#"
[servers.calc]
builtin = "calc"
tools = { deny = ["evalute"], timeout = { evaluat = "3s", evaluate = "3s" } }
[servers.time]
builtin = "time"
tools = { allow = ["*", "sogou_*"] }
[[servers.time.result_filter.deny_args]]
tool = "nwo"
arg = "zone"
match = "x"
[[servers.time.result_filter.deny_args]]
tool = "n?w"
arg = "time_zon"
match = "x"
[servers.dead]
command = FIXTURE
args = ["die-now"]
tools = { deny = ["anything"] }
[agent]
fallback = [
  { tool = "calc.*", error = "x", to = "tme.now" },
  { tool = "{calc,time}.*", error = "x", to = "time.nwo" },
  { tool = "tim.*", error = "x", to = "dead.tool" },
  { tool = "dead.*", error = "x", to = "agent.sub" },
]
aliases = { tools = { run = "evaluatee", ok = "calc__evaluate" } }
rollback = { query_arguments = { "time.noww" = ["x"], now = ["time_zone"] } }
[agents.sub]
description = "x"
tools = ["clac.*", "calc.*", "d*.x", "agent.sub", "agent.sup"]
[llm]
client = "a"
[llm.clients.a]
model = "script:model.toml"
[llm.clients.remote]
model = "m"
"#;

/// Where each is, what is wrong, and what was meant.
const UNUSED: &[(&str, &str, &str)] = &[
    ("servers.toml:36: `llm.clients.remote.base_url`", "is missing", "up to and including /v1"),
    ("servers.toml:22: `agent.fallback[0].to`", "no server is named `tme`", "did you mean `time`?"),
    ("servers.toml:23: `agent.fallback[1].to`", "no tool is named `time.nwo`", "did you mean `time.now`?"),
    ("servers.toml:24: `agent.fallback[2].tool`", "no server is named `tim`", "did you mean `time`?"),
    ("servers.toml:25: `agent.fallback[3].to`", "no server is named `agent`", "there are: calc, time, dead"),
    ("servers.toml:28: `agent.rollback.query_arguments.\"time.noww\"`", "no tool `time.noww`", "`time.now`?"),
    ("servers.toml:27: `agent.aliases.tools.run`", "no tool `evaluatee`", "`evaluate`?"),
    ("servers.toml:31: `agents.sub.tools[0]`", "no server is named `clac`", "did you mean `calc`?"),
    ("servers.toml:31: `agents.sub.tools[4]`", "no tool is named `agent.sup`", "did you mean `agent.sub`?"),
    ("servers.toml:4: `servers.calc.tools.deny[0]`", "no tool `evalute`", "did you mean `evaluate`?"),
    ("servers.toml:4: `servers.calc.tools.timeout.evaluat`", "no tool `evaluat`", "did you mean `evaluate`?"),
    ("servers.toml:7: `servers.time.tools.allow[1]`", "no tool `sogou_*`", "now, convert, difference"),
    ("servers.toml:9: `servers.time.result_filter.deny_args[0].tool`", "no tool `nwo`", "`now`?"),
    ("servers.toml:14: `servers.time.result_filter.deny_args[1].arg`", "`n?w` means", "`time_zone`?"),
];

/// The warnings among lines of JSON, each as one text.
fn warnings<'a>(errors: impl IntoIterator<Item = &'a Value>) -> Vec<String> {
    let text = |error: &Value| format!("{} {}", error["message"].as_str().unwrap(), error["help"]);
    errors.into_iter().map(text).collect()
}

fn assert_all(told: &[String], without: &[&str]) {
    let expected: Vec<_> =
        UNUSED.iter().filter(|(place, ..)| !without.iter().any(|word| place.contains(word))).collect();
    for (place, what, help) in &expected {
        let found = told.iter().any(|text| [place, what, help].iter().all(|part| text.contains(**part)));
        assert!(found, "{place} {what} {help} is not in {told:#?}");
    }
    assert_eq!(told.len(), expected.len(), "{told:#?}");
}

#[test]
fn rules_that_concern_nothing_are_told_by_check_and_run() {
    let listed = RULES.replace(", ok = \"calc__evaluate\"", "");
    let bench = Bench::new(&listed);
    bench.file("model.toml", "[[steps]]\nsay = \"hi\"\n");

    // What could be a tool of `dead` is not judged.
    let unknown = ["aliases", "query_arguments"];
    let output = bench.run(&["check"]);
    let text = err(&output);
    assert_eq!(code(&output), 0, "{text}");
    assert_eq!(text.matches("warning servers.toml:").count(), UNUSED.len() - 2, "{text}");
    assert!(text.contains("= help:  did you mean `evaluate`?"), "{text}");
    assert_eq!(code(&bench.run(&["check", "--strict"])), 4, "a server failed");

    // Servers that are not asked for are there nevertheless.
    let output = bench.run(&["--json", "check", "--strict", "calc"]);
    assert_eq!(code(&output), 3, "{}", err(&output));
    let events: Vec<Value> = out(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let errors: Vec<&Value> =
        events.iter().filter(|event| event["event"] == "warning").map(|event| &event["error"]).collect();
    assert_all(&warnings(errors), &["aliases", "query_arguments", "servers.time", "[1].to"]);

    let output = bench.run(&["--json", "run", "Hello?"]);
    let document: Value = serde_json::from_str(out(&output).lines().last().unwrap()).unwrap();
    assert_all(&warnings(document["warnings"].as_array().unwrap()), &unknown);
    let folder = bench.0.path().join(document["dir"].as_str().unwrap());
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let manifest: Value = serde_json::from_str(&read("run.json")).unwrap();
    assert_eq!(manifest["warnings"], document["warnings"]);
    assert_eq!(read("events.jsonl").matches("\"event\":\"warning\"").count(), UNUSED.len() - 2);

    // With all lists there, all is judged; what is in order stays unmentioned.
    let alive = Bench::new(&RULES.replace("args = [\"die-now\"]\ntools = { deny = [\"anything\"] }", ""));
    let text = err(&alive.run(&["check"]));
    for rule in ["aliases.tools.run", "query_arguments.\"time.noww\"", "no tool is named `dead.tool`"] {
        assert!(text.contains(rule), "{rule}: {text}");
    }
    for rule in ["aliases.tools.ok", "query_arguments.now", "tools.allow[0]", "timeout.evaluate`", "tools[1]"]
    {
        assert!(!text.contains(rule), "{rule}: {text}");
    }
    let well = Bench::new("[servers.time]\nbuiltin = \"time\"\ntools = { deny = [\"now\"] }\n");
    assert_eq!(code(&well.run(&["check", "--strict"])), 0);
}

#[test]
fn a_cassette_that_was_cut_off_says_so() {
    let bench = Bench::new("[servers.calc]\nbuiltin = \"calc\"\n[llm]\nmodel = \"script:model.toml\"\n");
    bench.file("model.toml", "[[steps]]\nsay = \"caf\u{e9}\"\n");
    assert_eq!(code(&bench.run(&["run", "Hello?", "--record=whole.jsonl"])), 0);
    let whole = std::fs::read(bench.0.path().join("whole.jsonl")).unwrap();
    let starts: Vec<usize> =
        whole.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at).collect();
    let last = starts[starts.len() - 2] + 1;
    let within_a_letter = whole.iter().rposition(|byte| *byte == 0xc3).unwrap() + 1;
    let replay = |bytes: &[u8]| {
        std::fs::write(bench.0.path().join("cut.jsonl"), bytes).unwrap();
        bench.run(&["run", "Hello?", "--replay", "cut.jsonl"])
    };
    assert_eq!(code(&replay(&whole)), 0);
    assert_eq!(code(&replay(&whole[..whole.len() - 1])), 0, "the last line break is all that is missing");
    let line = starts.len();
    let cut = format!("cut.jsonl:{line}: cut off in the middle of an entry: the recording was interrupted");
    let with_end = [&whole[..last + 40], b"\n"].concat();
    for bytes in [&whole[..whole.len() - 2], &whole[..=last], &whole[..within_a_letter], &with_end] {
        let output = replay(bytes);
        assert_eq!(code(&output), 2, "{}", err(&output));
        assert!(err(&output).contains(&cut) && err(&output).contains(&format!("remove line {line}")));
    }
    let head = replay(&whole[..60]);
    assert!(err(&head).contains("cut.jsonl:1: cut off in the middle of an entry"), "{}", err(&head));
    let changed = [&whole[..last], br#"{"line": "asked", "n": "x"}"#, b"\n"].concat();
    let changed = err(&replay(&changed));
    assert!(
        changed.contains(&format!("cut.jsonl:{line}: not an entry of a cassette of version 1")),
        "{changed}"
    );
    assert!(err(&replay(b"{}\n")).contains("cut.jsonl is not a cassette"));
}
