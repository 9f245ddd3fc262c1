//! Files of tasks that somebody else has made: none of them holds up a run.

use std::{fs, time::Instant};

use serde_json::{Value, json};

use crate::support::program::{Bench, CALC_AND_SCRIPT, err};

fn run(bench: &Bench) -> Vec<Value> {
    let done = bench.run(&["run", "tasks.jsonl"]);
    let run = fs::read_dir(bench.0.path().join("runs")).unwrap_or_else(|_| panic!("{}", err(&done)));
    let results = run.map(|run| run.unwrap().path().join("results.jsonl")).next().unwrap();
    fs::read_to_string(results).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_schema_that_multiplies_fails_its_scorer_only() {
    let bench = Bench::new(CALC_AND_SCRIPT);
    bench.file("model.toml", "[[steps]]\nsay = '{\"a\": {\"a\": {\"a\": {}}}}'\n");
    let mut parts = serde_json::Map::from_iter([("d0".to_owned(), json!({"type": "object"}))]);
    for n in 1..60 {
        let before = json!({"$ref": format!("#/$defs/d{}", n - 1)});
        parts.insert(format!("d{n}"), json!({"allOf": [before.clone(), before]}));
    }
    let schema = json!({"$defs": parts, "$ref": "#/$defs/d59"});
    let tasks = [
        json!({"id": "evil", "input": "q", "score": {"type": "json_schema", "schema": schema}}),
        json!({"id": "good", "input": "q", "score": {"type": "json_schema", "schema": {"type": "object"}}}),
    ];
    bench.file("tasks.jsonl", &tasks.map(|task| task.to_string()).join("\n"));
    let begun = Instant::now();
    let results = run(&bench);
    let of = |id: &str| results.iter().find(|line| line["task"] == id).unwrap();
    assert_eq!(of("good")["status"], "passed");
    assert_eq!(of("evil")["status"], "errored", "{}", of("evil"));
    assert_eq!(of("evil")["error"]["code"], "scorer_failed");
    assert!(of("evil")["error"]["message"].as_str().unwrap().contains("would take too long"));
    assert!(begun.elapsed().as_secs() < 60);
}

#[test]
fn a_target_that_overlaps_itself_is_given_up_in_time() {
    let bench = Bench::new(CALC_AND_SCRIPT);
    // Each place of the answer begins with the target, and none is a whole word.
    bench.file("model.toml", &format!("[[steps]]\nsay = \"{}\"\n", "a".repeat(400_000)));
    let task = json!({"id": "t", "input": "q", "target": "a".repeat(200_000)});
    bench.file("tasks.jsonl", &task.to_string());
    let begun = Instant::now();
    let results = run(&bench);
    let status = results[0]["status"].as_str().unwrap();
    assert!(status == "failed" || results[0]["error"]["code"] == "scorer_failed", "{results:?}");
    assert!(begun.elapsed().as_secs() < 60);
}
