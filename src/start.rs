//! Starting all servers at once, and the report of it.
//!
//! One process per server: the session that lists the tools is the one that serves the calls. Every server
//! has a row in the report, in configuration order; a failed one says why. Each server's clock runs from its
//! own turn. All of it happens in the caller's future: dropping that future ends every process under way.

mod event;

use std::{
    num::NonZeroUsize,
    sync::Arc,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;

pub(crate) use self::event::of_sessions;
pub use self::event::{Observer, ServerEvent};
use crate::{
    config::ServerEntry,
    error::Error,
    session::{Phases, Session, Started, Surroundings},
    tool::ServerName,
};

/// The start of all servers.
#[derive(Debug, Clone, Default)]
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
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ServerStart {
    /// Which.
    pub name: ServerName,
    /// Whether nothing is worth doing without it.
    pub required: bool,
    /// What it is, or why it is not there.
    pub outcome: Result<ReadyServer, Arc<Error>>,
    /// From the beginning of the whole start until it was ready or given up.
    #[serde(rename = "ms", with = "crate::task::millis::plain")]
    pub took: Duration,
}

/// A server that serves calls.
#[derive(Debug, Clone, Serialize, Deserialize)]
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
    /// What it did by then that other clients may not put up with, one line each: text on stdout that is no
    /// message, an answer that nobody asked for.
    pub oddities: Vec<String>,
}

impl ReadyServer {
    fn of(started: Started, queue: Duration) -> Self {
        let Started { pid, version, phases, tools, oddities } = started;
        Self { pid, era: version, tools, phases: Phases { queue, ..phases }, oddities }
    }
}

/// Starts servers, so many at once. Their common clock begins when this is made.
pub(crate) struct Starter {
    around: Surroundings,
    observe: Observer,
    slots: Option<Semaphore>,
    began: Instant,
}

impl Starter {
    pub(crate) fn new(jobs: Option<NonZeroUsize>, around: Surroundings, observe: Observer) -> Self {
        let slots = jobs.map(|jobs| Semaphore::new(jobs.get()));
        Self { around, observe, slots, began: Instant::now() }
    }

    /// What new connections go by.
    pub(crate) fn around(&self) -> Surroundings {
        self.around.clone()
    }

    /// Waits for a turn, which lasts until the slot is dropped. Nothing: there is no limit.
    pub(crate) async fn turn(&self, name: &ServerName) -> Option<SemaphorePermit<'_>> {
        let slots = self.slots.as_ref()?;
        if let Ok(slot) = slots.try_acquire() {
            return Some(slot);
        }
        (self.observe)(ServerEvent::Queued { server: name.clone() });
        // The semaphore is never closed, so this is never an error.
        slots.acquire().await.ok()
    }

    /// Starts one server, and tells `on_turn` when it is its turn. Dropping the future ends its process, and so
    /// does `give_up`.
    pub(crate) async fn start(
        &self,
        name: &ServerName,
        entry: &ServerEntry,
        give_up: &CancellationToken,
        on_turn: impl FnOnce(),
    ) -> (ServerStart, Option<Session>) {
        let outcome = async {
            let config = entry.server.clone()?;
            let _slot = self.turn(name).await;
            let queue = self.began.elapsed();
            on_turn();
            (self.observe)(ServerEvent::Starting { server: name.clone() });
            let (session, started) = Session::start(config, self.around.clone()).await.map_err(Arc::new)?;
            Ok((session, ReadyServer::of(started, queue)))
        };
        // Boxed: connecting makes a large future, and there are as many as servers.
        let outcome = give_up.run_until_cancelled(Box::pin(outcome)).await;
        let (outcome, session) = match outcome.unwrap_or_else(|| Err(Arc::new(Error::Cancelled))) {
            Ok((session, ready)) => (Ok(ready), Some(session)),
            Err(error) => (Err(error), None),
        };
        let took = self.began.elapsed();
        let row = ServerStart { name: name.clone(), required: entry.required, outcome, took };
        match row.outcome {
            Ok(_) => (self.observe)(ServerEvent::Ready { row: row.clone() }),
            // Whoever gave it up starts it again.
            Err(_) if give_up.is_cancelled() => {}
            Err(_) => (self.observe)(ServerEvent::Failed { row: row.clone() }),
        }
        (row, session)
    }
}
