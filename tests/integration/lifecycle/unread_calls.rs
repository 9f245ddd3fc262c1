//! Calls that a lost server has not read go to the next process, and only these: no call runs twice. Calls that are
//! given up before they are written are not run at all.

use std::{collections::BTreeMap, time::Duration};

use serde_json::json;
use toolcrib::{CallOptions, ErrorCode, Result, ServerConfig, Toolbox};
use toolcrib_guard::HAS_GUARDS;

use crate::support::{Lab, call, manager, object, say, within};

/// Longer than any test.
const FOREVER: u64 = 3_600_000;

/// A server that may be lost often.
fn server(lab: &Lab, flags: &[&str]) -> ServerConfig {
    let mut server = lab.server("one", &[flags, &[&lab.flag("count")]].concat());
    server.restart.max = u32::MAX;
    server.restart.backoff = Duration::from_millis(1);
    server.restart.backoff_cap = Duration::from_millis(1);
    // Time for the old process to go on in.
    server.stop.eof = Duration::from_millis(200);
    server.stop.term = Duration::from_millis(50);
    server
}

/// How often each number was run.
fn runs(lab: &Lab) -> BTreeMap<usize, usize> {
    let mut runs = BTreeMap::new();
    for line in lab.lines("count") {
        if let Ok(number) = line.split_once(' ').unwrap().1.parse() {
            *runs.entry(number).or_default() += 1;
        }
    }
    runs
}

