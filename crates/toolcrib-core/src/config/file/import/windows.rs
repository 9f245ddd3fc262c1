//! Commands as files from Windows have them: `cmd /c npx ...`, `npx.cmd`, and whole command lines in one text.

use std::path::Path;

use super::translate::Table;
use crate::config::file::node::{Node, Value};

/// Endings of programs there.
const ENDINGS: [&str; 4] = [".cmd", ".exe", ".bat", ".ps1"];

/// Makes the command of a server one of this system, where that can be told.
pub(super) fn translate(table: &mut Table<'_>) {
    let Some((line, command)) =
        table.get("command").and_then(|node| Some((node.line, node.as_text()?.to_owned())))
    else {
        return;
    };
    let words: Vec<Node> = match table.get("args").map(|args| &args.value) {
        Some(Value::List(words)) => words.clone(),
        _ => Vec::new(),
    };
    if let Some((program, rest)) = behind_shell(&command, &words) {
        table.note("command", &format!("`{command}` is a shell of Windows: the command behind it is taken"));
        put(table, line, program, rest);
    } else if words.is_empty()
        && command.contains(char::is_whitespace)
        && !command.contains('\\')
        && !Path::new(&command).exists()
    {
        let mut parts = self::words(&command).map(|word| Node::text(line, word));
        if let Some(program) = parts.next() {
            table.note("command", "is a whole command line: taken as its words");
            let rest = parts.collect();
            put(table, line, program, rest);
        }
    }
    bare_program(table, line);
    let is_drive = |path: &str| matches!(path.as_bytes(), [drive, b':', b'\\' | b'/', ..] if drive.is_ascii_alphabetic());
    if table.get("cwd").and_then(Node::as_text).is_some_and(is_drive) {
        table.remove("cwd");
        table.note("cwd", "ignored: it is a folder of Windows");
    }
}

/// A program without a path loses its ending.
fn bare_program(table: &mut Table<'_>, line: usize) {
    let Some(command) = table.get("command").and_then(Node::as_text) else { return };
    let ending = ENDINGS.iter().find(|ending| command.to_ascii_lowercase().ends_with(*ending));
    if let Some(ending) =
        ending.filter(|ending| !command.contains(['/', '\\']) && command.len() > ending.len())
    {
        let name = command[..command.len() - ending.len()].to_owned();
        table.note("command", &format!("`{name}{ending}` is called `{name}` here"));
        table.replace("command", Node::text(line, name));
    }
}

fn put(table: &mut Table<'_>, line: usize, program: Node, words: Vec<Node>) {
    table.replace("command", program);
    table.replace("args", Node { line, value: Value::List(words) });
}

/// The command that `cmd /c`, or `powershell -Command`, would run.
fn behind_shell(command: &str, words: &[Node]) -> Option<(Node, Vec<Node>)> {
    let name = command.rsplit(['/', '\\']).next()?.to_ascii_lowercase();
    let name = name.strip_suffix(".exe").unwrap_or(&name);
    let begins: &[&str] = match name {
        "cmd" => &["/c", "/k"],
        "powershell" | "pwsh" => &["-command", "-c"],
        _ => return None,
    };
    let is_begin =
        |word: &Node| word.as_text().is_some_and(|text| begins.contains(&text.to_ascii_lowercase().as_str()));
    let behind = &words[words.iter().position(is_begin)? + 1..];
    let parts: Vec<Node> = match behind {
        [line] => self::words(line.as_text()?).map(|word| Node::text(line.line, word)).collect(),
        words => words.to_vec(),
    };
    let mut parts = parts.into_iter();
    Some((parts.next()?, parts.collect()))
}

/// The words of a command line: between spaces, but for what stands in quotes.
pub(super) fn words(line: &str) -> impl Iterator<Item = String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for letter in line.chars() {
        match (quote, letter) {
            (Some(open), letter) if letter == open => quote = None,
            (None, '"' | '\'') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, letter) if letter.is_whitespace() => words.extend(word.take()),
            (_, letter) => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    words.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stand_between_spaces_outside_of_quotes() {
        let all = |line: &str| words(line).collect::<Vec<_>>();
        assert_eq!(all(" npx  -y 'a b' --x=\"c d\" \"\" "), ["npx", "-y", "a b", "--x=c d", ""]);
        assert!(all("  ").is_empty());
    }
}
