//! Reads lines of a peer, up to a length.

use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};

/// Bytes of a line.
const LONGEST: usize = 256 << 20;
/// Bytes of memory that are kept for the next line.
const KEPT: usize = 64 << 10;

/// The lines of a peer.
pub(super) struct Lines<R> {
    read: BufReader<R>,
    line: Vec<u8>,
    /// `line` was returned.
    is_done: bool,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(super) fn new(read: R) -> Self {
        Self { read: BufReader::with_capacity(KEPT, read), line: Vec::new(), is_done: false }
    }

    /// The next line, without its end. `None`: the peer has closed its end, or its connection is broken. Loses nothing when
    /// it is dropped.
    ///
    /// # Errors
    /// The line is too long.
    pub(super) async fn next(&mut self) -> Result<Option<&[u8]>, String> {
        if std::mem::take(&mut self.is_done) {
            self.line.clear();
            self.line.shrink_to(KEPT);
        }
        loop {
            let Ok(part) = self.read.fill_buf().await else { return Ok(None) };
            if part.is_empty() {
                return Ok(None);
            }
            let end = part.iter().position(|byte| *byte == b'\n');
            let taken = end.unwrap_or(part.len());
            self.line.extend_from_slice(&part[..taken]);
            self.read.consume(taken + usize::from(end.is_some()));
            if self.line.len() > LONGEST {
                return Err(format!("a line of more than {LONGEST} bytes"));
            }
            if end.is_some() && !self.line.trim_ascii().is_empty() {
                self.is_done = true;
                return Ok(Some(&self.line));
            }
        }
    }
}
