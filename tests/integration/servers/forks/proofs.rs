//! Records of forks that are not what ordinary starts are.

use std::time::Duration;

use toolcrib::{Manager, config::Scope, manager::Borrower};

use super::script_server;
use crate::support::{
    python::{PythonLab, ask, forked},
    say, within,
};

/// The records of all servers, as one text.
fn records(lab: &PythonLab) -> String {
    let files = std::fs::read_dir(lab.lab.file("cache/template")).into_iter().flatten().flatten();
    let texts = files.map(|file| std::fs::read_to_string(file.path()).unwrap_or_default());
    texts.collect()
}

/// Says whether it was forked, and ends when it is asked to.
const ENDS: &str = "
import os
import tool_server
if __name__ == '__main__':
    tool_server.serve({'tell': lambda: {'forked': tool_server.was_forked()}, 'end': lambda: os._exit(EXIT)})
";

#[toolcrib_testing::requires(guard, python3_venv)]
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_ends_only_if_forked_is_not_forked_again() {
    let lab = PythonLab::new(&[]);
    let script = ENDS.replace("EXIT", "77 if tool_server.was_forked() else 78");
    let manager = lab.manager([script_server(&lab, "own", &script)]).await;
    let (loan, _) = forked(&manager, "tell").await;
    assert!(!records(&lab).contains("\"off\""));
    assert!(say(&loan.toolbox(), "own", "end").await.is_err());
    // Also if the task ends at once.
    drop(loan);
    within("turned off", || records(&lab).contains("it exited with code 77 ")).await;
    for _ in 0..3 {
        let told = ask(&manager.lend(Borrower::Task), "tell").await;
        assert_eq!(told[0]["forked"], false, "{told:?}");
    }
    // The ordinary start ends in another way.
    let loan = manager.lend(Borrower::Task);
    assert!(say(&loan.toolbox(), "own", "end").await.is_err());
    within("it is there again", || loan.toolbox().status()[0].restarts == 1).await;
    assert!(records(&lab).contains("it exited with code 77 "));
    drop(loan);
    manager.shutdown().await;
    lab.lab.await_nobody();
}

#[toolcrib_testing::requires(guard, python3_venv)]
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_ends_either_way_is_forked_again() {
    let lab = PythonLab::new(&[]);
    let manager = lab.manager([script_server(&lab, "own", &ENDS.replace("EXIT", "3"))]).await;
    let (loan, _) = forked(&manager, "tell").await;
    assert!(say(&loan.toolbox(), "own", "end").await.is_err());
    within("turned off", || records(&lab).contains("it exited with code 3 ")).await;
    let told = ask(&loan, "tell").await;
    assert_eq!(told[0]["forked"], false, "the restart is an ordinary one: {told:?}");
    assert!(say(&loan.toolbox(), "own", "end").await.is_err());
    within("it was not the fork", || records(&lab).contains("\"fragile\"")).await;
    drop((loan, forked(&manager, "tell").await));
    manager.shutdown().await;
    lab.lab.await_nobody();
}

#[toolcrib_testing::requires(guard, python3_venv)]
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_differs_at_each_start_is_not_blamed_on_forks() {
    let lab = PythonLab::new(&[]);
    let script = "
import os
import tool_server
if __name__ == '__main__':
    tool_server.serve({'tell': lambda: {'forked': tool_server.was_forked()}, f'tool_{os.getpid()}': None})
";
    let manager = lab.manager([script_server(&lab, "own", script)]).await;
    let mut lent = 0;
    while !records(&lab).contains("\"varies\"") {
        let told = ask(&manager.lend(Borrower::Task), "tell").await;
        assert_eq!(told[0]["forked"], false, "{told:?}");
        lent += 1;
        assert!(lent < 100, "{}", records(&lab));
    }
    assert!(!records(&lab).contains("\"off\""));
    let told = ask(&manager.lend(Borrower::Task), "tell").await;
    assert_eq!(told[0]["forked"], false, "{told:?}");
    manager.shutdown().await;
    lab.lab.await_nobody();
}

/// Servers that take a while by themselves, whose template hangs.
#[toolcrib_testing::requires(guard, python3_venv)]
#[tokio::test(flavor = "multi_thread")]
async fn starts_have_their_own_time_after_a_template_that_hangs() {
    let lab = PythonLab::new(&["slow_lib"]);
    std::fs::write(lab.site().join("hold"), "").unwrap();
    let script = "
import slow_lib
import time
import tool_server
if __name__ == '__main__':
    time.sleep(1.5)
    tool_server.serve({'tell': tool_server.was_forked})
";
    // So many wait even for one that is yet to be compared.
    let count = 16 * std::thread::available_parallelism().map_or(1, usize::from);
    let servers: Vec<_> = (0..count)
        .map(|number| {
            let mut server = script_server(&lab, &format!("s{number}"), script);
            (server.scope, server.startup_timeout) = (Scope::Shared, Duration::from_secs(4));
            server
        })
        .collect();
    lab.manager(servers.clone()).await.shutdown().await;
    // All are there, or this would panic.
    let manager: Manager = lab.manager(servers).await;
    let rows = manager.report().servers.iter().map(|row| row.outcome.as_ref().unwrap());
    let late = rows.filter(|row| row.not_forked.as_deref() == Some("its template was not ready in time"));
    let waited: Vec<_> = late.map(|row| row.phases).collect();
    assert!(waited.len() > count / 2, "{:?}", manager.report());
    for phases in waited {
        assert!(phases.template >= Duration::from_secs(1), "{phases:?}");
        assert!(phases.spawn < Duration::from_secs(1), "waits are no part of it: {phases:?}");
    }
    manager.shutdown().await;
    lab.lab.await_nobody();
}
