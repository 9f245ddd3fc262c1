//! The rules of the store, one test each.

use std::{
    collections::HashMap,
    fs,
    io::{BufRead, BufReader, Write},
    path::Path,
};

use serde_json::json;

use super::{
    history::{Diverged, History},
    record::{Entry, Record, StepKey},
    *,
};
use crate::{cancel::CancellationToken, config::Secrets, task::Outcome};

type Opened = (RunStore, HashMap<String, String>);

fn open(folder: &Path, tasks: &[(&str, &str)]) -> crate::Result<Opened> {
    open_with(folder, tasks, CancellationToken::new())
}

fn open_with(folder: &Path, tasks: &[(&str, &str)], stop: CancellationToken) -> crate::Result<Opened> {
    let mut tasks = tasks.iter().map(|(id, digest)| Ok(((*id).to_owned(), (*digest).to_owned())));
    let setup = StoreSetup {
        tasks: &mut tasks,
        synced: true,
        stop,
        goes_on: &|_| false,
        spent: &|_, _| Default::default(),
    };
    RunStore::open(folder, setup).map(|opened| (opened.store, opened.ended))
}

/// The store is closed by its thread, a moment after the last handle is gone.
async fn reopen(folder: &Path, tasks: &[(&str, &str)]) -> Opened {
    loop {
        match open(folder, tasks) {
            Err(error) if error.to_string().contains("another process") => {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
            opened => return opened.unwrap(),
        }
    }
}

async fn journal(store: &RunStore, task: &str) -> TaskJournal {
    claimed(store, task, false).await
}

async fn claimed(store: &RunStore, task: &str, retry: bool) -> TaskJournal {
    let (lease, history) = store.claim(task, retry).await.unwrap();
    TaskJournal::new(lease, history, Secrets::new(["hunter2-x".to_owned()]))
}

fn model(journal: &TaskJournal, request: &str) -> crate::Result<JournaledStep> {
    journal.step("main", StepKind::Model, None, request.to_owned())
}

fn call(journal: &TaskJournal, request: &str) -> JournaledStep {
    journal.step("main", StepKind::Call, Some("files"), request.to_owned()).unwrap()
}

async fn make(journal: &TaskJournal, step: JournaledStep, outcome: &str) {
    journal.begin(&step).await.unwrap();
    journal.end(step, json!(outcome), false).await.unwrap();
}

fn finished(outcome: &str) -> StepState {
    StepState::Finished(json!(outcome))
}

#[tokio::test]
async fn finished_steps_come_from_the_journal() {
    let home = tempfile::tempdir().unwrap();
    let (store, _) = open(home.path(), &[("a", "{}")]).unwrap();
    let first = journal(&store, "a").await;
    make(&first, model(&first, "q").unwrap(), "asks").await;
    make(&first, call(&first, "write"), "hunter2-x written").await;
    assert_eq!(first.resumed(), None);
    drop((first, store));

    let (store, ended) = reopen(home.path(), &[("a", "{}")]).await;
    assert!(ended.is_empty());
    let again = journal(&store, "a").await;
    assert!(again.is_catching_up());
    assert_eq!(model(&again, "q").unwrap().state, finished("asks"));
    // What is secret is not on the disk.
    assert_eq!(call(&again, "write").state, finished("**** written"));
    assert!(!again.is_catching_up());
    // The same once more is another step.
    assert_eq!(call(&again, "write").state, StepState::New);
    let resumed = again.resumed().unwrap();
    assert_eq!((resumed.interruptions, resumed.reused, resumed.unknown), (1, 2, 0));
    assert!(
        again.take_lost_state("files") && !again.take_lost_state("files") && !again.take_lost_state("time")
    );
}

#[tokio::test]
async fn only_repeatable_steps_of_unknown_outcome_run_again() {
    let home = tempfile::tempdir().unwrap();
    let (store, _) = open(home.path(), &[("a", "{}")]).unwrap();
    let first = journal(&store, "a").await;
    make(&first, model(&first, "q").unwrap(), "asks").await;
    first.begin(&call(&first, "write")).await.unwrap();
    let read = first.step("main", StepKind::SafeCall, Some("files"), "read".to_owned()).unwrap();
    first.begin(&read).await.unwrap();

    let again = journal(&store, "a").await;
    model(&again, "q").unwrap();
    let (write, read) = (
        call(&again, "write"),
        again.step("main", StepKind::SafeCall, Some("files"), "read".to_owned()).unwrap(),
    );
    assert!(write.must_not_run() && !read.must_not_run());
    // From now on its outcome is that it is not known.
    again.begin(&write).await.unwrap();
    again.end(write, json!("unknown"), false).await.unwrap();
    let asked = model(&again, "q2").unwrap();
    again.begin(&asked).await.unwrap();
    assert_eq!(again.resumed().unwrap().unknown, 1);

    let third = journal(&store, "a").await;
    model(&third, "q").unwrap();
    assert_eq!(call(&third, "write").state, finished("unknown"));
    let asked = model(&third, "q2").unwrap();
    assert!(asked.state == StepState::Unknown && !asked.must_not_run());
    assert_eq!((third.resumed().unwrap().repeated, third.resumed().unwrap().unknown), (1, 1));
}

#[tokio::test]
async fn parallel_calls_may_come_in_any_order() {
    let home = tempfile::tempdir().unwrap();
    let (store, _) = open(home.path(), &[("a", "{}")]).unwrap();
    let first = journal(&store, "a").await;
    make(&first, model(&first, "q").unwrap(), "three calls").await;
    let calls = [call(&first, "x"), call(&first, "y"), call(&first, "y")];
    for (step, outcome) in calls.into_iter().rev().zip(["y2", "y1", "x1"]) {
        make(&first, step, outcome).await;
    }
    let again = journal(&store, "a").await;
    model(&again, "q").unwrap();
    // One of the turn was not begun: that is no difference, since nothing was recorded after the turn.
    assert_eq!(call(&again, "z").state, StepState::New);
    let found = ["y", "x", "y"].map(|request| call(&again, request).state);
    assert_eq!(found, ["y1", "x1", "y2"].map(finished));
}

#[tokio::test]
async fn another_request_than_recorded_is_an_error() {
    let home = tempfile::tempdir().unwrap();
    let (store, _) = open(home.path(), &[("a", "{}")]).unwrap();
    let first = journal(&store, "a").await;
    make(&first, model(&first, "q").unwrap(), "a call").await;
    make(&first, call(&first, "x"), "x1").await;
    make(&first, model(&first, "q2").unwrap(), "answer").await;
    let again = journal(&store, "a").await;
    let error = model(&again, "other").unwrap_err();
    assert!(error.to_string().contains("asked for something else"), "{error}");
    model(&again, "q").unwrap();
    let other = again.step("main", StepKind::Call, Some("files"), "other".to_owned());
    assert!(other.is_err(), "the request after the call was recorded: the call must have been too");
    // Another agent of the task has steps of its own.
    assert_eq!(again.step("main/1-x", StepKind::Model, None, "q".to_owned()).unwrap().state, StepState::New);
}

#[tokio::test]
async fn an_owner_that_was_replaced_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let (store, _) = open(home.path(), &[("a", "{}")]).unwrap();
    let (first, second) = (journal(&store, "a").await, journal(&store, "a").await);
    let error = first.begin(&call(&first, "x")).await.unwrap_err();
    assert!(error.causes()[0].contains("taken over"), "{error:?}");
    make(&second, call(&second, "x"), "x1").await;
    assert!(first.done(Outcome::Passed, None).await.is_err());
    assert!(store.claim("b", false).await.is_err());
}

