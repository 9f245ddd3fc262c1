//! Reports the messages to and from servers to listeners. Without a listener it costs one read of a counter.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use super::event::{SessionEvent, SessionObserver};
use crate::{config::Secrets, tool::ServerName};

/// The most bytes of a message that are reported.
const TOLD: usize = 4096;

/// How many listen to the servers of one manager.
#[derive(Clone, Default)]
pub struct Listeners(Arc<AtomicUsize>);

impl Listeners {
    /// One more, until the listener is dropped.
    pub fn listen(&self) -> WireListener {
        self.0.fetch_add(1, Relaxed);
        WireListener(self.0.clone())
    }
}

/// Reports the messages to and from servers to the observer until it is dropped.
#[must_use = "nothing is told any more once it is dropped"]
pub struct WireListener(Arc<AtomicUsize>);

impl Drop for WireListener {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Log of the messages on the connections of one server.
#[derive(Clone)]
pub(super) struct WireLog {
    pub(super) listeners: Listeners,
    pub(super) server: ServerName,
    pub(super) secrets: Secrets,
    pub(super) tell: SessionObserver,
}

impl WireLog {
    /// Whether anybody listens.
    pub(super) fn is_on(&self) -> bool {
        self.listeners.0.load(Relaxed) > 0
    }

    /// A message has gone to the server.
    pub(super) fn sent(&self, message: &[u8]) {
        self.tell(true, message);
    }

    /// A message has come from the server.
    pub(super) fn received(&self, message: &[u8]) {
        self.tell(false, message);
    }

    fn tell(&self, sent: bool, message: &[u8]) {
        if !self.is_on() {
            return;
        }
        let kept = String::from_utf8_lossy(&message[..message.len().min(TOLD)]);
        let text = match message.len() {
            ..=TOLD => self.secrets.hide(kept.trim_end()),
            bytes => format!("{} ... ({bytes} bytes)", self.secrets.hide_cut(&kept)),
        };
        (self.tell)(&self.server, SessionEvent::Message { sent, text });
    }
}
