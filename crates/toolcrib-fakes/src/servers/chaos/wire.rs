//! The standard streams of the chaos server: each can be closed, left unread or flooded.

use std::{
    fs::File,
    io::{self, Read, Write},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

/// Bytes written at once where many are.
const CHUNK: usize = 256 << 10;

/// Stdin and stdout, as the only descriptors of their pipes: dropping one closes it.
pub(super) fn take_streams() -> io::Result<(Input, Output)> {
    let input = File::from(rustix::io::dup(io::stdin())?);
    let output = File::from(rustix::io::dup(io::stdout())?);
    let nothing = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nothing)?;
    rustix::stdio::dup2_stdout(&nothing)?;
    let input = Input { stream: Some(input), buffer: Vec::new(), slow: None };
    Ok((input, Output { stream: Arc::new(Mutex::new(Some(output))) }))
}

/// Says on stderr what is about to happen.
pub(super) fn say(text: &str) {
    let _ = writeln!(io::stderr().lock(), "chaos: {text}");
}

/// Writes `bytes` of lines to stderr.
pub(super) fn flood_stderr(bytes: u64) {
    let line = format!("{}\n", "chaos: noise ".repeat(8));
    let chunk = line.repeat(CHUNK / line.len());
    let mut stderr = io::stderr().lock();
    let mut left = bytes;
    while left > 0 && stderr.write_all(chunk.as_bytes()).is_ok() {
        left = left.saturating_sub(chunk.len() as u64);
    }
}

/// The stream that is read.
pub(super) struct Input {
    stream: Option<File>,
    buffer: Vec<u8>,
    /// The pause before each byte, if it reads them one by one.
    pub(super) slow: Option<Duration>,
}

impl Input {
    /// The next line without its line feed; nothing at the end.
    pub(super) fn line(&mut self) -> Option<Vec<u8>> {
        let mut seen = 0;
        loop {
            if let Some(at) = self.buffer[seen..].iter().position(|byte| *byte == b'\n') {
                let rest = self.buffer.split_off(seen + at + 1);
                let mut line = std::mem::replace(&mut self.buffer, rest);
                line.pop();
                return Some(line);
            }
            seen = self.buffer.len();
            let mut piece = [0; 8192];
            let piece = if self.slow.is_some() { &mut piece[..1] } else { &mut piece[..] };
            let Some(stream) = &mut self.stream else {
                // Closed by ourselves, and going on.
                thread::sleep(super::for_ever());
                continue;
            };
            if let Some(pause) = self.slow {
                thread::sleep(pause);
            }
            match stream.read(piece) {
                Ok(0) | Err(_) => return None,
                Ok(count) => self.buffer.extend_from_slice(&piece[..count]),
            }
        }
    }

    pub(super) fn close(&mut self) {
        self.stream = None;
    }
}

/// The stream that is written. Clones share it.
#[derive(Clone)]
pub(super) struct Output {
    stream: Arc<Mutex<Option<File>>>,
}

impl Output {
    /// Writes all of it, if the stream is open. A reader that is gone ends nothing here: the input ends too.
    pub(super) fn write(&self, bytes: &[u8]) {
        if let Some(stream) = &mut *self.stream.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = stream.write_all(bytes);
        }
    }

    /// Writes `head`, what `filling` gives from its beginning until `bytes` are reached, and `tail`, in one line that
    /// no other thread writes into. Takes no memory for it.
    pub(super) fn write_long(
        &self,
        head: &str,
        filling: impl Iterator<Item = String>,
        bytes: u64,
        tail: &str,
    ) {
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(stream) = &mut *stream else { return };
        let write = || -> io::Result<()> {
            stream.write_all(head.as_bytes())?;
            let mut left = bytes;
            let mut chunk = String::with_capacity(CHUNK * 2);
            let mut filling = filling;
            while left > 0 {
                chunk.clear();
                while chunk.len() < CHUNK {
                    chunk.extend(filling.next());
                }
                let count = usize::try_from(left).map_or(chunk.len(), |left| left.min(chunk.len()));
                stream.write_all(&chunk.as_bytes()[..count])?;
                left -= count as u64;
            }
            stream.write_all(tail.as_bytes())
        };
        let _ = write();
    }

    pub(super) fn close(&self) {
        *self.stream.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
