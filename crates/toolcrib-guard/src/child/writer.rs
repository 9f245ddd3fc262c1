//! Writes lines to a child's standard input or another byte stream, and takes back unread bytes from a pipe.

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
    shared: Arc<SharedWriter>,
}

struct SharedWriter {
    /// Bytes that were written, those of partly written lines included.
    written: AtomicU64,
    /// Why a write failed, the first time.
    failure: OnceLock<String>,
    // Tokio's mutex: the critical section is one write, which awaits.
    stream: Mutex<Stream>,
    closed: CancellationToken,
    /// The bytes that the peer had not read at the end.
    returned: OnceLock<TakenBack>,
    /// Gets every line that was written.
    listener: OnceLock<Listener>,
}

struct Stream {
    sink: Option<Sink>,
    /// No more may be written: unread bytes were taken back, or a write was abandoned in the middle of a line and the
    /// next line would be read as its rest.
    finished: bool,
}

enum Sink {
    /// Shared with tasks that wait until it is writable.
    Pipe(Arc<pipe::Sender>),
    Other(Pin<Box<dyn AsyncWrite + Send>>),
}

/// The position in the stream where a line begins, once a byte of it was written.
#[derive(Default)]
pub struct LinePosition(AtomicU64);

/// The unread end of the stream, taken back from the pipe.
struct TakenBack {
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

impl TakenBack {
    /// Whether it holds the line that begins with `head` at `begin`, whole or as far as it was written. If another
    /// process read from or wrote to the pipe meanwhile, the positions differ and the line is not found.
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
        Self::from_sink(Sink::Other(Box::pin(stream)))
    }

    /// Writes to the standard input of a child.
    pub fn pipe(stdin: pipe::Sender) -> Self {
        Self::from_sink(Sink::Pipe(Arc::new(stdin)))
    }

    fn from_sink(sink: Sink) -> Self {
        let stream = Mutex::new(Stream { sink: Some(sink), finished: false });
        Self {
            shared: Arc::new(SharedWriter {
                written: AtomicU64::new(0),
                failure: OnceLock::new(),
                stream,
                closed: CancellationToken::new(),
                returned: OnceLock::new(),
                listener: OnceLock::new(),
            }),
        }
    }

    /// Passes every line that is written from now on to `listener`. Only the first call has an effect.
    pub fn set_listener(&self, listener: impl Fn(&[u8]) + Send + Sync + 'static) {
        let _ = self.shared.listener.set(Box::new(listener));
    }

    /// Bytes of a pipe that the peer has not read, also if it has ended or if they were taken back.
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

    /// Bytes that the peer has read so far. `None` if unknown or while a write is under way.
    pub fn taken(&self) -> Option<u64> {
        let unread = self.unread()?;
        self.written().checked_sub(unread)
    }

    /// Whether a write is under way, because the pipe is full.
    #[inline]
    pub fn is_busy(&self) -> bool {
        self.shared.stream.try_lock().is_err()
    }

    /// Why the stream is closed, if a write has failed.
    #[inline]
    pub fn failure(&self) -> Option<&str> {
        self.shared.failure.get().map(String::as_str)
    }

    /// Whether the peer may have read any byte of the line that begins with `head` at `position`. It has certainly read
    /// none if none was written, or if all written bytes were taken back.
    pub fn may_have_left(&self, position: &LinePosition, head: &[u8]) -> bool {
        let Some(begin) = position.get() else { return false };
        !self.shared.returned.get().is_some_and(|returned| returned.holds(begin, head))
    }

    /// Writes `line`, which ends with a line feed, if the write needs no waiting and cannot stop in the middle. Returns
    /// whether it was written.
    pub fn write_now(&self, line: &[u8], position: &LinePosition) -> bool {
        // A pipe takes a write of at most this length whole or not at all: pipe(7).
        if line.len() > PIPE_BUF {
            return false;
        }
        let Ok(mut stream) = self.shared.stream.try_lock() else { return false };
        let Stream { sink: Some(Sink::Pipe(stdin)), finished: finished @ false } = &mut *stream else {
            return false;
        };
        match stdin.try_write(line) {
            Ok(count) => {
                position.set(self.shared.count_written(count));
                *finished = count < line.len();
                if !*finished {
                    self.shared.notify(line);
                }
                !*finished
            }
            // The caller writes it by `write_from` then, which returns the error.
            Err(_) => false,
        }
    }

