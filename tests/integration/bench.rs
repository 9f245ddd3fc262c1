//! The benchmarks as commands: what they count and print. How fast anything is, is not tested.

use serde_json::Value;

use crate::program::{Bench, code, err, out};

fn document(bench: &Bench, arguments: &[&str]) -> Value {
    let output = bench.run(arguments);
    assert_eq!(code(&output), 0, "{}", err(&output));
    serde_json::from_str(&out(&output)).unwrap()
}

#[test]
fn calls_are_measured_beside_bare_pipes_and_beside_slow_ones() {
    let bench = Bench::new("");
    let document = document(&bench, &["--json", "bench", "call", "--calls", "300", "--in-flight", "1,7"]);
    let rows = document["rows"].as_array().unwrap();
    let widths: Vec<_> = rows
        .iter()
        .map(|row| (row["client"].as_str().unwrap(), row["in_flight"].as_u64().unwrap()))
        .collect();
    assert_eq!(widths, [("bare pipes", 1), ("toolcrib", 1), ("toolcrib", 7)]);
    for row in rows {
        let at = |name: &str| row["us"][name].as_f64().unwrap();
        assert!(0.0 < at("p50") && at("p50") <= at("p99") && at("p99") <= at("max"), "{row}");
        assert!(row["calls"] == 300 && row["cpu_us_per_call"].as_f64().unwrap() > 0.0, "{row}");
    }
    // Ten calls of half a second each, one after the other, would take five seconds.
    let beside = &document["head_of_line"];
    let wall = beside["wall_ms"].as_f64().unwrap();
    assert!(wall >= 500.0, "{beside}");
    assert!(beside["fast_us"]["max"].as_f64().unwrap() / 1e3 < wall / 2.0, "{beside}");
}

#[test]
fn a_configured_tool_is_measured_too() {
    let bench = Bench::new("[servers.calc]\nbuiltin = \"calc\"\n");
    let arguments = ["--json", "bench", "call", "calc.evaluate", "--args", r#"{"expression":"1+1"}"#];
    let document = document(&bench, &[&arguments[..], &["--calls", "20", "--in-flight", "2"]].concat());
    assert_eq!(document["rows"].as_array().unwrap().len(), 1, "{document}");
    assert!(document["head_of_line"].is_null(), "{document}");

    let refused = bench.run(&["bench", "call", "calc.evaluate", "--args", "{}", "--calls", "20"]);
    assert_eq!(code(&refused), 2, "{}", err(&refused));
    let unknown = bench.run(&["bench", "call", "clac.evaluate"]);
    assert_eq!(code(&unknown), 6, "{}", err(&unknown));
}

#[test]
fn spares_are_taken_and_come_back() {
    let bench = Bench::new("[servers.a]\ncommand = FIXTURE\n\n[servers.b]\ncommand = FIXTURE\n");
    let document = document(&bench, &["--json", "bench", "spares", "--tasks", "3"]);
    assert_eq!((&document["servers"], &document["tasks"]), (&2.into(), &3.into()), "{document}");
    assert!(document["task_start_ms"]["max"].as_f64().unwrap() > 0.0, "{document}");
}

#[test]
fn model_requests_are_counted_at_the_server() {
    let bench = Bench::new("");
    let document =
        document(&bench, &["--json", "bench", "llm", "--only", "first,outage", "--outage", "300ms,1s"]);
    let rows = document["rows"].as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|row| row["scene"].as_str().unwrap()).collect();
    assert_eq!(names, ["one failure", "100 agents, down", "100 agents, down"]);
    assert_eq!(rows[0]["measured"]["runs"], 20);
    for row in &rows[1..] {
        let measured = &row["measured"];
        let requests = measured["requests"].as_u64().unwrap();
        assert_eq!(measured["lost"], 0, "{row}");
        assert!((100..=300).contains(&requests) && measured["most_of_one"].as_u64() <= Some(3), "{row}");
    }
    let wrong = bench.run(&["bench", "llm", "--only", "frist"]);
    assert!(code(&wrong) == 2 && err(&wrong).contains("first"), "{}", err(&wrong));
}
