//! A file of lines that grows: read from where it was left.

use std::{
    fs::File,
    io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom},
    os::unix::fs::{FileExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use crate::{
    error::{Error, Result},
    report::lines,
};

/// Bytes of one line.
const LONGEST: u64 = 64 << 20;

/// A file and how far it was read.
#[derive(Default)]
pub(super) struct Tail {
    dir: PathBuf,
    name: &'static str,
    /// Device and inode of the file that was read.
    file: Option<(u64, u64)>,
    at: u64,
}

impl Tail {
    /// The file `name` in `dir`, from its beginning. It may not be there yet.
    pub(super) fn of(dir: &Path, name: &'static str) -> Self {
        Self { dir: dir.to_owned(), name, file: None, at: 0 }
    }

    fn open(&self) -> Option<File> {
        lines::open_below(&self.dir, Path::new(self.name)).ok()
    }

    /// Whether another file stands in its place, or one that has become shorter.
    pub(super) fn was_replaced(&self) -> bool {
        let Some(known) = self.file else { return false };
        let about = self.open().and_then(|file| file.metadata().ok());
        about.is_some_and(|about| (about.dev(), about.ino()) != known || about.len() < self.at)
    }

    /// Starts again at the beginning of the file.
    pub(super) fn rewind(&mut self) {
        (self.file, self.at) = (None, 0);
    }

    /// Where the next line begins.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Bytes of the file.
    pub(super) fn size(&self) -> u64 {
        self.open().and_then(|file| file.metadata().ok()).map_or(0, |about| about.len())
    }

    /// Gives each whole line that is new to `take`, with the place where it begins: about `most` bytes. Gives whether that is
    /// all.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Input`] for a line that is too long.
    pub(super) fn read(&mut self, most: u64, mut take: impl FnMut(u64, &[u8])) -> Result<bool> {
        let Some(mut file) = self.open() else { return Ok(true) };
        let failed = |error| Error::io(format!("cannot read {}", self.dir.join(self.name).display()), error);
        let about = file.metadata().map_err(failed)?;
        file.seek(SeekFrom::Start(self.at)).map_err(failed)?;
        let (mut reader, mut line, begin) = (BufReader::with_capacity(1 << 16, file), Vec::new(), self.at);
        self.file = Some((about.dev(), about.ino()));
        while self.at - begin < most {
            line.clear();
            reader.by_ref().take(LONGEST + 1).read_until(b'\n', &mut line).map_err(failed)?;
            if !line.ends_with(b"\n") {
                if line.len() as u64 > LONGEST {
                    let what = format!(
                        "{}: a line is longer than {LONGEST} bytes",
                        self.dir.join(self.name).display()
                    );
                    return Err(Error::input(what, None));
                }
                return Ok(true);
            }
            take(self.at, &line);
            self.at += line.len() as u64;
        }
        Ok(false)
    }

    /// Gives each line from the one at `begin` to the one at `end` to `take`.
    ///
    /// # Errors
    /// As [`Tail::read`].
    pub(super) fn between(&self, begin: u64, end: u64, mut take: impl FnMut(&[u8])) -> Result<()> {
        let mut part = Self { at: begin, ..Self::of(&self.dir, self.name) };
        let mut over = false;
        while !over && part.at <= end {
            let (from, mut last) = (part.at, part.at);
            let whole = part.read(1 << 20, |at, line| {
                last = at;
                if at <= end {
                    take(line);
                }
            })?;
            over = whole || last > end || part.at == from;
        }
        Ok(())
    }

    /// The line of `length` bytes at `at`.
    pub(super) fn line(&self, at: u64, length: usize) -> Option<Vec<u8>> {
        let mut line = vec![0; length];
        self.open()?.read_exact_at(&mut line, at).ok()?;
        Some(line)
    }

    /// The line at `at`, if it is not longer than an event is.
    pub(super) fn event(&self, at: u64) -> Option<Vec<u8>> {
        let mut line = vec![0; 64 << 10];
        let length = self.open()?.read_at(&mut line, at).ok()?;
        line.truncate(memchr::memchr(b'\n', &line[..length])?);
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write as _};

    use super::*;

    #[test]
    fn only_whole_new_lines_are_read() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("x.jsonl");
        let mut tail = Tail::of(home.path(), "x.jsonl");
        let read = |tail: &mut Tail| {
            let mut seen = Vec::new();
            assert!(tail.read(1 << 20, |at, line| seen.push((at, line.len()))).unwrap());
            seen
        };
        assert!(read(&mut tail).is_empty());
        let mut file = File::create(&path).unwrap();
        file.write_all(b"one\ntwo\nthr").unwrap();
        assert_eq!(read(&mut tail), [(0, 4), (4, 4)]);
        assert!(read(&mut tail).is_empty() && !tail.was_replaced());
        file.write_all(b"ee\n").unwrap();
        assert_eq!(read(&mut tail), [(8, 6)]);
        assert_eq!(tail.line(4, 4).unwrap(), b"two\n");
        let mut part = Vec::new();
        tail.between(4, 4, |line| part.push(line.to_vec())).unwrap();
        assert_eq!(part, [b"two\n"]);
        fs::write(home.path().join("new"), "1\n").unwrap();
        fs::rename(home.path().join("new"), &path).unwrap();
        assert!(tail.was_replaced());
        tail.rewind();
        assert_eq!(read(&mut tail), [(0, 2)]);
    }

    #[test]
    fn a_link_is_not_followed() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("other"), "secret\n").unwrap();
        std::os::unix::fs::symlink("other", home.path().join("x.jsonl")).unwrap();
        let mut tail = Tail::of(home.path(), "x.jsonl");
        assert!(tail.read(1 << 20, |_, _| panic!("it was read")).unwrap());
    }
}
