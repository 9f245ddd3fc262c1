//! Starting all servers at once, and the report of it.
//!
//! One process per server: the session that lists the tools is the one that serves the calls. Every server
//! has a row in the report, in configuration order; a failed one says why. Each server's clock runs from its
//! own turn. All of it happens in the caller's future: dropping that future ends every process.

use std::{
    num::NonZeroUsize,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use serde::Serialize;
use tokio::sync::Semaphore;

use crate::{
    config::{Config, ServerEntry},
    error::{Error, Result},
    session::{Phases, Session, Started, Surroundings},
    tool::ServerName,
};

/// What happens to servers, as it happens. Sent to the observer of a [`Manager`](crate::Manager).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ServerEvent {
    /// It has its turn and is being started.
    Starting {
        /// Which.
        server: ServerName,
    },
    /// It serves calls.
    Ready {
        /// Which, and all about its start.
        row: ServerStart,
    },
    /// It could not be started.
    Failed {
        /// Which, and why.
        row: ServerStart,
    },
    /// A process of an earlier manager that had ended without a word; it was killed.
    Leftover {
        /// What it was.
        process: crate::process::Leftover,
    },
    /// It was torn down.
    Stopped {
        /// Which, and how.
        row: crate::manager::ServerStop,
    },
}

/// Receives events. Called from the task that starts or stops: it must not block.
pub type Observer = Arc<dyn Fn(ServerEvent) + Send + Sync>;

/// The start of all servers.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StartReport {
    /// One row for each configured server, in configuration order.
    pub servers: Vec<ServerStart>,
    /// From the first to the last.
    pub wall: Duration,
    /// How many were allowed to start at once; nothing: all.
    pub jobs: Option<NonZeroUsize>,
}

impl StartReport {
    /// Servers that serve calls.
    pub fn ready(&self) -> usize {
        self.servers.iter().filter(|row| row.outcome.is_ok()).count()
    }

    /// The server that was ready last, and when.
    pub fn slowest(&self) -> Option<&ServerStart> {
        self.servers.iter().filter(|row| row.outcome.is_ok()).max_by_key(|row| row.took)
    }
}

/// The start of one server.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ServerStart {
    /// Which.
    pub name: ServerName,
    /// Whether nothing is worth doing without it.
    pub required: bool,
    /// What it is, or why it is not there.
    pub outcome: std::result::Result<ReadyServer, Arc<Error>>,
    /// From the beginning of the whole start until it was ready or given up.
    pub took: Duration,
}

/// A server that serves calls.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct ReadyServer {
    /// Process id; none for a URL or a server in memory.
    pub pid: Option<u32>,
    /// The protocol revision both agreed on.
    pub era: String,
    /// Number of tools it lists, those that the configuration denies included.
    pub tools: usize,
    /// The time of each phase.
    pub phases: Phases,
}

pub(crate) struct AllStarted {
    pub(crate) sessions: Vec<Arc<Session>>,
    pub(crate) report: StartReport,
}

/// Starts every server of `config`.
///
/// # Errors
/// [`Error::RequiredServers`] when one that is required failed; the others are ended before it returns.
pub(crate) async fn start_all(
    config: &Config,
    around: &Surroundings,
    observe: &Observer,
) -> Result<AllStarted> {
    let began = Instant::now();
    let slots = config.start_jobs.map(|jobs| Semaphore::new(jobs.get()));
    let starting: FuturesUnordered<_> = config
        .servers
        .iter()
        .enumerate()
        .map(|(index, (name, entry))| {
            let slots = slots.as_ref();
            async move { (index, start_one(name, entry, around, slots, began, observe).await) }
        })
        .collect();
    let mut rows: Vec<(usize, (ServerStart, Option<Session>))> = starting.collect().await;
    rows.sort_by_key(|(index, _)| *index);
    let (servers, sessions): (Vec<_>, Vec<_>) = rows.into_iter().map(|(_, row)| row).unzip();
    let report = StartReport { servers, wall: began.elapsed(), jobs: config.start_jobs };
    let sessions: Vec<Arc<Session>> = sessions.into_iter().flatten().map(Arc::new).collect();
    let failures: Vec<Arc<Error>> = report
        .servers
        .iter()
        .filter(|row| row.required)
        .filter_map(|row| row.outcome.as_ref().err().cloned())
        .collect();
    if failures.is_empty() {
        return Ok(AllStarted { sessions, report });
    }
    futures_util::future::join_all(sessions.iter().map(|session| session.close())).await;
    Err(Error::RequiredServers { failures })
}

async fn start_one(
    name: &ServerName,
    entry: &ServerEntry,
    around: &Surroundings,
    slots: Option<&Semaphore>,
    began: Instant,
    observe: &Observer,
) -> (ServerStart, Option<Session>) {
    let outcome = async {
        let config = entry.server.clone()?;
        let _slot = match slots {
            Some(slots) => slots.acquire().await.ok(),
            None => None,
        };
        let queue = began.elapsed();
        observe(ServerEvent::Starting { server: name.clone() });
        let (session, started) = Session::start(config, around.clone()).await.map_err(Arc::new)?;
        Ok((session, queue, started))
    };
    let (outcome, session) = match outcome.await {
        Ok((session, queue, Started { pid, version, phases, tools })) => {
            let phases = Phases { queue, ..phases };
            (Ok(ReadyServer { pid, era: version, tools, phases }), Some(session))
        }
        Err(error) => (Err(error), None),
    };
    let row = ServerStart { name: name.clone(), required: entry.required, outcome, took: began.elapsed() };
    observe(match row.outcome {
        Ok(_) => ServerEvent::Ready { row: row.clone() },
        Err(_) => ServerEvent::Failed { row: row.clone() },
    });
    (row, session)
}
