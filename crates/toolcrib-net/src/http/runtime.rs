//! The threads that HTTP connections live on, apart from those of the program.
//!
//! hyper reads bytes that are no part of an answer (interim heads, leading zeros of a chunk's size) in a loop that ends
//! when the runtime asks for a pause. A server that sends them without end holds one of these threads for a moment, and
//! never the one that serves pipes, clocks and signals.

use std::{
    io,
    sync::{Arc, OnceLock},
};

use tokio::runtime::{Builder, Handle, Runtime};
use tokio_util::task::AbortOnDropHandle;

/// Threads that move bytes. Names are looked up on further ones.
const THREADS: usize = 2;

/// A runtime that is begun with the first request. Clones share it, and it ends with the last one.
#[derive(Debug, Clone, Default)]
pub(super) struct HttpRuntime(Arc<Threads>);

#[derive(Debug, Default)]
struct Threads(OnceLock<Runtime>);

impl HttpRuntime {
    /// Carries out `work` there, called from any thread. Dropping the future ends the work.
    ///
    /// # Errors
    /// The threads could not be begun: nothing of it was done. Or the work did not come to its end.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, RunError> {
        let work = self.handle().map_err(RunError::NotBegun)?.spawn(work);
        AbortOnDropHandle::new(work).await.map_err(|error| RunError::Ended(io::Error::other(error)))
    }

    fn handle(&self) -> io::Result<&Handle> {
        let runtime = match self.0.0.get() {
            Some(runtime) => runtime,
            None => {
                let made = Builder::new_multi_thread()
                    .worker_threads(THREADS)
                    .thread_name("toolcrib-http")
                    .enable_all()
                    .build()?;
                // Of two that are begun at once, one ends.
                if let Err(second) = self.0.0.set(made) {
                    second.shutdown_background();
                }
                self.0.0.get().ok_or(io::ErrorKind::NotFound)?
            }
        };
        Ok(runtime.handle())
    }
}

/// Reason why there is no outcome of some work.
#[derive(Debug)]
pub(super) enum RunError {
    NotBegun(io::Error),
    Ended(io::Error),
}

impl Drop for Threads {
    fn drop(&mut self) {
        // Waits for nothing: it may be dropped on one of its own threads, or in a task.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