#[tokio::test]
async fn ended_tasks_are_known_after_reopening() {
    let home = tempfile::tempdir().unwrap();
    let tasks = [("a", "1"), ("b", "2"), ("c", "3")];
    let (store, _) = open(home.path(), &tasks).unwrap();
    for (task, status) in [("a", Outcome::Passed), ("c", Outcome::Errored)] {
        journal(&store, task).await.done(status, None).await.unwrap();
    }
    // Taken up again, and not ended.
    let again = journal(&store, "c").await;
    drop((again, store));
    let (store, ended) = reopen(home.path(), &tasks).await;
    assert_eq!(ended, [("a".to_owned(), "passed".to_owned())].into());
    drop(store);
    let error = loop {
        match open(home.path(), &[("a", "other")]) {
            Err(error) if error.to_string().contains("another process") => {}
            changed => break changed.unwrap_err(),
        }
    };
    assert!(error.to_string().contains("task `a` is not the one"), "{error}");
}

#[tokio::test]
async fn a_second_owner_of_the_file_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let (_store, _) = open(home.path(), &[("a", "{}")]).unwrap();
    let error = open(home.path(), &[("a", "{}")]).unwrap_err();
    let pid = format!("(pid {})", std::process::id());
    assert!(error.to_string().contains(&pid), "{error}");
    assert!(error.help().unwrap().contains("--fresh"));
}

