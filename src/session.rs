//! One server, one persistent session: connect, call, reconnect, close.
//!
//! Owner of: the connection to its server. Invariants:
//! - a call copies the peer under a short lock and waits without any lock;
//! - one death causes one restart, however many callers fail (reconnect mutex and generation);
//! - a call that may have run is never sent again unless the configuration says so;
//! - whatever a server writes, memory stays bounded, and every call ends in an answer or in a named error;
//! - closed stays closed: nothing is installed after [`Session::close`] or [`Session::kill`].

mod asked;
mod call;
mod connect;
mod convert;
mod cut;
mod decode;
mod failure;
mod handshake;
mod health;
mod listing;
mod outputs;
mod text;
mod transport;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use rmcp::service::{Peer, RoleClient};
use tokio_util::sync::CancellationToken;

pub use self::connect::Phases;
pub(crate) use self::{connect::Surroundings, outputs::Outputs};
use self::{
    connect::{Connection, connect},
    failure::{Failure, inquest, seconds},
    handshake::Era,
    health::Health,
};
use crate::{
    config::{ServerConfig, StopGrace},
    error::{Error, ErrorCode, Phase, Result, ServerError},
    limit::Limit,
    process::Stopped,
    tool::{ServerName, Tool},
};

/// How long closing waits for a restart that is being given up.
const ABANDON_LIMIT: Duration = Duration::from_secs(2);
/// How long a remote server may take to hear that the session ends.
const GOODBYE_LIMIT: Duration = Duration::from_secs(2);

/// A session with one server, made once and kept.
pub(crate) struct Session {
    config: ServerConfig,
    around: Surroundings,
    // Std mutex: held for a look or a swap, never across an await.
    state: Mutex<State>,
    // Tokio's mutex: its critical section is a whole restart, which awaits.
    reconnect: tokio::sync::Mutex<Restarts>,
    closed: CancellationToken,
    calls: Limit,
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

/// What a call needs of a live connection.
struct Borrowed {
    generation: u64,
    peer: Peer<RoleClient>,
    health: Health,
}

/// Which list of tools: that of which connection, and how often it has changed.
pub(crate) type Edition = (u64, u64);

impl Session {
    /// Connects for the first time. Dropping the future ends whatever was begun.
    pub(crate) async fn start(config: ServerConfig, around: Surroundings) -> Result<(Self, Started)> {
        let connection =
            connect(&config, &around, None).await.map_err(|failure| failure.named(config.name.clone()))?;
        let started = Started {
            pid: connection.process.as_ref().map(crate::process::Process::pid),
            version: connection.version.clone(),
            phases: connection.phases,
            tools: connection.tools.now().1.len(),
        };
        let restarts = Restarts { era: Some(connection.era), ..Restarts::default() };
        let session = Self {
            calls: Limit::new(format!("calls of {}", config.name), config.max_concurrent_calls),
            config,
            around,
            state: Mutex::new(State::Ready(Live { generation: 0, connection: Box::new(connection) })),
            reconnect: tokio::sync::Mutex::new(restarts),
            closed: CancellationToken::new(),
        };
        Ok((session, started))
    }

    pub(crate) fn name(&self) -> &ServerName {
        &self.config.name
    }

    /// The tools that the configuration permits, as last listed, and which list that is.
    pub(crate) fn tools(&self) -> Option<(Edition, Vec<Tool>)> {
        match &*self.state() {
            State::Ready(live) => {
                let (times, tools) = live.connection.tools.now();
                let permitted = tools.iter().filter(|tool| self.config.tools.permits(&tool.name));
                Some(((live.generation, times), permitted.cloned().collect()))
            }
            State::Down(_) | State::Closed => None,
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
            self.restart(dead).await?;
        }
    }

    /// Makes sure that generation `dead` is replaced. Many callers, one restart.
    async fn restart(&self, dead: u64) -> Result<()> {
        // Boxed: a restart is rare and its future large, and every call would carry it along.
        let work = Box::pin(async {
            let mut restarts = self.reconnect.lock().await;
            self.restart_alone(dead, &mut restarts).await
        });
        self.closed.run_until_cancelled(work).await.unwrap_or(Err(Error::Cancelled))
    }

