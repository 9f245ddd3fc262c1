//! Bounded lines over a child's pipes, or any other byte stream that carries one message a line.

use std::{
    fmt,
    future::poll_fn,
    io::{self, Cursor},
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
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf},
    net::unix::pipe,
    sync::Mutex,
    time::{timeout, timeout_at},
};
use tokio_util::{
    io::poll_read_buf,
    sync::{CancellationToken, WaitForCancellationFutureOwned},
};

/// Longest line that is read whole, in bytes. The same limit as the protocol library's own transports.
pub(crate) const MAX_LINE: usize = 16 << 20;

/// How long a peer may leave a full pipe unread before it counts as stuck.
const WRITE_STALL: Duration = Duration::from_secs(10);

/// Bytes kept from the head and from the tail of a line that is too long.
const KEPT: usize = 4096;

/// Bytes that the kernel writes to a pipe in one go, at least: limits.h.
const PIPE_BUF: usize = 4096;

/// Memory kept for the next line, in bytes. Every server has it for as long as it lives.
const USUAL: usize = 2 << 10;

/// How long a peer may stop in the middle of a line before the rest counts as lost: a message is written in
/// one go.
const LINE_STALL: Duration = Duration::from_secs(10);

/// Bytes of one line that are read past, in the hope of its end, before the stream is given up.
const MAX_SKIPPED: u64 = 4 << 30;

/// One line of a stream.
#[derive(Debug)]
pub(crate) enum Line<'a> {
    /// A line without its line feed.
    Whole(&'a [u8]),
    /// A line over [`MAX_LINE`]: its head, its tail, and its length.
    TooLong { head: &'a [u8], tail: &'a [u8], total: u64 },
    /// The peer stopped after so many bytes of a line. Nothing that follows could be told from its rest.
    Torn { total: u64 },
    /// A line without an end.
    Endless { total: u64 },
}

/// What has come over a stream so far, for those who do not read it.
#[derive(Clone, Default)]
pub(crate) struct Traffic(Arc<Counts>);

#[derive(Default)]
struct Counts {
    bytes: AtomicU64,
    open_line: AtomicU64,
}

impl Traffic {
    /// Bytes read in all.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.bytes.load(Ordering::Relaxed)
    }

    /// Bytes of the line that has not ended yet.
    pub(crate) fn open_line(&self) -> u64 {
        self.0.open_line.load(Ordering::Relaxed)
    }
}

/// Bytes that are read at once. They are on the stack of who reads: a server that says nothing has no buffer.
const BUFFER: usize = 16 << 10;

/// Room that is made for the rest of a long line at once, at least: what a pipe holds.
const LONG_READ: usize = 64 << 10;

/// Memory of a long line is kept so long for the next one.
const KEPT_FOR: Duration = Duration::from_secs(1);

/// Reads lines. Safe to cancel: a line that was read in part is continued by the next call.
pub(crate) struct LineReader {
    stream: Pin<Box<dyn AsyncRead + Send>>,
    /// What was read and is not looked at yet, from `seen` on.
    rest: Vec<u8>,
    seen: usize,
    line: Vec<u8>,
    tail: Vec<u8>,
    total: u64,
    complete: bool,
    /// When the last part of a line came that goes on.
    heard: Instant,
    first_byte: Arc<OnceLock<Instant>>,
    traffic: Traffic,
}

impl LineReader {
    /// Reads from `stream`.
    pub(crate) fn new(stream: impl AsyncRead + Send + 'static) -> Self {
        Self {
            stream: Box::pin(stream),
            rest: Vec::new(),
            seen: 0,
            line: Vec::new(),
            tail: Vec::new(),
            total: 0,
            complete: false,
            heard: Instant::now(),
            first_byte: Arc::default(),
            traffic: Traffic::default(),
        }
    }

    /// The stream from the end of the last line on.
    pub(crate) fn into_stream(self) -> impl AsyncRead + Send + Unpin + use<> {
        let rest = self.rest[self.seen..].to_vec();
        Cursor::new(rest).chain(self.stream)
    }

    /// Set when the first byte arrives.
    pub(crate) fn first_byte(&self) -> Arc<OnceLock<Instant>> {
        self.first_byte.clone()
    }

    /// How much has been read.
    pub(crate) fn traffic(&self) -> Traffic {
        self.traffic.clone()
    }

