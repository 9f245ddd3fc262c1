//! Reads bounded lines from a child's standard output, or from any other byte stream that carries one message a line.

use std::{
    future::poll_fn,
    io::Cursor,
    mem::MaybeUninit,
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use memchr::memchr;
use tokio::{
    io::{AsyncRead, AsyncReadExt, ReadBuf},
    time::{timeout, timeout_at},
};
use tokio_util::io::poll_read_buf;

/// Longest line that is read whole, in bytes. The same limit as the protocol library's own transports.
pub const MAX_LINE: usize = 16 << 20;

/// Bytes kept from the head and from the tail of a line that is too long.
const KEPT: usize = 4096;

/// Bytes of memory that are kept for the next line. Every server has them as long as it runs.
const KEPT_MEMORY: usize = 2 << 10;

/// How long a peer may pause in the middle of a line before the rest counts as lost. A message is usually written at
/// once.
const LINE_STALL: Duration = Duration::from_secs(10);

/// The length of a line at which the stream is given up. Until then its bytes are skipped.
const MAX_SKIPPED: u64 = 4 << 30;

/// One line of a stream.
#[derive(Debug)]
pub enum Line<'a> {
    /// A line without its line feed.
    Whole(&'a [u8]),
    /// A line over [`MAX_LINE`]: its head, its tail, and its length.
    TooLong {
        /// Its first bytes.
        head: &'a [u8],
        /// Its last bytes.
        tail: &'a [u8],
        /// Its length.
        total: u64,
    },
    /// The peer stopped in the middle of a line. What it writes later could not be distinguished from the rest of that
    /// line.
    Torn {
        /// Bytes of it that were read.
        total: u64,
    },
    /// A line without an end, or one that takes more memory than its peer has.
    Endless {
        /// Bytes of it that were read.
        total: u64,
    },
}

/// Counts of what was read from a stream, shared with tasks that do not read it.
#[derive(Clone, Default)]
pub struct Traffic(Arc<Counts>);

#[derive(Default)]
struct Counts {
    bytes: AtomicU64,
    open_line: AtomicU64,
}

impl Traffic {
    /// Bytes read in all.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.0.bytes.load(Ordering::Relaxed)
    }

    /// Bytes of the line that has not ended yet.
    #[inline]
    pub fn open_line(&self) -> u64 {
        self.0.open_line.load(Ordering::Relaxed)
    }
}

/// Bytes that are read at once. The buffer is on the stack of the reader, so a silent server has none.
const BUFFER: usize = 16 << 10;

/// The least room that is reserved for the rest of a long line: the size of a pipe.
const LONG_READ: usize = 64 << 10;

/// How long the memory of a long line is kept for the next one.
const KEPT_FOR: Duration = Duration::from_secs(1);

/// Reads lines. Safe to cancel: a line that was read in part is continued by the next call.
pub struct LineReader {
    stream: Pin<Box<dyn AsyncRead + Send>>,
    /// Bytes that were read after the end of the last line; those before `seen` are used up.
    rest: Vec<u8>,
    seen: usize,
    line: Vec<u8>,
    tail: Vec<u8>,
    total: u64,
    complete: bool,
    /// When the last part of an unfinished line was read.
    last_read: Instant,
    first_byte: Arc<OnceLock<Instant>>,
    traffic: Traffic,
    meter: Option<Meter>,
}

/// Is told how much memory a line takes, and says whether it may.
type Meter = Box<dyn FnMut(usize) -> bool + Send>;

impl LineReader {
    /// Reads from `stream`.
    pub fn new(stream: impl AsyncRead + Send + 'static) -> Self {
        Self {
            stream: Box::pin(stream),
            rest: Vec::new(),
            seen: 0,
            line: Vec::new(),
            tail: Vec::new(),
            total: 0,
            complete: false,
            last_read: Instant::now(),
            first_byte: Arc::default(),
            traffic: Traffic::default(),
            meter: None,
        }
    }

    /// A reader of the lines of a peer for which a budget is kept: `meter` is told how much memory the present line takes,
    /// whenever that may have changed. If it says no, the stream is given up as one of a line without an end.
    #[must_use]
    pub fn metered(self, meter: impl FnMut(usize) -> bool + Send + 'static) -> Self {
        Self { meter: Some(Box::new(meter)), ..self }
    }

    fn is_within_meter(&mut self) -> bool {
        let bytes = self.line.capacity();
        self.meter.as_mut().is_none_or(|meter| meter(bytes))
    }

    /// The rest of the stream, from the end of the last line on.
    pub fn into_stream(self) -> impl AsyncRead + Send + Unpin + use<> {
        let rest = self.rest[self.seen..].to_vec();
        Cursor::new(rest).chain(self.stream)
    }

    /// Set when the first byte arrives.
    pub fn first_byte(&self) -> Arc<OnceLock<Instant>> {
        self.first_byte.clone()
    }

    /// How much has been read.
    pub fn traffic(&self) -> Traffic {
        self.traffic.clone()
    }

