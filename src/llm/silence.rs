//! A silent server is looked at, not trusted: an engine that was stopped may leave the requests under way hanging
//! for ever, while it takes no new connection (vLLM 0.32 does so on SIGTERM, measured).

use std::time::Duration;

use reqwest::{Request, Url};
use tokio::{
    sync::Mutex,
    time::{Instant, sleep, timeout},
};

use super::{LlmErrorClass as Class, fault::Fault};
use crate::http::HttpClient;

/// Looks at one endpoint, for all who wait for it.
pub(super) struct Watch {
    /// Keeps no connection: each look is a new one.
    http: HttpClient,
    url: Url,
    every: Duration,
    last: Mutex<Option<(Instant, bool)>>,
}

impl Watch {
    /// `url` is one that the server answers cheaply, in whatever way.
    pub(super) fn new(http: &HttpClient, url: Url, every: Duration) -> Self {
        Self { http: http.clone(), url, every, last: Mutex::default() }
    }

    /// Ends when the server is gone: twice in a row it refused a connection.
    pub(super) async fn gone(&self) -> Fault {
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
        let request = Request::new(reqwest::Method::GET, self.url.clone());
        // Too slow to answer is not gone.
        let looked = timeout(self.every, self.http.client().execute(request)).await;
        let refused = match looked {
            Ok(Err(error)) => Fault::is_refused(&error),
            Ok(Ok(_)) | Err(_) => false,
        };
        *last = Some((Instant::now(), refused));
        refused
    }

    fn again(&self) -> Duration {
        self.every.min(Duration::from_secs(1))
    }
}
