//! The structure of the sources: layers, file sizes, first lines, names of tests. docs/architecture.md has the rules.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Rooms by layer. A room may use its own layer's rooms only where `SIBLINGS` says so, and any below.
const LAYERS: [&[&str]; 7] = [
    &["trace", "bounded"],
    &["error", "config", "task", "tool", "retry", "limit", "gate", "report", "score"],
    &["process", "launch", "builtin", "http", "llm", "journal", "cassette", "tap", "live"],
    &["session", "catalog"],
    &["manager", "start"],
    &["agent", "batch", "crew", "daemon", "gateway"],
    &["main", "cli", "fuzz"],
];

/// Uses within a layer, or upwards, each for its reason.
const SIBLINGS: &[(&str, &str)] = &[
    ("config", "error"),
    ("config", "retry"),
    ("config", "tool"),
    ("error", "tool"),
    ("error", "llm"), // a model failure is one of the library's errors
    ("retry", "error"),
    ("task", "error"),
    ("report", "task"),
    ("report", "error"),
    ("score", "task"),
    ("gate", "limit"),
    ("gate", "retry"),
    ("llm", "http"),
    ("builtin", "http"),
    ("launch", "process"), // the name of the mark, which is no part of a resolution
    ("daemon", "gateway"),
    ("manager", "start"),
    ("session", "catalog"), // every list that comes in is remembered
    ("tap", "cassette"),
    ("tap", "journal"),
    ("tap", "live"),
    ("tap", "llm"),          // the rows of its requests
    ("live", "journal"),     // the row of an attempt
    ("live", "llm"),         // a call as a model wrote it
    ("cassette", "journal"), // a time in nanoseconds
    ("llm", "tap"),          // a client carries the tap of its agent
    ("llm", "cassette"),
    ("llm", "journal"), // the line of a request
];

/// Lines that one file may have; and half of the files must have fewer than this.
const CEILING: usize = 500;
const MEDIAN: usize = 200;

/// Characters that the name of a test may have.
const LONGEST_TEST_NAME: usize = 60;

fn sources(folder: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                // What `tests/servers/install.sh` installs is not ours.
                if !path.ends_with("node_modules") && !path.ends_with("venv") {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The room of a file: the first part of its path below `src`.
fn room(path: &Path) -> String {
    let below = path.strip_prefix(Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).unwrap();
    let first = below.components().next().unwrap().as_os_str().to_str().unwrap();
    first.trim_end_matches(".rs").to_owned()
}

fn layer(room: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&room))
}

/// The rooms that a text names after `crate::`, in paths and in grouped imports.
fn used(text: &str) -> Vec<String> {
    let mut rooms = Vec::new();
    let name =
        |text: &str| text.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect::<String>();
    for part in text.split("crate::").skip(1) {
        match part.strip_prefix('{') {
            None => rooms.push(name(part)),
            Some(group) => {
                let mut depth = 0;
                let mut first = true;
                let mut rest = group;
                while let Some(c) = rest.chars().next() {
                    if depth == 0 && first && c.is_ascii_lowercase() {
                        rooms.push(name(rest));
                        first = false;
                    }
                    match c {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => first = true,
                        _ => {}
                    }
                    rest = &rest[c.len_utf8()..];
                }
            }
        }
    }
    rooms
}

