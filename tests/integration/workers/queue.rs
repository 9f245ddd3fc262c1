//! Tasks that are submitted, claimed, handed back and collected.

use std::{fs, time::Duration};

use serde_json::{Value, json};

use super::faults::{Fleet, LEASE};
use crate::{
    runs::resume::effects,
    support::{
        program::{code, err},
        signal, within,
    },
};

#[toolcrib_testing::requires(nats_server)]
#[tokio::test(flavor = "multi_thread")]
async fn submitting_again_adds_only_what_is_missing() {
    let fleet = Fleet::new(6, Duration::ZERO);
    assert!(fleet.submit().contains("6 new, 0 waiting or under way, 0 ended"));
    assert!(fleet.submit().contains("0 new, 6 waiting or under way, 0 ended"));
    // The queue has lost its entries: they come back, and none runs twice.
    fleet.nats[0].request("$JS.API.STREAM.PURGE.toolcrib_queue", "");
    let mut idle = fleet.worker();
    within("the end of a worker", || idle.try_wait().unwrap().is_some()).await;
    assert!(effects(&fleet.bench).is_empty());
    fleet.submit();
    let mut worker = fleet.worker();
    within("the end of a worker", || worker.try_wait().unwrap().is_some()).await;
    assert!(fleet.submit().contains("0 new, 0 waiting or under way, 6 ended"));
    fleet.assert_nothing_repeated(0);
    fleet.bench.file("tasks.jsonl", "{\"id\": \"t0\", \"input\": \"another\"}");
    let other = fleet.run(&["submit", "tasks.jsonl", "--name", "one"]);
    assert_eq!(code(&other), 2, "{}", err(&other));
    assert!(err(&other).contains("the run `one` has other tasks"), "{}", err(&other));
    // Tasks are read as those of `run`.
    fleet.bench.file("table.csv", "question,answer\r\n1,done\r\n2,done\r\n");
    let table = fleet.run(&["submit", "table.csv", "--name", "two", "--limit", "1"]);
    assert!(err(&table).contains("table.csv as question-and-answer tasks"), "{}", err(&table));
    assert!(err(&table).contains("1 task as run two: 1 new"), "{}", err(&table));
}

#[toolcrib_testing::requires(nats_server)]
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_ends_hands_its_tasks_back_at_once() {
    let fleet = Fleet::new(4, Duration::from_millis(300));
    fleet.submit();
    let mut first = fleet.worker();
    fleet.requests(2).await;
    signal("TERM", first.id());
    within("the end of a worker", || first.try_wait().unwrap().is_some()).await;
    assert_eq!(first.wait().unwrap().code(), Some(143));
    let before = fleet.model.requests().len();
    let mut second = fleet.worker();
    let began = std::time::Instant::now();
    fleet.requests(before + 1).await;
    assert!(began.elapsed() < LEASE, "it waited for the leases of the first: {:?}", began.elapsed());
    within("the end of a worker", || second.try_wait().unwrap().is_some()).await;
    fleet.assert_nothing_repeated(4);
}

#[toolcrib_testing::requires(nats_server)]
#[tokio::test(flavor = "multi_thread")]
async fn any_id_and_a_long_conversation_are_kept() {
    let fleet = Fleet::new(1, Duration::ZERO);
    let ids = ["gaia/0017", "a.b*c>d e", "../../up", "\u{e4}\u{1f600}", "=3D"];
    let line = |(n, id): (usize, &&str)| {
        let long = "0".repeat(400_000) + &n.to_string();
        json!({"id": id, "input": long, "target": "done"}).to_string() + "\n"
    };
    fleet.bench.file("tasks.jsonl", &ids.iter().enumerate().map(line).collect::<String>());
    fleet.submit();
    let mut worker = fleet.worker();
    within("the end of a worker", || worker.try_wait().unwrap().is_some()).await;
    let results = fleet.results();
    let mut found: Vec<&str> = results.iter().map(|line| line["task"].as_str().unwrap()).collect();
    found.sort_unstable();
    let mut ids = ids.to_vec();
    ids.sort_unstable();
    assert_eq!(found, ids);
    for line in &results {
        assert_eq!(line["status"], "passed", "{}", line["error"]);
        let path = fleet.bench.0.path().join("found").join(line["messages"].as_str().unwrap());
        let messages: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        assert!(messages[0]["content"].as_str().unwrap().len() >= 400_000);
    }
}

#[toolcrib_testing::requires(nats_server)]
#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_ends_its_workers_is_given_up() {
    // It is killed before the answer.
    let fleet = Fleet::new(1, Duration::from_secs(2));
    fleet.submit();
    for n in 1..=3 {
        let mut worker = fleet.worker();
        fleet.requests(n).await;
        signal("KILL", worker.id());
        worker.wait().unwrap();
        tokio::time::sleep(LEASE).await;
    }
    let mut worker = fleet.worker();
    within("the end of a worker", || worker.try_wait().unwrap().is_some()).await;
    let results = fleet.results();
    assert_eq!(results[0]["status"], "errored");
    assert!(results[0]["error"]["message"].as_str().unwrap().contains("claimed three times"), "{results:?}");
}
