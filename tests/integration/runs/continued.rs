//! The numbers of a run that was continued after Ctrl-C: report, exports and results agree.

use serde_json::{Value, json};
use toolcrib::{
    export::{Export, ExportFormat},
    report::{RunFolder, RunPage},
};

/// A run of two tasks, `a` interrupted in its second request and then continued.
fn folder() -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    let line = |ms: u64, event: Value| {
        let mut line = json!({"ns": ms * 1_000_000, "at": "2026-11-20T12:00:00.000Z"});
        line.as_object_mut().unwrap().extend(event.as_object().unwrap().clone());
        line.to_string() + "\n"
    };
    let started = |task: &str| json!({"event": "task_started", "task": task, "attempt": 1});
    let ended = |task: &str, status: &str| json!({"event": "task_ended", "task": task, "attempt": 1, "status": status, "took_ns": 1, "error": null});
    let asked = |task: &str, turn: u32| json!({"event": "model_started", "task": task, "agent": "main", "turn": turn, "messages": 1, "bytes": 1});
    let answered = |task: &str, turn: u32, error: Value| {
        json!({"event": "model_ended", "task": task, "agent": "main", "turn": turn, "took_ns": 1_000_000, "tries": [],
            "tokens": {"in": 1, "out": 1, "cached": 0, "reasoning": 0}, "bytes": 1, "tool_calls": 0, "finish": null,
            "error": error})
    };
    let cancelled = json!({"code": "cancelled", "message": "cancelled"});
    let events = [
        line(0, started("a")),
        line(1, asked("a", 1)),
        line(2, answered("a", 1, Value::Null)),
        line(3, asked("a", 2)),
        line(4, answered("a", 2, cancelled)),
        line(5, ended("a", "cancelled")),
        line(5000, json!({"event": "run_resumed", "run": "r", "tasks_ended": 0})),
        line(5001, started("b")),
        line(5002, ended("b", "passed")),
        line(5003, started("a")),
        line(5004, asked("a", 2)),
        line(5005, answered("a", 2, Value::Null)),
        line(5010, ended("a", "passed")),
    ];
    let result = |task: &str| {
        json!({"task": task, "attempt": 1, "status": "passed", "wall_ms": 7.0}).to_string() + "\n"
    };
    let llm = json!({"request_count": 1, "connections_opened": 1});
    let manifest =
        json!({"run": "r", "end": "finished", "tasks_total": 2, "interruptions": 1, "totals": {"llm": llm}});
    for (file, text) in [
        ("events.jsonl", events.concat()),
        ("results.jsonl", ["a", "b"].map(result).concat()),
        ("run.json", manifest.to_string()),
    ] {
        std::fs::write(home.path().join(file), text).unwrap();
    }
    home
}

#[test]
fn report_and_exports_of_a_continued_run_agree() {
    let home = folder();
    let page = RunPage::of(&RunFolder::read(home.path()).unwrap());
    let document: Value = serde_json::from_str(&page.json).unwrap();
    let model = &document["model_requests"];
    assert_eq!((&model["n"], &model["errors"]), (&json!(2), &json!(0)), "{model}");
    let took: Vec<&Value> =
        document["tasks"].as_array().unwrap().iter().map(|task| &task["wall_ms"]).collect();
    assert_eq!(took, [&json!(7.0), &json!(7.0)], "as in results.jsonl");
    assert!(page.html.contains("Requests since the run was continued: 1 to the model"), "{}", page.html);
    for format in [ExportFormat::Perfetto, ExportFormat::Otlp] {
        let summary = Export::new(format).write_to(home.path(), &mut Vec::new()).unwrap();
        assert_eq!(summary.tasks, 2, "{format:?}");
    }
}
