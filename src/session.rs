//! One server, one persistent session: connect, call, keep, reconnect, close.
//!
//! Owner of: the connection to its server. Invariants:
//! - a call copies the peer under a short lock and waits without any lock;
//! - one death causes one restart, however many callers fail (reconnect mutex and generation);
//! - a death is noticed when it happens, by whoever stays in [`Session::keep`];
//! - a call that may have run is never sent again unless the configuration says so;
//! - whatever a server writes, memory stays bounded, and every call ends in an answer or in a named error;
//! - closed stays closed: nothing is installed after [`Session::close`] or [`Session::kill`].

mod asked;
mod call;
mod connect;
mod convert;
mod cut;
mod decode;
mod event;
mod failure;
mod handshake;
mod health;
mod keep;
mod listing;
mod outputs;
mod settings;
mod status;
mod text;
mod transport;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use rmcp::service::{Peer, RoleClient};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

pub use self::connect::Phases;
pub use self::status::{ServerState, ServerStatus};
pub(crate) use self::{
    connect::Surroundings,
    event::{SessionEvent, SessionObserver},
    outputs::Outputs,
};
use self::{
    connect::{Connection, connect},
    failure::{Failure, inquest, seconds},
    handshake::Era,
    health::Health,
    listing::ToolList,
    settings::Settings,
    status::Counters,
};
use crate::{
    config::{ServerConfig, StopGrace},
    error::{Error, ErrorCode, Phase, Result, ServerError},
    process::Stopped,
    tool::{ServerName, Tool},
};

/// How long closing waits for a restart that is being given up.
const ABANDON_LIMIT: Duration = Duration::from_secs(2);
/// How long a remote server may take to hear that the session ends.
const GOODBYE_LIMIT: Duration = Duration::from_secs(2);
/// In place of a wait that no event of ours ends.
const NEVER: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// A session with one server, made once and kept.
pub(crate) struct Session {
    name: ServerName,
    // Std mutexes: held for a look or a swap, never across an await.
    settings: Mutex<Arc<Settings>>,
    state: Mutex<State>,
    // Tokio's mutex: its critical section is a whole restart, which awaits.
    reconnect: tokio::sync::Mutex<Restarts>,
    closed: CancellationToken,
    /// A restart came to an end: for the keeper, who may be waiting for a later one.
    settled: Notify,
    counters: Counters,
}

enum State {
    Ready(Live),
    Down(Down),
    Closed,
}

struct Live {
    generation: u64,
    connection: Box<Connection>,
}

#[derive(Clone)]
struct Down {
    generation: u64,
    /// As last listed: the next call brings the server back.
    tools: Arc<ToolList>,
    cause: Arc<ServerError>,
    next_try: Instant,
}

/// The restarts of late, to keep a server that dies at once from being started without end.
#[derive(Default)]
struct Restarts {
    recent: Vec<Instant>,
    failures: u32,
    era: Option<Era>,
}

/// What a first start found out.
#[derive(Debug, Clone)]
pub(crate) struct Started {
    pub(crate) pid: Option<u32>,
    pub(crate) version: String,
    pub(crate) phases: Phases,
    pub(crate) tools: usize,
}

/// Why a connection that may still stand is given up.
#[derive(Clone)]
struct Verdict {
    /// Continues the sentence "server X ...".
    what: String,
    /// By somebody who wants a new one, rather than for a fault.
    asked: bool,
}

/// What a call needs of a live connection.
struct Borrowed {
    generation: u64,
    peer: Peer<RoleClient>,
    health: Health,
}

impl Started {
    fn of(connection: &Connection) -> Self {
        Self {
            pid: connection.process.as_ref().map(crate::process::Process::pid),
            version: connection.version.clone(),
            phases: connection.phases,
            tools: connection.tools.now().1.len(),
        }
    }
}

/// Which list of tools: that of which connection, and how often it has changed.
pub(crate) type Edition = (u64, u64);

impl Session {
    /// Connects for the first time. Dropping the future ends whatever was begun.
    pub(crate) async fn start(config: ServerConfig, around: Surroundings) -> Result<(Self, Started)> {
        let connection =
            connect(&config, &around, None).await.map_err(|failure| failure.named(config.name.clone()))?;
        let started = Started::of(&connection);
        let restarts = Restarts { era: Some(connection.era), ..Restarts::default() };
        let closed = CancellationToken::new();
        let session = Self {
            name: config.name.clone(),
            settings: Mutex::new(Settings::new(config, around, &closed)),
            state: Mutex::new(State::Ready(Live { generation: 0, connection: Box::new(connection) })),
            reconnect: tokio::sync::Mutex::new(restarts),
            closed,
            settled: Notify::new(),
            counters: Counters::default(),
        };
        Ok((session, started))
    }

    pub(crate) fn name(&self) -> &ServerName {
        &self.name
    }

    /// The tools that the configuration permits, as last listed, and which list that is. Nothing once it is
    /// closed.
    pub(crate) fn tools(&self) -> Option<(Edition, Vec<Tool>)> {
        let settings = self.settings();
        let (generation, list) = self.list()?;
        let (times, tools) = list.now();
        let permitted = tools.iter().filter(|tool| settings.config.tools.permits(&tool.name));
        Some(((generation, times), permitted.cloned().collect()))
    }

