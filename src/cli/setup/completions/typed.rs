//! The line before the cursor: options and arguments that decide what may follow.

use std::{
    ffi::{OsStr, OsString},
    path::PathBuf,
    sync::Arc,
};

use clap::{ArgMatches, CommandFactory as _};

use super::shells;
use crate::cli::Arguments;

/// Options and arguments of the line as far as it is typed.
#[derive(Debug, Default)]
pub(super) struct TypedLine {
    pub(super) config: Option<PathBuf>,
    pub(super) profile: Option<String>,
    /// The folder of all runs.
    pub(super) runs: Option<PathBuf>,
    /// The tool that is called.
    pub(super) tool: Option<String>,
    /// The arguments of that tool that are there already.
    pub(super) arguments: Vec<String>,
}

impl TypedLine {
    /// Reads the words of a line as `shell` hands them over. The last one is being completed, and is not read.
    pub(super) fn of(words: &[OsString], shell: &OsStr) -> Arc<Self> {
        let words = if shell == "bash" { shells::joined(words).words } else { words.to_vec() };
        let before = words.split_last().map(|(_, before)| before).unwrap_or_default();
        let command = Arguments::command().ignore_errors(true);
        // A line with `--help` is none that anything follows from.
        let Ok(matches) = command.try_get_matches_from(before) else { return Arc::default() };
        let mut leaf = &matches;
        while let Some((_, below)) = leaf.subcommand() {
            leaf = below;
        }
        let path = |name: &str| one::<PathBuf>(leaf, name);
        let text = |name: &str| one::<String>(leaf, name);
        let arguments = leaf.try_get_many::<String>("arguments").ok().flatten();
        Arc::new(Self {
            config: path("config"),
            profile: text("profile"),
            runs: path("out"),
            tool: text("tool"),
            arguments: arguments.into_iter().flatten().cloned().collect(),
        })
    }
}

/// The value of an argument; `None` also if the command has no such argument.
fn one<T: Clone + Send + Sync + 'static>(matches: &ArgMatches, name: &str) -> Option<T> {
    matches.try_get_one(name).ok().flatten().cloned()
}
