//! Writes to stdout and stderr. What cannot be written to stdout is an error of the command: the first one is kept, ends
//! the command, and decides its exit code. What cannot be written to stderr cannot be told.

use std::{
    io::{self, ErrorKind, Write},
    process::ExitCode,
    sync::{Mutex, OnceLock, PoisonError},
};

use anstream::AutoStream;
use toolcrib::{CancellationToken, Error};

use super::ui::Ui;

/// The exit code of a program whose output nobody reads any more: as of one that SIGPIPE has ended.
const NO_READER: u8 = 141;

/// The first action that failed to write, and its error.
static FAILURE: Mutex<Option<(&str, io::Error)>> = Mutex::new(None);
/// Ends the command.
static CANCEL: OnceLock<CancellationToken> = OnceLock::new();

/// The command that ends with its output.
pub(crate) fn ends(cancel: &CancellationToken) {
    drop(CANCEL.set(cancel.clone()));
}

/// Stdout. Its first error is kept for [`outcome`].
pub(crate) struct Stdout;

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        kept(io::stdout().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        kept(io::stdout().flush())
    }
}

/// Writes to stdout, with colours where it takes them. After a failure nothing is written.
pub(crate) fn print(text: &str) {
    if failed() {
        return;
    }
    let mut colored = AutoStream::new(Vec::new(), AutoStream::choice(&io::stdout()));
    let _ = colored.write_all(text.as_bytes());
    print_bytes(&colored.into_inner());
}

/// Writes to stdout as it is.
pub(crate) fn print_bytes(bytes: &[u8]) {
    if !failed() {
        // The error is kept.
        let _ = Stdout.write_all(bytes).and_then(|()| Stdout.flush());
    }
}

/// Writes to stderr, with colours where it takes them.
pub(crate) fn print_to_stderr(text: &str) {
    // As one piece: stderr has no buffer, and would write each part by itself.
    let mut colored = AutoStream::new(Vec::new(), AutoStream::choice(&io::stderr()));
    let _ = colored.write_all(text.as_bytes());
    let _ = io::stderr().write_all(&colored.into_inner());
}

/// Whether stdout has failed.
pub(crate) fn failed() -> bool {
    FAILURE.lock().unwrap_or_else(PoisonError::into_inner).is_some()
}

/// The exit code of a command whose output could not be written. Nothing: all of it was.
pub(crate) fn outcome(ui: &Ui) -> Option<ExitCode> {
    let _ = Stdout.flush();
    let (what, error) = FAILURE.lock().unwrap_or_else(PoisonError::into_inner).take()?;
    Some(match error.kind() {
        ErrorKind::BrokenPipe => ExitCode::from(NO_READER),
        _ => ui.fail(&Error::io(what, error)),
    })
}

/// Keeps an error of the output that does not end the command at once.
pub(crate) fn keep(what: &'static str, error: &io::Error) {
    let same = error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error);
    FAILURE.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert((what, same));
}

fn kept<T>(outcome: io::Result<T>) -> io::Result<T> {
    outcome.inspect_err(|error| {
        if error.kind() == ErrorKind::Interrupted {
            return;
        }
        keep("cannot write the output to stdout", error);
        if let Some(cancel) = CANCEL.get() {
            cancel.cancel();
        }
    })
}
