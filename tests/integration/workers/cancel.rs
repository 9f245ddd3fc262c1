//! `toolcrib cancel`: what is under way ends within seconds, what has not begun never begins, and submitting again goes on.

use std::{fs, time::Duration};

use serde_json::Value;

use super::faults::Fleet;
use crate::{
    runs::resume::{effects, settled},
    support::{
        program::{code, err},
        within,
    },
};

impl Fleet {
    fn cancel(&self, arguments: &[&str]) -> String {
        let done = self.run(&[&["cancel"], arguments].concat());
        assert_eq!(code(&done), 0, "{}", err(&done));
        err(&done)
    }

    /// The reports as they are now, in a folder of this name.
    fn results_in(&self, folder: &str) -> Vec<Value> {
        let done = self.run(&["results", "one", "--out", folder]);
        assert_eq!(code(&done), 0, "{}", err(&done));
        let text = fs::read_to_string(self.bench.0.path().join(folder).join("results.jsonl")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

#[toolcrib_testing::requires(nats_server)]
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_run_stops_and_submitting_it_again_continues_it() {
    let fleet = Fleet::new(24, Duration::from_millis(100));
    fleet.submit();
    let mut workers = [fleet.worker(), fleet.worker()];
    // Steps have ended by then, and others are under way.
    fleet.requests(14).await;
    let text = fleet.cancel(&["one"]);
    let at_once = std::time::Instant::now();
    assert!(text.contains("under way") && text.contains("not to be begun"), "{text}");
    for worker in &mut workers {
        within("the end of a worker", || worker.try_wait().unwrap().is_some()).await;
    }
    assert!(at_once.elapsed() < Duration::from_secs(10), "{:?}", at_once.elapsed());
    let before = settled(&fleet.model).await;
    assert!(before < 60, "the run has nearly ended: {before} requests");

    let results = fleet.results_in("stopped");
    assert_eq!(results.len(), 24, "each task has a line: {results:#?}");
    let cancelled: Vec<&Value> = results.iter().filter(|line| line["status"] == "cancelled").collect();
    assert!(cancelled.len() >= 12, "{results:#?}");
    assert!(results.iter().all(|line| ["cancelled", "passed"].contains(&line["status"].as_str().unwrap())));
    assert!(
        cancelled.iter().any(|line| line["error"]["message"] == "cancelled before it began"),
        "{results:#?}"
    );
    assert!(
        cancelled.iter().any(|line| line["turns"].as_u64() > Some(0)),
        "none was under way: {results:#?}"
    );
    let run = &fleet.ps()["runs"][0];
    assert_eq!((&run["cancelled"], &run["waiting"]), (&cancelled.len().into(), &0.into()), "{run:#}");
    let manifest = fs::read_to_string(fleet.bench.0.path().join("stopped/run.json")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&manifest).unwrap()["end"], "stopped");

    // A worker finds nothing to do.
    let mut idle = fleet.worker();
    within("the end of a worker", || idle.try_wait().unwrap().is_some()).await;
    assert_eq!(settled(&fleet.model).await, before);

    let text = fleet.submit();
    assert!(text.contains(&format!("{} cancelled tasks, behind the last", cancelled.len())), "{text}");
    let mut worker = fleet.worker();
    within("the end of a worker", || worker.try_wait().unwrap().is_some()).await;
    fleet.assert_nothing_repeated(8);
    assert_eq!(fleet.ps()["runs"][0]["cancelled"], 0);
}

#[toolcrib_testing::requires(nats_server)]
#[tokio::test(flavor = "multi_thread")]
async fn cancelled_tasks_are_never_begun() {
    let fleet = Fleet::new(3, Duration::ZERO);
    fleet.submit();
    for (arguments, words) in [
        (&["cancel", "two"][..], "the store has no run `two`"),
        (&["cancel", "one", "--task", "t9"], "the run `one` has no task `t9`"),
    ] {
        let refused = fleet.run(arguments);
        assert_eq!(code(&refused), 2, "{}", err(&refused));
        assert!(err(&refused).contains(words), "{}", err(&refused));
    }
    let text = fleet.cancel(&["one", "--task", "t1"]);
    assert!(text.contains("run one: 1 task not to be begun, 0 under way, 0 had ended"), "{text}");
    let mut worker = fleet.worker();
    within("the end of a worker", || worker.try_wait().unwrap().is_some()).await;
    let status = |line: &Value| (line["task"].as_str().unwrap().to_owned(), line["status"].clone());
    let mut results: Vec<_> = fleet.results_in("some").iter().map(status).collect();
    results.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    let wanted = [("t0", "passed"), ("t1", "cancelled"), ("t2", "passed")];
    assert_eq!(results, wanted.map(|(task, status)| (task.to_owned(), status.into())));
    assert!(effects(&fleet.bench).iter().all(|effect| !(100..200).contains(effect)), "t1 was begun");
    let text = fleet.cancel(&["one"]);
    assert!(text.contains("0 tasks not to be begun, 0 under way, 3 had ended"), "{text}");
}
