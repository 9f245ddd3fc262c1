//! The manager: owns all sessions, lends them out, tears them down.
//!
//! What tears down is not `Clone`. Callers borrow through [`Toolbox`], which cannot keep a server alive:
//! after [`Manager::shutdown`] or a drop every call through it ends in an error. The manager knows no model
//! and no task.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use serde::Serialize;
use serde_json::{Map, Value};

use crate::{
    catalog::{CatalogEntry, ToolCatalog},
    config::Config,
    error::{Error, Result},
    http::HttpClients,
    process::{ProcessUsage, StopOutcome, describe, marked_processes, of_groups},
    session::{Edition, Outputs, Session, Surroundings},
    start::{AllStarted, Observer, ServerEvent, StartReport, start_all},
    tool::{ServerName, ToolResult},
};

/// How long the kernel may take to remove what was killed.
const VERIFY_LIMIT: Duration = Duration::from_secs(2);

/// All servers of one configuration, running.
///
/// Dropping it kills every process at once, with or without a runtime; [`Manager::shutdown`] asks them to
/// leave first and says what happened.
pub struct Manager {
    toolbox: Toolbox,
    report: StartReport,
    marker: Arc<str>,
    observe: Observer,
}

/// A cheap handle on the tools of a [`Manager`], for agents and callers. Does not keep anything alive.
#[derive(Clone)]
pub struct Toolbox {
    sessions: Arc<[Arc<Session>]>,
    shelf: Arc<Mutex<Shelf>>,
    /// Configured servers that did not start.
    missing: Arc<[(ServerName, Arc<Error>)]>,
}

/// The catalog and the lists it was made of.
struct Shelf {
    editions: Vec<Option<Edition>>,
    catalog: Arc<ToolCatalog>,
}

impl Manager {
    /// Starts every server of `config`. Dropping the future ends whatever was begun.
    ///
    /// # Errors
    /// [`Error::RequiredServers`] when a required server is not available. Other failures are rows of
    /// [`Manager::report`].
    pub async fn start(config: &Config) -> Result<Self> {
        Self::start_observed(config, Arc::new(|_| {})).await
    }

    /// As [`Manager::start`], telling `observe` what happens.
    ///
    /// # Errors
    /// As [`Manager::start`].
    pub async fn start_observed(config: &Config, observe: Observer) -> Result<Self> {
        let http = HttpClients::new(&config.http)?;
        Self::start_with(config, http, observe).await
    }

    /// As [`Manager::start_observed`], on HTTP clients that others share.
    ///
    /// # Errors
    /// As [`Manager::start`].
    pub async fn start_with(config: &Config, http: HttpClients, observe: Observer) -> Result<Self> {
        let marker: Arc<str> = format!("{}-{:016x}", std::process::id(), fastrand::u64(..)).into();
        let outputs = Outputs::new(config.output_folder.as_deref());
        let secrets = config.secrets.clone();
        let around = Surroundings { marker: marker.clone(), secrets, http, outputs };
        let AllStarted { sessions, report } = start_all(config, &around, &observe).await?;
        let catalog = Arc::new(ToolCatalog::default());
        let shelf = Shelf { editions: vec![None; sessions.len()], catalog };
        let failed =
            report.servers.iter().filter_map(|row| Some((row.name.clone(), row.outcome.clone().err()?)));
        let missing = failed.collect();
        let toolbox = Toolbox { sessions: sessions.into(), shelf: Arc::new(Mutex::new(shelf)), missing };
        Ok(Self { toolbox, report, marker, observe })
    }

    /// How the start went.
    pub fn report(&self) -> &StartReport {
        &self.report
    }

    /// A handle to call tools with.
    pub fn toolbox(&self) -> Toolbox {
        self.toolbox.clone()
    }

    /// All tools at this moment.
    pub fn catalog(&self) -> Arc<ToolCatalog> {
        self.toolbox.catalog()
    }

    /// CPU time and memory of the servers' process groups so far. Zero where there is no `/proc`.
    pub fn usage(&self) -> ProcessUsage {
        let rows = self.report.servers.iter().filter_map(|row| row.outcome.as_ref().ok());
        of_groups(&rows.filter_map(|ready| ready.pid).collect())
    }

    /// Calls `tool` of `server`. See [`Toolbox::call`].
    ///
    /// # Errors
    /// As [`Toolbox::call`].
    pub async fn call(&self, server: &str, tool: &str, arguments: Map<String, Value>) -> Result<ToolResult> {
        self.toolbox.call(server, tool, arguments).await
    }

    /// Asks every server to leave, all at once, and ends those that do not; then looks whether anything is
    /// left.
    pub async fn shutdown(self) -> StopReport {
        let began = Instant::now();
        let closing = self.toolbox.sessions.iter().map(|session| async {
            let row = close(session).await;
            (self.observe)(ServerEvent::Stopped { row: row.clone() });
            row
        });
        let servers = futures_util::future::join_all(closing).await;
        let survivors = survivors(&self.marker).await;
        StopReport { servers, survivors, wall: began.elapsed() }
    }
}