    async fn restart_alone(&self, dead: u64, restarts: &mut Restarts) -> Result<()> {
        let died = {
            let mut state = self.state();
            match &*state {
                State::Closed => return Err(Error::Cancelled),
                State::Ready(live) if live.generation != dead => return Ok(()),
                State::Down(down) if down.next_try > Instant::now() => {
                    return Err(Self::still_down(down).into());
                }
                State::Ready(_) | State::Down(_) => {}
            }
            let cause = Arc::new(self.lost("is being restarted".to_owned()));
            let down = Down { generation: dead, cause, next_try: Instant::now() };
            match std::mem::replace(&mut *state, State::Down(down)) {
                State::Ready(live) => Some(*live.connection),
                State::Down(_) | State::Closed => None,
            }
        };
        // The old process must be gone before the next one starts, or generations pile up.
        let first = match died {
            Some(connection) => Some(self.bury(connection).await),
            None => None,
        };
        if let Some(refusal) = self.refuse_storm(restarts, first.as_ref()) {
            return Err(self.down(dead, refusal, restarts));
        }
        restarts.recent.push(Instant::now());
        match connect(&self.config, &self.around, restarts.era).await {
            Ok(connection) => {
                restarts.failures = 0;
                restarts.era = Some(connection.era);
                let pid = connection.process.as_ref().map(crate::process::Process::pid);
                tracing::warn!(server = %self.name(), ?pid, cause = first.map(|e| e.to_string()), "restarted");
                self.install(dead + 1, connection)
            }
            Err(failure) => Err(self.down(dead, self.failed_restart(failure, first), restarts)),
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
        Ok(())
    }

    /// Ends what is left of a dead connection and says how it died.
    async fn bury(&self, connection: Connection) -> ServerError {
        let Connection { service, process, health, .. } = connection;
        let lost = self.lost("closed the connection".to_owned());
        let cause = inquest(lost, process.as_ref(), &health).await;
        health.died(cause.clone());
        if let Some(process) = process {
            process.stop(self.config.stop).await;
        }
        drop(service);
        cause
    }

    /// Why no further restart is made now, if too many were made of late.
    fn refuse_storm(&self, restarts: &mut Restarts, first: Option<&ServerError>) -> Option<ServerError> {
        let policy = self.config.restart;
        restarts.recent.retain(|when| when.elapsed() < policy.within);
        if restarts.recent.len() < policy.max as usize {
            return None;
        }
        let within = humantime::format_duration(policy.within);
        let mut error = self.lost(format!("died again after {} restarts within {within}", policy.max));
        if let Some(first) = first {
            error.causes = std::iter::once(first.to_string()).chain(first.causes.clone()).collect();
            error.stderr_tail.clone_from(&first.stderr_tail);
        }
        error.help = Some("mend the server, or raise `restart.max`".to_owned());
        Some(error)
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

    /// Records that the server stays down until its next try.
    fn down(&self, generation: u64, cause: ServerError, restarts: &mut Restarts) -> Error {
        let policy = self.config.restart;
        let wait = policy.backoff.saturating_mul(1 << restarts.failures.min(16)).min(policy.backoff_cap);
        restarts.failures += 1;
        let down = Down { generation, cause: Arc::new(cause.clone()), next_try: Instant::now() + wait };
        let mut state = self.state();
        if !matches!(*state, State::Closed) {
            *state = State::Down(down);
        }
        cause.into()
    }

    fn still_down(down: &Down) -> ServerError {
        let mut error = (*down.cause).clone();
        let wait = down.next_try.saturating_duration_since(Instant::now());
        error.causes.push(format!("the next restart is due in {}", seconds(wait)));
        error
    }

    fn lost(&self, what: String) -> ServerError {
        ServerError::new(self.name().clone(), Phase::Call, ErrorCode::SessionLost, what)
    }

    /// Ends the session: the stop ladder for a process, a goodbye for a remote server.
    pub(crate) async fn close(&self) -> Option<Stopped> {
        let connection = self.shut()?;
        // A restart under way is cancelled; its process dies with its future.
        let _ = tokio::time::timeout(ABANDON_LIMIT, self.reconnect.lock()).await;
        let Connection { mut service, process, .. } = connection;
        match process {
            Some(process) => {
                let stopped = process.stop(self.config.stop).await;
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
        let StopGrace { eof, term } = self.config.stop;
        ABANDON_LIMIT + eof + term * 2 + GOODBYE_LIMIT
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.kill();
    }
}
