//! Stops servers: each in its own time, all in parallel, and then a check that no process is left.

use std::time::{Duration, Instant};

use crate::{
    process::{StopOutcome, describe, marked_processes, replace_guards, thaw_marked},
    session::Session,
    start::ServerStop,
};

/// How long the kernel may take to remove what was killed.
const VERIFY_LIMIT: Duration = Duration::from_secs(2);

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
    let mut is_thawed = false;
    loop {
        let left = marked_processes(marker);
        if left.is_empty() || Instant::now() >= deadline {
            return replace_guards(left);
        }
        if !std::mem::replace(&mut is_thawed, true) {
            thaw_marked(marker);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