#[tokio::test]
async fn a_store_that_cannot_write_stops_the_run() {
    let home = tempfile::tempdir().unwrap();
    let stop = CancellationToken::new();
    let (store, _) = open_with(home.path(), &[("a", "{}")], stop.clone()).unwrap();
    let first = journal(&store, "a").await;
    // As on a full disk: SQLite's limit of the size of a database gives the same error.
    store.limit_pages(8).await;
    let step = call(&first, "x");
    first.begin(&step).await.unwrap();
    let error = first.end(step, json!("x".repeat(100_000)), false).await.unwrap_err();
    assert_eq!(error.causes(), ["the disk is full"], "{error}");
    assert!(stop.is_cancelled() && store.failure().is_some());
    assert!(first.done(Outcome::Passed, None).await.is_err(), "nothing is written any more");
    drop((first, store));
    // What was acknowledged is there.
    let (store, _) = reopen(home.path(), &[("a", "{}")]).await;
    assert!(call(&journal(&store, "a").await, "x").must_not_run());
}

#[tokio::test]
async fn an_unknown_version_of_the_file_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let connection = rusqlite::Connection::open(home.path().join(FILE)).unwrap();
    connection.pragma_update(None, "user_version", 7).unwrap();
    drop(connection);
    let error = open(home.path(), &[]).unwrap_err();
    assert!(error.causes()[0].contains("version 7"), "{error:?}");
    fs::write(home.path().join(FILE), "this is no database, but a text of some length").unwrap();
    assert!(open(home.path(), &[]).is_err());
}

#[tokio::test]
async fn what_is_read_of_a_journal_is_bounded() {
    for (planted, why) in [
        (
            "insert into journal values('a', 1, printf('%.*c', 68000000, 'x'))",
            "a record has more than 64 MiB",
        ),
        (
            "with recursive n(i) as (select 1 union all select i + 1 from n where i <= 200000)
               insert into journal select 'a', i, '{\"at\": 1, \"record\": \"submit\"}' from n",
            "`a` has more than 200000 records",
        ),
    ] {
        let home = tempfile::tempdir().unwrap();
        let (store, _) = open(home.path(), &[("a", "{}")]).unwrap();
        store.close().await;
        rusqlite::Connection::open(home.path().join(FILE)).unwrap().execute(planted, []).unwrap();
        let error = open(home.path(), &[("a", "{}")]).unwrap_err();
        assert!(error.causes()[0].contains(why), "{error:?}");
    }
}

fn entry(at: u64, record: Record) -> Entry {
    Entry { at, worked_ms: None, record }
}

fn claim(retry: bool) -> Record {
    Record::Claim { lease: String::new(), retry }
}

fn failed_request(agent: &str) -> Record {
    let step =
        StepKey { agent: agent.into(), kind: StepKind::Model, server: None, request: "q".into(), n: 1 };
    Record::End { step, outcome: json!({"failed": {}}), failed: true }
}

#[test]
fn work_before_an_interruption_is_summed_up() {
    let entries = [
        entry(0, Record::Submit { task: None }),
        entry(10_000, claim(false)),
        entry(13_000, failed_request("main")),
        entry(90_000, claim(false)),
        entry(90_500, Record::Done { status: "errored".into(), result: None }),
    ];
    let history = History::of(entries.to_vec());
    assert_eq!(history.worked.as_millis(), 3500);
    assert_eq!(history.claims, 2);
}

#[test]
fn a_clock_that_jumps_changes_no_time_worked() {
    let hours = 7_200_000;
    let worked =
        |at: u64, worked_ms: u64| Entry { worked_ms: Some(worked_ms), ..entry(at, failed_request("main")) };
    for at in [10_000 + hours, 0, u64::MAX] {
        let entries =
            [entry(10_000, claim(false)), worked(11_000, 1000), worked(at, 1500), worked(11_400, 1400)];
        assert_eq!(History::of(entries.to_vec()).worked.as_millis(), 1500, "{at}");
    }
    // One without it is believed within limits, and no sum is too large.
    let old = [entry(10_000, claim(false)), entry(10_000 + hours, failed_request("main"))];
    assert_eq!(History::of(old.to_vec()).worked.as_secs(), 20 * 60);
    let many =
        std::iter::repeat_with(|| [entry(0, claim(false)), worked(u64::MAX, u64::MAX)]).take(3000).flatten();
    assert!(History::of(many.collect()).worked > std::time::Duration::from_millis(u64::MAX));
    let text = serde_json::to_value(Entry::of_owner(claim(false), std::time::Instant::now())).unwrap();
    assert!(text["worked_ms"].as_u64().unwrap() < 60_000, "{text}");
    let line = r#"{"at": 1, "record": "submit"}"#;
    assert_eq!(serde_json::from_str::<Entry>(line).unwrap().worked_ms, None);
}

