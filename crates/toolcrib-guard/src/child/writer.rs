//! Writes lines to a child's standard input, or to any other byte stream, and takes back what was not read.

use std::{
    fmt, io,
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    net::unix::pipe,
    sync::Mutex,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::platform;

/// How long a peer may leave a full pipe unread before it counts as stuck.
const WRITE_STALL: Duration = Duration::from_secs(10);

/// The longest write to a pipe that is atomic (limits.h): on Linux, and the least that POSIX allows (macOS).
const PIPE_BUF: usize = if cfg!(target_os = "linux") { 4096 } else { 512 };

type Listener = Box<dyn Fn(&[u8]) + Send + Sync>;

/// Writes lines, each whole or not at all. Clones share one stream; closing one closes it.
#[derive(Clone)]
pub struct LineWriter {
    shared: Arc<Shared>,
}

struct Shared {
    /// Bytes that were written, those of a line that is written in part among them.
    written: AtomicU64,
    /// Why a write failed, the first time.
    failure: OnceLock<String>,
    // Tokio's mutex: the critical section is one write, which awaits.
    stream: Mutex<Stream>,
    closed: CancellationToken,
    /// What the peer had not read at the end.
    returned: OnceLock<Returned>,
    /// Is given every line that was written.
    listener: OnceLock<Listener>,
}

struct Stream {
    sink: Option<Sink>,
    /// Nothing more is written: what was not read is taken back, or a write was abandoned half-way, and whatever
    /// followed would be read as the rest of that line.
    over: bool,
}

enum Sink {
    /// Shared with who waits until it takes more.
    Pipe(Arc<pipe::Sender>),
    Other(Pin<Box<dyn AsyncWrite + Send>>),
}

/// Where in the stream a line begins, once a byte of it was written.
#[derive(Default)]
pub struct LinePosition(AtomicU64);

/// The end of the stream, taken back from the pipe.
struct Returned {
    begin: u64,
    bytes: Vec<u8>,
}

/// A line that was not written whole.
#[derive(Debug)]
pub struct WriteError {
    /// Whether any byte of the line may have reached the peer.
    pub may_have_left: bool,
    /// Why.
    pub reason: String,
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for WriteError {}

impl WriteError {
    fn closed() -> Self {
        Self { may_have_left: false, reason: "its input is closed".to_owned() }
    }
}

impl LinePosition {
    fn set(&self, begin: u64) {
        self.0.store(begin + 1, Ordering::Release);
    }

    /// `None`: no byte of it was written.
    fn get(&self) -> Option<u64> {
        self.0.load(Ordering::Acquire).checked_sub(1)
    }
}

impl Returned {
    /// Whether the line that begins with `head` at `begin` is here, whole or as far as it was written. Others who
    /// read or write meanwhile move what is here, and then it is not found.
    fn holds(&self, begin: u64, head: &[u8]) -> bool {
        let at = begin.checked_sub(self.begin).and_then(|at| usize::try_from(at).ok());
        let Some((before, line)) = at.and_then(|at| self.bytes.split_at_checked(at)) else { return false };
        let starts = before.last().is_none_or(|last| *last == b'\n');
        starts && !line.is_empty() && line.iter().zip(head).all(|(one, other)| one == other)
    }
}

impl LineWriter {
    /// Writes to `stream`.
    pub fn new(stream: impl AsyncWrite + Send + 'static) -> Self {
        Self::over(Sink::Other(Box::pin(stream)))
    }

    /// Writes to the standard input of a child.
    pub fn pipe(stdin: pipe::Sender) -> Self {
        Self::over(Sink::Pipe(Arc::new(stdin)))
    }

    fn over(sink: Sink) -> Self {
        let stream = Mutex::new(Stream { sink: Some(sink), over: false });
        Self {
            shared: Arc::new(Shared {
                written: AtomicU64::new(0),
                failure: OnceLock::new(),
                stream,
                closed: CancellationToken::new(),
                returned: OnceLock::new(),
                listener: OnceLock::new(),
            }),
        }
    }

    /// Has `listener` given every line that is written from now on. There is one; a second one is not taken.
    pub fn tell(&self, listener: impl Fn(&[u8]) + Send + Sync + 'static) {
        let _ = self.shared.listener.set(Box::new(listener));
    }

    /// Bytes in a pipe that nobody has read yet; also those that nobody will read any more, or that were taken back.
    pub fn unread(&self) -> Option<u64> {
        let there = match self.shared.stream.try_lock().ok()?.sink.as_ref()? {
            Sink::Pipe(stdin) => rustix::io::ioctl_fionread(stdin).ok()?,
            Sink::Other(_) => return None,
        };
        let returned = self.shared.returned.get().map_or(0, |returned| returned.bytes.len() as u64);
        Some(there + returned)
    }

    /// Bytes that were written so far.
    #[inline]
    pub fn written(&self) -> u64 {
        self.shared.written.load(Ordering::Acquire)
    }

    /// Bytes that the peer has read so far, where that can be known and no write is under way.
    pub fn taken(&self) -> Option<u64> {
        let unread = self.unread()?;
        self.written().checked_sub(unread)
    }

    /// Whether a write is under way: the peer has not made room for all of it.
    #[inline]
    pub fn is_busy(&self) -> bool {
        self.shared.stream.try_lock().is_err()
    }

    /// Why the stream is closed, if a write has failed.
    #[inline]
    pub fn failure(&self) -> Option<&str> {
        self.shared.failure.get().map(String::as_str)
    }

    /// Whether the peer may have read any byte of the line that begins with `head` at `position`. It is known that it
    /// has not if no byte was written, or if all that was written was taken back.
    pub fn may_have_left(&self, position: &LinePosition, head: &[u8]) -> bool {
        let Some(begin) = position.get() else { return false };
        !self.shared.returned.get().is_some_and(|returned| returned.holds(begin, head))
    }

    /// Writes `line`, which ends with a line feed, if that takes no waiting and cannot fail half-way.
    pub fn write_now(&self, line: &[u8], position: &LinePosition) -> bool {
        // What is no longer than this is written to a pipe whole or not at all: pipe(7).
        if line.len() > PIPE_BUF {
            return false;
        }
        let Ok(mut stream) = self.shared.stream.try_lock() else { return false };
        let Stream { sink: Some(Sink::Pipe(stdin)), over: over @ false } = &mut *stream else { return false };
        match stdin.try_write(line) {
            Ok(count) => {
                position.set(self.shared.wrote(count));
                *over = count < line.len();
                if !*over {
                    self.shared.told(line);
                }
                !*over
            }
            // What is wrong is told by who writes it in its turn.
            Err(_) => false,
        }
    }

    /// Waits until the peer has made room for more. It fails if there will be none.
    pub async fn ready(&self) -> Result<(), WriteError> {
        let pipe = {
            let stream = self.shared.stream.lock().await;
            match &stream.sink {
                Some(_) if stream.over => return Err(WriteError::closed()),
                Some(Sink::Pipe(stdin)) => stdin.clone(),
                Some(Sink::Other(_)) => return Ok(()),
                None => return Err(WriteError::closed()),
            }
        };
        let room = self.shared.closed.run_until_cancelled(timeout(WRITE_STALL, pipe.writable()));
        let reason = match room.await {
            // What is wrong with the pipe is told by the write.
            Some(Ok(_)) => return Ok(()),
            Some(Err(_)) => stalled(),
            None => return Err(WriteError::closed()),
        };
        drop(pipe);
        let mut stream = self.shared.stream.lock().await;
        Err(self.shared.fail(&mut stream, WriteError { may_have_left: false, reason }))
    }

    /// Writes as much of `line` as takes no waiting, to be called when the stream is [ready](Self::ready): says how many
    /// bytes that is. [`LineWriter::write_from`] goes on from there. `None`: there is no room for any.
    pub fn begin(&self, line: &[u8], position: &LinePosition) -> Option<usize> {
        let mut stream = self.shared.stream.try_lock().ok()?;
        let Stream { sink: Some(Sink::Pipe(stdin)), over: over @ false } = &mut *stream else {
            return Some(0);
        };
        match stdin.try_write(line) {
            Ok(0) => Some(0),
            Ok(count) => {
                position.set(self.shared.wrote(count));
                *over = count < line.len();
                Some(count)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Err(_) => Some(0),
        }
    }

    /// Writes `line`, which ends with a line feed, from the byte `from` on. A peer that leaves the pipe full makes it
    /// fail.
    pub async fn write_from(
        &self,
        line: &[u8],
        from: usize,
        position: &LinePosition,
    ) -> Result<(), WriteError> {
        let shared = &*self.shared;
        let closed = || WriteError { may_have_left: from > 0, reason: "its input is closed".to_owned() };
        if from < line.len() {
            let Some(mut stream) = shared.closed.run_until_cancelled(shared.stream.lock()).await else {
                return Err(closed());
            };
            if (stream.over && from == 0) || shared.returned.get().is_some() {
                return Err(closed());
            }
            let Stream { sink: Some(sink), over } = &mut *stream else { return Err(closed()) };
            // Until all of it is written: this future may be dropped.
            *over = true;
            let writing = shared.write_all(sink, line, from, position);
            let error = match shared.closed.run_until_cancelled(writing).await {
                Some(Ok(())) => None,
                Some(Err(error)) => Some(error),
                None => Some(WriteError { may_have_left: true, reason: "its input was closed".to_owned() }),
            };
            if let Some(error) = error {
                // A line was lost, perhaps half of it: this stream is finished.
                return Err(shared.fail(&mut stream, error));
            }
            stream.over = false;
        }
        shared.told(line);
        Ok(())
    }

    #[cfg(test)]
    pub(crate) async fn write(&self, line: &[u8]) -> Result<(), WriteError> {
        self.write_from(line, 0, &LinePosition::default()).await
    }

    /// Writes nothing more, and takes back what the peer has not read: nobody can read it from then on.
    pub async fn seal(&self) {
        self.shared.seal(&mut *self.shared.stream.lock().await);
    }

    /// The same, and closes the stream: at once, or as soon as the write under way has noticed.
    pub fn close(&self) {
        self.shared.closed.cancel();
        if let Ok(mut stream) = self.shared.stream.try_lock() {
            self.shared.end(&mut stream);
        }
    }

    /// Ready once the stream is closed, by its owner or by a failed write, and ever after.
    pub async fn closed(&self) {
        self.shared.closed.cancelled().await;
    }
}

impl Shared {
    /// Counts bytes that were written; says where they begin.
    fn wrote(&self, count: usize) -> u64 {
        self.written.fetch_add(count as u64, Ordering::AcqRel)
    }

    fn told(&self, line: &[u8]) {
        if let Some(listener) = self.listener.get() {
            listener(line);
        }
    }

    async fn write_all(
        &self,
        sink: &mut Sink,
        line: &[u8],
        mut written: usize,
        position: &LinePosition,
    ) -> Result<(), WriteError> {
        while written < line.len() {
            let step = timeout(WRITE_STALL, sink.write(&line[written..])).await;
            let fail = |reason: String| WriteError { may_have_left: written > 0, reason };
            match step {
                Ok(Ok(0)) => return Err(fail("its input takes no more".to_owned())),
                Ok(Ok(count)) => {
                    let begin = self.wrote(count);
                    if written == 0 {
                        position.set(begin);
                    }
                    written += count;
                }
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(error)) => return Err(fail(format!("writing to its input failed: {error}"))),
                Err(_) => return Err(fail(stalled())),
            }
        }
        sink.flush().await.map_err(|error| WriteError {
            may_have_left: true,
            reason: format!("writing to its input failed: {error}"),
        })
    }

    fn fail(&self, stream: &mut Stream, error: WriteError) -> WriteError {
        let _ = self.failure.set(error.reason.clone());
        self.end(stream);
        self.closed.cancel();
        error
    }

    /// Takes back what was not read, the first time.
    fn seal(&self, stream: &mut Stream) {
        stream.over = true;
        if let Some(Sink::Pipe(stdin)) = &stream.sink
            && self.returned.get().is_none()
        {
            let written = self.written.load(Ordering::Acquire);
            let returned = platform::take_back(stdin).and_then(|bytes| {
                let begin = written.checked_sub(bytes.len() as u64)?;
                Some(Returned { begin, bytes })
            });
            // Once only, whatever comes of it: what is there later is not ours.
            let _ = self.returned.set(returned.unwrap_or(Returned { begin: written, bytes: Vec::new() }));
        }
    }

    fn end(&self, stream: &mut Stream) {
        self.seal(stream);
        stream.sink = None;
    }
}

impl Sink {
    async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Pipe(stdin) => loop {
                stdin.writable().await?;
                match stdin.try_write(bytes) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    outcome => return outcome,
                }
            },
            Self::Other(stream) => AsyncWriteExt::write(stream, bytes).await,
        }
    }

    async fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Pipe(_) => Ok(()),
            Self::Other(stream) => stream.flush().await,
        }
    }
}

fn stalled() -> String {
    format!("it has not read its input for {}s", WRITE_STALL.as_secs())
}

#[cfg(test)]
#[cfg(guarded)]
mod tests;
