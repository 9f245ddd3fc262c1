//! The handle of one configured server: its session, or why there is none. It stays when the session is replaced.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::cancel::CancellationToken;
use tokio::sync::watch;

use super::pool::Pool;
use crate::{
    background::Background,
    config::{Scope, ServerConfig, ServerEntry},
    error::{Error, Result},
    session::{ServerState, ServerStatus, Session},
    start::{ServerStart, ServerStop, Starter},
    tool::ServerName,
};

/// One server of the configuration.
pub(super) struct ServerHandle {
    pub(super) name: ServerName,
    presence: watch::Sender<ServerPresence>,
    watchdog: Mutex<Option<Background>>,
    /// Ends the start under way.
    start: Mutex<CancellationToken>,
    /// The instances of borrowers, for a server that is not shared.
    pool: OnceLock<Arc<Pool>>,
}

/// The state of a configured server.
#[derive(Clone)]
pub(super) enum ServerPresence {
    /// It waits for its turn.
    Queued,
    /// It is being started, and its package perhaps installed.
    Starting { installing: bool },
    /// It has a session, which knows whether the server runs.
    Ready(Arc<Session>),
    /// It did not start. `server` is what was to be started, if its entry can be used.
    Missing { why: Arc<Error>, server: Option<Arc<ServerConfig>> },
}

impl ServerHandle {
    pub(super) fn new(name: ServerName) -> Arc<Self> {
        let presence = watch::Sender::new(ServerPresence::Queued);
        let (watchdog, start, pool) = Default::default();
        Arc::new(Self { name, presence, watchdog, start, pool })
    }

    /// The handle of a server that is not shared: parked, with the pool of its instances.
    pub(super) fn of_pool(pool: Arc<Pool>, session: Session) -> Arc<Self> {
        let handle = Self::new(session.name().clone());
        handle.install(session);
        let _ = handle.pool.set(pool);
        handle
    }

    pub(super) fn pool(&self) -> Option<&Arc<Pool>> {
        self.pool.get()
    }

    /// Whether this handle can take over the configuration of `entry` without being replaced.
    pub(super) fn can_become(&self, entry: &ServerEntry) -> bool {
        match (self.pool(), &entry.server) {
            (_, Err(_)) => true,
            (Some(pool), Ok(config)) => pool.config() == config,
            (None, Ok(config)) => config.scope == Scope::Shared || self.current_session().is_none(),
        }
    }

    pub(super) fn presence(&self) -> ServerPresence {
        self.presence.borrow().clone()
    }

    /// The session, if there is one now.
    pub(super) fn current_session(&self) -> Option<Arc<Session>> {
        match &*self.presence.borrow() {
            ServerPresence::Ready(session) => Some(session.clone()),
            _ => None,
        }
    }

    /// The session; a start under way is waited for.
    ///
    /// # Errors
    /// [`Error::Unavailable`] with the cause when there is none.
    pub(super) async fn session(&self) -> Result<Arc<Session>> {
        let mut presence = self.presence.subscribe();
        loop {
            match &*presence.borrow_and_update() {
                ServerPresence::Ready(session) => return Ok(session.clone()),
                ServerPresence::Missing { why, .. } => {
                    return Err(Error::Unavailable { server: self.name.clone(), cause: why.clone() });
                }
                ServerPresence::Queued | ServerPresence::Starting { .. } => {}
            }
            // We hold the sender, so this is never an error.
            let _ = presence.changed().await;
        }
    }

    /// How the server is now.
    pub(super) fn status(&self) -> ServerStatus {
        let named = |state| ServerStatus::new(self.name.clone(), state);
        match self.presence() {
            ServerPresence::Queued => named(ServerState::Queued),
            ServerPresence::Starting { installing: true } => named(ServerState::Installing),
            ServerPresence::Starting { installing: false } => named(ServerState::Starting),
            ServerPresence::Ready(session) => {
                let (spares, lent) = self.pool().map_or((0, 0), |pool| pool.counts());
                ServerStatus { spares, lent, ..session.status() }
            }
            ServerPresence::Missing { why, .. } => {
                ServerStatus { error: Some(why), ..named(ServerState::Failed) }
            }
        }
    }

    /// Records that the server is not there.
    pub(super) fn set_missing(&self, why: Arc<Error>, server: Option<Arc<ServerConfig>>) {
        self.presence.send_replace(ServerPresence::Missing { why, server });
    }

    /// Gives up the start under way, if there is one.
    pub(super) fn cancel_start(&self) {
        lock(&self.start).cancel();
    }

    /// Starts the server of `entry` and stays with it. If this future is dropped, the place is left empty.
    pub(super) async fn fill(&self, starter: &Starter, entry: &ServerEntry) -> ServerStart {
        let given_up = CancellationToken::new();
        *lock(&self.start) = given_up.clone();
        if let Some((row, session)) = starter.park(&self.name, entry) {
            self.install(session);
            return row;
        }
        let server = entry.server.as_ref().ok().map(|server| Arc::new(server.clone()));
        self.presence.send_replace(ServerPresence::Queued);
        let unfilled = UnfinishedStart { handle: self, server };
        let on_turn = |installing| drop(self.presence.send_replace(ServerPresence::Starting { installing }));
        let (row, session) = starter.start(&self.name, entry, &given_up, on_turn).await;
        match (&row.outcome, session) {
            (Ok(_), Some(session)) => self.install(session),
            (Err(why), _) => self.set_missing(why.clone(), unfilled.server.clone()),
            (Ok(_), None) => {}
        }
        row
    }

    /// Stores the session and starts its watchdog.
    pub(super) fn install(&self, session: Session) {
        let session = Arc::new(session);
        let kept = session.clone();
        *lock(&self.watchdog) = Some(Background::spawn(async move { kept.run_watchdog().await }));
        self.presence.send_replace(ServerPresence::Ready(session));
    }

    /// Tears the server down in its own time; `None` if there is no process, and none that was lost.
    pub(super) async fn close(&self) -> Option<ServerStop> {
        let session = self.current_session()?;
        let running = !session.is_parked();
        let stopped = super::stop::close(&session).await;
        *lock(&self.watchdog) = None;
        (running || stopped.pid.is_some()).then_some(stopped)
    }

    /// Ends the server now, synchronously, with or without a runtime. Handles may outlive us: the session is
    /// ended, not only let go.
    pub(super) fn kill(&self) {
        if let Some(session) = self.current_session() {
            session.kill();
        }
        *lock(&self.watchdog) = None;
        for spare in self.pool().map_or_else(Vec::new, |pool| pool.close()) {
            spare.kill();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A start under way. If it is dropped, waiting callers get an error.
struct UnfinishedStart<'a> {
    handle: &'a ServerHandle,
    server: Option<Arc<ServerConfig>>,
}

impl Drop for UnfinishedStart<'_> {
    fn drop(&mut self) {
        let server = self.server.take();
        self.handle.presence.send_if_modified(|presence| {
            let given_up = matches!(presence, ServerPresence::Queued | ServerPresence::Starting { .. });
            if given_up {
                *presence = ServerPresence::Missing { why: Arc::new(Error::Cancelled), server };
            }
            given_up
        });
    }
}