#[test]
fn a_retry_forgets_only_failures_that_ended_an_agent() {
    let key = |history: &mut History, agent: &str| history.key(agent, StepKind::Model, None, "q".into());
    let entries = vec![
        entry(0, Record::Submit { task: None }),
        entry(1, claim(false)),
        entry(2, failed_request("main")),
    ];
    for retry in [false, true] {
        let mut last = History::of([&entries[..], &[entry(3, claim(retry))]].concat());
        let step = key(&mut last, "main");
        assert_eq!(last.take(&step).unwrap() == StepState::New, retry);
    }
    // The agent that called the one that failed went on, and its next request depends on the failure.
    let next =
        StepKey { agent: "main".into(), kind: StepKind::Model, server: None, request: "r".into(), n: 1 };
    let mut entries = entries;
    entries[2] = entry(2, failed_request("main/1-helper"));
    entries.extend([entry(3, Record::Begin { step: next }), entry(4, claim(true))]);
    let mut middle = History::of(entries);
    let step = key(&mut middle, "main/1-helper");
    assert!(matches!(middle.take(&step), Ok(StepState::Finished(_))));
    let step = key(&mut middle, "main");
    assert_eq!(middle.take(&step), Err(Diverged));
}

#[tokio::test]
async fn an_interrupted_retry_goes_on_as_a_retry() {
    let home = tempfile::tempdir().unwrap();
    let (store, _) = open(home.path(), &[("a", "{}")]).unwrap();
    let first = journal(&store, "a").await;
    make(&first, model(&first, "q").unwrap(), "a call").await;
    let step = model(&first, "r").unwrap();
    first.begin(&step).await.unwrap();
    first.end(step, json!({"failed": {}}), true).await.unwrap();
    first.done(Outcome::Errored, None).await.unwrap();
    // Without a retry the failure is its end.
    let same = journal(&store, "a").await;
    model(&same, "q").unwrap();
    assert!(matches!(model(&same, "r").unwrap().state, StepState::Finished(_)));
    same.done(Outcome::Errored, None).await.unwrap();
    // The process that retries is killed at once, and after its first request.
    drop(claimed(&store, "a", true).await);
    for retry in [true, false] {
        let again = claimed(&store, "a", retry).await;
        assert_eq!(model(&again, "q").unwrap().state, finished("a call"));
        let step = model(&again, "r").unwrap();
        assert_eq!(step.state, if retry { StepState::New } else { StepState::Unknown });
        again.begin(&step).await.unwrap();
    }
}

/// The folder of the store that a child of the next test writes to.
const WRITER: &str = "TOOLCRIB_TEST_STORE_WRITER";

/// Appends to eight journals until it is killed, and says which records were acknowledged.
async fn write_until_killed(folder: &Path) {
    let tasks = TASKS.map(|task| (task, "{}"));
    let (store, _) = open(folder, &tasks).unwrap();
    let write = async |task: &str| {
        let journal = journal(&store, task).await;
        let round = journal.resumed().map_or(0, |resumed| resumed.interruptions);
        for n in 0.. {
            let request = format!("{round} {n}");
            let step = journal.step(&request, StepKind::Call, None, request.clone()).unwrap();
            make(&journal, step, &"x".repeat(4000)).await;
            std::io::stdout().write_all(format!("\n{task}:{request}\n").as_bytes()).unwrap();
        }
    };
    futures_util::future::join_all(TASKS.map(write)).await;
}

const TASKS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

#[tokio::test]
async fn no_acknowledged_record_is_lost_in_a_crash_loop() {
    if let Some(folder) = std::env::var_os(WRITER) {
        return write_until_killed(Path::new(&folder)).await;
    }
    let home = tempfile::tempdir().unwrap();
    let mut acknowledged: Vec<(String, String)> = Vec::new();
    for round in 1..=20 {
        let own = std::env::current_exe().unwrap();
        let name = "store::tests::no_acknowledged_record_is_lost_in_a_crash_loop";
        let mut child = std::process::Command::new(own)
            .args([name, "--exact", "--nocapture"])
            .env(WRITER, home.path())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let records = lines.by_ref().filter_map(|line| {
            let (task, request) = line.split_once(':')?;
            TASKS.contains(&task).then(|| (task.to_owned(), request.to_owned()))
        });
        let mut seen: Vec<_> = records.take(20 + 7 * round).collect();
        child.kill().unwrap();
        // What it had said before it died.
        seen.extend(lines.filter_map(|line| {
            let (task, request) = line.split_once(':')?;
            TASKS.contains(&task).then(|| (task.to_owned(), request.to_owned()))
        }));
        child.wait().unwrap();
        acknowledged.append(&mut seen);
    }
    let tasks = TASKS.map(|task| (task, "{}"));
    let (store, _) = reopen(home.path(), &tasks).await;
    assert!(acknowledged.len() > 1000, "{}", acknowledged.len());
    for task in TASKS {
        let journal = journal(&store, task).await;
        for (_, request) in acknowledged.iter().filter(|(of, _)| of == task) {
            let step = journal.step(request, StepKind::Call, None, request.clone()).unwrap();
            assert!(matches!(step.state, StepState::Finished(_)), "{task} {request}");
        }
    }
}
