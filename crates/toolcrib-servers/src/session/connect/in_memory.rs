//! Serves a server in memory: a task at the other end of a stream.

use tokio::io::DuplexStream;
use tokio_util::task::AbortOnDropHandle;

use crate::process::{LineReader, LineWriter, Pipes};

/// Bytes that either side may be ahead of the other.
const AHEAD: usize = 1 << 16;

/// The pipes to a server that `serve` serves in a task, and the task.
pub(super) fn connect<F>(serve: impl FnOnce(DuplexStream) -> F) -> (Pipes, AbortOnDropHandle<()>)
where
    F: Future<Output = ()> + Send + 'static,
{
    let (ours, theirs) = tokio::io::duplex(AHEAD);
    #[expect(clippy::disallowed_methods, reason = "the connection holds the handle that aborts it")]
    let task = AbortOnDropHandle::new(tokio::spawn(serve(theirs)));
    let (read, write) = tokio::io::split(ours);
    (Pipes { reader: LineReader::new(read), writer: LineWriter::new(write) }, task)
}
