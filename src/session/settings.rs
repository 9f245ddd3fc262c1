//! What a session goes by: its configuration, what it shares with others, its limit of calls. All of it can be
//! exchanged while the session lives; its callers stay and meet the new server.

use std::sync::{Arc, PoisonError};

use tokio_util::sync::CancellationToken;

use super::{Session, Surroundings, Verdict, restart::Restarts, slot::State};
use crate::{
    config::{Secrets, ServerConfig},
    error::{Error, Result},
    limit::Limit,
};

/// Read as one, exchanged as one.
pub(super) struct Settings {
    pub(super) config: ServerConfig,
    pub(super) around: Surroundings,
    pub(super) calls: Limit,
    /// Ends the restarts that go by these settings once there are newer ones.
    pub(super) superseded: CancellationToken,
}

impl Settings {
    pub(super) fn new(config: ServerConfig, around: Surroundings, closed: &CancellationToken) -> Arc<Self> {
        let calls = Limit::new(format!("calls of {}", config.name), config.max_concurrent_calls);
        Arc::new(Self { config, around, calls, superseded: closed.child_token() })
    }
}

impl Session {
    /// The settings of this moment.
    pub(super) fn settings(&self) -> Arc<Settings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What is not to be shown: the secrets of the whole configuration.
    pub(crate) fn secrets(&self) -> Secrets {
        self.settings().around.secrets.clone()
    }

    /// Whether the session goes by `config` already.
    pub(crate) fn goes_by(&self, config: &ServerConfig) -> bool {
        self.settings().config == *config
    }

    /// Ends the server and starts it anew, by other settings if there are any. Callers wait meanwhile; calls
    /// that it may have read are lost, and told so. A restart that was under way is given up for this one, which
    /// does not count against the restart policy: somebody asked for it.
    ///
    /// # Errors
    /// Why it did not come back; it is tried again by the restart policy. [`Error::Cancelled`] when the session
    /// was closed, or renewed once more, meanwhile.
    pub(crate) async fn renew(&self, with: Option<(ServerConfig, Surroundings)>, why: &str) -> Result<()> {
        let next = {
            let mut settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
            let (config, around) = with.unwrap_or_else(|| (settings.config.clone(), settings.around.clone()));
            let next = Settings::new(config, around, &self.closed);
            std::mem::replace(&mut *settings, next.clone()).superseded.cancel();
            next
        };
        let verdict = Verdict { what: format!("was restarted {why}"), asked: true };
        let work = Box::pin(async {
            let mut restarts = self.reconnect.lock().await;
            // A new beginning: another configuration may be another program.
            *restarts = Restarts::default();
            let generation = match &*self.slot.state() {
                State::Ready { generation, .. } | State::Down { generation, .. } => *generation,
                State::Closed => return Err(Error::Cancelled),
            };
            self.restart_alone(generation, Some(verdict), &mut restarts).await
        });
        next.superseded.run_until_cancelled(work).await.unwrap_or(Err(Error::Cancelled))
    }
}
