//! `toolcrib ps --store`: the workers of a store and its runs.

use std::time::Duration;

use serde_json::Value;

use super::faults::Fleet;
use crate::support::crib::Crib;
use crate::support::{
    nats::NatsServer,
    program::{code, err, out},
    signal, within,
};

impl Fleet {
    /// The output of `ps --json` for the store.
    pub(super) fn ps(&self) -> Value {
        let done = self.bench.run(&["ps", "--json", "--store", &self.nats[0].url()]);
        assert_eq!(code(&done), 0, "{}", err(&done));
        serde_json::from_str(&out(&done)).unwrap()
    }
}

#[toolcrib_testing::requires(nats_server)]
#[tokio::test(flavor = "multi_thread")]
async fn workers_and_runs_are_listed_and_the_dead_disappear() {
    let fleet = Fleet::new(12, Duration::from_millis(200));
    let empty = fleet.bench.run(&["ps", "--store", &fleet.nats[0].url()]);
    assert_eq!(code(&empty), 2, "{}", err(&empty));
    assert!(err(&empty).contains("has no run yet"), "{}", err(&empty));
    fleet.submit();
    let idle = fleet.ps();
    assert_eq!(idle["workers"], serde_json::json!([]), "{idle:#}");
    assert_eq!(
        (&idle["runs"][0]["run"], &idle["runs"][0]["waiting"]),
        (&"one".into(), &12.into()),
        "{idle:#}"
    );

    let mut workers = [fleet.worker(), fleet.worker()];
    let mut seen = Value::Null;
    within("tasks at both workers", || {
        seen = fleet.ps();
        seen["runs"][0]["under_way"] == 8
    })
    .await;
    let listed = seen["workers"].as_array().unwrap();
    let mut pids: Vec<u64> = listed.iter().map(|worker| worker["pid"].as_u64().unwrap()).collect();
    pids.sort_unstable();
    let mut ours = workers.each_ref().map(|worker| u64::from(worker.id()));
    ours.sort_unstable();
    assert_eq!(pids, ours, "{seen:#}");
    for worker in listed {
        assert_eq!((&worker["slots"], &worker["runs"]["one"]), (&4.into(), &4.into()), "{seen:#}");
        assert_eq!(worker["servers"][0]["name"], "fix", "{seen:#}");
        let task = &worker["tasks"][0];
        assert_eq!(task["run"], "one");
        assert!(task["task"].as_str().unwrap().starts_with('t'), "{seen:#}");
        assert!(worker["tasks"].to_string().contains("turn "), "no step is told: {seen:#}");
    }
    let text = out(&fleet.bench.run(&["ps", "--store", &fleet.nats[0].url()]));
    assert!(text.contains("2 workers | 8 of 8 slots taken | 1 run"), "{text}");

    signal("KILL", workers[0].id());
    workers[0].wait().unwrap();
    let killed = workers[0].id();
    within("the end of a worker", || workers[1].try_wait().unwrap().is_some()).await;
    let mut after = fleet.ps();
    let is_other = |worker: &Value| worker["pid"] != killed;
    let others = after["workers"].as_array().unwrap().iter().filter(|worker| is_other(worker)).count();
    assert_eq!(others, 0, "one that ends takes its entry back: {after:#}");
    within("the end of the killed worker's entry", || {
        after = fleet.ps();
        after["workers"] == serde_json::json!([])
    })
    .await;
    let run = &after["runs"][0];
    assert_eq!((&run["passed"], &run["waiting"], &run["pass_rate"]), (&12.into(), &0.into(), &1.0.into()));
    assert!(run["tasks_per_minute"].as_f64().unwrap() > 0.0, "{run:#}");
    fleet.assert_nothing_repeated(4);
}

#[toolcrib_testing::requires(nats_server)]
#[test]
fn the_daemon_and_the_store_are_shown_together() {
    let nats = NatsServer::start();
    let crib = Crib::new("[servers.fix]\ncommand = FIXTURE\n");
    crib.ok(&["up", "-d"]);
    // The servers are shown even where the store cannot be.
    let empty = crib.run(&["ps", "--store", &nats.url()]);
    assert_eq!(code(&empty), 2, "{}", err(&empty));
    assert!(out(&empty).contains("fix") && err(&empty).contains("has no run yet"), "{}", out(&empty));
    std::fs::write(crib.folder().join("tasks.jsonl"), "{\"id\": \"a\", \"input\": \"1\"}").unwrap();
    crib.ok(&["submit", "tasks.jsonl", "--name", "one", "--store", &nats.url()]);
    let both: Value = serde_json::from_str(&crib.ok(&["ps", "--json", "--store", &nats.url()])).unwrap();
    assert_eq!(
        (&both["servers"][0]["name"], &both["runs"][0]["tasks"]),
        (&"fix".into(), &1.into()),
        "{both:#}"
    );
    assert!(crib.ok(&["ps", "--store", &nats.url()]).contains("no worker is at work"));
    crib.ok(&["down"]);
}

#[toolcrib_testing::requires(nats_server)]
#[tokio::test(flavor = "multi_thread")]
async fn workers_are_registered_again_after_a_crash_of_the_store() {
    let mut fleet = Fleet::new(16, Duration::from_millis(100));
    fleet.submit();
    let mut worker = fleet.worker();
    within("a worker", || fleet.ps()["runs"][0]["under_way"] == 4).await;
    fleet.nats[0].kill();
    fleet.nats[0].start_again();
    // The registry was in the memory of the server.
    within("the worker again", || fleet.ps()["workers"].as_array().unwrap().len() == 1).await;
    within("the end of a worker", || worker.try_wait().unwrap().is_some()).await;
    fleet.assert_nothing_repeated(4);
}
