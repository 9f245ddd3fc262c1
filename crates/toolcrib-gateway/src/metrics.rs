//! Metrics of this process for Prometheus, and the server of `/metrics` (docs/metrics.md).
//!
//! `families` holds what `cli_support::metrics` counts from the spans of docs/tracing.md; `sampled` looks up the rest for
//! each request.

mod families;
mod sampled;

use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock},
};

use hyper::{Request, Response, StatusCode, body::Incoming};
use tokio::task::{JoinSet, spawn_blocking};

pub use self::families::Metrics;
use self::sampled::sample;
use crate::{
    cancel::CancellationToken,
    error::{Error, Result},
    http::serve::{AnswerBody, HttpServer, answer, unless_get},
    manager::Toolboxes,
};

/// The metrics of this process.
pub fn metrics() -> &'static Arc<Metrics> {
    static METRICS: OnceLock<Arc<Metrics>> = OnceLock::new();
    METRICS.get_or_init(|| Arc::new(Metrics::new()))
}

/// Serves `/metrics` until it is dropped or ended.
pub struct MetricsServer {
    address: SocketAddr,
    end: CancellationToken,
    serving: JoinSet<()>,
}

impl MetricsServer {
    /// Listens on `address`, and shows the servers of `toolboxes`.
    ///
    /// # Errors
    /// [`Error::Io`]: the address cannot be had.
    pub async fn start(address: SocketAddr, toolboxes: Toolboxes) -> Result<Self> {
        let server = HttpServer::bind(address).await;
        let server =
            server.map_err(|error| Error::io(format!("cannot serve metrics on {address}"), error))?;
        let (address, end, mut serving) = (server.address(), CancellationToken::new(), JoinSet::new());
        let page = move |request| page(request, toolboxes.clone());
        serving.spawn(server.serve(end.clone(), page));
        Ok(Self { address, end, serving })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends it; answers under way have a second.
    pub async fn end(mut self) {
        self.end.cancel();
        while self.serving.join_next().await.is_some() {}
    }
}

/// The format of the page.
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

async fn page(request: Request<Incoming>, toolboxes: Toolboxes) -> Response<AnswerBody> {
    if let Some(refused) = unless_get(&request) {
        return refused;
    }
    if request.uri().path() != "/metrics" {
        return answer(StatusCode::NOT_FOUND, TEXT, "metrics are at /metrics\n");
    }
    metrics_page(toolboxes).await
}

/// The metrics of this process and of the servers of `toolboxes` as a page.
pub(crate) async fn metrics_page(toolboxes: Toolboxes) -> Response<AnswerBody> {
    match spawn_blocking(move || metrics().text(&sample(&toolboxes.all()))).await {
        Ok(text) => answer(StatusCode::OK, TEXT, text),
        Err(_) => answer(StatusCode::INTERNAL_SERVER_ERROR, TEXT, "the metrics could not be read\n"),
    }
}
