//! Stops servers: each in its own time, all in parallel, and then a check that no process is left.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::{
    process::{StopOutcome, TeardownScope, behind_guards, describe, marked_processes},
    session::Session,
    start::ServerStop,
};

/// How long the kernel may take to remove what was killed.
const VERIFY_LIMIT: Duration = Duration::from_secs(2);

/// The teardown of all servers.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StopReport {
    /// One row for each server that had been started, in configuration order.
    pub servers: Vec<ServerStop>,
    /// Processes of these servers that are still there, wherever in the process tree. On Linux every process
    /// that inherited the environment of a server is found, and whatever a guard could not end (a helper that became
    /// another user); elsewhere nothing can be said and this is empty.
    pub survivors: Vec<u32>,
    /// What made sure of it.
    pub teardown_scope: TeardownScope,
    /// From the first to the last.
    #[serde(rename = "wall_ms", with = "crate::task::millis::plain")]
    pub wall: Duration,
}

/// Tears one server down: the stop ladder, within its limits.
pub(super) async fn close(session: &Session) -> ServerStop {
    let began = Instant::now();
    let server = session.name().clone();
    let stopped = tokio::time::timeout(session.close_limit(), session.close()).await;
    let Ok(stopped) = stopped else {
        // The future was dropped, and with it the process was killed.
        let (outcome, took) = (StopOutcome::Killed, began.elapsed());
        return ServerStop { server, pid: None, outcome, status: None, helpers: false, killed: None, took };
    };
    ServerStop {
        server,
        pid: stopped.as_ref().map(|stopped| stopped.pid),
        outcome: stopped.as_ref().map_or(StopOutcome::Exited, |stopped| stopped.outcome),
        status: stopped.as_ref().and_then(|stopped| stopped.status).map(describe),
        helpers: stopped.as_ref().is_some_and(|stopped| stopped.helpers),
        killed: stopped.as_ref().and_then(|stopped| stopped.killed),
        took: began.elapsed(),
    }
}

/// Processes that still carry `marker`, after the kernel had its time.
pub(super) async fn survivors(marker: &str) -> Vec<u32> {
    let deadline = Instant::now() + VERIFY_LIMIT;
    loop {
        let left = marked_processes(marker);
        if left.is_empty() || Instant::now() >= deadline {
            return behind_guards(left);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
