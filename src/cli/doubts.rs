//! What is wrong with the configuration and ends no command: each told once, as soon as it shows.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use tokio::sync::Notify;
use toolcrib::{Error, ServerEvent};

/// Doubts so far, and word of servers that listed their tools: what a rule concerns is known then.
#[derive(Default)]
pub(super) struct Doubts {
    known: Mutex<Vec<Arc<Error>>>,
    listed: Arc<Notify>,
}

impl From<Vec<Arc<Error>>> for Doubts {
    fn from(known: Vec<Arc<Error>>) -> Self {
        Self { known: Mutex::new(known), listed: Arc::default() }
    }
}

impl Doubts {
    /// All so far.
    pub(super) fn all(&self) -> Vec<Arc<Error>> {
        self.known().clone()
    }

    /// Looks by `find`, takes up what is new, and gives that back.
    pub(super) fn learn<I>(&self, find: impl FnOnce() -> I) -> Vec<Arc<Error>>
    where
        I: IntoIterator<Item = Arc<Error>>,
    {
        // Lists that came before this look are no reason for another one.
        let _ = self.listed.notified().now_or_never();
        let found = find();
        let mut known = self.known();
        let before = known.len();
        for doubt in found {
            // Their words name file, line and key.
            let words = doubt.to_string();
            if known.iter().all(|other| other.to_string() != words) {
                known.push(doubt);
            }
        }
        known[before..].to_vec()
    }

    /// The same observer, with an ear for lists.
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

    /// Waits for `work`. Whenever a server listed its tools meanwhile, `look` is called.
    pub(super) async fn beside<T>(&self, work: impl Future<Output = T>, look: impl Fn()) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done,
                () = self.listed.notified() => look(),
            }
        }
    }

    /// Has the rules looked at anew, as when a server listed its tools.
    pub(super) fn look_again(&self) {
        self.listed.notify_one();
    }

    fn known(&self) -> MutexGuard<'_, Vec<Arc<Error>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
