//! Inner functions that read what comes from outside, opened to the fuzz targets in `fuzz/`.

use std::path::Path;

use crate::{batch, config, llm, process, session};

/// A server's stdout: bytes to lines to messages.
pub fn message(bytes: &[u8]) {
    process::fuzz_lines(bytes, session::fuzz_line);
}

/// A server's stderr: the tail that is kept.
pub fn stderr(bytes: &[u8]) {
    process::fuzz_stderr(bytes);
}

/// `servers.toml`.
pub fn config(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = config::Config::parse(text, None, Path::new("/"), &config::Env::process());
    }
}

/// A task file.
pub fn tasks(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = batch::parse_tasks("tasks.jsonl", text);
    }
}

/// The body of a model's answer.
pub fn answer(bytes: &[u8]) {
    llm::fuzz_answer(bytes);
}
