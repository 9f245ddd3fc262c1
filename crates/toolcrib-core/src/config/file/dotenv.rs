//! The lines of an `env_file`: `KEY=VALUE`, comments, quotes and `export`. Nothing in it is expanded, so a
//! password may hold any character.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::check::written::is_renewed;

/// Reads a file's text; the error is the line and what is wrong with it.
pub(in crate::config) fn parse(text: &str) -> Result<BTreeMap<String, String>, (usize, String)> {
    let mut vars = BTreeMap::new();
    for (number, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let line = line.strip_prefix("export ").unwrap_or(line);
        let fault = |what: &str| (number + 1, what.to_owned());
        let (name, value) = line.split_once('=').ok_or_else(|| fault("expected KEY=VALUE"))?;
        let name = name.trim();
        if !is_name(name) {
            return Err(fault("not the name of a variable before `=`"));
        }
        vars.insert(name.to_owned(), value_of(value.trim()).map_err(fault)?);
    }
    Ok(vars)
}

/// The part of a file's text that counts when it is asked whether it has changed: all but the values of variables with the name
/// of a secret. Such a value counts if its variable is a `deciding` one, or if it is a path. `None`: it cannot be read.
pub fn kept_of_env_file(text: &str, deciding: &BTreeSet<String>) -> Option<String> {
    let variables = parse(text).ok()?;
    let is_path = |value: &str| ["/", "./", "../", "~/"].iter().any(|start| value.starts_with(start));
    let lines = variables.iter().map(|(name, value)| match is_renewed(name) {
        true if !deciding.contains(name) && !is_path(value) => format!("{name}\n"),
        _ => format!("{name}={value:?}\n"),
    });
    Some(lines.collect())
}

/// Whether `name` can name a variable: letters, digits and `_`, not starting with a digit.
pub(super) fn is_name(name: &str) -> bool {
    name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && !name.is_empty()
}

fn value_of(written: &str) -> Result<String, &'static str> {
    let Some(quote) = written.chars().next().filter(|c| matches!(c, '"' | '\'')) else {
        // Without quotes a `#` after a space starts a comment.
        let end = written.find(" #").or_else(|| written.find("\t#")).unwrap_or(written.len());
        let bare = if written.starts_with('#') { "" } else { &written[..end] };
        return Ok(bare.trim_end().to_owned());
    };
    let mut value = String::new();
    let mut rest = written[1..].chars();
    loop {
        match rest.next() {
            None => return Err("a quote is not closed"),
            Some(c) if c == quote => break,
            // Escapes count in double quotes only, as in a shell.
            Some('\\') if quote == '"' => match rest.next() {
                Some('n') => value.push('\n'),
                Some('r') => value.push('\r'),
                Some('t') => value.push('\t'),
                Some(c @ ('"' | '\\' | '$')) => value.push(c),
                Some(c) => value.extend(['\\', c]),
                None => return Err("a quote is not closed"),
            },
            Some(c) => value.push(c),
        }
    }
    let after = rest.as_str().trim_start();
    if after.is_empty() || after.starts_with('#') { Ok(value) } else { Err("text after the closing quote") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_written() {
        let text = "# c\n\nA=1\nexport B = two words # c\nC=\"a \\\"q\\\"\\n# no\" # c\nD='raw \\n $X'\nE=\nF=a#b\nG= #c\n";
        let vars = parse(text).unwrap();
        let expected = [
            ("A", "1"),
            ("B", "two words"),
            ("C", "a \"q\"\n# no"),
            ("D", "raw \\n $X"),
            ("E", ""),
            ("F", "a#b"),
            ("G", ""),
        ];
        let expected: BTreeMap<_, _> =
            expected.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
        assert_eq!(vars, expected);
    }

    #[test]
    fn renewed_secrets_make_no_other_env_file() {
        let none = BTreeSet::new();
        let kept = |text: &str| kept_of_env_file(text, &none).unwrap();
        assert_eq!(kept("A_TOKEN=1\nPATH=/bin"), kept("# c\nPATH=/bin\nA_TOKEN='2'"));
        for other in ["A_TOKEN=1\nPATH=./bin", "PATH=/bin", "A_TOKEN=1\nPATH=/bin\nB_TOKEN=1"] {
            assert_ne!(kept("A_TOKEN=1\nPATH=/bin"), kept(other), "{other}");
        }
        assert_eq!(kept_of_env_file("[servers.x]", &none), None);
        for (one, other) in [
            ("GIT_ASKPASS=true", "GIT_ASKPASS=evil"),
            ("A_KEY=./good", "A_KEY=./evil"),
            ("A_KEY=renewed", "A_KEY=/w/evil"),
        ] {
            assert_ne!(kept(one), kept(other), "{other}");
        }
        let deciding = BTreeSet::from(["A_KEY".to_owned()]);
        assert_ne!(kept_of_env_file("A_KEY=1", &deciding), kept_of_env_file("A_KEY=2", &deciding));
        assert_eq!(kept_of_env_file("B_KEY=1", &deciding), kept_of_env_file("B_KEY=2", &deciding));
    }

    #[test]
    fn bad_lines_are_named() {
        for (text, line, what) in [
            ("A=1\nnothing", 2, "expected KEY=VALUE"),
            ("1A=x", 1, "not the name of a variable before `=`"),
            ("A='x", 1, "a quote is not closed"),
            ("A=\"x\" y", 1, "text after the closing quote"),
        ] {
            assert_eq!(parse(text), Err((line, what.to_owned())), "{text}");
        }
    }
}
