//! Parked servers do not run until the first call starts them, in the same way that restarts
//! one that died.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    restart::Restarts,
    slot::{Claim, Slot, State},
};
use crate::session::{
    ClientSide, ConnectContext, DownServer, Session, SessionEvent,
    connect::{
        accept_tools::{admitted, clash},
        handshake::{self, Era},
        tool_list::{Listed, ToolList},
    },
};
use crate::{
    catalog::Remembered,
    config::{Lifecycle, ServerConfig, TaskValues},
    error::{Error, Result, Silence},
    tool::Tool,
};

/// How often a server is looked at within the time after which it counts as idle: it is stopped that much late.
const IDLE_LOOKS: u32 = 10;

/// Why a server that is down is so.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::session) enum DownReason {
    /// It was lost: the task in [`Session::run_watchdog`] restarts it.
    Lost,
    /// It is not needed: it stays parked until the first call.
    Parked,
    /// It was parked, and a call needs it.
    Wanted,
}

impl Session {
    /// A session with a server that is not started yet: what it lists is remembered from an earlier time.
    pub fn parked(config: ServerConfig, connect_context: ConnectContext, known: Remembered) -> Self {
        let restarts = Restarts::of(handshake::era_named(&known.version));
        let tools = Arc::new(ToolList::new(known.tools, known.listed));
        let down = DownServer { tools, cause: None, next_try: Instant::now(), rest: DownReason::Parked };
        Self::new(config, connect_context, Slot::empty(down), restarts)
    }

    /// A session with another instance of the same server, parked, for the task with `values` if there are some. `None` once
    /// this one is closed.
    pub(crate) fn sibling(
        &self,
        values: Option<&Arc<TaskValues>>,
        client: Option<&ClientSide>,
    ) -> Option<Self> {
        let (_, list) = self.list()?;
        let era = match &*self.slot.state() {
            State::Ready { connection, .. } => Some(connection.era),
            State::Down { .. } | State::Closed => None,
        };
        let Listed { tools, when, .. } = list.now();
        let tools = Arc::new(ToolList::new(tools, when));
        let down = DownServer { tools, cause: None, next_try: Instant::now(), rest: DownReason::Parked };
        let settings = self.settings();
        let (config, mut connect_context) = (settings.config.clone(), settings.connect_context.clone());
        connect_context.task = values.cloned().or(connect_context.task);
        let mut restarts = era.map_or_else(Restarts::default, Restarts::of);
        if let Some(client) = client {
            connect_context.client = client.clone();
            // One that speaks both eras is talked to in that of its client.
            if client.identity.era == Some(Era::Legacy) {
                restarts = Restarts::default();
            }
        }
        let sibling = Self::new(config, connect_context, Slot::empty(down), restarts);
        sibling.expect_to_take(self.takes());
        Some(sibling)
    }

    /// `tools` as they are to be shown. `None`: the lockfile does not let them be offered, or two would have one name.
    pub(crate) fn admitted(
        config: &ServerConfig,
        connect_context: &ConnectContext,
        tools: Arc<[Tool]>,
    ) -> Option<Arc<[Tool]>> {
        if clash(&config.tools, &config.renames, &tools).is_some() {
            return None;
        }
        match &connect_context.lock {
            None => Some(tools),
            Some(lock) => admitted(lock, &config.name, &config.tools, &tools).ok(),
        }
    }

    /// Whether it is parked.
    pub(crate) fn is_parked(&self) -> bool {
        matches!(&*self.slot.state(), State::Down { down, .. } if down.rest != DownReason::Lost)
    }

    /// Whether it is there without a call that needs it, but for the time of a start.
    pub fn is_eager(&self) -> bool {
        self.settings().config.lifecycle == Lifecycle::Eager
    }

    /// Whether it is parked and to be started without waiting for a call.
    pub(crate) fn is_for_background(&self) -> bool {
        self.is_parked() && self.settings().config.lifecycle == Lifecycle::Background
    }

    /// Starts the server if it is parked.
    ///
    /// # Errors
    /// As [`Session::wake`].
    pub async fn start_parked(&self) -> Result<()> {
        self.borrow().await.map(drop)
    }

    /// Starts the server if it is parked, for a call. Many callers, one start, which goes on when its callers give up.
    /// `limit` bounds the wait; what is left of it is returned.
    ///
    /// # Errors
    /// [`Error::Unavailable`]: it did not start. [`Error::CallTimeout`] for `tool`: not within the limit.
    pub(crate) async fn wake(&self, tool: &str, limit: Option<Duration>) -> Result<Option<Duration>> {
        let began = Instant::now();
        let awake = Box::pin(self.start_parked());
        match limit {
            None => awake.await?,
            Some(limit) => match tokio::time::timeout(limit, awake).await {
                Ok(outcome) => outcome?,
                Err(_) => return Err(self.still_starting(tool, limit)),
            },
        }
        Ok(limit.map(|limit| limit.saturating_sub(began.elapsed())))
    }

    fn still_starting(&self, tool: &str, after: Duration) -> Error {
        let silence = Silence {
            causes: vec![
                "its server was not running and is still being started; nothing was sent".to_owned(),
            ],
            stderr_tail: Vec::new(),
            help: "allow more time, or start the server beforehand: `lifecycle = \"background\"`".to_owned(),
        };
        let (server, tool) = (self.name().clone(), tool.to_owned());
        Error::CallTimeout { server, tool, after, silence: Box::new(silence) }
    }

    /// A parked server is wanted from now on. One that did not start of late stays as it is until its next try.
    pub(in crate::session) fn want(&self) {
        let mut wanted = false;
        self.slot.update_down(|down| {
            if down.rest == DownReason::Parked && down.next_try <= Instant::now() {
                down.rest = DownReason::Wanted;
                wanted = true;
            }
        });
        if wanted {
            // The caller may be cancelled: the watchdog continues the start.
            self.settled.notify_one();
        }
    }

    /// Returns once no call was under way for so long as the configuration lets it. Never if it is to stay.
    pub(super) async fn wait_idle_time(&self) {
        let Lifecycle::Idle(limit) = self.settings().config.lifecycle else {
            return std::future::pending().await;
        };
        let (mut before, mut since) = (self.counters.calls(), Instant::now());
        while since.elapsed() < limit {
            tokio::time::sleep(limit / IDLE_LOOKS).await;
            let calls = self.counters.calls();
            if calls != before || self.counters.in_flight() > 0 {
                (before, since) = (calls, Instant::now());
            }
        }
    }

    /// Stops the server of `generation`, unless it was replaced or called meanwhile. Who calls it from here on waits
    /// until it is gone and starts it anew.
    pub(super) async fn park(&self, generation: u64) {
        let _alone = self.restart_lock.lock().await;
        let claim = self.slot.claim(generation, |state| match state {
            // A call counts itself before it looks here.
            State::Ready { connection, .. } if self.counters.in_flight() == 0 => {
                let tools = connection.tools.clone();
                Some(DownServer { tools, cause: None, next_try: Instant::now(), rest: DownReason::Parked })
            }
            _ => None,
        });
        if let Claim::Mine { died: Some(connection), .. } = claim {
            self.part(*connection).await;
            self.tell_parked();
        }
    }

    /// Tells that it is parked, and what it offers nevertheless.
    pub(crate) fn tell_parked(&self) {
        let Some((_, list)) = self.list() else { return };
        let list = list.now();
        self.tell(SessionEvent::Parked { tools: list.tools.len(), listed: list.when });
    }
}
