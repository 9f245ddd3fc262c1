//! Watches a server: its death is noticed when it happens, not at the next call. A server that does not answer a ping
//! counts as dead, if the configuration asks for pings.

use std::{sync::Arc, time::Instant};

use super::slot::State;
use crate::session::{
    DownReason, RestartReason, Session,
    connect::{handshake::Era, tool_list::ToolList},
    questions::question,
    rpc::client::RpcClient,
};

/// The condition that the watchdog waits for.
enum WatchdogWait {
    /// A live connection: its end, or its silence.
    Live { generation: u64, client: RpcClient, era: Era, tools: Arc<ToolList> },
    /// A server that is down: the time of its next try.
    Down { generation: u64, next_try: Instant },
    /// A parked server.
    Parked,
    /// The end of the session.
    Closed,
}

/// The action that is due.
enum WatchdogAction {
    /// A generation is dead, or is to be taken for it.
    Restart(u64, Option<RestartReason>),
    /// This generation was idle for long: park the server.
    Park(u64),
}

impl Session {
    /// Notices every death and restarts the server within its restart policy, until the session is closed. A caller may
    /// notice a death first and begin the restart; there is only one restart in any case.
    pub(crate) async fn run_watchdog(&self) {
        let staying = async {
            loop {
                // Both in boxes: a session that lives, as most do all the time, is not to hold room for a start.
                match self.due().await {
                    // A failure is reported by its event, and the state contains the time of the next attempt.
                    WatchdogAction::Restart(dead, restart_reason) => {
                        if let Err(error) = Box::pin(self.restart(dead, restart_reason)).await {
                            tracing::debug!(server = %self.name(), %error, "not brought back");
                        }
                    }
                    WatchdogAction::Park(generation) => Box::pin(self.park(generation)).await,
                }
            }
        };
        self.closed.run_until_cancelled(staying).await;
    }

    /// Waits until a generation has to be replaced, or to go.
    async fn due(&self) -> WatchdogAction {
        loop {
            match self.watch() {
                WatchdogWait::Live { generation, client, era, tools } => {
                    let gone = client.gone();
                    let restart_reason = tokio::select! {
                        () = gone.cancelled() => None,
                        restart_reason = self.silence(&client, era) => Some(restart_reason),
                        () = tools.refused().cancelled() => Some(RestartReason::of_lock()),
                        () = self.wait_idle_time() => return WatchdogAction::Park(generation),
                    };
                    return WatchdogAction::Restart(generation, restart_reason);
                }
                WatchdogWait::Down { generation, next_try } => tokio::select! {
                    () = tokio::time::sleep_until(next_try.into()) => return WatchdogAction::Restart(generation, None),
                    // Somebody did not wait for that: look again.
                    () = self.settled.notified() => {}
                },
                WatchdogWait::Parked => self.settled.notified().await,
                WatchdogWait::Closed => std::future::pending().await,
            }
        }
    }

    fn watch(&self) -> WatchdogWait {
        match &*self.slot.state() {
            State::Ready { generation, connection } => WatchdogWait::Live {
                generation: *generation,
                client: connection.link.client().clone(),
                era: connection.era,
                tools: connection.tools.clone(),
            },
            State::Down { down, .. } if down.rest == DownReason::Parked => WatchdogWait::Parked,
            State::Down { generation, down } => {
                WatchdogWait::Down { generation: *generation, next_try: down.next_try }
            }
            State::Closed => WatchdogWait::Closed,
        }
    }

    /// Returns once the server has left a question unanswered. Never if it is not to be asked.
    async fn silence(&self, client: &RpcClient, era: Era) -> RestartReason {
        let Some(every) = self.settings().config.keepalive else { return std::future::pending().await };
        let mut before = self.counters.calls();
        loop {
            tokio::time::sleep(every).await;
            let calls = self.counters.calls();
            // A server at work may be too busy to answer, and a call has its own limit.
            let quiet = calls == before && self.counters.in_flight() == 0;
            if quiet && !Box::pin(client.answers(era, every)).await && self.counters.calls() == before {
                let (every, question) = (humantime::format_duration(every), question(era));
                let what = format!("did not answer `{question}` within {every} while it had nothing to do");
                return RestartReason { what, asked: false, is_renewal: false };
            }
            before = calls;
        }
    }
}
