//! Checks whether a silent server still accepts connections. A model server that was stopped may leave open requests
//! hanging for ever while it refuses new connections (vLLM 0.32 does so on SIGTERM, measured).

use std::time::Duration;

use tokio::{
    sync::Mutex,
    time::{Instant, sleep, timeout},
};

use crate::http::ModelServer;
use crate::llm::{LlmErrorClass as Class, errors::fault::Fault};

/// Looks at one endpoint, for all who wait for it.
pub(in crate::llm) struct LivenessCheck {
    server: ModelServer,
    every: Duration,
    last: Mutex<Option<(Instant, bool)>>,
}

impl LivenessCheck {
    pub(in crate::llm) fn new(server: ModelServer, every: Duration) -> Self {
        Self { server, every, last: Mutex::default() }
    }

    /// Ends when the server is gone: twice in a row it refused a connection.
    pub(in crate::llm) async fn until_unreachable(&self) -> Fault {
        let mut refusals = 0;
        loop {
            // The second look comes soon: a restart between the two is an answer as well.
            sleep(if refusals == 0 { self.every } else { self.again() }).await;
            refusals = if self.refuses().await { refusals + 1 } else { 0 };
            if refusals == 2 {
                let silence = humantime::format_duration(self.every);
                let told = format!("silent for {silence} or more, and new connections are refused");
                return Fault::new(Class::Down, told);
            }
        }
    }

    /// Whether a new connection is refused. One look serves all who want to know at the time.
    async fn refuses(&self) -> bool {
        let mut last = self.last.lock().await;
        if let Some((_, refused)) = last.filter(|(at, _)| at.elapsed() < self.again() / 2) {
            return refused;
        }
        // Too slow to answer is not gone.
        let reached = timeout(self.every, self.server.reach()).await;
        let refused = matches!(reached, Ok(Err(error)) if Fault::is_refused(&error));
        *last = Some((Instant::now(), refused));
        refused
    }

    fn again(&self) -> Duration {
        self.every.min(Duration::from_secs(1))
    }
}
