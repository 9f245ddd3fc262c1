//! A thousand answers of 50 ms at once, twice: over new connections and over those of the first time. By a model
//! client, and for comparison by the HTTP client below it.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinSet;
use toolcrib::{HttpClient, HttpClients, HttpConfig};

use super::{
    Row,
    scenes::{all, client, failed},
    server::{Reply, Server},
};
use crate::cli::{bench::times::own_cpu, ui::millis};

const REQUESTS: u16 = 1000;

/// What so many requests took.
struct Round {
    wall: Duration,
    /// Of the client, for each.
    cpu: Duration,
    /// Connections.
    opened: usize,
    failed: usize,
}

impl Round {
    async fn of(server: &Server, ask: impl AsyncFnOnce() -> (usize, Duration)) -> Self {
        let connections = server.seen().connections;
        let (own, others) = (own_cpu(), server.cpu().await);
        let (failed, wall) = ask().await;
        let others = server.cpu().await.saturating_sub(others);
        let cpu = own_cpu().saturating_sub(own).saturating_sub(others) / u32::from(REQUESTS);
        Self { wall, cpu, opened: server.seen().connections - connections, failed }
    }

    fn in_time(&self) -> bool {
        self.wall <= Duration::from_millis(150) && self.cpu <= Duration::from_micros(100)
    }

    fn json(&self) -> Value {
        json!({"wall_ms": millis(self.wall), "client_cpu_us_each": self.cpu.as_micros(), "opened": self.opened,
            "failed": self.failed})
    }

    fn text(&self) -> String {
        format!("{} us, {} ms", self.cpu.as_micros(), self.wall.as_millis())
    }
}

pub(super) async fn row() -> anyhow::Result<Row> {
    let server = || Server::start(|_| Reply::good(Duration::from_millis(50)));
    // First, in memory that is as new to it as to any program; the other one finds it warm.
    let ours = server()?;
    let llm = client(&ours, |_| ())?;
    let ask = async || {
        let (outcomes, wall) = all(&llm, REQUESTS.into()).await;
        (failed(&outcomes), wall)
    };
    let (first, again) = (Round::of(&ours, ask).await, Round::of(&ours, ask).await);
    let theirs = server()?;
    let clients = HttpClients::new(&HttpConfig::default())?;
    let http = clients.models_for(theirs.url());
    let ask = async || bare(http, theirs.url()).await;
    let (bare_first, bare_again) = (Round::of(&theirs, ask).await, Round::of(&theirs, ask).await);
    let rounds = [&first, &again];
    Ok(Row {
        name: "1000 x 50 ms, twice",
        target: "150 ms, 100 us of CPU each; again: none opened",
        ok: again.opened == 0 && rounds.iter().all(|round| round.failed == 0 && round.in_time()),
        measured: json!({"first": first.json(), "second": again.json(), "bare_first": bare_first.json(),
            "bare_second": bare_again.json()}),
        text: format!(
            "{}; {}; {} and {} opened; bare {}; {}",
            first.text(),
            again.text(),
            first.opened,
            again.opened,
            bare_first.text(),
            bare_again.text()
        ),
    })
}

/// The same requests with nothing around them: how many failed, and how long until the last of them had ended.
async fn bare(http: &HttpClient, url: &str) -> (usize, Duration) {
    let began = Instant::now();
    let mut asking = JoinSet::new();
    let url = format!("{url}/chat/completions");
    for number in 0..REQUESTS {
        let message = json!({"role": "user", "content": format!("agent {number}")});
        let request = http.client().post(&url).json(&json!({"model": "loopback", "messages": [message]}));
        asking.spawn(async move { request.send().await?.error_for_status()?.bytes().await });
    }
    let outcomes = asking.join_all().await;
    (outcomes.iter().filter(|outcome| outcome.is_err()).count(), began.elapsed())
}
