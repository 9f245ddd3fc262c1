//! Tasks on the servers of the daemon.

use serde_json::Value;

use super::{Crib, FIXTURE};
use crate::support::program::err;

#[test]
fn tasks_use_the_servers_of_the_daemon() {
    let crib = Crib::new(FIXTURE);
    crib.bench.file("tasks.jsonl", r#"{"id":"a","calls":[{"tool":"fix.pid","args":{}}]}"#);
    let pid = |arguments: &[&str]| {
        let printed = crib.ok(&[&["run", "tasks.jsonl", "--json"], arguments].concat());
        let document: Value = serde_json::from_str(printed.lines().last().unwrap()).unwrap();
        let results = crib.bench.0.path().join(document["dir"].as_str().unwrap()).join("results.jsonl");
        let line = std::fs::read_to_string(results).unwrap();
        serde_json::from_str::<Value>(&line).unwrap()["answer"].as_str().unwrap().to_owned()
    };
    crib.ok(&["up", "-d"]);
    let kept = crib.status()["servers"][0]["pid"].to_string();
    assert_eq!(pid(&[]), kept);
    assert_eq!(pid(&[]), kept);
    let said = err(&crib.run(&["run", "tasks.jsonl"]));
    assert!(said.contains("the servers of the daemon") && !said.contains("Starting"), "{said}");
    assert_ne!(pid(&["--no-daemon"]), kept);
    assert_eq!(crib.status()["servers"][0]["pid"].to_string(), kept, "it stays");
    crib.ok(&["down"]);
    crib.lab.await_nobody();
    // Started on demand.
    assert_ne!(pid(&["--daemon"]), kept);
    assert_eq!(crib.status()["servers"][0]["calls"], 1);
}

#[test]
fn clients_get_servers_of_their_own_if_configured() {
    let crib = Crib::new("[servers.fix]\ncommand = FIXTURE\nscope = \"client\"\nspares = 1\n");
    let up = crib.run(&["up", "-d"]);
    assert!(err(&up).contains("1 of 1 ready") && !err(&up).contains("not available"), "{}", err(&up));
    crib.await_server("fix", |row| row["spares"] == 1 && row["state"] == "parked");
    crib.ok(&["call", "fix.pid"]);
    crib.await_server("fix", |row| row["spares"] == 1 && row["state"] == "ready");
    crib.bench.file("tasks.jsonl", r#"{"id":"a","calls":[{"tool":"fix.pid","args":{}}]}"#);
    crib.ok(&["run", "tasks.jsonl"]);
    // The run was a client: it had its own, and it is gone.
    crib.await_server("fix", |row| row["lent"] == 0 && row["spares"] == 1 && row["calls"] == 1);
    crib.ok(&["down"]);
    crib.lab.await_nobody();
}
