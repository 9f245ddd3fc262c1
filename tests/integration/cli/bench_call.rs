//! `bench call` as a command. How fast anything is, is not tested.

use std::process::Output;

use serde_json::Value;

use crate::support::program::{Bench, code, err, out};

fn read(output: &Output) -> Value {
    assert_eq!(code(output), 0, "{}", err(output));
    serde_json::from_str(&out(output)).unwrap()
}

#[test]
fn bench_call_measures_a_configured_or_a_built_in_tool() {
    let bench = Bench::new("[servers.calc]\nbuiltin = \"calc\"\n");
    let arguments = ["--json", "bench", "call", "calc.evaluate", "--args", r#"{"expression":"1+1"}"#];
    let document = read(&bench.run(&[&arguments[..], &["--calls", "20", "--in-flight", "2"]].concat()));
    assert_eq!(document["rows"].as_array().unwrap().len(), 1, "{document}");

    let built_in = read(&bench.run(&["--json", "bench", "call", "--calls", "300", "--in-flight", "1,7"]));
    for (row, width) in built_in["rows"].as_array().unwrap().iter().zip([1, 7]) {
        let at = |name: &str| row["us"][name].as_f64().unwrap();
        assert!(0.0 < at("p50") && at("p50") <= at("p99") && at("p99") <= at("max"), "{row}");
        assert!(row["calls"] == 300 && row["in_flight"] == width && row["result_bytes"] == 1, "{row}");
        assert!(row["cpu_us_per_call"].as_f64().unwrap() > 0.0, "{row}");
    }

    let shown = bench.run(&["bench", "call", "--calls", "20", "--in-flight", "1,2"]);
    let said = err(&shown);
    for line in ["Measuring 20 calls, 1 in flight", "Measuring 20 calls, 2 in flight"] {
        assert!(code(&shown) == 0 && said.contains(line), "{said}");
    }

    let refused = bench.run(&["bench", "call", "calc.evaluate", "--args", "{}", "--calls", "20"]);
    assert_eq!(code(&refused), 2, "{}", err(&refused));
    let unknown = bench.run(&["bench", "call", "clac.evaluate"]);
    assert_eq!(code(&unknown), 6, "{}", err(&unknown));
}
