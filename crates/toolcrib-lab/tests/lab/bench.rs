//! Tests `toolcrib-lab bench`: what it counts and prints, not how fast it is.

use std::process::Output;

use serde_json::Value;

use crate::support::{Bench, code, err, out};

/// Runs a measurement, and returns its JSON document.
fn document(bench: &Bench, arguments: &[&str]) -> Value {
    let arguments = [&["--json", "bench"], arguments].concat();
    read(&bench.command(&arguments).output().unwrap())
}

fn read(output: &Output) -> Value {
    assert_eq!(code(output), 0, "{}", err(output));
    serde_json::from_str(&out(output)).unwrap()
}

#[test]
fn calls_are_compared_with_bare_pipes_and_slow_servers() {
    let bench = Bench::new("");
    let document = document(&bench, &["call", "--calls", "300", "--in-flight", "1,7"]);
    let rows = document["rows"].as_array().unwrap();
    let widths: Vec<_> = rows
        .iter()
        .map(|row| (row["client"].as_str().unwrap(), row["in_flight"].as_u64().unwrap()))
        .collect();
    let expected = [("bare pipes", 1), ("rmcp", 1), ("toolcrib", 1), ("rmcp", 7), ("toolcrib", 7)];
    assert_eq!(widths, expected);
    for row in rows {
        let at = |name: &str| row["us"][name].as_f64().unwrap();
        assert!(0.0 < at("p50") && at("p50") <= at("p99") && at("p99") <= at("max"), "{row}");
        assert_eq!(
            (&row["result_bytes"], row["times_rmcp"].is_null()),
            (&5.into(), row["client"] != "toolcrib")
        );
        assert!(row["calls"] == 300 && row["cpu_us_per_call"].as_f64().unwrap() > 0.0, "{row}");
    }
    // Ten calls of half a second each, one after the other, would take five seconds.
    let beside = &document["head_of_line"];
    let wall = beside["wall_ms"].as_f64().unwrap();
    assert!(wall >= 500.0, "{beside}");
    assert!(beside["fast_us"]["max"].as_f64().unwrap() / 1e3 < wall / 2.0, "{beside}");
}

#[test]
fn results_of_a_chosen_size_are_compared_with_the_sdk() {
    let bench = Bench::new("");
    let sizes = ["call", "--size", "1000B,256KiB,1MiB", "--calls", "8", "--in-flight", "1"];
    let document = document(&bench, &sizes);
    let rows = document["rows"].as_array().unwrap();
    let seen: Vec<_> =
        rows.iter().map(|row| (row["result_bytes"].as_u64().unwrap(), &row["client"])).collect();
    let clients = ["bare pipes", "rmcp", "toolcrib"].map(Value::from);
    let expected =
        [1000, 256 << 10, 1 << 20].into_iter().flat_map(|size| clients.iter().map(move |c| (size, c)));
    assert_eq!(seen, expected.collect::<Vec<_>>());
    for row in rows.iter().filter(|row| row["client"] == "toolcrib") {
        assert!(row["times_rmcp"]["p50"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["times_rmcp"]["cpu"].as_f64().unwrap() > 0.0, "{row}");
    }
    let refused = bench.command(&["bench", "call", "--size", "9MiB"]).output().unwrap();
    assert_eq!(code(&refused), 2, "{}", err(&refused));
}

#[test]
fn spares_are_taken_and_replaced() {
    let bench = Bench::new("[servers.a]\ncommand = FIXTURE\n\n[servers.b]\ncommand = FIXTURE\n");
    let document = document(&bench, &["spares", "--tasks", "3"]);
    assert_eq!((&document["servers"], &document["tasks"]), (&2.into(), &3.into()), "{document}");
    assert!(document["task_start_ms"]["max"].as_f64().unwrap() > 0.0, "{document}");
}

#[test]
fn agents_are_stepped_together_and_counted_at_the_server() {
    let bench = Bench::new("");
    let sizes = ["agents", "--agents", "3,12", "--steps", "2", "--sequential", "3"];
    let free = document(&bench, &sizes);
    let rows = free["rows"].as_array().unwrap();
    let counted =
        |row: &Value| ["agents", "requests", "allowed_in_flight"].map(|name| row[name].as_u64().unwrap());
    assert_eq!(rows.iter().map(counted).collect::<Vec<_>>(), [[3, 6, 3], [12, 24, 12]]);
    assert_eq!(
        (&rows[0]["sequential_measured"], &rows[1]["sequential_measured"]),
        (&true.into(), &false.into())
    );
    // 800, 500 and 200 ms, one after the other.
    assert!(rows[0]["sequential_ms"].as_f64().unwrap() >= 1500.0, "{free}");
    assert_eq!(rows[1]["sequential_ms"], 6000.0, "{free}");
    assert!(rows[1]["ratio"].as_f64().unwrap() >= 1.0, "{free}");

    let held = [&sizes[..], &["--width", "4", "--max-in-flight", "2"]].concat();
    let held = document(&bench, &held);
    let row = &held["rows"][1];
    assert_eq!((&row["peak_in_flight"], &row["waves"]), (&2.into(), &6.into()), "{held}");
    let over_time = row["in_flight_over_time"].as_array().unwrap();
    assert!(over_time.len() == 16 && over_time.iter().all(|count| count.as_u64().unwrap() <= 2), "{held}");

    let shared = ["agents", "--agents", "20", "--steps", "1", "--sequential", "0", "--batch", "10"];
    let shared = document(&bench, &shared);
    let row = &shared["rows"][0];
    assert_eq!(row["prompts"], 20, "{shared}");
    assert!(row["requests"].as_u64().unwrap() >= 2, "{shared}");

    let engine = ["agents", "--cost-model", "--agents", "2", "--steps", "1", "--sequential", "0"];
    let engine = document(&bench, &engine);
    assert_eq!((&engine["model"], &engine["rows"][0]["requests"]), (&"engine".into(), &2.into()), "{engine}");
}

#[test]
fn model_requests_are_counted_at_the_server() {
    let bench = Bench::new("");
    let document = document(&bench, &["llm", "--only", "first,outage", "--outage", "300ms,1s"]);
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
    let wrong = bench.command(&["bench", "llm", "--only", "frist"]).output().unwrap();
    assert!(code(&wrong) == 2 && err(&wrong).contains("first"), "{}", err(&wrong));
}

#[test]
fn agents_ask_the_configured_model() {
    let bench = Bench::new("[llm]\nmodel = \"script:say.toml\"\n");
    bench.file("say.toml", "[[steps]]\nsay = \"on\"\nlatency = \"20ms\"\n");
    let arguments = ["agents", "--configured", "--agents", "1,3", "--steps", "2"];
    let asked = document(&bench, &arguments);
    let agents: Vec<_> = asked["rows"].as_array().unwrap().iter().map(|row| row["agents"].clone()).collect();
    assert_eq!(agents, [1, 3], "{asked}");
    assert!(asked["rows"][1]["together_ms"]["min"].as_f64().unwrap() >= 20.0, "{asked}");
    let none = Bench::new("").command(&["bench", "agents", "--configured"]).output().unwrap();
    assert!(code(&none) == 2 && err(&none).contains("[llm]"), "{}", err(&none));
}