async fn close(session: &Session) -> ServerStop {
    let began = Instant::now();
    let server = session.name().clone();
    let stopped = tokio::time::timeout(session.close_limit(), session.close()).await;
    let Ok(stopped) = stopped else {
        // The future was dropped, and with it the process was killed.
        let (outcome, took) = (StopOutcome::Killed, began.elapsed());
        return ServerStop { server, pid: None, outcome, status: None, helpers: false, took };
    };
    ServerStop {
        server,
        pid: stopped.as_ref().map(|stopped| stopped.pid),
        outcome: stopped.as_ref().map_or(StopOutcome::Exited, |stopped| stopped.outcome),
        status: stopped.as_ref().and_then(|stopped| stopped.status).map(describe),
        helpers: stopped.as_ref().is_some_and(|stopped| stopped.helpers),
        took: began.elapsed(),
    }
}

async fn survivors(marker: &str) -> Vec<u32> {
    let deadline = Instant::now() + VERIFY_LIMIT;
    loop {
        let left = marked_processes(marker);
        if left.is_empty() || Instant::now() >= deadline {
            return left;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        // Handles may outlive us: the sessions are ended, not only let go.
        for session in self.toolbox.sessions.iter() {
            session.kill();
        }
    }
}

impl Toolbox {
    /// All tools at this moment, in stable order. Made anew only after a server was restarted or told that
    /// its tools changed.
    pub fn catalog(&self) -> Arc<ToolCatalog> {
        let lists: Vec<_> = self.sessions.iter().map(|session| session.tools()).collect();
        let editions: Vec<_> = lists.iter().map(|list| list.as_ref().map(|(edition, _)| *edition)).collect();
        let mut shelf = self.shelf.lock().unwrap_or_else(PoisonError::into_inner);
        // A server that is down keeps its tools: the next call brings it back.
        let changed = editions.iter().zip(&shelf.editions).any(|(now, then)| now.is_some() && now != then);
        if changed {
            let tools = self.sessions.iter().zip(lists).map(|(session, list)| {
                let name = session.name().clone();
                let kept = || shelf.catalog.entries().iter().filter(|entry| entry.server == name);
                let tools = match list {
                    Some((_, tools)) => tools,
                    None => kept().map(|entry| entry.tool.clone()).collect(),
                };
                (name, tools)
            });
            shelf.catalog = Arc::new(ToolCatalog::new(tools));
            for (then, now) in shelf.editions.iter_mut().zip(editions) {
                *then = now.or(*then);
            }
        }
        shelf.catalog.clone()
    }

    /// Calls `tool` of `server` after checking `arguments` against its schema. A tool-level error is `Ok`.
    ///
    /// # Errors
    /// [`Error::ServerNotFound`], [`Error::Unavailable`], [`Error::ToolNotFound`], [`Error::ArgumentsInvalid`]:
    /// nothing was sent.
    /// [`Error::CallTimeout`], [`Error::CallRefused`], and [`Error::Server`] with `protocol_mismatch` for an
    /// answer that cannot be used: the session goes on. [`Error::Server`] with `session_lost` or
    /// `stdout_garbage`: says whether the call may have run.
    pub async fn call(&self, server: &str, tool: &str, arguments: Map<String, Value>) -> Result<ToolResult> {
        if let Some((server, cause)) = self.missing.iter().find(|(name, _)| name.as_str() == server) {
            return Err(Error::Unavailable { server: server.clone(), cause: cause.clone() });
        }
        let entry = self.catalog().find(server, tool)?.clone();
        self.call_entry(&entry, &arguments, None).await
    }

    /// Calls a tool of the catalog; `limit` takes the place of its configured time limit.
    ///
    /// # Errors
    /// As [`Toolbox::call`].
    pub async fn call_entry(
        &self,
        entry: &CatalogEntry,
        arguments: &Map<String, Value>,
        limit: Option<Duration>,
    ) -> Result<ToolResult> {
        entry.check(arguments)?;
        self.call_unchecked(entry, arguments, limit).await
    }

    /// As [`Toolbox::call_entry`], leaving the check of the arguments to the server.
    ///
    /// # Errors
    /// As [`Toolbox::call`].
    pub async fn call_unchecked(
        &self,
        entry: &CatalogEntry,
        arguments: &Map<String, Value>,
        limit: Option<Duration>,
    ) -> Result<ToolResult> {
        let session = self.sessions.iter().find(|session| *session.name() == entry.server);
        let session = session
            .ok_or_else(|| Error::ServerNotFound { name: entry.server.to_string(), suggestion: None })?;
        session.call(&entry.tool.name, entry.tool.annotations, arguments, limit).await
    }
}

/// The teardown of all servers.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StopReport {
    /// One row for each server that had been started, in configuration order.
    pub servers: Vec<ServerStop>,
    /// Processes of these servers that are still there, wherever in the process tree. On Linux every process
    /// that inherited the environment of a server is found; elsewhere nothing can be said and this is empty.
    pub survivors: Vec<u32>,
    /// From the first to the last.
    pub wall: Duration,
}

/// The teardown of one server.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct ServerStop {
    /// Which.
    pub server: ServerName,
    /// Its process, if it had one.
    pub pid: Option<u32>,
    /// How it ended.
    pub outcome: StopOutcome,
    /// Its exit status in words.
    pub status: Option<String>,
    /// Whether it left processes behind that had to be ended.
    pub helpers: bool,
    /// How long that took.
    #[serde(rename = "ms", serialize_with = "as_millis")]
    pub took: Duration,
}

fn as_millis<S: serde::Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(crate::task::millis(*time))
}