#[test]
fn modules_use_lower_layers_only() {
    let (mut wrong, mut exceptions) = (Vec::new(), BTreeSet::new());
    for path in sources("src") {
        let room = room(&path);
        if room == "lib" {
            continue;
        }
        let own = layer(&room).unwrap_or_else(|| panic!("the module `{room}` has no layer"));
        for used in used(&fs::read_to_string(&path).unwrap()) {
            // Names that are no rooms are re-exports or macros of the crate's root.
            let Some(target) = layer(&used) else { continue };
            if target < own || used == room {
                continue;
            }
            match SIBLINGS.iter().find(|pair| **pair == (room.as_str(), used.as_str())) {
                Some(pair) => drop(exceptions.insert(pair)),
                None => wrong.push(format!("{}: {room} uses {used}", path.display())),
            }
        }
    }
    wrong.extend(
        SIBLINGS
            .iter()
            .filter(|pair| !exceptions.contains(pair))
            .map(|pair| format!("{pair:?} is never needed")),
    );
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn only_protocol_modules_use_the_sdk() {
    for path in sources("src") {
        // The SDK's own client, which calls are measured beside.
        let measured = path.ends_with("src/cli/bench/call/sdk.rs");
        let allowed =
            measured || ["session", "builtin", "catalog", "gateway"].contains(&room(&path).as_str());
        let text = fs::read_to_string(&path).unwrap();
        assert!(allowed || !text.contains("rmcp::"), "{} names the protocol library", path.display());
    }
}

#[test]
fn files_are_short_and_begin_with_a_doc() {
    let mut sizes = BTreeMap::new();
    for path in ["src", "tests", "examples"].into_iter().flat_map(sources) {
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("//!"), "{} does not begin with what it is for", path.display());
        sizes.insert(path, text.lines().count());
    }
    let long: Vec<_> = sizes.iter().filter(|(_, lines)| **lines > CEILING).collect();
    assert!(long.is_empty(), "over {CEILING} lines: {long:?}");
    let mut lines: Vec<usize> = sizes.values().copied().collect();
    lines.sort_unstable();
    assert!(lines[lines.len() / 2] <= MEDIAN, "the median file has {} lines", lines[lines.len() / 2]);
}

/// The files with tests, and the lines of each.
pub(super) fn test_files() -> Vec<(PathBuf, String)> {
    let files = ["src", "tests", "crates"].into_iter().flat_map(sources);
    files.map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

/// The names of the functions in a text that have an attribute that `is_meant`.
pub(super) fn functions_with(text: &str, is_meant: impl Fn(&str) -> bool) -> Vec<&str> {
    let mut names = Vec::new();
    let mut found = false;
    for line in text.lines().map(str::trim_start) {
        match line.strip_prefix("#[") {
            Some(attribute) => found |= is_meant(attribute),
            None if line.starts_with("//") => {}
            None => {
                let name = line.trim_start_matches("async ").strip_prefix("fn ").filter(|_| found);
                names.extend(name.and_then(|rest| rest.split(['(', '<']).next()));
                found = false;
            }
        }
    }
    names
}

fn test_names(text: &str) -> Vec<&str> {
    functions_with(text, |attribute| {
        let attribute = attribute.trim_start_matches("tokio::");
        attribute.starts_with("test]") || attribute.starts_with("test(")
    })
}

#[test]
fn test_names_are_short() {
    let files = test_files();
    let names: Vec<&str> = files.iter().flat_map(|(_, text)| test_names(text)).collect();
    assert!(names.len() > 900, "only {} tests were found", names.len());
    let long: Vec<_> = names.iter().filter(|name| name.len() > LONGEST_TEST_NAME).collect();
    assert!(long.is_empty(), "over {LONGEST_TEST_NAME} characters: {long:#?}");
}

/// SECURITY.md names a test, or a module of tests, for each promise.
#[test]
fn tests_named_in_security_md_exist() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("SECURITY.md")).unwrap();
    let files = test_files();
    let mut known: BTreeSet<&str> = files.iter().flat_map(|(_, text)| test_names(text)).collect();
    for (path, text) in &files {
        known.extend(path.file_stem().and_then(|stem| stem.to_str()));
        known.extend(
            text.lines().filter_map(|line| line.trim().strip_prefix("mod ")?.split([' ', ';']).next()),
        );
    }
    let cells = page.lines().filter_map(|line| line.strip_prefix('|')?.strip_suffix('|')?.rsplit('|').next());
    let quoted: Vec<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    assert!(quoted.len() > 40, "only {} tests are named", quoted.len());
    let missing: Vec<_> =
        quoted.into_iter().filter(|test| !test.split("::").all(|part| known.contains(part))).collect();
    assert!(missing.is_empty(), "{missing:#?}");
}
