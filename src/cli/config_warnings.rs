//! Configuration warnings that end no command, each reported once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use tokio::sync::Notify;
use toolcrib::{Error, ServerEvent};

/// The warnings so far. A server that listed its tools is a reason to look for more: only then is it known which tools a
/// rule applies to.
#[derive(Default)]
pub(super) struct ConfigWarnings {
    known: Mutex<Vec<Arc<Error>>>,
    listed: Arc<Notify>,
}

impl From<Vec<Arc<Error>>> for ConfigWarnings {
    fn from(known: Vec<Arc<Error>>) -> Self {
        Self { known: Mutex::new(known), listed: Arc::default() }
    }
}

impl ConfigWarnings {
    /// All so far.
    pub(super) fn all(&self) -> Vec<Arc<Error>> {
        self.known().clone()
    }

    /// Calls `find`, adds the warnings that are new, and returns those.
    pub(super) fn learn<I>(&self, find: impl FnOnce() -> I) -> Vec<Arc<Error>>
    where
        I: IntoIterator<Item = Arc<Error>>,
    {
        // Lists that came before this look are no reason for another one.
        let _ = self.listed.notified().now_or_never();
        let found = find();
        let mut known = self.known();
        let before = known.len();
        for warning in found {
            // Their words name file, line and key.
            let words = warning.to_string();
            if known.iter().all(|other| other.to_string() != words) {
                known.push(warning);
            }
        }
        known[before..].to_vec()
    }

    /// Wraps `observe` to notice when a server lists its tools.
    pub(super) fn observing(
        &self,
        observe: impl Fn(ServerEvent) + Send + Sync + 'static,
    ) -> impl Fn(ServerEvent) + Send + Sync + 'static {
        let listed = self.listed.clone();
        move |event| {
            let lists = event.lists_tools();
            observe(event);
            if lists {
                listed.notify_one();
            }
        }
    }

    /// Waits for `work`, and calls `look` each time that a server lists its tools.
    pub(super) async fn beside<T>(&self, work: impl Future<Output = T>, look: impl Fn()) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done,
                () = self.listed.notified() => look(),
            }
        }
    }

    /// Makes the next [`Self::beside`] look again, as if a server had listed its tools.
    pub(super) fn look_again(&self) {
        self.listed.notify_one();
    }

    fn known(&self) -> MutexGuard<'_, Vec<Arc<Error>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
