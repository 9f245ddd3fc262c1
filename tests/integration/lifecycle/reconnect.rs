//! A server that dies during calls: one restart, no call runs twice, and a limit of restarts.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::json;
use toolcrib::CancellationToken;
use toolcrib::{
    Config, Error, ErrorCode, Manager, Toolbox,
    config::{Lifecycle, RetryCalls},
    process::StopOutcome,
    session::ServerState,
};

use crate::support::{Lab, call, manager, say, signal, wait_for, wait_until_says, within};

/// Longer than any test.
const FOREVER: u64 = 3_600_000;

/// A lost call says what became of it, in its own words.
fn assert_unknown(error: &Error) {
    assert_eq!(error.code(), ErrorCode::SessionLost);
    assert!(error.to_string().contains("outcome unknown"), "{error}");
}

async fn die(tools: &Toolbox) -> Error {
    say(tools, "one", "die").await.unwrap_err()
}

/// Lines that the `effect`s wrote: by number, the pids that ran it.
fn effects(lab: &Lab) -> BTreeMap<u64, Vec<String>> {
    let mut effects = BTreeMap::<u64, Vec<String>>::new();
    for line in lab.lines("count") {
        let (pid, number) = line.split_once(' ').unwrap();
        effects.entry(number.parse().unwrap()).or_default().push(pid.to_owned());
    }
    effects
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_callers_of_a_dead_server_cause_one_restart() {
    let lab = Lab::new();
    let manager = manager([lab.server("one", &[&lab.flag("spawns"), &lab.flag("count")])]).await;
    let tools = manager.toolbox();
    let callers = (0..50).map(|n| {
        let tools = &tools;
        let tool = if n == 25 { "die_after_effect" } else { "effect" };
        async move { (n, call(tools, "one", tool, json!({"n": n})).await) }
    });
    let outcomes = futures_util::future::join_all(callers).await;
    assert_eq!(lab.lines("spawns").len(), 2, "the first one and one restart");
    let effects = effects(&lab);
    for (n, outcome) in outcomes {
        let runs = effects.get(&n).map_or(0, Vec::len);
        match outcome {
            Ok(answer) => assert_eq!((answer.as_str(), runs), ("done", 1), "call {n}"),
            Err(error) => {
                assert_unknown(&error);
                assert!(runs <= 1, "call {n} ran {runs} times");
            }
        }
    }
    assert_eq!(effects[&25].len(), 1);
    assert_eq!(say(&tools, "one", "pid").await.unwrap(), lab.lines("spawns")[1]);
    manager.shutdown().await;
    lab.await_nobody();
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_waiting_callers_all_fail_and_restart_once() {
    let lab = Lab::new();
    let manager = manager([lab.server("one", &[&lab.flag("spawns")])]).await;
    let tools = manager.toolbox();
    let waiting = (0..50).map(|_| call(&tools, "one", "sleep", json!({"ms": FOREVER})));
    let killer = async {
        wait_until_says(&tools, "one", "in_flight", "50").await;
        assert_unknown(&die(&tools).await);
    };
    let (outcomes, ()) = tokio::join!(futures_util::future::join_all(waiting), killer);
    for outcome in outcomes {
        let error = outcome.unwrap_err();
        assert_unknown(&error);
        assert!(
            error.causes().iter().any(|cause| cause.contains("usable again")),
            "{error}: {:?}",
            error.causes()
        );
    }
    let spawns = lab.lines("spawns");
    assert_eq!(spawns.len(), 2);
    assert_ne!(spawns[0], spawns[1]);
    assert_eq!(say(&tools, "one", "pid").await.unwrap(), spawns[1]);
    manager.shutdown().await;
}

#[tokio::test]
async fn a_call_that_ran_before_a_crash_is_not_repeated() {
    for retry in [RetryCalls::Never, RetryCalls::ReadOnly, RetryCalls::Idempotent] {
        let lab = Lab::new();
        let mut config = lab.server("one", &[&lab.flag("count")]);
        config.retry_calls = retry;
        let manager = manager([config]).await;
        let tools = manager.toolbox();
        for n in 0..3 {
            assert_unknown(&call(&tools, "one", "die_after_effect", json!({"n": n})).await.unwrap_err());
        }
        let effects = effects(&lab);
        assert_eq!(effects.len(), 3);
        assert!(effects.values().all(|runs| runs.len() == 1), "{effects:?}");
        let pids: BTreeSet<&String> = effects.values().flatten().collect();
        assert_eq!(pids.len(), 3, "each from a process of its own");
        manager.shutdown().await;
    }
}

#[tokio::test]
async fn read_only_calls_are_repeated_if_configured() {
    for retry in [RetryCalls::Never, RetryCalls::ReadOnly] {
        let lab = Lab::new();
        let mut config = lab.server("one", &[&lab.flag("spawns")]);
        config.retry_calls = retry;
        let manager = manager([config]).await;
        let tools = manager.toolbox();
        let killer = async {
            wait_until_says(&tools, "one", "in_flight", "1").await;
            assert_unknown(&die(&tools).await);
        };
        let reader = call(&tools, "one", "sleep", json!({"ms": 2000}));
        let (answer, ()) = tokio::join!(reader, killer);
        match retry {
            RetryCalls::Never => assert_unknown(&answer.unwrap_err()),
            _ => assert_eq!(answer.unwrap(), "awake"),
        }
        assert_eq!(lab.lines("spawns").len(), 2);
        manager.shutdown().await;
    }
}

#[tokio::test]
async fn a_restart_loop_is_stopped() {
    let lab = Lab::new();
    let mut config = lab.server("one", &[&lab.flag("spawns")]);
    config.restart.max = 2;
    config.restart.within = Duration::from_secs(3600);
    config.restart.backoff = Duration::from_millis(1);
    config.restart.backoff_cap = Duration::from_millis(1);
    let manager = manager([config]).await;
    let tools = manager.toolbox();
    for _ in 0..2 {
        assert_unknown(&die(&tools).await);
    }
    let last = die(&tools).await;
    let causes = last.causes();
    assert!(causes.iter().any(|cause| cause.contains("died again after 2 restarts within 1h")), "{causes:?}");
    assert!(causes.iter().any(|cause| cause.contains("exited with code 9")), "{causes:?}");
    for _ in 0..10 {
        let refused = say(&tools, "one", "pid").await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::SessionLost);
        assert!(refused.to_string().contains("died again after 2 restarts"), "{refused}");
    }
    assert_eq!(lab.lines("spawns").len(), 3);
    assert!(manager.catalog().find("one", "pid").is_ok(), "a server that is down keeps its tools");
    manager.shutdown().await;
    lab.await_nobody();
}

#[tokio::test]
async fn a_killed_server_restarts_at_the_next_call() {
    let lab = Lab::new();
    let manager = manager([lab.wrapped("one", &[&lab.flag("spawns")])]).await;
    let tools = manager.toolbox();
    let pid = say(&tools, "one", "pid").await.unwrap();
    let killed = std::process::Command::new("kill").args(["-KILL", &pid]).status().unwrap();
    assert!(killed.success());
    wait_for("the death", || !lab.processes().iter().any(|other| other.to_string() == pid));
    // Read-only calls are not repeated by default: this one either waits for the restart or says so.
    match say(&tools, "one", "pid").await {
        Ok(_) => {}
        Err(error) => assert_unknown(&error),
    }
    assert_ne!(say(&tools, "one", "pid").await.unwrap(), pid);
    assert_eq!(lab.lines("spawns").len(), 2);
    manager.shutdown().await;
    lab.await_nobody();
}

#[tokio::test]
async fn a_closed_session_stays_closed() {
    let lab = Lab::new();
    let first = manager([lab.server("one", &[&lab.flag("spawns")])]).await;
    let tools = first.toolbox();
    first.shutdown().await;
    for _ in 0..3 {
        assert!(say(&tools, "one", "pid").await.is_err());
    }
    let second = manager([lab.server("one", &[&lab.flag("spawns")])]).await;
    let tools = second.toolbox();
    say(&tools, "one", "pid").await.unwrap();
    drop(second);
    // Nothing was sent.
    assert_eq!(say(&tools, "one", "pid").await.unwrap_err().code(), ErrorCode::Cancelled);
    assert_eq!(lab.lines("spawns").len(), 2);
    lab.await_nobody();
}

#[tokio::test]
async fn a_call_whose_server_is_stopped_may_have_run() {
    let lab = Lab::new();
    let manager = manager([lab.server("one", &[])]).await;
    let tools = manager.toolbox();
    let closer = async {
        // What it has not read is taken back, and has not run.
        wait_until_says(&tools, "one", "in_flight", "1").await;
        manager.shutdown().await
    };
    let call = call(&tools, "one", "sleep", json!({"ms": FOREVER}));
    let (lost, _) = tokio::join!(call, closer);
    let lost = lost.unwrap_err();
    assert_unknown(&lost);
    assert!(lost.to_string().contains("was stopped during `sleep`"), "{lost}");
    assert!(lost.to_string().contains("it was sent once and may have run"), "{lost}");
    lab.await_nobody();
}

#[tokio::test]
async fn closing_during_a_restart_leaves_no_process() {
    let lab = Lab::new();
    let manager = manager([lab.server("one", &[&lab.flag("spawns"), "helper", "init-delay=1000"])]).await;
    let tools = manager.toolbox();
    let closer = async {
        loop {
            if lab.lines("spawns").len() == 2 {
                // The guard may tell the manager of the process a moment after the process has begun.
                tokio::time::sleep(Duration::from_millis(200)).await;
                return manager.shutdown().await;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let (died, report) = tokio::join!(die(&tools), closer);
    assert_unknown(&died);
    assert!(died.to_string().contains("may have run"), "{died}");
    assert_eq!(report.survivors, [0; 0]);
    lab.await_nobody();
    let spawns = lab.lines("spawns");
    let row = &report.servers[0];
    let pid = row.pid.map(|pid| pid.to_string());
    assert_eq!((spawns.len(), pid, row.outcome), (2, spawns.last().cloned(), StopOutcome::Killed));
}

#[tokio::test]
async fn closing_during_a_lazy_start_names_the_process() {
    let lab = Lab::new();
    let mut config = lab.server("one", &[&lab.flag("spawns"), "init-delay=5000"]);
    config.lifecycle = Lifecycle::Lazy;
    let mut config = Config::new([config]);
    config.cache_folder = Some(lab.file("cache"));
    // Parked is what was seen before.
    Manager::start(&config).await.unwrap().shutdown().await;
    let manager = Manager::start(&config).await.unwrap();
    let tools = manager.toolbox();
    let closer = async {
        within("the start", || lab.lines("spawns").len() == 2).await;
        // A moment after the process has begun the manager is told of it.
        tokio::time::sleep(Duration::from_millis(500)).await;
        manager.shutdown().await
    };
    let (refused, report) = tokio::join!(say(&tools, "one", "pid"), closer);
    assert_eq!(refused.unwrap_err().code(), ErrorCode::Cancelled);
    let pids: Vec<String> =
        report.servers.iter().filter_map(|row| row.pid).map(|pid| pid.to_string()).collect();
    assert_eq!((pids.last(), report.survivors), (lab.lines("spawns").last(), vec![]));
    lab.await_nobody();
}

/// The first task that notices a death begins the restart. Often it is one of the callers, which do not wait for its
/// end.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn restarts_that_callers_cancel_do_not_count() {
    const DEATHS: u32 = 6;
    let lab = Lab::new();
    let mut config = lab.server("one", &[&lab.flag("spawns"), "init-delay=200"]);
    config.restart.max = DEATHS;
    config.restart.within = Duration::from_secs(3600);
    let manager = manager([config]).await;
    for deaths in 1..=u64::from(DEATHS) {
        let mut callers = tokio::task::JoinSet::new();
        let give_up = CancellationToken::new();
        for _ in 0..8 {
            let (tools, give_up) = (manager.toolbox(), give_up.clone());
            callers.spawn(async move {
                let call = call(&tools, "one", "sleep", json!({"ms": FOREVER}));
                give_up.run_until_cancelled(call).await.is_none()
            });
        }
        let all = || manager.status()[0].in_flight == 8;
        within("all callers", all).await;
        let before = lab.lines("spawns").len();
        signal("KILL", manager.status()[0].pid.unwrap());
        within("a restart", || lab.lines("spawns").len() > before).await;
        give_up.cancel();
        callers.join_all().await;
        within("ready again", || {
            let status = &manager.status()[0];
            (status.state, status.restarts) == (ServerState::Ready, deaths)
        })
        .await;
    }
    manager.shutdown().await;
    lab.await_nobody();
}
