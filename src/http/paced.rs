//! Limits how much is read from a connection in a row, and counts connections.
//!
//! hyper reads bytes that are no part of an answer (interim heads, leading zeros of a chunk's size) in a loop that ends
//! only when nothing is left. A server that sends them without end would block the thread.

use std::{
    io,
    pin::{Pin, pin},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    task::{Context, Poll},
};

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use tokio::task::yield_now;

/// Room for bytes that is offered in a row before others run.
const SHARE: usize = 1 << 17;

static OPENED: AtomicU64 = AtomicU64::new(0);
static CLOSED: AtomicU64 = AtomicU64::new(0);

/// Connections of this process so far: opened, and of these closed.
pub(crate) fn connection_counts() -> (u64, u64) {
    // In this order: each that is closed was opened before.
    let closed = CLOSED.load(Relaxed);
    (OPENED.load(Relaxed), closed)
}

/// Counts a connection from its beginning to its end.
#[derive(Debug)]
struct Counted;

impl Counted {
    fn new() -> Self {
        OPENED.fetch_add(1, Relaxed);
        Self
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        CLOSED.fetch_add(1, Relaxed);
    }
}

/// A connection that is read in shares. It stands below encryption, so that what the other side sends there without
/// end is read in shares, too.
#[derive(Debug)]
pub(super) struct Paced<T> {
    io: T,
    /// Room that was offered since nothing was there, or since the last pause.
    offered: usize,
    /// Whether the other side is a proxy that requests are handed to.
    to_proxy: bool,
    _counted: Counted,
}

impl<T> Paced<T> {
    pub(super) fn new(io: T) -> Self {
        Self { io, offered: 0, to_proxy: false, _counted: Counted::new() }
    }

    pub(super) fn to_proxy(io: T) -> Self {
        Self { to_proxy: true, ..Self::new(io) }
    }
}

impl<T: Read + Unpin> Read for Paced<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if self.offered >= SHARE {
            self.offered = 0;
            // Its first poll has this task woken after the others ran and the system was asked what is there.
            let _ = pin!(yield_now()).poll(context);
            return Poll::Pending;
        }
        let room = buffer.remaining();
        let read = Pin::new(&mut self.io).poll_read(context, buffer);
        self.offered = if read.is_pending() { 0 } else { self.offered.saturating_add(room) };
        read
    }
}

impl<T: Write + Unpin> Write for Paced<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, parts)
    }
}

impl<T: Connection> Connection for Paced<T> {
    fn connected(&self) -> Connected {
        self.io.connected().proxy(self.to_proxy)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use hyper::rt::ReadBuf;
    use hyper_util::rt::TokioIo;

    use super::*;

    #[tokio::test]
    async fn an_endless_sender_lets_other_tasks_run() {
        let mut endless =
            Paced::new(TokioIo::new(tokio::io::join(tokio::io::repeat(b'0'), tokio::io::sink())));
        let (mut bytes, mut pauses) = (vec![0; 1 << 13], 0);
        for _ in 0..100 {
            poll_fn(|context| {
                let mut buffer = ReadBuf::new(&mut bytes);
                let read = Pin::new(&mut endless).poll_read(context, buffer.unfilled());
                pauses += usize::from(read.is_pending());
                read
            })
            .await
            .unwrap();
        }
        assert_eq!(pauses, 6, "800 KiB were read");
    }
}
