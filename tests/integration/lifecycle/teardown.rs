//! No process of a server is left, for any end of a manager.

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    time::Duration,
};

use serde_json::json;
use tokio::runtime::{Builder, Runtime};
use toolcrib::{
    Config, Error, Manager, ServerConfig,
    config::Guard,
    process::{StopOutcome, TeardownScope},
};
use toolcrib_guard::HAS_GUARDS;

use crate::support::{Lab, call, manager, say};

/// A wait that is not meant to run out.
const PATIENT: Duration = Duration::from_secs(20);
/// A wait that is meant to run out.
const SHORT: Duration = Duration::from_millis(200);

/// Checks that a build without the feature `guard` has no guards, although Cargo unifies features.
#[test]
fn the_teardown_scope_follows_the_cargo_feature() {
    let (scope, is_on) =
        (TeardownScope::new(&Guard::Auto), cfg!(all(target_os = "linux", feature = "guard")));
    assert_eq!(matches!(scope, TeardownScope::Guard { .. }), is_on, "{scope:?}");
}

fn runtimes() -> [(&'static str, Runtime); 2] {
    [
        ("current-thread", Builder::new_current_thread().enable_all().build().unwrap()),
        ("multi-thread", Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()),
    ]
}

/// A shell, the fixture that is its child, and the fixture's own helper. None exits without a signal.
fn stubborn(lab: &Lab, name: &str) -> ServerConfig {
    let mut config = lab.wrapped(name, &["ignore-eof", "ignore-term", "helper"]);
    config.stop.eof = SHORT;
    config.stop.term = SHORT;
    config
}

/// The processes of one [`stubborn`] server.
const FAMILY: usize = 3;

/// A running manager and its processes, seen alive.
async fn running(lab: &Lab) -> Manager {
    let manager = manager([stubborn(lab, "one")]).await;
    say(&manager.toolbox(), "one", "pid").await.unwrap();
    lab.await_processes(FAMILY);
    manager
}

type Ending = fn(&Lab, &Runtime);

const ENDINGS: [(&str, Ending); 9] = [
    ("shutdown", by_shutdown),
    ("drop in a runtime", by_drop),
    ("drop with calls under way", by_drop_under_calls),
    ("error", by_error),
    ("panic", by_panic),
    ("dropped start", by_dropped_start),
    ("dropped shutdown", by_dropped_shutdown),
    ("drop outside a runtime", by_drop_outside),
    ("drop in another thread", by_drop_elsewhere),
];

fn by_shutdown(lab: &Lab, runtime: &Runtime) {
    let report = runtime.block_on(async { running(lab).await.shutdown().await });
    assert_eq!(report.survivors, [0; 0]);
    assert_eq!(lab.processes(), [0; 0], "nobody is left once it has returned");
}

fn by_drop(lab: &Lab, runtime: &Runtime) {
    runtime.block_on(async {
        let manager = running(lab).await;
        let tools = manager.toolbox();
        drop(manager);
        // Handles keep nothing alive.
        say(&tools, "one", "pid").await.unwrap_err();
        lab.await_nobody();
    });
}

fn by_drop_under_calls(lab: &Lab, runtime: &Runtime) {
    runtime.block_on(async {
        let manager = running(lab).await;
        let tools = manager.toolbox();
        let dropper = async {
            while say(&tools, "one", "in_flight").await.unwrap() != "1" {}
            drop(manager);
        };
        let (answer, ()) = tokio::join!(call(&tools, "one", "sleep", json!({"ms": 3_600_000})), dropper);
        answer.unwrap_err();
        lab.await_nobody();
    });
}

fn by_error(lab: &Lab, runtime: &Runtime) {
    async fn fails(lab: &Lab) -> toolcrib::Result<()> {
        let manager = running(lab).await;
        call(&manager.toolbox(), "one", "no such tool", json!({})).await?;
        manager.shutdown().await;
        Ok(())
    }
    let error = runtime.block_on(fails(lab)).unwrap_err();
    assert!(matches!(error, Error::ToolNotFound { .. }), "{error}");
}

fn by_panic(lab: &Lab, runtime: &Runtime) {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on(async {
            let _manager = running(lab).await;
            panic!("on purpose");
        });
    }));
    assert_eq!(*outcome.unwrap_err().downcast::<&str>().unwrap(), "on purpose");
}

