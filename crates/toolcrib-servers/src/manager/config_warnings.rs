//! Warnings about a configuration that end nothing, each reported once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use tokio::sync::Notify;

use super::Manager;
use crate::{config::Config, error::Error, start::ServerEvent};

/// The warnings about a configuration so far.
///
/// Which tools a rule applies to is known once servers have listed theirs. So each list is a reason to check again:
/// [`ConfigWarnings::observing`] notices it, [`ConfigWarnings::beside`] waits for it.
#[derive(Default)]
pub struct ConfigWarnings {
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
    pub fn all(&self) -> Vec<Arc<Error>> {
        self.known().clone()
    }

    /// Adds the rules of `config` that apply to no tool of `manager`, and returns those that are new.
    pub fn check(&self, config: &Config, manager: &Manager) -> Vec<Arc<Error>> {
        // Lists that came before this check are no reason for another one.
        let _ = self.listed.notified().now_or_never();
        let found = manager.toolbox().unused_rules(config);
        let mut known = self.known();
        let before = known.len();
        for warning in found.into_iter().map(Error::from) {
            // Their words name file, line and key.
            let words = warning.to_string();
            if known.iter().all(|other| other.to_string() != words) {
                known.push(Arc::new(warning));
            }
        }
        known[before..].to_vec()
    }

    /// Wraps `observe` to notice when a server lists its tools.
    pub fn observing(
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

    /// Waits for `work`, and calls `check` each time that a server lists its tools.
    pub async fn beside<T>(&self, work: impl Future<Output = T>, check: impl Fn()) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done,
                () = self.listed.notified() => check(),
            }
        }
    }

    /// Makes [`ConfigWarnings::beside`] check again, as if a server had listed its tools: for another configuration.
    pub fn check_again(&self) {
        self.listed.notify_one();
    }

    fn known(&self) -> MutexGuard<'_, Vec<Arc<Error>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
