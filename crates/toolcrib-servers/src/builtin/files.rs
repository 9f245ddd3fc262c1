//! `files`: list, read and search below one folder. Nothing outside it, symbolic links included: every path
//! is opened through a capability on that folder, which the operating system and cap-std hold to it. Of an absolute path
//! that begins with the folder's own, the rest is opened so.

use std::{
    io::Read,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use cap_std::{
    ambient_authority,
    fs::{Dir, OpenOptions, OpenOptionsExt},
};
use globset::{Glob, GlobMatcher};
use regex::Regex;
use rmcp::model::Tool;
use rustix::fs::OFlags;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Outcome, Output, arguments, tool};

/// Entries of one listing.
const MAX_ENTRIES: usize = 1000;
/// Bytes read of one file.
const MAX_READ: u64 = 1 << 20;
/// Matches of one search.
const MAX_MATCHES: usize = 200;
/// How long a search may take.
const SEARCH_TIME: Duration = Duration::from_secs(20);
/// Entries of one folder that are looked at.
const MAX_NAMES: usize = 100_000;
/// Folders below each other.
const MAX_DEPTH: usize = 32;

/// One folder.
pub struct Files {
    root: Dir,
    /// Its absolute paths: as it is configured, and without symbolic links.
    places: Vec<PathBuf>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct List {
    /// Folder, relative to the root or absolute. Default: the root.
    #[serde(default)]
    path: Option<String>,
    /// Also list what is in the folders below. Default: false.
    #[serde(default)]
    recursive: bool,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReadFile {
    /// File, relative to the root or absolute.
    path: String,
    /// First line wanted, from 1. Default: 1.
    #[serde(default)]
    from_line: Option<usize>,
    /// Number of lines wanted. Default: all.
    #[serde(default)]
    lines: Option<usize>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Search {
    /// Regular expression that a line must match.
    pattern: String,
    /// Folder or file to search, relative to the root or absolute. Default: the root.
    #[serde(default)]
    path: Option<String>,
    /// Only files whose path matches this glob, for instance `*.rs` or `docs/**`.
    #[serde(default)]
    glob: Option<String>,
}

pub(super) fn tools() -> Vec<Tool> {
    vec![
        tool::<List>("list", "List the files and folders in a folder, with their sizes in bytes."),
        tool::<ReadFile>("read", "Read a text file, or some lines of it."),
        tool::<Search>("search", "Find the lines that match a regular expression, as `path:line: text`."),
    ]
}

impl Files {
    /// Opens the folder `root`.
    pub(super) fn open(root: &Path) -> Result<Self, String> {
        let opened = Dir::open_ambient_dir(root, ambient_authority());
        let opened = opened.map_err(|error| format!("cannot open the folder {}: {error}", root.display()))?;
        // Only words: what is opened is held to the folder that is open.
        let places = [std::path::absolute(root), root.canonicalize()].into_iter().flatten().collect();
        Ok(Self { root: opened, places })
    }

    /// `path` relative to the folder.
    fn inside<'a>(&self, path: &'a str) -> Result<&'a str, String> {
        if !path.starts_with('/') {
            return Ok(path);
        }
        let rest = self.places.iter().find_map(|place| Path::new(path).strip_prefix(place).ok());
        match rest.and_then(Path::to_str) {
            Some("") => Ok("."),
            Some(rest) => Ok(rest),
            None => {
                let root = self.places.first().map_or(Path::new("."), PathBuf::as_path);
                Err(format!("`{path}` is outside of the folder {}", root.display()))
            }
        }
    }

    pub(super) fn run(&self, name: &str, given: Map<String, Value>) -> Option<Outcome> {
        match name {
            "list" => Some(arguments(given).and_then(|given| self.list(&given))),
            "read" => Some(arguments(given).and_then(|given| self.read(&given))),
            "search" => Some(arguments(given).and_then(|given| self.search(&given))),
            _ => None,
        }
    }

    fn list(&self, given: &List) -> Outcome {
        let path = self.inside(given.path.as_deref().unwrap_or("."))?;
        let mut lines = Vec::new();
        let depth = if given.recursive { MAX_DEPTH } else { 1 };
        let complete = self.walk(path, depth, &mut |path, size| {
            lines.push(match size {
                None => format!("{path}/"),
                Some(size) => format!("{path}  {size}"),
            });
            lines.len() < MAX_ENTRIES
        })?;
        if lines.is_empty() {
            return Ok(Output::Text(format!("`{path}` is empty")));
        }
        if !complete {
            lines.push(format!("[cut after {MAX_ENTRIES} entries]"));
        }
        Ok(Output::Text(lines.join("\n")))
    }

    fn read(&self, given: &ReadFile) -> Outcome {
        let (text, complete) = self.text(self.inside(&given.path)?)?;
        let first = given.from_line.unwrap_or(1).max(1);
        let wanted = given.lines.unwrap_or(usize::MAX);
        let chosen: Vec<&str> = text.lines().skip(first - 1).take(wanted).collect();
        let mut answer = match given.from_line.is_none() && given.lines.is_none() {
            true => text,
            false => chosen.join("\n"),
        };
        if !complete {
            answer.push_str(&format!("\n[cut after {MAX_READ} bytes]"));
        }
        Ok(Output::Text(answer))
    }

    fn search(&self, given: &Search) -> Outcome {
        let pattern =
            Regex::new(&given.pattern).map_err(|error| format!("not a regular expression: {error}"))?;
        let glob = given.glob.as_deref().map(file_glob).transpose()?;
        let path = self.inside(given.path.as_deref().unwrap_or("."))?;
        let (mut matches, end) = (Vec::new(), Instant::now() + SEARCH_TIME);
        let mut visit = |path: &str, size: Option<u64>| {
            let name_fits = glob.as_ref().is_none_or(|glob| glob.is_match(path));
            if size.is_some() && name_fits {
                // A file that is no text, or cannot be read, has no line that matches.
                let text = self.text(path).map(|(text, _)| text).unwrap_or_default();
                for (number, line) in text.lines().enumerate().filter(|(_, line)| pattern.is_match(line)) {
                    let line: String = line.chars().take(300).collect();
                    matches.push(format!("{path}:{}: {line}", number + 1));
                    if matches.len() == MAX_MATCHES {
                        break;
                    }
                }
            }
            matches.len() < MAX_MATCHES && Instant::now() < end
        };
        let is_file = self.root.metadata(path).map_err(|error| Self::refusal(path, &error))?.is_file();
        let complete = if is_file { visit(path, Some(0)) } else { self.walk(path, MAX_DEPTH, &mut visit)? };
        if matches.is_empty() && complete {
            return Ok(Output::Text(format!("no line matches `{}`", given.pattern)));
        }
        if !complete {
            matches.push(match matches.len() {
                MAX_MATCHES => format!("[cut after {MAX_MATCHES} matches]"),
                _ => format!("[not all files were searched within {} s]", SEARCH_TIME.as_secs()),
            });
        }
        Ok(Output::Text(matches.join("\n")))
    }

    /// Visits what is below `path` in order of name, files with their size; links to folders are not
    /// followed. Stops when `visit` says so, and tells whether it came to the end.
    fn walk(
        &self,
        path: &str,
        depth: usize,
        visit: &mut dyn FnMut(&str, Option<u64>) -> bool,
    ) -> Result<bool, String> {
        let entries = self.root.read_dir(path).map_err(|error| Self::refusal(path, &error))?;
        let mut names: Vec<_> = entries.flatten().take(MAX_NAMES).map(|entry| entry.file_name()).collect();
        names.sort();
        for name in names {
            let below = match path {
                "." => name.to_string_lossy().into_owned(),
                _ => format!("{}/{}", path.trim_end_matches('/'), name.to_string_lossy()),
            };
            // What vanished meanwhile, or leads outside, is left out.
            let Ok(itself) = self.root.symlink_metadata(&below) else { continue };
            let Ok(target) = self.root.metadata(&below) else { continue };
            let size = (!target.is_dir()).then_some(target.len());
            if !visit(&below, size) {
                return Ok(false);
            }
            if itself.is_dir() && depth > 1 && !self.walk(&below, depth - 1, visit)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The text of a file, and whether it is all of it.
    fn text(&self, path: &str) -> Result<(String, bool), String> {
        let refusal = |error| Self::refusal(path, &error);
        let no_file = || format!("`{path}` is not a file");
        // What is no file is not even opened: that alone may do something to a device.
        if !self.root.metadata(path).map_err(refusal)?.is_file() {
            return Err(no_file());
        }
        // If it has become a FIFO, this does not wait for a writer.
        let mut options = OpenOptions::new();
        options.read(true).custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed());
        let file = self.root.open_with(path, &options).map_err(refusal)?;
        if !file.metadata().map_err(refusal)?.is_file() {
            return Err(no_file());
        }
        let mut bytes = Vec::new();
        file.take(MAX_READ + 1).read_to_end(&mut bytes).map_err(refusal)?;
        let complete = bytes.len() as u64 <= MAX_READ;
        bytes.truncate(usize::try_from(MAX_READ).unwrap_or(usize::MAX));
        if bytes.contains(&0) {
            return Err(format!("`{path}` is not a text file"));
        }
        Ok((String::from_utf8_lossy(&bytes).into_owned(), complete))
    }

    fn refusal(path: &str, error: &std::io::Error) -> String {
        match error.kind() {
            std::io::ErrorKind::NotFound => format!("there is no `{path}`"),
            std::io::ErrorKind::PermissionDenied => {
                format!("`{path}` is outside of the folder, or may not be read")
            }
            _ => format!("cannot read `{path}`: {error}"),
        }
    }
}

/// A pattern without a folder matches names in every folder.
fn file_glob(pattern: &str) -> Result<GlobMatcher, String> {
    let whole = if pattern.contains('/') { pattern.to_owned() } else { format!("**/{pattern}") };
    Glob::new(&whole).map(|glob| glob.compile_matcher()).map_err(|error| format!("not a pattern: {error}"))
}
