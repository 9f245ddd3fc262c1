//! Lines that wait to be written to the client.

use std::{
    pin::pin,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    sync::Notify,
};

/// Bytes that may wait. With more, nothing is read from the client, and events are dropped.
const MOST: usize = 64 << 20;
/// Bytes that are written at once.
const BATCH: usize = 256 << 10;

/// Lines for the client, in order.
#[derive(Default)]
pub(super) struct Outbox {
    lines: Mutex<Vec<String>>,
    bytes: AtomicUsize,
    /// Events that were dropped since the last one that was not.
    dropped: AtomicU64,
    arrived: Notify,
    written: Notify,
}

impl Outbox {
    /// Adds a line that is never dropped.
    pub(super) fn send(&self, line: String) {
        self.bytes.fetch_add(line.len() + 1, Relaxed);
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        self.arrived.notify_one();
    }

    /// Adds the line of an event that `make` makes for a number of dropped events, unless too much waits.
    pub(super) fn send_event(&self, make: impl FnOnce(u64) -> String) {
        if self.is_full() {
            self.dropped.fetch_add(1, Relaxed);
        } else {
            self.send(make(self.dropped.swap(0, Relaxed)));
        }
    }

    /// Whether so much waits that no more requests should be read.
    pub(super) fn is_full(&self) -> bool {
        self.bytes.load(Relaxed) > MOST
    }

    /// Waits until it is no longer full.
    pub(super) async fn emptied(&self) {
        loop {
            let mut written = pin!(self.written.notified());
            written.as_mut().enable();
            if !self.is_full() {
                return;
            }
            written.await;
        }
    }

    /// Writes lines as they come, until the client is gone.
    pub(super) async fn write_to(&self, mut stream: impl AsyncWrite + Unpin) {
        let mut text = String::new();
        loop {
            let lines = std::mem::take(&mut *self.lines.lock().unwrap_or_else(PoisonError::into_inner));
            if lines.is_empty() {
                self.arrived.notified().await;
                continue;
            }
            for line in lines {
                text.push_str(&line);
                text.push('\n');
                if text.len() >= BATCH && !self.write(&mut stream, &mut text).await {
                    return;
                }
            }
            if !self.write(&mut stream, &mut text).await {
                return;
            }
        }
    }

    async fn write(&self, stream: &mut (impl AsyncWrite + Unpin), text: &mut String) -> bool {
        let written = stream.write_all(text.as_bytes()).await;
        self.bytes.fetch_sub(text.len(), Relaxed);
        self.written.notify_waiters();
        text.clear();
        text.shrink_to(BATCH);
        written.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncBufReadExt, BufReader};

    use super::*;

    #[tokio::test]
    async fn events_are_dropped_and_counted_while_too_much_waits() {
        let (outbox, (ours, theirs)) = (Outbox::default(), tokio::io::duplex(1024));
        outbox.send("x".repeat(MOST));
        outbox.send_event(|dropped| panic!("{dropped} dropped, and this one is not"));
        assert!(outbox.is_full());
        let read = async {
            let mut lines = BufReader::new(theirs).lines();
            assert_eq!(lines.next_line().await.unwrap().unwrap().len(), MOST);
            outbox.emptied().await;
            outbox.send_event(|dropped| format!("{dropped} dropped"));
            assert_eq!(lines.next_line().await.unwrap().unwrap(), "1 dropped");
        };
        tokio::select! {
            () = outbox.write_to(ours) => panic!("the reader is there"),
            () = read => {}
        }
    }
}
