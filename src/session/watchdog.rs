//! Watches a server: its death is noticed when it happens, not at the next call. A server that does not answer a ping
//! counts as dead, if the configuration asks for pings.

use std::{sync::Arc, time::Instant};

use tokio_util::sync::CancellationToken;

use super::{
    Rest, Session, Verdict,
    handshake::Era,
    listing::ToolList,
    slot::State,
    transport::{Transport, question},
};

/// What there is to wait for.
enum Watch {
    /// A live connection: its end, or its silence.
    Live { generation: u64, gone: CancellationToken, transport: Transport, era: Era, tools: Arc<ToolList> },
    /// A server that is down: the time of its next try.
    Down { generation: u64, next_try: Instant },
    /// A server that nobody needs.
    Parked,
    /// The end of the session.
    Closed,
}

/// What is to be done.
enum Due {
    /// A generation is dead, or is to be taken for it.
    Restart(u64, Option<Verdict>),
    /// Nobody has needed a generation for long.
    Park(u64),
}

impl Session {
    /// Notices every death and brings the server back within its restart policy, until the session is closed.
    /// Callers that notice first do the same; there is one restart in any case.
    pub(crate) async fn keep(&self) {
        let staying = async {
            loop {
                // Both in boxes: a session that lives, as most do all the time, is not to hold room for a start.
                match self.due().await {
                    // A failure is told by its event, and the state holds when the next try is due.
                    Due::Restart(dead, verdict) => {
                        if let Err(error) = Box::pin(self.restart(dead, verdict)).await {
                            tracing::debug!(server = %self.name(), %error, "not brought back");
                        }
                    }
                    Due::Park(generation) => Box::pin(self.park(generation)).await,
                }
            }
        };
        self.closed.run_until_cancelled(staying).await;
    }

    /// Waits until a generation has to be replaced, or to go.
    async fn due(&self) -> Due {
        loop {
            match self.watch() {
                Watch::Live { generation, gone, transport, era, tools } => {
                    let verdict = tokio::select! {
                        () = gone.cancelled() => None,
                        verdict = self.silence(&transport, era) => Some(verdict),
                        () = tools.refused().cancelled() => Some(Verdict::of_lock()),
                        () = self.idleness() => return Due::Park(generation),
                    };
                    return Due::Restart(generation, verdict);
                }
                Watch::Down { generation, next_try } => tokio::select! {
                    () = tokio::time::sleep_until(next_try.into()) => return Due::Restart(generation, None),
                    // Somebody did not wait for that: look again.
                    () = self.settled.notified() => {}
                },
                Watch::Parked => self.settled.notified().await,
                Watch::Closed => std::future::pending().await,
            }
        }
    }

    fn watch(&self) -> Watch {
        match &*self.slot.state() {
            State::Ready { generation, connection } => Watch::Live {
                generation: *generation,
                gone: connection.gone.clone(),
                transport: connection.link.transport(),
                era: connection.era,
                tools: connection.tools.clone(),
            },
            State::Down { down, .. } if down.rest == Rest::Parked => Watch::Parked,
            State::Down { generation, down } => {
                Watch::Down { generation: *generation, next_try: down.next_try }
            }
            State::Closed => Watch::Closed,
        }
    }

    /// Returns once the server has left a question unanswered. Never if it is not to be asked.
    async fn silence(&self, transport: &Transport, era: Era) -> Verdict {
        let Some(every) = self.settings().config.keepalive else { return std::future::pending().await };
        let mut before = self.counters.calls();
        loop {
            tokio::time::sleep(every).await;
            let calls = self.counters.calls();
            // A server at work may be too busy to answer, and a call has its own limit.
            let quiet = calls == before && self.counters.in_flight() == 0;
            if quiet && !Box::pin(transport.answers(era, every)).await && self.counters.calls() == before {
                let (every, question) = (humantime::format_duration(every), question(era));
                let what = format!("did not answer `{question}` within {every} while it had nothing to do");
                return Verdict { what, asked: false };
            }
            before = calls;
        }
    }
}
