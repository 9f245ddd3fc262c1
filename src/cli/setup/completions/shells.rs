//! The scripts of the shells, and how candidates are written for each.
//!
//! bash, zsh and fish have scripts of their own here, and one answer: a candidate in each line, for zsh and fish with its meaning
//! behind a tab. The others are served by clap.

use std::{
    ffi::OsString,
    io::{self, Write},
    path::Path,
};

use clap::Command;
use clap_complete::{
    CompletionCandidate,
    engine::complete,
    env::{Elvish, EnvCompleter, Powershell},
};

use crate::cli::terminal::output;

/// All shells whose scripts are made.
pub(super) const SHELLS: &[&dyn EnvCompleter] = &[
    &OwnScript { name: "bash", script: include_str!("toolcrib.bash") },
    &OwnScript { name: "zsh", script: include_str!("toolcrib.zsh") },
    &OwnScript { name: "fish", script: include_str!("toolcrib.fish") },
    &Elvish,
    &Powershell,
];

/// Characters of a candidate's meaning.
const LONGEST_HELP: usize = 80;

/// A shell with a script of this folder.
struct OwnScript {
    name: &'static str,
    script: &'static str,
}

impl EnvCompleter for OwnScript {
    fn name(&self) -> &'static str {
        self.name
    }

    fn is(&self, name: &str) -> bool {
        name == self.name
    }

    fn write_registration(
        &self,
        _variable: &str,
        _name: &str,
        _program: &str,
        _completer: &str,
        script: &mut dyn Write,
    ) -> io::Result<()> {
        script.write_all(self.script.as_bytes())
    }

    fn write_complete(
        &self,
        command: &mut Command,
        words: Vec<OsString>,
        folder: Option<&Path>,
        answer: &mut dyn Write,
    ) -> io::Result<()> {
        let is_bash = self.name == "bash";
        let Joined { words, kept } = match is_bash {
            true => joined(&words),
            false => Joined { words, kept: 0 },
        };
        let at = words.len().saturating_sub(1);
        let typed = words.last().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
        let mut found = complete(command, words, at, folder)?;
        // Who has typed nothing yet asks for what must come; options are there for a `-`.
        let is_option =
            |candidate: &CompletionCandidate| candidate.get_value().as_encoded_bytes().first() == Some(&b'-');
        if typed.is_empty() && found.iter().any(|candidate| !is_option(candidate)) {
            found.retain(|candidate| !is_option(candidate));
        }
        for candidate in found {
            // A line feed in the name of a file would make two candidates of it.
            let Some(value) =
                candidate.get_value().to_str().filter(|value| !value.contains(char::is_control))
            else {
                continue;
            };
            let value = own_name(&candidate).filter(|name| name.starts_with(&typed)).unwrap_or(value);
            let help = candidate.get_help().map(|help| meaning(&help.to_string())).unwrap_or_default();
            match value.get(kept..) {
                Some(rest) if is_bash => writeln!(answer, "{}", escaped(rest))?,
                _ if help.is_empty() => writeln!(answer, "{value}")?,
                _ => writeln!(answer, "{value}\t{help}")?,
            }
        }
        Ok(())
    }
}

/// The name of a command that clap offers by another one of its names, of which it knows only the first by the alphabet.
fn own_name(candidate: &CompletionCandidate) -> Option<&str> {
    candidate.get_id()?.strip_prefix("command::")
}

/// The words of a line, and how many bytes of the last one bash leaves as they are.
#[derive(Debug, PartialEq)]
pub(super) struct Joined {
    pub(super) words: Vec<OsString>,
    pub(super) kept: usize,
}

/// Puts together what bash takes apart: `=` and `:` are words of their own there (`COMP_WORDBREAKS`), and quotes are kept.
pub(super) fn joined(typed: &[OsString]) -> Joined {
    let (mut words, mut kept): (Vec<String>, usize) = (Vec::new(), 0);
    let mut after_break = false;
    for word in typed {
        let word = word.to_string_lossy();
        let is_break = !word.is_empty() && word.chars().all(|letter| matches!(letter, '=' | ':'));
        kept = 0;
        // The first word is the program.
        if (is_break || after_break) && words.len() > 1 {
            let last = words.last_mut().expect("there are two words at least");
            if !is_break {
                kept = last.len();
            }
            last.push_str(&unquoted(&word));
            if is_break {
                kept = last.len();
            }
        } else {
            words.push(unquoted(&word));
        }
        after_break = is_break;
    }
    Joined { words: words.into_iter().map(OsString::from).collect(), kept }
}

/// A word of bash without its quotes and backslashes. Variables in it stay as they are typed.
fn unquoted(word: &str) -> String {
    let (mut plain, mut quote) = (String::new(), None);
    let mut letters = word.chars();
    while let Some(letter) = letters.next() {
        match (letter, quote) {
            ('\'' | '"', None) => quote = Some(letter),
            (letter, Some(open)) if letter == open => quote = None,
            ('\\', None | Some('"')) => plain.extend(letters.next()),
            _ => plain.push(letter),
        }
    }
    plain
}

/// A candidate as it is written in a line of bash, where it must do nothing.
fn escaped(value: &str) -> String {
    let mut escaped = String::new();
    for letter in value.chars() {
        if !(letter.is_alphanumeric() || "_-./:@%+,=".contains(letter)) {
            escaped.push('\\');
        }
        escaped.push(letter);
    }
    escaped
}

/// The first line of a text, as a list in a terminal has room for it.
pub(super) fn meaning(text: &str) -> String {
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    toolcrib::cli_support::cut(&output::whole_line(&line.trim().replace('\t', " ")), LONGEST_HELP)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &[&str]) -> Vec<OsString> {
        line.iter().map(OsString::from).collect()
    }

    #[test]
    fn words_that_bash_takes_apart_are_joined() {
        let cases: [(&[&str], &[&str], usize); 6] = [
            (&["t", "--profile", "=", "qu"], &["t", "--profile=qu"], 10),
            (&["t", "--profile", "="], &["t", "--profile="], 10),
            (&["t", "a", ":=", "[", "b"], &["t", "a:=[", "b"], 0),
            (&["t", "-c", "'my file'", ""], &["t", "-c", "my file", ""], 0),
            (&["t", "call", "calc.add", "a", "=", "1", "b"], &["t", "call", "calc.add", "a=1", "b"], 0),
            (&["t", "="], &["t", "="], 0),
        ];
        for (typed, joined_words, kept) in cases {
            assert_eq!(joined(&words(typed)), Joined { words: words(joined_words), kept }, "{typed:?}");
        }
    }

    #[test]
    fn candidates_do_nothing_in_a_line_of_bash() {
        assert_eq!(escaped("a/b-c.d=1:x"), "a/b-c.d=1:x");
        assert_eq!(escaped("$(x) `y`;'z"), r"\$\(x\)\ \`y\`\;\'z");
        assert_eq!(unquoted(r#"'a b'"c\"d"\ e"#), "a bc\"d e");
    }
}
