//! The way to a client: a queue of messages, bounded in bytes. Who fills it never waits.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

use super::{Budget, Held, message::not_kept};

/// Bytes of messages that wait for a client to read, besides answers to its own requests. What comes on top is dropped.
const MAX_WAITING: usize = 1 << 20;
/// Bytes of answers that wait. A client that asks so much without reading has its connection ended.
const MAX_ANSWERS: usize = 64 << 20;
/// Bytes that are counted for a message in the queue besides its text.
const OF_MESSAGE: usize = 64;

/// Sends messages to a client, or to one stream of it. Clones share the queue.
#[derive(Clone)]
pub(crate) struct Outlet(Arc<OutletState>);

/// Takes the messages out. Dropped, it closes the queue.
pub(crate) struct OutletReader(Arc<OutletState>);

struct OutletState {
    // Held for a look or a change, never across an await.
    queue: Mutex<MessageQueue>,
    changed: Notify,
    read: Notify,
}

struct MessageQueue {
    messages: VecDeque<String>,
    bytes: usize,
    /// The same, and what the queue takes for each, as part of a budget.
    held: Held,
    dropped: u64,
    closed: bool,
}

impl Outlet {
    /// An empty queue, and its other end. What waits in it counts in `budget`.
    pub(crate) fn new(budget: &Arc<Budget>) -> (Self, OutletReader) {
        let queue = MessageQueue {
            messages: VecDeque::new(),
            bytes: 0,
            held: budget.nothing_waiting(),
            dropped: 0,
            closed: false,
        };
        let state =
            Arc::new(OutletState { queue: Mutex::new(queue), changed: Notify::new(), read: Notify::new() });
        (Self(state.clone()), OutletReader(state))
    }

    /// Sends a notification or a request. `false`: the client reads too slowly, or is gone.
    pub(crate) fn send(&self, message: String) -> bool {
        self.push(message, MAX_WAITING)
    }

    /// Sends the answer to a request of the client's. `false`: it is gone, or its connection is ended for this.
    pub(crate) fn send_answer(&self, message: String) -> bool {
        let refused = match self.try_push(message, MAX_ANSWERS) {
            Ok(()) => return true,
            Err(message) => not_kept(&message),
        };
        let sent = !self.is_closed() && self.push(refused, MAX_ANSWERS);
        if !sent {
            self.close();
        }
        sent
    }

    fn push(&self, message: String, limit: usize) -> bool {
        self.try_push(message, limit).is_ok()
    }

    fn try_push(&self, message: String, limit: usize) -> Result<(), String> {
        let mut queue = self.0.queue();
        if queue.closed {
            return Err(message);
        }
        let is_first = queue.messages.is_empty();
        let is_over = !is_first && queue.bytes + message.len() > limit;
        if is_over || queue.held.grow_waiting(message.len() + OF_MESSAGE, is_first).is_err() {
            queue.dropped += 1;
            return Err(message);
        }
        queue.bytes += message.len();
        queue.messages.push_back(message);
        drop(queue);
        self.0.changed.notify_one();
        Ok(())
    }

    /// Closes the queue: nothing is sent any more, and what waits can still be read.
    pub(crate) fn close(&self) {
        self.0.queue().closed = true;
        self.0.changed.notify_one();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.0.queue().closed
    }

    /// Whether more than `bytes` wait.
    pub(crate) fn is_over(&self, bytes: usize) -> bool {
        self.0.queue().bytes > bytes
    }

    /// Waits until no more than `bytes` wait.
    pub(crate) async fn emptied(&self, bytes: usize) {
        loop {
            let read = self.0.read.notified();
            if !self.is_over(bytes) || self.is_closed() {
                return;
            }
            read.await;
        }
    }
}

impl OutletReader {
    /// The next message. `None`: the queue is closed and empty. Safe to cancel.
    pub(crate) async fn next(&mut self) -> Option<String> {
        loop {
            {
                let mut queue = self.0.queue();
                if let Some(message) = queue.take() {
                    drop(queue);
                    self.0.read.notify_waiters();
                    return Some(message);
                }
                if queue.closed {
                    return None;
                }
            }
            self.0.changed.notified().await;
        }
    }

    /// The next message, if there is one now.
    pub(crate) fn try_next(&mut self) -> Option<String> {
        let message = self.0.queue().take()?;
        self.0.read.notify_waiters();
        Some(message)
    }
}

impl Drop for OutletReader {
    fn drop(&mut self) {
        let mut queue = self.0.queue();
        queue.closed = true;
        queue.messages = VecDeque::new();
        drop(queue.held.take_all());
        drop(queue);
        self.0.read.notify_waiters();
    }
}

impl MessageQueue {
    fn take(&mut self) -> Option<String> {
        let message = self.messages.pop_front()?;
        self.bytes -= message.len();
        self.held.shrink(message.len() + OF_MESSAGE);
        if self.messages.is_empty() {
            self.messages = VecDeque::new();
        }
        Some(message)
    }
}

impl OutletState {
    fn queue(&self) -> MutexGuard<'_, MessageQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_client_that_does_not_read_costs_bounded_memory() {
        let (outlet, mut reader) = Outlet::new(&Arc::default());
        let sent = (0..100_000).filter(|_| outlet.send("x".repeat(1000))).count();
        assert_eq!(sent, MAX_WAITING / 1000);
        assert!(outlet.send_answer("answer".to_owned()), "an answer has room of its own");
        let mut read = 0;
        while reader.next().await.unwrap() != "answer" {
            read += 1;
        }
        assert_eq!((read, outlet.is_over(0)), (sent, false));
        assert!(outlet.send("more".to_owned()));
        outlet.close();
        assert!(!outlet.send("after the end".to_owned()));
        assert_eq!((reader.next().await.as_deref(), reader.next().await), (Some("more"), None));
        let (outlet, reader) = Outlet::new(&Arc::default());
        drop(reader);
        assert!(!outlet.send("to nobody".to_owned()) && outlet.is_closed());
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_room_hears_of_all_that_is_read() {
        let (outlet, mut reader) = Outlet::new(&Arc::default());
        for message in ["a".to_owned(), "b".repeat(100)] {
            outlet.send_answer(message);
        }
        let reading = async {
            reader.next().await;
            tokio::task::yield_now().await;
            reader.try_next();
        };
        let waiting = tokio::time::timeout(std::time::Duration::from_secs(9), outlet.emptied(50));
        assert!(tokio::join!(waiting, reading).0.is_ok());
    }
}