fn by_dropped_start(lab: &Lab, runtime: &Runtime) {
    runtime.block_on(async {
        let mut late = lab.wrapped("late", &["ignore-eof", "ignore-term", "helper", "never-init"]);
        late.startup_timeout = Duration::from_secs(3600);
        let config = Config::new([stubborn(lab, "ready"), late]);
        tokio::select! {
            _ = Manager::start(&config) => panic!("one of them never answers"),
            () = async {
                while lab.servers().len() < 2 * FAMILY {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            } => {}
        }
    });
}

fn by_dropped_shutdown(lab: &Lab, runtime: &Runtime) {
    runtime.block_on(async {
        let mut config = stubborn(lab, "one");
        config.stop.eof = Duration::from_secs(3600);
        let manager = manager([config]).await;
        lab.await_processes(FAMILY);
        let mut shutdown = pin!(manager.shutdown());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        for _ in 0..10 {
            assert!(shutdown.as_mut().poll(&mut context).is_pending());
            tokio::task::yield_now().await;
        }
    });
}

fn by_drop_outside(lab: &Lab, runtime: &Runtime) {
    let manager = runtime.block_on(running(lab));
    drop(manager);
}

fn by_drop_elsewhere(lab: &Lab, runtime: &Runtime) {
    let manager = runtime.block_on(running(lab));
    std::thread::scope(|scope| {
        scope.spawn(|| drop(manager));
    });
}

#[test]
fn every_way_to_end_leaves_no_process() {
    for (ending, end) in ENDINGS {
        for (kind, runtime) in runtimes() {
            eprintln!("{ending}, {kind}");
            let lab = Lab::new();
            end(&lab, &runtime);
            // The runtime still stands: its end is not what ends the processes.
            lab.await_nobody();
        }
    }
}

#[test]
fn ending_the_runtime_first_leaves_no_process() {
    for (kind, runtime) in runtimes() {
        eprintln!("{kind}");
        let lab = Lab::new();
        let manager = runtime.block_on(running(&lab));
        drop(runtime);
        drop(manager);
        lab.await_nobody();
    }
}

#[tokio::test]
async fn a_failed_required_server_ends_the_others() {
    let lab = Lab::new();
    let mut config = Config::new([stubborn(&lab, "good"), lab.server("bad", &["die-now"])]);
    config.servers["bad"].required = true;
    assert!(matches!(Manager::start(&config).await, Err(Error::RequiredServers { .. })));
    assert_eq!(lab.processes(), [0; 0]);
}

#[tokio::test]
async fn helpers_of_a_server_that_fails_to_start_are_ended() {
    let lab = Lab::new();
    let failing = ["die-now", "never-init"].map(|flag| {
        let mut config = lab.wrapped(flag, &["helper-holds-stdout", "ignore-eof", flag]);
        config.startup_timeout = Duration::from_secs(1);
        config
    });
    let manager = Manager::start(&Config::new(failing)).await.unwrap();
    assert_eq!(manager.report().ready(), 0);
    assert_eq!(lab.processes(), [0; 0]);
}

#[tokio::test]
async fn the_report_says_how_each_server_ended() {
    use StopOutcome::{Exited, Killed, Terminated};
    // Only the waits that are meant to run out are short.
    type Case = (&'static str, &'static [&'static str], [Duration; 2], StopOutcome, bool);
    let cases: [Case; 6] = [
        ("polite", &[], [PATIENT; 2], Exited, false),
        ("deaf", &["ignore-eof"], [SHORT, PATIENT], Terminated, false),
        ("stubborn", &["ignore-eof", "ignore-term"], [SHORT; 2], Killed, false),
        ("helped", &["helper"], [PATIENT; 2], Exited, true),
        ("held", &["helper-holds-stdout"], [PATIENT; 2], Exited, true),
        ("stubborn-helped", &["ignore-term", "helper"], [PATIENT, SHORT], Exited, true),
    ];
    let lab = Lab::new();
    let manager = manager(cases.map(|(name, flags, [eof, term], ..)| {
        let mut config = lab.server(name, flags);
        (config.stop.eof, config.stop.term) = (eof, term);
        config
    }))
    .await;
    lab.await_processes(9);
    let pids: Vec<_> =
        manager.report().servers.iter().map(|row| row.outcome.as_ref().unwrap().pid.unwrap()).collect();
    let report = manager.shutdown().await;
    assert_eq!(report.survivors, [0; 0]);
    assert_eq!(report.servers.len(), cases.len());
    for ((row, (name, _, _, outcome, helpers)), pid) in report.servers.iter().zip(cases).zip(pids) {
        let seen = (row.server.as_str(), row.outcome, row.helpers, row.pid);
        assert_eq!(seen, (name, outcome, helpers, Some(pid)));
    }
    assert_eq!(lab.processes(), [0; 0]);
}

#[tokio::test]
async fn ten_stubborn_servers_are_closed_together() {
    let lab = Lab::new();
    let manager = manager((0..10).map(|index| stubborn(&lab, &format!("server-{index}")))).await;
    lab.await_processes(10 * FAMILY);
    let report = manager.shutdown().await;
    assert_eq!(report.servers.len(), 10);
    for (index, row) in report.servers.iter().enumerate() {
        assert_eq!(row.server.as_str(), format!("server-{index}"));
        // The shell leaves on SIGTERM, its family does not.
        assert_eq!((row.outcome, row.helpers), (StopOutcome::Terminated, true));
        assert!(row.took >= SHORT, "{row:?}");
    }
    let one_by_one: Duration = report.servers.iter().map(|row| row.took).sum();
    assert!(report.wall < one_by_one / 2, "{report:?}");
    assert_eq!(report.survivors, [0; 0]);
    assert_eq!(lab.processes(), [0; 0]);
}

#[tokio::test]
async fn a_server_that_died_unnoticed_does_not_block_teardown() {
    let lab = Lab::new();
    let manager = manager([lab.wrapped("one", &["helper-holds-stdout"])]).await;
    lab.await_processes(FAMILY);
    let pid = say(&manager.toolbox(), "one", "pid").await.unwrap();
    assert!(std::process::Command::new("kill").args(["-KILL", &pid]).status().unwrap().success());
    // The shell sees its child end and follows; the helper stays until the teardown, but for the guard.
    if HAS_GUARDS {
        lab.await_nobody();
    }
    let report = manager.shutdown().await;
    assert_eq!(report.survivors, [0; 0]);
    assert_eq!((report.servers[0].outcome, report.servers[0].helpers), (StopOutcome::Exited, true));
    assert_eq!(lab.processes(), [0; 0]);
}
