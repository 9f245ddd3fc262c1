//! The program under test: this library's own owner, or any other that starts a server.

use std::{ffi::OsString, path::PathBuf, process::Command};

use serde_json::json;
use toolcrib::Error;

use super::ending::End;

/// How to start the owner of a server.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Program {
    /// `toolcrib-lab torture-owner`, with its guards or without.
    Own { path: PathBuf, no_guard: bool },
    /// The words of `--command`.
    Other(Vec<Word>),
}

/// One word of a command line, with its placeholders.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Word {
    text: String,
    /// Whether any of it was in quotes.
    quoted: bool,
}

impl Program {
    /// Takes `--command` apart.
    pub(super) fn parse(command: &str) -> Result<Self, Error> {
        let words = split(command).ok_or_else(|| {
            Error::input("--command ends within quotes", Some("close the quote, or escape it with \\".into()))
        })?;
        if !words.iter().any(|word| word.text.contains("{server}") || word.text.contains("{server_json}")) {
            return Err(Error::input(
                "--command does not say where the server's command line goes",
                Some("put {server} or {server_json} where it starts the server".to_owned()),
            ));
        }
        Ok(Self::Other(words))
    }

    /// Whether the ending can be chosen for it.
    pub(super) fn takes_end(&self) -> bool {
        match self {
            Self::Own { .. } => true,
            Self::Other(words) => words.iter().any(|word| word.text.contains("{end}")),
        }
    }

    /// The program that starts `server` and ends in the way `end`. Only the own one takes `more` words.
    pub(super) fn command(&self, server: &[String], end: End, more: &[OsString]) -> Command {
        match self {
            Self::Own { path, no_guard } => {
                let mut command = Command::new(path);
                command.args(["torture-owner", "--end", end.name()]);
                command.args(no_guard.then_some("--no-guard")).args(more).arg("--").args(server);
                command
            }
            Self::Other(words) => {
                let words: Vec<String> = words.iter().flat_map(|word| word.expand(server, end)).collect();
                let (program, arguments) = words.split_first().expect("a word names the server");
                let mut command = Command::new(program);
                command.args(arguments);
                command
            }
        }
    }
}

impl Word {
    fn expand(&self, server: &[String], end: End) -> Vec<String> {
        if self.text == "{server}" && !self.quoted {
            return server.to_vec();
        }
        let line = server.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" ");
        let text = self.text.replace("{end}", end.name()).replace("{server}", &line);
        vec![text.replace("{server_json}", &json!(server).to_string())]
    }
}

/// A word as a shell reads it.
fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:@%+,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Words as a shell would see them: spaces, both kinds of quotes, backslashes. Nothing for an open quote.
fn split(command: &str) -> Option<Vec<Word>> {
    let mut words = Vec::new();
    let mut word: Option<Word> = None;
    let mut quote = None;
    let mut letters = command.chars();
    while let Some(letter) = letters.next() {
        if quote.is_none() && letter.is_whitespace() {
            words.extend(word.take());
            continue;
        }
        let word = word.get_or_insert_with(|| Word { text: String::new(), quoted: false });
        match (letter, quote) {
            ('\'' | '"', None) => {
                quote = Some(letter);
                word.quoted = true;
            }
            (_, Some(open)) if letter == open => quote = None,
            ('\\', None) => word.text.push(letters.next()?),
            // Within double quotes a backslash is one, except before what has a meaning there.
            ('\\', Some('"')) => match letters.next()? {
                next @ ('"' | '\\') => word.text.push(next),
                next => word.text.extend(['\\', next]),
            },
            _ => word.text.push(letter),
        }
    }
    words.extend(word);
    quote.is_none().then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(command: &str) -> Vec<String> {
        let server = ["/a b/crib".to_owned(), "polite".to_owned()];
        let program = Program::parse(command).unwrap().command(&server, End::Drop, &[]);
        let all = std::iter::once(program.get_program()).chain(program.get_args());
        all.map(|word| word.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn the_server_command_is_one_or_several_words() {
        assert_eq!(words("x --{end} {server}"), ["x", "--drop", "/a b/crib", "polite"]);
        assert_eq!(words("x \"{server}\""), ["x", "'/a b/crib' polite"]);
        assert_eq!(
            words("sh -c 'exec {server} </dev/null'"),
            ["sh", "-c", "exec '/a b/crib' polite </dev/null"]
        );
        assert_eq!(
            words(r#"x --s={server_json} a\ b "c \"d\" \n" ''"#),
            ["x", r#"--s=["/a b/crib","polite"]"#, "a b", "c \"d\" \\n", ""]
        );
    }

    #[test]
    fn malformed_program_lines_are_refused() {
        for command in ["x 'y {server}", "x {end}", "{server} \\", ""] {
            assert!(Program::parse(command).is_err(), "{command}");
        }
    }
}
