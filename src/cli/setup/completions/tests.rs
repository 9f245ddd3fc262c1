//! Names of values, the line before the cursor, and what is harmless in a shell.

use std::ffi::OsStr;

use clap::{Arg, Command, CommandFactory as _};

use super::{
    PROGRAM, Shell, VARIABLE,
    typed::TypedLine,
    values::{Source, is_plain},
};
use crate::cli::Arguments;

/// Every argument that takes a value and does not list its values, with its command.
fn free_arguments(command: &Command) -> Vec<(String, Arg)> {
    let is_free = |arg: &&Arg| arg.get_action().takes_values() && arg.get_possible_values().is_empty();
    let own = command.get_arguments().filter(is_free).map(|arg| (command.get_name().to_owned(), arg.clone()));
    own.chain(command.get_subcommands().flat_map(free_arguments)).collect()
}

#[test]
fn each_value_has_a_name_that_says_what_completes_it() {
    let arguments = free_arguments(&Arguments::command());
    assert!(arguments.len() > 50, "{}", arguments.len());
    for (command, arg) in arguments {
        let name = arg.get_id().as_str();
        assert!(
            Source::of(&command, &arg).is_some(),
            "`{name}` of `{command}`: give it a `value_name` that `Source::of` knows, or add a name to FREE"
        );
    }
}

#[test]
fn the_line_says_which_configuration_and_tool_are_meant() {
    let line = |words: &[&str], shell: &str| {
        let words: Vec<_> = words.iter().map(Into::into).collect();
        TypedLine::of(&words, OsStr::new(shell))
    };
    for (words, shell) in [
        (&["toolcrib", "-c", "a.toml", "--profile=quick", "call", "calc.add", "a=1", "b"][..], "zsh"),
        (&["toolcrib", "call", "calc.add", "a=1", "--config", "a.toml", "--profile", "quick", "b"], "fish"),
        (
            &["toolcrib", "call", "--profile", "=", "quick", "-c", "a.toml", "calc.add", "a", "=", "1", "b"],
            "bash",
        ),
    ] {
        let line = line(words, shell);
        assert_eq!(line.config.as_deref(), Some("a.toml".as_ref()), "{words:?}");
        assert_eq!((line.profile.as_deref(), line.tool.as_deref()), (Some("quick"), Some("calc.add")));
        assert_eq!(line.arguments, ["a=1"], "{words:?}");
    }
    for words in
        [&["toolcrib"][..], &["toolcrib", "call", ""], &["toolcrib", "--no-such", "--help", "call", "x"], &[]]
    {
        assert!(line(words, "zsh").tool.is_none(), "{words:?}");
    }
    assert_eq!(
        line(&["toolcrib", "report", "--out", "old", ""], "zsh").runs.as_deref(),
        Some("old".as_ref())
    );
}

#[test]
fn only_names_that_are_harmless_in_a_shell_are_offered() {
    for name in ["time", "a_b-c.d/e:f", "gr\u{fc}n", "@scope"] {
        assert!(is_plain(name), "{name}");
    }
    let long = "x".repeat(300);
    for name in
        ["", "-x", "$(id)", "`id`", "a b", "a;b", "a\nb", "\u{1b}[2J", "a'b", "~", "*", "a\u{202e}b", &long]
    {
        assert!(!is_plain(name), "{name:?}");
    }
}

#[test]
fn each_script_names_the_program_and_asks_by_the_variable() {
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::Elvish, Shell::Powershell] {
        let script = String::from_utf8(shell.script().unwrap()).unwrap();
        assert!(script.contains(PROGRAM) && script.contains(VARIABLE), "{shell:?}: {script}");
    }
}