    /// Takes the line that [`LineReader::next`] returned last, if it was whole, with its memory.
    #[inline]
    pub fn take_line(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.line)
    }

    /// The next line, or `None` at the end of the stream.
    pub async fn next(&mut self) -> Option<Line<'_>> {
        if self.complete {
            // Long lines that follow each other share their memory; a short one gives it back.
            if self.line.len() < self.line.capacity() / 4 {
                self.line.shrink_to(KEPT_MEMORY);
            }
            self.line.clear();
            self.tail.clear();
            self.total = 0;
            self.complete = false;
            // It is no more than before.
            self.is_within_meter();
        }
        while !self.complete {
            let total = self.total;
            let more = if total == 0 && self.line.capacity() > KEPT_MEMORY {
                // Free the memory of a long line if no other line follows soon.
                match timeout(KEPT_FOR, poll_fn(|context| self.poll_more(context))).await {
                    Ok(more) => more,
                    Err(_) => {
                        self.line.shrink_to(KEPT_MEMORY);
                        self.is_within_meter();
                        continue;
                    }
                }
            } else if total == 0 {
                poll_fn(|context| self.poll_more(context)).await
            } else {
                let limit = self.last_read + LINE_STALL;
                match timeout_at(limit.into(), poll_fn(|context| self.poll_more(context))).await {
                    Ok(more) => more,
                    Err(_) => return Some(Line::Torn { total }),
                }
            };
            if !more {
                if total == 0 {
                    return None;
                }
                // A last line without line feed counts too: it may say why the process ended.
                self.complete = true;
            }
            if !self.is_within_meter() || self.total > MAX_SKIPPED {
                return Some(Line::Endless { total: self.total });
            }
        }
        Some(if self.total > MAX_LINE as u64 {
            Line::TooLong { head: &self.line, tail: &self.tail, total: self.total }
        } else {
            Line::Whole(&self.line)
        })
    }

    /// Reads the next bytes, at most to the end of the line. Returns false at the end of the stream.
    fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        if self.seen < self.rest.len() {
            let rest = std::mem::take(&mut self.rest);
            self.seen += self.take_in(&rest[self.seen..]);
            if self.seen < rest.len() {
                self.rest = rest;
            } else {
                self.seen = 0;
            }
            return Poll::Ready(true);
        }
        if self.line.len() >= BUFFER && self.total < (MAX_LINE - LONG_READ) as u64 {
            return self.poll_long(context);
        }
        let mut space = [MaybeUninit::uninit(); BUFFER];
        let mut read = ReadBuf::uninit(&mut space);
        let outcome = ready!(self.stream.as_mut().poll_read(context, &mut read));
        let bytes = read.filled();
        if outcome.is_err() || bytes.is_empty() {
            return Poll::Ready(false);
        }
        let used = self.take_in(bytes);
        self.rest.extend_from_slice(&bytes[used..]);
        Poll::Ready(true)
    }

    /// Reads like [`LineReader::poll_more`], but directly into the memory of a long line.
    fn poll_long(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        let before = self.line.len();
        self.line.reserve(LONG_READ);
        let count = ready!(poll_read_buf(self.stream.as_mut(), context, &mut self.line)).unwrap_or(0);
        if count == 0 {
            return Poll::Ready(false);
        }
        let feed = memchr(b'\n', &self.line[before..]).map(|at| before + at);
        let end = feed.unwrap_or(self.line.len());
        if end > MAX_LINE {
            let bytes = self.line.split_off(before);
            let used = self.take_in(&bytes);
            self.rest.extend_from_slice(&bytes[used..]);
            return Poll::Ready(true);
        }
        if let Some(feed) = feed {
            self.rest.extend_from_slice(&self.line[feed + 1..]);
            self.line.truncate(feed);
        }
        self.grown(end - before, feed.is_some());
        Poll::Ready(true)
    }

    /// Adds bytes to the line. Returns how many of them belong to it, with its line feed.
    fn take_in(&mut self, bytes: &[u8]) -> usize {
        let feed = memchr(b'\n', bytes);
        let part = &bytes[..feed.unwrap_or(bytes.len())];
        if self.total + part.len() as u64 <= MAX_LINE as u64 {
            self.line.extend_from_slice(part);
        } else {
            if self.tail.is_empty() {
                self.tail.extend_from_slice(&self.line[self.line.len().saturating_sub(KEPT)..]);
                self.line.truncate(KEPT);
                self.line.shrink_to(KEPT);
            }
            self.tail.extend_from_slice(part);
            let surplus = self.tail.len().saturating_sub(KEPT);
            self.tail.drain(..surplus);
        }
        self.grown(part.len(), feed.is_some());
        feed.map_or(bytes.len(), |at| at + 1)
    }

    /// Counts `bytes` more of the line, which is `complete` if its line feed was read.
    fn grown(&mut self, bytes: usize, complete: bool) {
        let _ = self.first_byte.get_or_init(Instant::now);
        self.total += bytes as u64;
        self.complete = complete;
        self.traffic.0.bytes.fetch_add((bytes + usize::from(complete)) as u64, Ordering::Relaxed);
        let open = if complete { 0 } else { self.total };
        if !complete {
            self.last_read = Instant::now();
        }
        self.traffic.0.open_line.store(open, Ordering::Relaxed);
    }
}