    /// Waits until the pipe has room. Fails if the stream is closed or the peer does not read in time.
    pub async fn ready(&self) -> Result<(), WriteError> {
        let pipe = {
            let stream = self.shared.stream.lock().await;
            match &stream.sink {
                Some(_) if stream.finished => return Err(WriteError::closed()),
                Some(Sink::Pipe(stdin)) => stdin.clone(),
                Some(Sink::Other(_)) => return Ok(()),
                None => return Err(WriteError::closed()),
            }
        };
        let room = self.shared.closed.run_until_cancelled(timeout(WRITE_STALL, pipe.writable()));
        let reason = match room.await {
            // An error of the pipe is returned by the write that follows.
            Some(Ok(_)) => return Ok(()),
            Some(Err(_)) => stalled(),
            None => return Err(WriteError::closed()),
        };
        drop(pipe);
        let mut stream = self.shared.stream.lock().await;
        Err(self.shared.fail(&mut stream, WriteError { may_have_left: false, reason }))
    }

    /// Writes as much of `line` as fits without waiting, and returns how many bytes that is. Call it when the stream is
    /// [ready](Self::ready), and [`LineWriter::write_from`] for the rest. `None`: the pipe is full.
    pub fn begin(&self, line: &[u8], position: &LinePosition) -> Option<usize> {
        let mut stream = self.shared.stream.try_lock().ok()?;
        let Stream { sink: Some(Sink::Pipe(stdin)), finished: finished @ false } = &mut *stream else {
            return Some(0);
        };
        match stdin.try_write(line) {
            Ok(0) => Some(0),
            Ok(count) => {
                position.set(self.shared.count_written(count));
                *finished = count < line.len();
                Some(count)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Err(_) => Some(0),
        }
    }

    /// Writes `line`, which ends with a line feed, from the byte `from` on. Fails if the peer does not read from a full
    /// pipe in time.
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
            if (stream.finished && from == 0) || shared.returned.get().is_some() {
                return Err(closed());
            }
            let Stream { sink: Some(sink), finished } = &mut *stream else { return Err(closed()) };
            // Reset when all of it is written. If this future is dropped before, nothing more may be written.
            *finished = true;
            let writing = shared.write_all(sink, line, from, position);
            let error = match shared.closed.run_until_cancelled(writing).await {
                Some(Ok(())) => None,
                Some(Err(error)) => Some(error),
                None => Some(WriteError { may_have_left: true, reason: "its input was closed".to_owned() }),
            };
            if let Some(error) = error {
                // The line was not written whole, so the stream cannot be used any more.
                return Err(shared.fail(&mut stream, error));
            }
            stream.finished = false;
        }
        shared.notify(line);
        Ok(())
    }

    #[cfg(test)]
    pub(crate) async fn write(&self, line: &[u8]) -> Result<(), WriteError> {
        self.write_from(line, 0, &LinePosition::default()).await
    }

    /// The pipe itself, for a child that reads bytes to their end: dropping it closes the standard input of the child, and
    /// what was written stays there to be read. No line can be written any more. `None`: it is no pipe, is closed, or a
    /// write waits for it.
    pub async fn take_pipe(&self) -> Option<pipe::Sender> {
        let mut stream = self.shared.stream.lock().await;
        stream.finished = true;
        match stream.sink.take()? {
            Sink::Pipe(pipe) => Arc::into_inner(pipe),
            Sink::Other(_) => None,
        }
    }

    /// Stops writing and takes back the bytes that the peer has not read. No process can read them afterwards.
    pub async fn seal(&self) {
        self.shared.seal(&mut *self.shared.stream.lock().await);
    }

    /// Seals the stream like [`Self::seal`], and closes it: at once, or when the write under way has stopped.
    pub fn close(&self) {
        self.shared.closed.cancel();
        if let Ok(mut stream) = self.shared.stream.try_lock() {
            self.shared.end(&mut stream);
        }
    }

    /// Returns once the stream is closed, by its owner or by a failed write.
    pub async fn closed(&self) {
        self.shared.closed.cancelled().await;
    }
}

impl SharedWriter {
    /// Counts written bytes and returns the position of the first one.
    fn count_written(&self, count: usize) -> u64 {
        self.written.fetch_add(count as u64, Ordering::AcqRel)
    }

    fn notify(&self, line: &[u8]) {
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
                    let begin = self.count_written(count);
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

    /// Stops writing and takes back the unread bytes, at the first call.
    fn seal(&self, stream: &mut Stream) {
        stream.finished = true;
        if let Some(Sink::Pipe(stdin)) = &stream.sink
            && self.returned.get().is_none()
        {
            let written = self.written.load(Ordering::Acquire);
            let returned = platform::take_back(stdin).and_then(|bytes| {
                let begin = written.checked_sub(bytes.len() as u64)?;
                Some(TakenBack { begin, bytes })
            });
            // Only once, even if it fails: bytes that are in the pipe later are not ours.
            let _ = self.returned.set(returned.unwrap_or(TakenBack { begin: written, bytes: Vec::new() }));
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