    /// The line that [`LineReader::next`] gave last, if it was whole. Its memory goes to the caller.
    pub(crate) fn take_line(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.line)
    }

    /// The next line, or nothing at the end of the stream.
    pub(crate) async fn next(&mut self) -> Option<Line<'_>> {
        if self.complete {
            // Long lines that follow each other share their memory; a short one gives it back.
            if self.line.len() < self.line.capacity() / 4 {
                self.line.shrink_to(USUAL);
            }
            self.line.clear();
            self.tail.clear();
            self.total = 0;
            self.complete = false;
        }
        while !self.complete {
            let total = self.total;
            let more = if total == 0 && self.line.capacity() > USUAL {
                // One long line must not cost its memory for ever.
                match timeout(KEPT_FOR, poll_fn(|context| self.poll_more(context))).await {
                    Ok(more) => more,
                    Err(_) => {
                        self.line.shrink_to(USUAL);
                        continue;
                    }
                }
            } else if total == 0 {
                poll_fn(|context| self.poll_more(context)).await
            } else {
                let limit = self.heard + LINE_STALL;
                match timeout_at(limit.into(), poll_fn(|context| self.poll_more(context))).await {
                    Ok(more) => more,
                    Err(_) => return Some(Line::Torn { total }),
                }
            };
            if !more {
                if total == 0 {
                    return None;
                }
                // A last line without line feed counts: it may hold the reason of the end.
                self.complete = true;
            }
            if self.total > MAX_SKIPPED {
                return Some(Line::Endless { total: self.total });
            }
        }
        Some(if self.total > MAX_LINE as u64 {
            Line::TooLong { head: &self.line, tail: &self.tail, total: self.total }
        } else {
            Line::Whole(&self.line)
        })
    }

    /// Takes in the next bytes, at most to the end of the line. Nothing more comes: false.
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

    /// As [`LineReader::poll_more`] in the midst of a long line: into its own memory, as much as there is.
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

    /// Adds bytes to the line; says how many of them belong to it, with its line feed.
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

    /// Takes note of so many bytes of the line, with which it may be complete.
    fn grown(&mut self, bytes: usize, complete: bool) {
        let _ = self.first_byte.get_or_init(Instant::now);
        self.total += bytes as u64;
        self.complete = complete;
        self.traffic.0.bytes.fetch_add((bytes + usize::from(complete)) as u64, Ordering::Relaxed);
        let open = if complete { 0 } else { self.total };
        if !complete {
            self.heard = Instant::now();
        }
        self.traffic.0.open_line.store(open, Ordering::Relaxed);
    }
}

type Listener = Box<dyn Fn(&[u8]) + Send + Sync>;

/// Writes lines, each whole or not at all. Clones share one stream; closing one closes it.
#[derive(Clone)]
pub(crate) struct LineWriter {
    shared: Arc<Shared>,
}

struct Shared {
    /// Bytes of whole lines that were written.
    written: AtomicU64,
    /// Why a write failed, the first time.
    failure: OnceLock<String>,
    // Tokio's mutex: the critical section is one write, which awaits.
    stream: Mutex<Stream>,
    closed: CancellationToken,
    /// Is given every line that was written.
    listener: OnceLock<Listener>,
}

struct Stream {
    sink: Option<Sink>,
    /// A write was abandoned half-way: whatever follows would be read as the rest of that line.
    torn: bool,
}

enum Sink {
    Pipe(pipe::Sender),
    Other(Pin<Box<dyn AsyncWrite + Send>>),
}

/// A line that was not written whole.
#[derive(Debug)]
pub(crate) struct WriteError {
    /// Whether any byte of the line may have reached the peer.
    pub(crate) may_have_left: bool,
    /// Why.
    pub(crate) reason: String,
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for WriteError {}

impl LineWriter {
    /// Writes to `stream`.
    pub(crate) fn new(stream: impl AsyncWrite + Send + 'static) -> Self {
        Self::over(Sink::Other(Box::pin(stream)))
    }

    /// Writes to the standard input of a child.
    pub(crate) fn pipe(stdin: pipe::Sender) -> Self {
        Self::over(Sink::Pipe(stdin))
    }

    fn over(sink: Sink) -> Self {
        let stream = Mutex::new(Stream { sink: Some(sink), torn: false });
        Self {
            shared: Arc::new(Shared {
                written: AtomicU64::new(0),
                failure: OnceLock::new(),
                stream,
                closed: CancellationToken::new(),
                listener: OnceLock::new(),
            }),
        }
    }

    /// Has `listener` given every line that is written from now on. There is one; a second one is not taken.
    pub(crate) fn tell(&self, listener: impl Fn(&[u8]) + Send + Sync + 'static) {
        let _ = self.shared.listener.set(Box::new(listener));
    }

    fn wrote(&self, line: &[u8]) {
        self.shared.written.fetch_add(line.len() as u64, Ordering::Relaxed);
        if let Some(listener) = self.shared.listener.get() {
            listener(line);
        }
    }

