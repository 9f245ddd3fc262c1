//! `results.jsonl`: a line for each task that has ended. Only one line is in memory at a time.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::{self, BufWriter, Write as _},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::private;
use crate::{
    bounded::{self, BoundedLines},
    task::{TaskReport, sample_name},
    text::short_hash,
};

/// Longest line: 64 MiB.
const LONGEST: u64 = 64 << 20;

/// The file, opened for more lines.
#[derive(Debug)]
pub(super) struct Results {
    path: PathBuf,
    file: File,
    lines: usize,
}

/// Which task a line is of.
#[derive(Deserialize)]
struct TaskOfLine {
    task: String,
    #[serde(default)]
    sample: u32,
}

/// Where a line is in the file.
struct Line {
    at: u64,
    length: usize,
}

impl Results {
    pub(super) fn create(path: PathBuf) -> io::Result<Self> {
        let file = private::append(&path)?;
        Ok(Self { path, file, lines: 0 })
    }

    /// Goes on with the file of an interrupted run. The lines that `keep` wants stay, the last one of each sample; each is
    /// given to `kept`.
    pub(super) fn resume(
        path: PathBuf,
        keep: impl Fn(&TaskReport) -> bool,
        mut kept: impl FnMut(TaskReport),
    ) -> io::Result<Self> {
        let mut lines: Vec<Line> = Vec::new();
        let mut numbers: HashMap<u128, usize> = HashMap::new();
        each_line(&path, |line, text| {
            // The last line may not be whole.
            if let Ok(report) = serde_json::from_slice::<TaskReport>(text)
                && text.ends_with(b"\n")
                && keep(&report)
            {
                let number =
                    *numbers.entry(key(&sample_name(&report.task, report.sample))).or_insert(lines.len());
                if number < lines.len() {
                    lines[number] = line;
                } else {
                    lines.push(line);
                }
            }
        })?;
        let file = rewrite(&path, &lines, |text| {
            if let Ok(report) = serde_json::from_slice(text) {
                kept(report);
            }
        })?;
        Ok(Self { path, file, lines: lines.len() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a line, at once.
    pub(super) fn append(&mut self, line: &str) -> io::Result<()> {
        self.file.write_all(line.as_bytes())?;
        self.lines += 1;
        Ok(())
    }

    /// Puts the lines into the order of `tasks`, those of one task into that of its samples. The file is replaced, whole or not at all.
    pub(super) fn sort(&mut self, tasks: impl IntoIterator<Item = impl AsRef<str>>) -> io::Result<()> {
        let places: HashMap<u128, usize> =
            tasks.into_iter().map(|task| key(task.as_ref())).zip(0..).collect();
        let mut lines: Vec<((usize, u32), Line)> = Vec::new();
        each_line(&self.path, |line, text| {
            let task = serde_json::from_slice::<TaskOfLine>(text).ok();
            let place = task.and_then(|line| Some((*places.get(&key(&line.task))?, line.sample)));
            lines.push((place.unwrap_or((usize::MAX, 0)), line));
        })?;
        if lines.len() != self.lines {
            return Err(io::Error::other("it has lines that this run did not write"));
        }
        if !lines.is_sorted_by_key(|(place, _)| *place) {
            lines.sort_by_key(|(place, _)| *place);
            let lines: Vec<Line> = lines.into_iter().map(|(_, line)| line).collect();
            self.file = rewrite(&self.path, &lines, |_| {})?;
        }
        Ok(())
    }
}

fn key(task: &str) -> u128 {
    short_hash(Sha256::new_with_prefix(task))
}

fn each_line(path: &Path, mut take: impl FnMut(Line, &[u8])) -> io::Result<()> {
    let (mut reader, mut at) = (BoundedLines::open(path, LONGEST)?, 0);
    while let Some((_, text)) = reader.next_line()? {
        let length = text.len();
        take(Line { at, length }, text);
        at += length as u64;
    }
    Ok(())
}

/// Replaces the file by these lines of it, and gives each to `written`.
fn rewrite(path: &Path, lines: &[Line], mut written: impl FnMut(&[u8])) -> io::Result<File> {
    let (old, draft) = (bounded::open(path)?, path.with_extension("jsonl.new"));
    let mut new = BufWriter::new(private::create(&draft)?);
    let mut text = Vec::new();
    for line in lines {
        text.resize(line.length, 0);
        old.read_exact_at(&mut text, line.at)?;
        new.write_all(&text)?;
        written(&text);
    }
    new.into_inner().map_err(io::IntoInnerError::into_error)?;
    fs::rename(&draft, path)?;
    private::append(path)
}
