//! The settings of a session: its configuration, what it shares with other sessions, its limit of calls. They can be
//! exchanged while the session lives; its callers stay and meet the new server.

use std::sync::{Arc, PoisonError};

use crate::cancel::CancellationToken;

use super::{
    ConnectContext, RestartReason, Session, StartHints,
    recovery::{restart::Restarts, slot::State},
};
use crate::{
    config::{Secrets, ServerConfig},
    error::{Error, Result},
    limit::Limit,
};

/// Read as one, exchanged as one.
pub(super) struct Settings {
    pub(super) config: ServerConfig,
    pub(super) connect_context: ConnectContext,
    pub(super) calls: Limit,
    /// Cancels restarts with these settings once there are newer ones.
    pub(super) superseded: CancellationToken,
}

impl Settings {
    pub(super) fn new(
        config: ServerConfig,
        connect_context: ConnectContext,
        closed: &CancellationToken,
    ) -> Arc<Self> {
        let calls = Limit::new(format!("calls of {}", config.name), config.max_concurrent_calls);
        Arc::new(Self { config, connect_context, calls, superseded: closed.child_token() })
    }
}

impl Session {
    /// The settings of this moment.
    pub(super) fn settings(&self) -> Arc<Settings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Secrets of the whole configuration, which must not be shown.
    pub fn secrets(&self) -> Secrets {
        self.settings().connect_context.secrets.clone()
    }

    /// Whether all share the server, or each borrower has its own.
    pub fn scope(&self) -> crate::config::Scope {
        self.settings().config.scope
    }

    /// The most that a call may take.
    pub fn max_call_time(&self) -> std::time::Duration {
        self.settings().config.max_call_time
    }

    /// Whether the session has the configuration `config` already.
    pub(crate) fn has_config(&self, config: &ServerConfig) -> bool {
        self.settings().config == *config
    }

    /// Ends the server and starts it anew, by other settings if there are any. Callers wait meanwhile; calls that it
    /// may have read are lost, and told so. A restart that was under way is given up for this one, which does not count
    /// against the restart policy, as it was requested.
    ///
    /// # Errors
    /// Why it did not come back; it is tried again by the restart policy. [`Error::Cancelled`] when the session
    /// was closed, or renewed once more, meanwhile.
    pub async fn renew(
        &self,
        with: Option<(ServerConfig, ConnectContext)>,
        why: &str,
        hints: StartHints<'_>,
    ) -> Result<()> {
        if with.is_some() {
            self.expect_to_take(None);
        }
        let next = {
            let mut settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
            let (config, connect_context) =
                with.unwrap_or_else(|| (settings.config.clone(), settings.connect_context.clone()));
            let next = Settings::new(config, connect_context, &self.closed);
            std::mem::replace(&mut *settings, next.clone()).superseded.cancel();
            next
        };
        let restart_reason =
            RestartReason { what: format!("was restarted {why}"), asked: true, is_renewal: false };
        let work = Box::pin(async {
            let mut restarts = self.restart_lock.lock().await;
            // A new beginning: another configuration may be another program.
            *restarts = Restarts::default();
            let generation = match &*self.slot.state() {
                State::Ready { generation, .. } | State::Down { generation, .. } => *generation,
                State::Closed => return Err(Error::Cancelled),
            };
            self.restart_alone(generation, Some(restart_reason), &mut restarts, hints).await
        });
        next.superseded.run_until_cancelled(work).await.unwrap_or(Err(Error::Cancelled))
    }
}
