//! Files of other programs, given or found where a servers.toml is expected, and their keys in one: what to do with them.

use std::path::{Path, PathBuf};

use super::source_location::SourceLocation;
use crate::error::{ConfigError, Result};

/// Where programs keep the servers of a project.
const FILES: [&str; 13] = [
    ".mcp.json",
    "mcp.json",
    ".vscode/mcp.json",
    ".cursor/mcp.json",
    ".gemini/settings.json",
    ".roo/mcp.json",
    ".kilocode/mcp.json",
    ".kiro/settings/mcp.json",
    ".zed/settings.json",
    ".codex/config.toml",
    ".amazonq/mcp.json",
    ".trae/mcp.json",
    "opencode.json",
];
/// Extensions of files that are no TOML.
const EXTENSIONS: [&str; 5] = ["json", "jsonc", "json5", "yaml", "yml"];

/// Keys of other programs: the key, one that is in the table where it is met, and what it is here.
const ELSEWHERE: [(&str, &str, &str); 8] = [
    (
        "type",
        "builtin",
        "leave it out: `command`, `url` or `builtin` says what a server is; of a `url`, `transport` can be \"sse\" or \"http\"",
    ),
    ("disabled", "enabled", "write enabled = false"),
    ("timeout", "call_timeout", "write call_timeout or startup_timeout, such as \"30s\""),
    ("environment", "env", "write env = { NAME = \"value\" }"),
    ("envFile", "env_file", "write env_file"),
    ("serverUrl", "url", "write url"),
    (
        "mcp_servers",
        "servers",
        "write [servers.NAME]; `toolcrib import FILE` translates the file of another program",
    ),
    (
        "mcpServers",
        "servers",
        "write [servers.NAME]; `toolcrib import FILE` translates the file of another program",
    ),
];

/// Refuses a folder, and a file of another program.
///
/// # Errors
/// [`ConfigError`] that leads to `import`.
pub(super) fn admit(file: &Path, origin: &SourceLocation) -> Result<()> {
    let refused = |message: &str, help: String| {
        let (message, shown) = (message.to_owned(), origin.shown.clone());
        let shown = shown.filter(|file| !file.as_os_str().is_empty()).or_else(|| Some(file.to_owned()));
        Err(ConfigError { file: shown, message, help: Some(help), ..ConfigError::default() }.into())
    };
    if file.is_dir() {
        let help = match files_in(file).first() {
            Some(found) => help(&origin.shown.as_deref().unwrap_or(file).join(found)),
            None => "name the file itself, or write a servers.toml into the folder".to_owned(),
        };
        return refused("is a folder without a servers.toml", help);
    }
    let extension = file.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    if EXTENSIONS.contains(&extension.to_ascii_lowercase().as_str()) && file.is_file() {
        let shown = origin.shown.as_deref().unwrap_or(file);
        return refused("is no servers.toml, which is written in TOML", help(shown));
    }
    Ok(())
}

/// The files of other programs in a folder.
pub fn files_in(folder: &Path) -> Vec<PathBuf> {
    FILES.iter().filter(|file| folder.join(file).is_file()).map(PathBuf::from).collect()
}

/// How the servers of another program's file are used.
pub(super) fn help(file: &Path) -> String {
    let file = file.display();
    format!(
        "`toolcrib import {file} > servers.toml` translates the servers of that file; a servers.toml with \
         `import = [\"{file}\"]` reads them in place"
    )
}

/// The advice for a key of other programs, in a table that has these keys: what is written in its place here.
pub(super) fn key_help(key: &str, keys: &[&str]) -> Option<&'static str> {
    ELSEWHERE.iter().find(|(other, beside, _)| *other == key && keys.contains(beside)).map(|(.., help)| *help)
}
