//! Counts connections as they are made, so that pooling is a number and not a hope.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use tower_layer::Layer;
use tower_service::Service;

/// Wraps a client's connector. Clones share the count.
#[derive(Debug, Clone, Default)]
pub(super) struct CountConnections(Arc<AtomicU64>);

impl CountConnections {
    pub(super) fn opened(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// One was made.
    pub(super) fn add(&self) {
        self.0.fetch_add(1, Relaxed);
    }
}

impl<S> Layer<S> for CountConnections {
    type Service = Counted<S>;

    fn layer(&self, connector: S) -> Counted<S> {
        Counted { connector: Arc::new(connector), opened: Arc::clone(&self.0) }
    }
}

/// The client makes half a dozen copies of its connector for each request, whether it connects or not: only the one
/// that connects is a copy of what is inside, boxes in boxes.
#[derive(Debug)]
pub(super) struct Counted<S> {
    connector: Arc<S>,
    opened: Arc<AtomicU64>,
}

impl<S> Clone for Counted<S> {
    fn clone(&self) -> Self {
        Self { connector: Arc::clone(&self.connector), opened: Arc::clone(&self.opened) }
    }
}

impl<S, To> Service<To> for Counted<S>
where
    S: Service<To> + Clone + Send + Sync + 'static,
    S::Future: Send,
    To: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    /// Each copy waits for itself before it connects.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, to: To) -> Self::Future {
        let mut connector = S::clone(&self.connector);
        let opened = Arc::clone(&self.opened);
        Box::pin(async move {
            poll_fn(|context| connector.poll_ready(context)).await?;
            let connection = connector.call(to).await?;
            opened.fetch_add(1, Relaxed);
            Ok(connection)
        })
    }
}
