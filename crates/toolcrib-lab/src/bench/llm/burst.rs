//! Measures a thousand parallel requests with answers of 50 ms, twice: over new and over kept connections. By a model
//! client, and for comparison by the HTTP client beneath it alone, and over bare sockets, which no client can be faster
//! than.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
};

use toolcrib::cli_support::bench::own_cpu;
use toolcrib_fakes::models::{Reply, Server};

use super::{
    Row,
    scenes::{all, client, failed},
};
use crate::ui::millis;

const REQUESTS: u16 = 1000;

/// Times and counts of one round of [`REQUESTS`] requests.
struct Round {
    wall: Duration,
    /// CPU time of the client for each request.
    cpu: Duration,
    /// Connections that were opened.
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

    /// Whether this took at most 1.3 times as long as `other`.
    fn keeps_up_with(&self, other: &Self) -> bool {
        self.wall.as_secs_f64() <= 1.3 * other.wall.as_secs_f64()
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
    let plain = reqwest_client()?;
    let ask = async || by_reqwest(&plain, theirs.url()).await;
    let (plain_first, plain_again) = (Round::of(&theirs, ask).await, Round::of(&theirs, ask).await);
    let theirs = server()?;
    let mut sockets = Vec::new();
    let mut ask = async || bare(theirs.url(), &mut sockets).await;
    let bare_first = Round::of(&theirs, &mut ask).await;
    let bare_again = Round::of(&theirs, &mut ask).await;
    let rounds = [&first, &again];
    Ok(Row {
        name: "1000 x 50 ms, twice".into(),
        target: "at most 1.3 x the HTTP client alone; 1000 connections in both",
        ok: first.opened + again.opened <= usize::from(REQUESTS)
            && rounds.iter().all(|round| round.failed == 0)
            && first.keeps_up_with(&plain_first)
            && again.keeps_up_with(&plain_again),
        measured: json!({"first": first.json(), "second": again.json(), "sockets_first": bare_first.json(),
            "sockets_second": bare_again.json(), "reqwest_first": plain_first.json(),
            "reqwest_second": plain_again.json()}),
        text: format!(
            "{}; {}; {} and {} opened; reqwest {}; {}; bare sockets {}; {}",
            first.text(),
            again.text(),
            first.opened,
            again.opened,
            plain_first.text(),
            plain_again.text(),
            bare_first.text(),
            bare_again.text()
        ),
    })
}

#[expect(clippy::disallowed_methods, reason = "what ours is compared with")]
fn reqwest_client() -> anyhow::Result<reqwest::Client> {
    // Its requests are not encrypted, but it needs to know who would do it.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    Ok(reqwest::Client::builder().no_proxy().tls_backend_preconfigured(tls).build()?)
}

/// Sends the same requests by the HTTP client alone. Returns how many failed, and the time until the last of them had ended.
async fn by_reqwest(client: &reqwest::Client, url: &str) -> (usize, Duration) {
    let began = Instant::now();
    let mut asking = JoinSet::new();
    for number in 0..REQUESTS {
        let request =
            client.post(format!("{url}/chat/completions")).header("content-type", "application/json");
        let request = request.body(body(number));
        asking.spawn(async move { request.send().await?.error_for_status()?.bytes().await });
    }
    let failed = asking.join_all().await.into_iter().filter(Result::is_err).count();
    (failed, began.elapsed())
}

fn body(number: u16) -> String {
    let message = json!({"role": "user", "content": format!("agent {number}")});
    json!({"model": "loopback", "messages": [message]}).to_string()
}

/// The same requests with nothing around them, over `sockets` that are connected already, or new ones: how many
/// failed, and how long until the last of them had ended.
async fn bare(url: &str, sockets: &mut Vec<TcpStream>) -> (usize, Duration) {
    let began = Instant::now();
    let mut asking = JoinSet::new();
    let (at, path) = url.trim_start_matches("http://").split_once('/').unwrap_or((url, ""));
    for number in 0..REQUESTS {
        let body = body(number);
        let request = format!(
            "POST /{path}/chat/completions HTTP/1.1\r\nhost: {at}\r\ncontent-type: application/json\r\ncontent-length: \
             {}\r\n\r\n{body}",
            body.len()
        );
        let (known, at) = (sockets.pop(), at.to_owned());
        asking.spawn(async move {
            let mut socket = match known {
                Some(socket) => socket,
                None => {
                    let socket = TcpStream::connect(at).await?;
                    socket.set_nodelay(true)?;
                    socket
                }
            };
            socket.write_all(request.as_bytes()).await?;
            // The server writes its answer at once, and it is short.
            match socket.read(&mut [0; 1024]).await? {
                0 => Err(io::ErrorKind::UnexpectedEof.into()),
                _ => io::Result::Ok(socket),
            }
        });
    }
    let (answered, failed): (Vec<_>, Vec<_>) = asking.join_all().await.into_iter().partition(Result::is_ok);
    let wall = began.elapsed();
    sockets.extend(answered.into_iter().flatten());
    (failed.len(), wall)
}
