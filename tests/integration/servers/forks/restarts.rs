//! Later starts of servers that are forked: restarts, and spares.

use std::time::Duration;

use futures_util::future::join_all;
use toolcrib::{Manager, ServerConfig, config::Scope, manager::Borrower};

use super::script_server;
use crate::support::{
    python::{PythonLab, ask, until_made},
    signal, within,
};

/// Takes a while by itself, most of it in what a template imports.
const SLOW: &str = "
import slow_shared
import tool_server
import os
if __name__ == '__main__':
    tool_server.serve({'tell': lambda: {'forked': tool_server.was_forked(), 'pid': os.getpid()}})
";

fn furnish(lab: &PythonLab) {
    // Busy: nobody waits for a template that sleeps while a core is idle.
    let busy = "import time\ndef work(end):\n    while time.process_time() < end: pass\nwork(time.process_time() + 0.6)\n";
    std::fs::write(lab.site().join("slow_shared.py"), busy).unwrap();
}

fn shared(lab: &PythonLab, number: usize) -> ServerConfig {
    let mut server = script_server(lab, &format!("s{number}"), SLOW);
    server.scope = Scope::Shared;
    server
}

fn forked(manager: &Manager) -> usize {
    manager.toolbox().status().iter().filter(|row| row.is_forked).count()
}

#[toolcrib_testing::requires(guard, python3_venv)]
#[tokio::test(flavor = "multi_thread")]
async fn servers_that_are_restarted_together_are_forked() {
    let lab = PythonLab::new(&[]);
    furnish(&lab);
    let count = 8 * std::thread::available_parallelism().map_or(1, usize::from);
    // As nothing is known of them, each start is an ordinary one.
    let manager = lab.manager((0..count).map(|number| shared(&lab, number))).await;
    assert_eq!(forked(&manager), 0);
    let names: Vec<String> = (0..count).map(|number| format!("s{number}")).collect();
    let restart = || async {
        for done in join_all(names.iter().map(|name| manager.restart(name))).await {
            done.unwrap();
        }
        forked(&manager)
    };
    // Nobody is expected, but others live: a template is made for them. Those that start before it is compared are ordinary.
    restart().await;
    until_made(&manager).await;
    assert_eq!(restart().await, count, "{:?}", manager.templates());
    // One alone, from the template that is there.
    manager.restart("s0").await.unwrap();
    assert_eq!(forked(&manager), count);
    // A server that dies comes back as a fork.
    let pid = manager.toolbox().status()[0].pid.unwrap();
    signal("KILL", pid);
    let row = || manager.toolbox().status()[0].clone();
    within("the restart", || row().pid.is_some_and(|new| new != pid)).await;
    assert!(row().is_forked, "{:?}", row());
    manager.shutdown().await;
    lab.lab.await_nobody();
}

#[toolcrib_testing::requires(guard, python3_venv)]
#[tokio::test(flavor = "multi_thread")]
async fn a_first_wave_of_loans_waits_for_the_template() {
    let lab = PythonLab::new(&[]);
    furnish(&lab);
    let server = script_server(&lab, "own", SLOW);
    lab.manager([server.clone()]).await.shutdown().await;
    let before = lab.manager([server.clone()]).await;
    ask(&before.lend(Borrower::Task), "tell").await;
    until_made(&before).await;
    before.shutdown().await;
    let manager = lab.manager([server]).await;
    let count = 8 * std::thread::available_parallelism().map_or(1, usize::from);
    let loans: Vec<_> = (0..count).map(|_| manager.lend(Borrower::Task)).collect();
    let told = join_all(loans.iter().map(|loan| ask(loan, "tell"))).await;
    let forks = told.iter().filter(|told| told[0]["forked"] == true).count();
    assert!(forks > 0, "{forks} of {count}: {:?}", manager.templates());
    drop(loans);
    manager.shutdown().await;
    lab.lab.await_nobody();
}

#[toolcrib_testing::requires(guard, python3_venv)]
#[tokio::test(flavor = "multi_thread")]
async fn spares_are_forked_and_lent_once() {
    let lab = PythonLab::new(&[]);
    let mut server = script_server(&lab, "own", &SLOW.replace("import slow_shared", ""));
    server.spares = 2;
    let manager = lab.manager([server]).await;
    let mut pids = Vec::new();
    let began = std::time::Instant::now();
    let mut forks = 0;
    while forks < 4 {
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", manager.templates());
        // Spares that are ready are lent first.
        let told = ask(&manager.lend(Borrower::Task), "tell").await;
        assert!(!pids.contains(&told[0]["pid"]), "{told:?} was lent before: {pids:?}");
        pids.push(told[0]["pid"].clone());
        forks += usize::from(told[0]["forked"] == true);
    }
    // Those that wait are there too.
    within("the spares", || manager.templates().iter().any(|template| template.forks > 4)).await;
    manager.shutdown().await;
    lab.lab.await_nobody();
}