async fn run(tools: &Toolbox, n: usize, pad: usize) -> Result<String> {
    call(tools, "one", "run", json!({"n": n, "pad": "x".repeat(pad)})).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unread_call_is_run_once_by_the_next_process() {
    for how in ["stdout", "noise", "fork", "exit"] {
        let lab = Lab::new();
        let manager = manager([server(&lab, &["astray"])]).await;
        let tools = manager.toolbox();
        let lost = call(&tools, "one", "stray", json!({"how": how, "ms": 500}));
        let unread = async {
            within("the first call", || lab.lines("count").len() == 1).await;
            // A short one, and one that does not fit into the pipe.
            tokio::join!(run(&tools, 1, 0), run(&tools, 2, 200_000))
        };
        let (lost, (short, long)) = tokio::join!(lost, unread);
        assert!(lost.unwrap_err().to_string().contains("outcome unknown"), "{how}");
        // Where unread bytes cannot be taken back, the caller gets an error and the call is not sent again.
        if HAS_GUARDS {
            assert_eq!((short.unwrap(), long.unwrap()), ("done".to_owned(), "done".to_owned()), "{how}");
        }
        assert!(manager.shutdown().await.survivors.is_empty());
        assert!(runs(&lab).values().all(|times| *times == 1), "{how}: {:?}", lab.lines("count"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_call_runs_twice_for_any_loss_of_a_server() {
    let lab = Lab::new();
    let manager = manager([server(&lab, &["mayhem"])]).await;
    let tools = manager.toolbox();
    let mut outcomes = Vec::new();
    for wave in 0..40 {
        let calls = (0..20).map(|index| {
            let n = wave * 20 + index;
            run(&tools, n, [0, 10, 500, 3900, 9000, 150_000][fastrand::usize(..6)])
        });
        outcomes.extend(futures_util::future::join_all(calls).await);
    }
    assert!(manager.shutdown().await.survivors.is_empty());
    lab.await_nobody();
    let runs = runs(&lab);
    let lost = outcomes.iter().filter(|outcome| outcome.is_err()).count();
    assert!(lost > 0 && lost < outcomes.len(), "{lost} of {} calls were lost", outcomes.len());
    for (n, outcome) in outcomes.into_iter().enumerate() {
        let times = runs.get(&n).copied().unwrap_or_default();
        match outcome {
            Ok(_) => assert_eq!(times, 1, "call {n} was answered"),
            Err(error) if error.to_string().contains("it was not run") => assert_eq!(times, 0, "call {n}"),
            Err(error) => {
                assert_eq!(error.code(), lost_code(&error), "call {n}");
                assert!(times <= 1, "call {n} ran {times} times: {error}");
            }
        }
    }
}

/// A loss, by whichever name.
fn lost_code(error: &toolcrib::Error) -> ErrorCode {
    match error.code() {
        code @ (ErrorCode::SessionLost | ErrorCode::StdoutGarbage) => code,
        other => panic!("{other:?}: {error}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_requested_restart_loses_no_unread_call() {
    let lab = Lab::new();
    let manager = manager([server(&lab, &["astray"])]).await;
    let tools = manager.toolbox();
    let busy = call(&tools, "one", "stray", json!({"how": "none", "ms": FOREVER}));
    let other = async {
        within("the first call", || lab.lines("count").len() == 1).await;
        let restart = async {
            within("the second call", || manager.status()[0].in_flight == 2).await;
            manager.restart("one").await.unwrap();
        };
        tokio::join!(run(&tools, 1, 0), restart).0
    };
    let (busy, other) = tokio::join!(busy, other);
    assert!(busy.unwrap_err().to_string().contains("outcome unknown, it was sent once"));
    // It may not have been written when the restart began, but it was not read.
    if HAS_GUARDS {
        assert_eq!(other.unwrap(), "done");
    }
    manager.shutdown().await;
    assert!(runs(&lab).values().all(|times| *times == 1), "{:?}", lab.lines("count"));
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_cancelled_before_they_are_written_do_not_run() {
    let lab = Lab::new();
    let manager = manager([server(&lab, &["astray"])]).await;
    let tools = manager.toolbox();
    let entry = manager.catalog().find("one", "run").unwrap().clone();
    let busy = call(&tools, "one", "stray", json!({"how": "none", "ms": 3000}));
    let given_up = async {
        within("the first call", || lab.lines("count").len() == 1).await;
        // Two megabytes, of which the pipe takes 64 KB.
        let calls = (0..500).map(|n| {
            let arguments = object(json!({"n": n, "pad": "x".repeat(4000)}));
            let (tools, entry) = (&tools, &entry);
            async move {
                tools
                    .call_entry(entry, &arguments, &CallOptions::new().timeout(Duration::from_millis(500)))
                    .await
            }
        });
        for outcome in futures_util::future::join_all(calls).await {
            assert_eq!(outcome.unwrap_err().code(), ErrorCode::CallTimeout);
        }
    };
    let (busy, ()) = tokio::join!(busy, given_up);
    assert_eq!(busy.unwrap(), "done");
    assert_eq!(run(&tools, 500, 0).await.unwrap(), "done", "the session goes on");
    let runs = runs(&lab);
    assert!(runs.len() < 100, "{} calls were run after they had been given up", runs.len());
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn any_number_of_late_answers_keeps_the_session() {
    let lab = Lab::new();
    let manager = manager([lab.server("one", &[])]).await;
    let tools = manager.toolbox();
    let pid = say(&tools, "one", "pid").await.unwrap();
    let entry = manager.catalog().find("one", "sleep").unwrap().clone();
    let waited_for = call(&tools, "one", "sleep", json!({"ms": 6000}));
    let given_up = async {
        let arguments = object(json!({"ms": 3000}));
        let options = CallOptions::new().timeout(Duration::from_millis(300));
        let call = || tools.call_entry(&entry, &arguments, &options);
        futures_util::future::join_all((0..1300).map(|_| call())).await
    };
    let (waited_for, given_up) = tokio::join!(waited_for, given_up);
    assert!(given_up.into_iter().all(|outcome| outcome.unwrap_err().code() == ErrorCode::CallTimeout));
    assert_eq!(waited_for.unwrap(), "awake");
    assert_eq!(say(&tools, "one", "pid").await.unwrap(), pid);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_other_lines_on_stdout_stays_connected() {
    let lab = Lab::new();
    let manager = manager([lab.chaos("one", "garbage=2")]).await;
    let tools = manager.toolbox();
    let pid = say(&tools, "one", "pid").await.unwrap();
    for _ in 0..200 {
        assert_eq!(say(&tools, "one", "pid").await.unwrap(), pid);
    }
    manager.shutdown().await;
}
