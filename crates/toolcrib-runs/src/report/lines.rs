//! Reads files of a run's folder within limits: the folder may be broken or come from another user.

use std::{
    fs::File,
    io::{self, ErrorKind, Read as _},
    path::{Component, Path},
};

use rustix::fs::{Mode, OFlags, openat};
use serde::Deserialize;

use crate::{
    bounded::{self, BoundedLines},
    error::{Error, Result},
};

/// Bytes of a whole file, and of one line.
const MAX_FILE: u64 = 64 << 20;
const MAX_LINE: u64 = 64 << 20;
/// Lines of a file. A run writes at most a few millions: its events are limited by their bytes.
const MAX_LINES: usize = 20_000_000;

/// Lines of files that are kept in memory, each of which takes some hundred bytes there: tasks and events of one run.
pub(super) const MAX_TASKS: usize = 500_000;
pub(super) const MAX_EVENTS: usize = 3_000_000;

/// A whole file.
pub fn text(path: &Path) -> Result<String> {
    bounded::read_text(path, MAX_FILE).map_err(|error| failed(path, error))
}

/// The file at `place` in `dir`, if it is one and can be read. A place that leads out of the folder is none.
pub(crate) fn text_below(dir: &Path, place: &str) -> Option<String> {
    let mut text = String::new();
    let read = open_below(dir, Path::new(place)).ok()?.take(MAX_FILE + 1).read_to_string(&mut text).ok()?;
    (read as u64 <= MAX_FILE).then_some(text)
}

/// Opens a regular file in `dir`. Links below `dir` are not followed: a server may have put them there.
pub(super) fn open_below(dir: &Path, place: &Path) -> io::Result<File> {
    let mut at = File::open(dir)?;
    let mut parts = place.components().peekable();
    while let Some(part) = parts.next() {
        let Component::Normal(name) = part else { return Err(ErrorKind::InvalidInput.into()) };
        let kind = if parts.peek().is_some() { OFlags::DIRECTORY } else { OFlags::NONBLOCK | OFlags::NOCTTY };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | kind;
        at = File::from(openat(&at, name, flags, Mode::empty())?);
    }
    if at.metadata()?.is_file() { Ok(at) } else { Err(ErrorKind::InvalidInput.into()) }
}

/// Reads lines like [`try_each`], for a `take` that cannot fail.
pub(super) fn each<T: for<'de> Deserialize<'de>>(path: &Path, mut take: impl FnMut(T)) -> Result<()> {
    try_each(path, |line| {
        take(line);
        Ok(())
    })
}

/// The same for lines that are kept, of which there may be `most`.
pub(super) fn each_kept<T: for<'de> Deserialize<'de>>(
    path: &Path,
    most: usize,
    mut take: impl FnMut(T),
) -> Result<()> {
    let mut seen = 0;
    try_each(path, |line| {
        seen += 1;
        if seen > most {
            let what = format!(
                "{}: the file has more than {most} lines, too many to be looked at together",
                path.display()
            );
            return Err(Error::input(what, None));
        }
        take(line);
        Ok(())
    })
}

/// Gives each line to `take`. Lines that cannot be read are those that were being written when the run was killed. A
/// file that is not there has no lines.
///
/// # Errors
/// [`Error::Io`]; [`Error::Input`] for a line that is too long and for too many lines; the first error of `take`.
pub(crate) fn try_each<T: for<'de> Deserialize<'de>>(
    path: &Path,
    mut take: impl FnMut(T) -> Result<()>,
) -> Result<()> {
    let mut lines = match BoundedLines::open(path, MAX_LINE) {
        Ok(lines) => lines,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(path, error)),
    };
    let unread = |error: io::Error| match error.kind() {
        ErrorKind::InvalidData => Error::input(error.to_string(), None),
        _ => failed(path, error),
    };
    while let Some((number, line)) = lines.next_line().map_err(unread)? {
        if number > MAX_LINES {
            let what = format!("{}:{number}: the file has more than {MAX_LINES} lines", path.display());
            return Err(Error::input(what, None));
        }
        if let Ok(line) = serde_json::from_slice(line) {
            take(line)?;
        }
    }
    Ok(())
}

fn failed(path: &Path, error: io::Error) -> Error {
    Error::io(format!("cannot read {}", path.display()), error)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_line_without_an_end_is_refused_by_its_number() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("events.jsonl");
        std::fs::write(&path, "{\"a\": 1}\nbroken\n").unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(MAX_LINE + 100).unwrap();
        let mut seen = 0;
        let error = each(&path, |_: Value| seen += 1).unwrap_err().to_string();
        assert_eq!(seen, 1);
        assert!(error.contains("events.jsonl:3: the line is longer"), "{error}");
    }

    #[test]
    fn lines_that_are_kept_are_counted() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("results.jsonl");
        std::fs::write(&path, "{}\n".repeat(4)).unwrap();
        let mut seen = 0;
        let error = each_kept(&path, 3, |_: Value| seen += 1).unwrap_err().to_string();
        assert!(error.contains("results.jsonl: the file has more than 3 lines") && seen == 3, "{error}");
        assert!(each_kept(&path, 4, |_: Value| {}).is_ok());
    }

    #[test]
    fn nothing_outside_of_the_folder_is_read() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("run");
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(home.path().join("secret.json"), "[]").unwrap();
        std::fs::write(dir.join("own.json"), "[]").unwrap();
        let outside = home.path().join("secret.json");
        assert_eq!(text_below(&dir, "own.json").as_deref(), Some("[]"));
        std::os::unix::fs::symlink("../secret.json", dir.join("link.json")).unwrap();
        std::os::unix::fs::symlink("..", dir.join("up")).unwrap();
        assert_eq!(text_below(&dir, "link.json").or_else(|| text_below(&dir, "up/secret.json")), None);
        assert_eq!(text_below(&dir, "../secret.json"), None);
        assert_eq!(text_below(&dir, outside.to_str().unwrap()), None);
    }
}
