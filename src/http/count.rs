//! Counts connections as they are made, so that pooling is a number and not a hope.

use std::{
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
}

impl<S> Layer<S> for CountConnections {
    type Service = Counted<S>;

    fn layer(&self, connector: S) -> Counted<S> {
        Counted { connector, opened: Arc::clone(&self.0) }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Counted<S> {
    connector: S,
    opened: Arc<AtomicU64>,
}

impl<S, To> Service<To> for Counted<S>
where
    S: Service<To>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.connector.poll_ready(context)
    }

    fn call(&mut self, to: To) -> Self::Future {
        let connecting = self.connector.call(to);
        let opened = Arc::clone(&self.opened);
        Box::pin(async move {
            let connection = connecting.await?;
            opened.fetch_add(1, Relaxed);
            Ok(connection)
        })
    }
}
