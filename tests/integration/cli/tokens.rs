//! `toolcrib tools --tokens`.

use serde_json::Value;

use crate::support::program::{Bench, code, err, out};

const SERVERS: &str = "[servers.fix]\ncommand = FIXTURE\n[servers.time]\nbuiltin = \"time\"\n";

#[test]
fn the_cost_of_tools_is_shown_largest_first() {
    let bench = Bench::new(SERVERS);
    let json = bench.run(&["--json", "tools", "--tokens"]);
    let document: Value = serde_json::from_str(&out(&json)).unwrap();
    let number = |value: &Value| value["tokens"].as_u64().unwrap();
    let servers = document["servers"].as_array().unwrap();
    let mut sum = 0;
    for server in servers {
        let tools: Vec<u64> = server["tools"].as_array().unwrap().iter().map(number).collect();
        assert!(tools.is_sorted_by(|one, other| one >= other), "{server}");
        assert_eq!(tools.iter().sum::<u64>(), number(server));
        sum += number(server);
    }
    assert!(number(&servers[0]) >= number(&servers[1]), "{document}");
    assert_eq!((sum, document["tools"].as_u64()), (number(&document), Some(15)));
    assert!(document["search_tokens"].as_u64().unwrap() < sum, "{document}");

    let text = bench.run(&["tools", "--tokens"]);
    assert_eq!(code(&text), 0, "{}", err(&text));
    let lines = out(&text);
    let total = lines.lines().last().unwrap();
    assert!(total.starts_with("total  15 tools") && total.ends_with(&sum.to_string()), "{lines}");
    assert!(lines.contains("fix  12 tools") && lines.contains("  die_after_effect"), "{lines}");
    assert!(err(&text).contains("estimated: a token for each 12 letters"), "{}", err(&text));

    let one = bench.run(&["--json", "tools", "time", "--tokens", "--search", "convert"]);
    let one: Value = serde_json::from_str(&out(&one)).unwrap();
    assert_eq!(one["tools"], 1, "{one}");
}