    /// Bytes in a pipe that nobody has read yet; also those that nobody will read any more.
    pub(crate) fn unread(&self) -> Option<u64> {
        match self.shared.stream.try_lock().ok()?.sink.as_ref()? {
            Sink::Pipe(stdin) => rustix::io::ioctl_fionread(stdin).ok(),
            Sink::Other(_) => None,
        }
    }

    /// Bytes of whole lines that were written so far.
    pub(crate) fn written(&self) -> u64 {
        self.shared.written.load(Ordering::Relaxed)
    }

    /// Bytes that the peer has read so far, where that can be known and no write is under way.
    pub(crate) fn taken(&self) -> Option<u64> {
        let unread = self.unread()?;
        self.written().checked_sub(unread)
    }

    /// Whether nothing can be written any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.shared.closed.is_cancelled()
    }

    /// Whether a write is under way: the peer has not made room for all of it.
    pub(crate) fn is_busy(&self) -> bool {
        self.shared.stream.try_lock().is_err()
    }

    /// Why the stream is closed, if a write has failed.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.shared.failure.get().map(String::as_str)
    }

    /// Writes `line`, which ends with a line feed, if that takes no waiting and cannot fail half-way.
    pub(crate) fn write_now(&self, line: &[u8]) -> bool {
        // What is no longer than this is written to a pipe whole or not at all: pipe(7).
        if line.len() > PIPE_BUF {
            return false;
        }
        let Ok(mut stream) = self.shared.stream.try_lock() else { return false };
        let Stream { sink: Some(Sink::Pipe(stdin)), torn: torn @ false } = &mut *stream else { return false };
        match stdin.try_write(line) {
            Ok(count) if count == line.len() => {
                self.wrote(line);
                true
            }
            // Whoever writes the line after this one says what is wrong.
            Ok(_) => {
                *torn = true;
                false
            }
            Err(_) => false,
        }
    }

    /// Writes `line`, which ends with a line feed. A peer that leaves the pipe full makes it fail.
    pub(crate) async fn write(&self, line: &[u8]) -> Result<(), WriteError> {
        let closed = || WriteError { may_have_left: false, reason: "its input is closed".to_owned() };
        let Some(mut stream) = self.shared.closed.run_until_cancelled(self.shared.stream.lock()).await else {
            return Err(closed());
        };
        let stream = &mut *stream;
        if stream.torn {
            return Err(WriteError { may_have_left: false, reason: "its input is torn".to_owned() });
        }
        let sink = stream.sink.as_mut().ok_or_else(closed)?;
        stream.torn = true;
        let outcome = self.shared.closed.run_until_cancelled(sink.write_all(line)).await;
        let result = match outcome {
            Some(Ok(())) => {
                stream.torn = false;
                self.wrote(line);
                return Ok(());
            }
            Some(error) => error,
            None => Err(WriteError { may_have_left: true, reason: "its input was closed".to_owned() }),
        };
        // A line was lost, perhaps half of it: this stream is finished.
        stream.sink = None;
        if let Err(error) = &result {
            let _ = self.shared.failure.set(error.reason.clone());
        }
        self.shared.closed.cancel();
        result
    }

    /// Closes the stream: at once, or as soon as the write under way has noticed.
    pub(crate) fn close(&self) {
        self.shared.closed.cancel();
        if let Ok(mut stream) = self.shared.stream.try_lock() {
            stream.sink = None;
        }
    }

    /// Ready once the stream is closed, by its owner or by a failed write, and ever after.
    pub(crate) fn closed(&self) -> WaitForCancellationFutureOwned {
        self.shared.closed.clone().cancelled_owned()
    }
}

impl Sink {
    async fn write_all(&mut self, line: &[u8]) -> Result<(), WriteError> {
        match self {
            Self::Pipe(stdin) => write_all(stdin, line).await,
            Self::Other(stream) => write_all(stream, line).await,
        }
    }
}

async fn write_all(sink: &mut (impl AsyncWrite + Unpin), line: &[u8]) -> Result<(), WriteError> {
    let mut written = 0;
    while written < line.len() {
        let step = timeout(WRITE_STALL, sink.write(&line[written..])).await;
        let fail = |reason: String| WriteError { may_have_left: written > 0, reason };
        match step {
            Ok(Ok(0)) => return Err(fail("its input takes no more".to_owned())),
            Ok(Ok(count)) => written += count,
            Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(Err(error)) => return Err(fail(format!("writing to its input failed: {error}"))),
            Err(_) => {
                let limit = humantime::format_duration(WRITE_STALL);
                return Err(fail(format!("it has not read its input for {limit}")));
            }
        }
    }
    sink.flush().await.map_err(|error| WriteError {
        may_have_left: true,
        reason: format!("writing to its input failed: {error}"),
    })
}
