//! A template that is killed, stopped or hangs while servers are started from it.

use futures_util::future::join_all;
use serde_json::Value;
use toolcrib::{Loan, Manager, manager::Borrower};

use crate::support::{
    python::{PythonLab, ask, forked},
    signal, within,
};

/// Starts that are under way at the same time.
const STARTS: usize = 6;

fn lend(manager: &Manager) -> Vec<Loan> {
    (0..STARTS).map(|_| manager.lend(Borrower::Task)).collect()
}

/// Answers of the servers of all these loans. Each is the proof that its start has succeeded, one way or the other.
async fn all(loans: &[Loan]) -> Vec<Value> {
    join_all(loans.iter().map(|loan| ask(loan, "tell"))).await.into_iter().flatten().collect()
}

fn pids(told: &[Value]) -> Vec<&Value> {
    told.iter().map(|said| &said["pid"]).collect()
}

#[toolcrib_testing::requires(guard, python3_venv)]
#[tokio::test(flavor = "multi_thread")]
async fn starts_succeed_while_their_template_is_killed() {
    starts_succeed_beside("KILL", 2).await;
}

#[toolcrib_testing::requires(guard, python3_venv)]
#[tokio::test(flavor = "multi_thread")]
async fn starts_succeed_while_their_template_is_stopped() {
    starts_succeed_beside("STOP", 2).await;
}

/// Sends the signal to `rounds` templates, one after the other, while servers are started.
async fn starts_succeed_beside(name: &str, rounds: usize) {
    let lab = PythonLab::new(&[]);
    let manager = lab.manager([lab.server("own", "teller.py", &[])]).await;
    let (first, before) = forked(&manager, "tell").await;
    for round in 0..rounds {
        let template = lab.template();
        // Some starts have asked the template by then, others have not.
        let mut loans = lend(&manager);
        signal(name, template);
        loans.extend(lend(&manager));
        let told = all(&loans).await;
        assert_eq!(told.len(), STARTS * 2);
        within("the end of the template", || !lab.templates().contains(&template)).await;
        // Those that are there go on, and there is a template again.
        assert_eq!(pids(&all(&loans).await), pids(&told), "round {round}");
        assert_eq!(pids(&ask(&first, "tell").await), pids(&before), "round {round}");
        drop(forked(&manager, "tell").await);
    }
    // The third time is the last one: from then on all starts are ordinary ones.
    signal(name, lab.template());
    for _ in 0..2 {
        assert_eq!(all(&lend(&manager)).await.len(), STARTS);
    }
    let told = all(&lend(&manager)).await;
    assert!(told.iter().all(|said| said["forked"] == false), "{told:?}");
    within("the end of the last template", || lab.templates().is_empty()).await;
    assert_eq!(pids(&ask(&first, "tell").await), pids(&before));
    drop(first);
    manager.shutdown().await;
    lab.lab.await_nobody();
}

#[toolcrib_testing::requires(guard, python3_venv)]
#[tokio::test(flavor = "multi_thread")]
async fn starts_succeed_while_an_import_of_a_template_hangs() {
    let lab = PythonLab::new(&["slow_lib"]);
    let hold = lab.site().join("hold");
    std::fs::write(&hold, "").unwrap();
    let manager = lab.manager([lab.server("own", "slow_teller.py", &[])]).await;
    let mut loans = Vec::new();
    while lab.templates().is_empty() {
        loans.extend(lend(&manager));
        all(&loans).await;
    }
    let template = lab.template();
    loans.extend(lend(&manager));
    let told = all(&loans).await;
    assert!(told.iter().all(|said| said["forked"] == false), "{told:?}");
    assert_eq!(lab.template(), template, "it hangs");
    // It comes to its end after all, and is used.
    std::fs::remove_file(hold).unwrap();
    let (_, said) = forked(&manager, "tell").await;
    assert_eq!(lab.template(), template, "{said:?}");
    assert_eq!(pids(&all(&loans).await), pids(&told));
    // A manager that ends takes one that hangs with it.
    drop(loans);
    manager.shutdown().await;
    lab.lab.await_nobody();
    within("the end of the template", || lab.templates().is_empty()).await;
}