    /// Which list [`Session::tools`] would give.
    pub(crate) fn edition(&self) -> Option<Edition> {
        self.list().map(|(generation, list)| (generation, list.now().0))
    }

    /// Whether there is a live connection.
    pub(crate) fn is_up(&self) -> bool {
        matches!(*self.state(), State::Ready(_))
    }

    /// Whether it was closed: then nothing brings it back.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    fn list(&self) -> Option<(u64, Arc<ToolList>)> {
        match &*self.state() {
            State::Ready(live) => Some((live.generation, live.connection.tools.clone())),
            State::Down(down) => Some((down.generation, down.tools.clone())),
            State::Closed => None,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The live connection, restarted first if it is known to be dead: then no request has left yet.
    async fn borrow(&self) -> Result<Borrowed> {
        loop {
            let dead = match &*self.state() {
                State::Ready(live) if !live.connection.service.peer().is_transport_closed() => {
                    let Connection { service, health, .. } = &*live.connection;
                    let (peer, health) = (service.peer().clone(), health.clone());
                    return Ok(Borrowed { generation: live.generation, peer, health });
                }
                State::Ready(live) => live.generation,
                State::Down(down) => down.generation,
                State::Closed => return Err(Error::Cancelled),
            };
            self.restart(dead, None).await?;
        }
    }

    /// Makes sure that generation `dead` is replaced. Many callers, one restart.
    async fn restart(&self, dead: u64, verdict: Option<Verdict>) -> Result<()> {
        loop {
            let settings = self.settings();
            // Boxed: a restart is rare and its future large, and every call would carry it along.
            let work = Box::pin(async {
                let mut restarts = self.reconnect.lock().await;
                self.restart_alone(dead, verdict.clone(), &mut restarts).await
            });
            match settings.superseded.run_until_cancelled(work).await {
                Some(outcome) => return outcome,
                None if self.closed.is_cancelled() => return Err(Error::Cancelled),
                // By newer settings: their restart is under way, and serves for this one.
                None => {}
            }
        }
    }

    async fn restart_alone(
        &self,
        dead: u64,
        verdict: Option<Verdict>,
        restarts: &mut Restarts,
    ) -> Result<()> {
        let began = Instant::now();
        let asked = verdict.as_ref().is_some_and(|verdict| verdict.asked);
        let (died, before) = {
            let mut state = self.state();
            let (before, tools) = match &*state {
                State::Closed => return Err(Error::Cancelled),
                State::Ready(live) if live.generation != dead => return Ok(()),
                State::Down(down) if !asked && down.next_try > Instant::now() => {
                    return Err(Self::still_down(down).into());
                }
                State::Ready(live) => (None, live.connection.tools.clone()),
                State::Down(down) => (Some(down.cause.clone()), down.tools.clone()),
            };
            let cause =
                before.clone().unwrap_or_else(|| Arc::new(self.lost("is being restarted".to_owned())));
            let down = Down { generation: dead, tools, cause, next_try: began };
            match std::mem::replace(&mut *state, State::Down(down)) {
                State::Ready(live) => (Some(*live.connection), before),
                State::Down(_) | State::Closed => (None, before),
            }
        };
        // The old process must be gone before the next one starts, or generations pile up.
        let first = match died {
            Some(connection) => Some(self.bury(connection, verdict).await),
            None => None,
        };
        if !asked
            && let Some((refusal, wait)) = self.refuse_storm(restarts, first.as_ref().or(before.as_deref()))
        {
            return Err(self.down(dead, refusal, restarts, Some(wait)));
        }
        self.tell(SessionEvent::Reconnecting);
        if !asked {
            restarts.recent.push(Instant::now());
        }
        let settings = self.settings();
        match connect(&settings.config, &settings.around, restarts.era).await {
            Ok(connection) => {
                restarts.failures = 0;
                restarts.era = Some(connection.era);
                let started = Started::of(&connection);
                let cause = first.map(|error| error.to_string());
                tracing::warn!(server = %self.name(), pid = started.pid, cause, "restarted");
                self.install(dead + 1, connection)?;
                let restarts = self.counters.restarted();
                self.tell(SessionEvent::Restarted { started, took: began.elapsed(), restarts });
                Ok(())
            }
            Err(failure) => Err(self.down(dead, self.failed_restart(failure, first), restarts, None)),
        }
    }

    fn install(&self, generation: u64, connection: Connection) -> Result<()> {
        let mut state = self.state();
        if matches!(*state, State::Closed) {
            drop(state);
            drop(connection);
            return Err(Error::Cancelled);
        }
        *state = State::Ready(Live { generation, connection: Box::new(connection) });
        self.settled.notify_one();
        Ok(())
    }

    /// Ends what is left of a dead connection and says how it died.
    async fn bury(&self, connection: Connection, verdict: Option<Verdict>) -> ServerError {
        let Connection { service, process, health, .. } = connection;
        let asked = verdict.as_ref().is_some_and(|verdict| verdict.asked);
        let cause = match verdict {
            // It stands, and the server's own words are all that is to be added.
            Some(verdict) => {
                let mut cause = self.lost(verdict.what);
                cause.stderr_tail = health.last_words().await;
                cause
            }
            None => inquest(self.lost("closed the connection".to_owned()), process.as_ref(), &health).await,
        };
        health.died(cause.clone());
        self.counters.lost(cause.clone());
        if !asked {
            let pid = process.as_ref().map(crate::process::Process::pid);
            self.tell(SessionEvent::Lost { pid, error: cause.clone() });
        }
        if let Some(process) = process {
            process.stop(self.settings().config.stop).await;
        }
        drop(service);
        cause
    }

    /// Why no further restart is made now, and for how long, if too many were made of late.
    fn refuse_storm(
        &self,
        restarts: &mut Restarts,
        first: Option<&ServerError>,
    ) -> Option<(ServerError, Duration)> {
        let policy = self.settings().config.restart;
        restarts.recent.retain(|when| when.elapsed() < policy.within);
        let over = restarts.recent.len().checked_sub(policy.max as usize)?;
        // The place that is free first is that of the oldest one that counts.
        let oldest = restarts.recent.get(over);
        let wait = oldest.map_or(NEVER, |when| policy.within.saturating_sub(when.elapsed()));
        let within = humantime::format_duration(policy.within);
        let mut error = self.lost(format!("died again after {} restarts within {within}", policy.max));
        if let Some(first) = first {
            error.causes = std::iter::once(first.to_string()).chain(first.causes.clone()).collect();
            error.stderr_tail.clone_from(&first.stderr_tail);
        }
        error.help = Some("mend the server, or raise `restart.max`".to_owned());
        Some((error, wait))
    }

    fn failed_restart(&self, failure: Failure, first: Option<ServerError>) -> ServerError {
        let mut error = failure.named(self.name().clone());
        error.causes.insert(0, "it was being started again".to_owned());
        if let Some(first) = first {
            error.causes.push(format!("before that: {first}"));
            error.stderr_tail.splice(0..0, first.stderr_tail);
        }
        error
    }

    /// Records that the server stays down until its next try: after `gave_up`, or else the next backoff.
    fn down(
        &self,
        generation: u64,
        cause: ServerError,
        restarts: &mut Restarts,
        gave_up: Option<Duration>,
    ) -> Error {
        let policy = self.settings().config.restart;
        let backoff = policy.backoff.saturating_mul(1 << restarts.failures.min(16)).min(policy.backoff_cap);
        let wait = gave_up.unwrap_or(backoff);
        restarts.failures += 1;
        {
            let mut state = self.state();
            let tools = match &*state {
                State::Closed => return Error::Cancelled,
                State::Ready(live) => live.connection.tools.clone(),
                State::Down(down) => down.tools.clone(),
            };
            let next_try = Instant::now() + wait;
            *state = State::Down(Down { generation, tools, cause: Arc::new(cause.clone()), next_try });
        }
        self.settled.notify_one();
        let next_try = Some(wait).filter(|wait| *wait < NEVER);
        self.tell(SessionEvent::Down { error: cause.clone(), next_try, gave_up: gave_up.is_some() });
        cause.into()
    }

    fn still_down(down: &Down) -> ServerError {
        let mut error = (*down.cause).clone();
        let wait = down.next_try.saturating_duration_since(Instant::now());
        if wait < NEVER / 2 {
            error.causes.push(format!("the next restart is due in {}", seconds(wait)));
        }
        error
    }

    fn lost(&self, what: String) -> ServerError {
        ServerError::new(self.name().clone(), Phase::Call, ErrorCode::SessionLost, what)
    }

    /// Ends the session: the stop ladder for a process, a goodbye for a remote server.
    pub(crate) async fn close(&self) -> Option<Stopped> {
        let _ending = self.counters.ending();
        let connection = self.shut()?;
        // A restart under way is cancelled; its process dies with its future.
        let _ = tokio::time::timeout(ABANDON_LIMIT, self.reconnect.lock()).await;
        let Connection { mut service, process, .. } = connection;
        match process {
            Some(process) => {
                let stopped = process.stop(self.settings().config.stop).await;
                drop(service);
                Some(stopped)
            }
            None => {
                let _ = service.close_with_timeout(GOODBYE_LIMIT).await;
                None
            }
        }
    }

    /// Ends the session now, synchronously, with or without a runtime.
    pub(crate) fn kill(&self) {
        let _ending = self.counters.ending();
        drop(self.shut());
    }

    fn shut(&self) -> Option<Connection> {
        let last = std::mem::replace(&mut *self.state(), State::Closed);
        self.closed.cancel();
        match last {
            State::Ready(live) => Some(*live.connection),
            State::Down(_) | State::Closed => None,
        }
    }

    /// Longest time that [`Session::close`] may take.
    pub(crate) fn close_limit(&self) -> Duration {
        let StopGrace { eof, term } = self.settings().config.stop;
        ABANDON_LIMIT + eof + term * 2 + GOODBYE_LIMIT
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.kill();
    }
}
