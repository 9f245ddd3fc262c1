//! The structure of the sources: layers, file sizes, first lines. The rules are those of the crate's own map.

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

fn sources(folder: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
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
fn arrows_point_down() {
    let (mut wrong, mut exceptions) = (Vec::new(), BTreeSet::new());
    for path in sources("src") {
        let room = room(&path);
        if room == "lib" {
            continue;
        }
        let own = layer(&room).unwrap_or_else(|| panic!("the room `{room}` has no layer"));
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
fn the_protocol_library_stays_in_its_rooms() {
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
fn files_are_short_and_say_what_they_are_for() {
    let mut sizes = BTreeMap::new();
    for path in ["src", "crates", "tests", "examples"].into_iter().flat_map(sources) {
        if path.components().any(|part| part.as_os_str() == "node_modules" || part.as_os_str() == "venv") {
            continue;
        }
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
