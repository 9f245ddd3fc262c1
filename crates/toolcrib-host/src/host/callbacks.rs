//! Requests of the host to the client: functions, scorers.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use serde::Serialize;
use serde_json::{json, value::RawValue};
use tokio::sync::oneshot;

use super::{
    message::{self, ClientError},
    outbox::Outbox,
};

type Outcome = Result<Box<RawValue>, ClientError>;

/// Requests to the client, and those that wait for their answers. Clones share them.
#[derive(Clone)]
pub(super) struct Callbacks(Arc<CallbacksState>);

struct CallbacksState {
    outbox: Arc<Outbox>,
    last: AtomicU64,
    waiting: Mutex<HashMap<String, oneshot::Sender<Outcome>>>,
}

impl Callbacks {
    pub(super) fn new(outbox: Arc<Outbox>) -> Self {
        Self(Arc::new(CallbacksState { outbox, last: AtomicU64::new(0), waiting: Mutex::default() }))
    }

    /// Asks the client. If the future is dropped, the client is told to cancel.
    ///
    /// # Errors
    /// The client's own error, or that it is gone.
    pub(super) async fn ask(&self, method: &str, params: &impl Serialize) -> Outcome {
        let id = format!("h{}", self.0.last.fetch_add(1, Relaxed) + 1);
        let (answered, answer) = oneshot::channel();
        self.0.waiting().insert(id.clone(), answered);
        let waiting = Waiting { callbacks: self, id };
        self.0.outbox.send(message::request(&waiting.id, method, params));
        let gone = || Err(ClientError { message: "the program is gone".to_owned() });
        answer.await.unwrap_or_else(|_| gone())
    }

    /// Takes an answer of the client. One that nobody waits for is ignored.
    pub(super) fn answered(&self, id: &str, outcome: Outcome) {
        let waiting = self.0.waiting().remove(id);
        if let Some(waiting) = waiting {
            let _ = waiting.send(outcome);
        }
    }
}

impl CallbacksState {
    fn waiting(&self) -> MutexGuard<'_, HashMap<String, oneshot::Sender<Outcome>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that waits for its answer.
struct Waiting<'a> {
    callbacks: &'a Callbacks,
    id: String,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.callbacks.0.waiting().remove(&self.id).is_some() {
            let id = &self.id;
            self.callbacks.0.outbox.send(message::notification("cancel", &json!({"id": id})));
        }
    }
}
