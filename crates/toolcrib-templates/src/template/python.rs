//! Recognises the start of a Python server: by its interpreter, or by the first lines of a script, as the kernel and the shell
//! read them. In doubt it is none: then it is started as ever.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use toolcrib_guard::SpawnError;

use super::cut_bytes;
use crate::{bounded, config::StdioConfig};

/// Bytes of a script that are looked at. The kernel looks at 256.
const HEAD: u64 = 4 << 10;
/// The name that Linux shows of a process.
const NAME_MAX: usize = 15;
/// Options without a value that hold for the interpreter as a whole.
const FLAGS: &str = "uBEIsSPObq";
/// Values of `-X` that do.
const X_VALUES: &[&str] =
    &["dev", "frozen_modules", "int_max_str_digits", "no_debug_ranges", "utf8", "warn_default_encoding"];
/// Variables that make the interpreter do something of its own with one process.
const OF_ONE_PROCESS: &[&str] = &["PYTHONINSPECT", "PYTHONSTARTUP", "PYTHONPERFSUPPORT", "PYTHONTRACEMALLOC"];

/// The program that a Python interpreter runs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Entry {
    /// A module, by its dotted name.
    Module(String),
    /// A script, by its absolute path.
    Script(String),
}

/// The start of a Python server.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct PythonStart {
    /// Absolute path that it is called by: Python finds its packages by this path.
    pub(super) interpreter: PathBuf,
    /// Flags of the interpreter.
    pub(super) flags: Vec<String>,
    pub(super) entry: Entry,
    /// The command line that an ordinary start shows. Its arguments may be secret.
    pub(super) line: Vec<String>,
    /// The name in lists of processes that an ordinary start shows.
    pub(super) name: String,
}

impl fmt::Debug for PythonStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { interpreter, flags, entry, line, name } = self;
        f.debug_struct("PythonStart")
            .field("interpreter", interpreter)
            .field("flags", flags)
            .field("entry", entry)
            .field("line", &line.len())
            .field("name", name)
            .finish()
    }
}

impl PythonStart {
    /// Looks at some files.
    ///
    /// # Errors
    /// Why it cannot be forked from a template.
    pub(super) fn of(spec: &StdioConfig) -> Result<Self, &'static str> {
        if spec.sandbox.is_some() {
            return Err("it has a sandbox, which can only be raised before its program is executed");
        }
        if OF_ONE_PROCESS.iter().any(|name| spec.env.get(*name).is_some_and(|value| !value.is_empty())) {
            return Err("a variable in its environment is for one Python process alone");
        }
        let program = program_path(spec).map_err(|_| "its program is missing")?;
        let program = absolute(&spec.cwd, program);
        let called = spec.command.to_str().ok_or(NOT_TEXT)?;
        let name = file_name(&program)?;
        if is_python_name(name) {
            check_interpreter(&program)?;
            let words = spec.args.iter().map(String::as_str);
            let (flags, entry) = python_words(&words.collect::<Vec<_>>(), &spec.cwd)?;
            let line = [called].into_iter().chain(spec.args.iter().map(String::as_str));
            return Self { interpreter: program.clone(), flags, entry, line: owned(line), name: short(name) }
                .checked();
        }
        let script = program.to_str().ok_or(NOT_TEXT)?;
        let head = bounded::beginning(&program, HEAD).map_err(|_| "its program cannot be read")?;
        let Shebang { interpreter, called, words, executed } = shebang(&head, &program, spec)?;
        check_interpreter(&interpreter)?;
        let all: Vec<&str> = words.iter().map(String::as_str).chain([script]).collect();
        let (flags, entry) = python_words(&all, &spec.cwd)?;
        if entry != Entry::Script(script.to_owned()) {
            return Err("its first line runs something else");
        }
        let line = [called.as_str()].into_iter().chain(all).chain(spec.args.iter().map(String::as_str));
        let name = short(file_name(executed.as_ref().unwrap_or(&program))?);
        Self { interpreter, flags, entry, line: owned(line), name }.checked()
    }

    /// Whether the program of `spec` is a Python or a script of one, by its name or its first lines. Looks at a file.
    pub(super) fn is_of_python(spec: &StdioConfig) -> bool {
        let Ok(program) = program_path(spec) else { return false };
        let program = absolute(&spec.cwd, program);
        if file_name(&program).is_ok_and(is_python_name) {
            return true;
        }
        let head = bounded::beginning(&program, HEAD).unwrap_or_default();
        let mut lines = head.split(|byte| *byte == b'\n');
        let first = lines.next().and_then(|line| line.strip_prefix(b"#!"));
        let told = if first == Some(b"/bin/sh") { lines.next() } else { first };
        told.is_some_and(|line| String::from_utf8_lossy(line).contains("python"))
    }

    /// A script must be source: an archive or a folder has its own way to start.
    fn checked(self) -> Result<Self, &'static str> {
        if let Entry::Script(path) = &self.entry {
            let head = bounded::beginning(Path::new(path), HEAD).map_err(|_| "its script is missing")?;
            if head.contains(&0) || head.starts_with(b"PK\x03\x04") {
                return Err("its script is no source");
            }
        }
        Ok(self)
    }
}

const NOT_TEXT: &str = "its path is not text";
const NO_PYTHON: &str = "it is no Python program";

/// The path of the program of `spec`, by its own `PATH`.
fn program_path(spec: &StdioConfig) -> Result<PathBuf, SpawnError> {
    toolcrib_guard::program_path(&spec.process_spec())
}

fn owned<'a>(words: impl Iterator<Item = &'a str>) -> Vec<String> {
    words.map(str::to_owned).collect()
}

fn absolute(cwd: &Path, path: PathBuf) -> PathBuf {
    if path.is_absolute() { path } else { cwd.join(path) }
}

fn file_name(path: &Path) -> Result<&str, &'static str> {
    path.file_name().and_then(|name| name.to_str()).ok_or(NOT_TEXT)
}

/// At most 15 bytes of `name`, as the kernel cuts it, but no part of a character.
fn short(name: &str) -> String {
    cut_bytes(name, NAME_MAX).to_owned()
}

/// `python`, `python3`, `python3.12`: not those with other threads (`t`), checks (`d`) or another implementation.
fn is_python_name(name: &str) -> bool {
    name.strip_prefix("python").is_some_and(|version| version.chars().all(|c| c.is_ascii_digit() || c == '.'))
}

/// Whether it is an executable of CPython 3.9 or newer, as far as its name and its first bytes say. Version managers put scripts
/// in place of one, which decide anew at each start.
fn check_interpreter(path: &Path) -> Result<(), &'static str> {
    if !path.file_name().and_then(|name| name.to_str()).is_some_and(is_python_name) {
        return Err(NO_PYTHON);
    }
    let real = path.canonicalize().map_err(|_| "its Python is missing")?;
    let name = file_name(&real)?;
    if !is_python_name(name) {
        return Err("its Python is not CPython");
    }
    let mut version = name.trim_start_matches("python").split('.').map(str::parse::<u32>);
    match (version.next(), version.next()) {
        (Some(Ok(3)), Some(Ok(minor))) if minor < 9 => return Err("its Python is older than 3.9"),
        (Some(Ok(major)), _) if major != 3 => return Err("its Python is older than 3.9"),
        _ => {}
    }
    let head = bounded::beginning(&real, 4).map_err(|_| "its Python cannot be read")?;
    if head == b"\x7fELF" { Ok(()) } else { Err("its Python is a script of a version manager") }
}

/// The interpreter's flags and what it runs, from the words after its name.
fn python_words(words: &[&str], cwd: &Path) -> Result<(Vec<String>, Entry), &'static str> {
    const OTHER: &str = "an option of its Python cannot be shared";
    let mut flags = Vec::new();
    let mut words = words.iter().copied();
    let nothing = "its Python runs nothing that can be shared";
    while let Some(word) = words.next() {
        let Some(letters) = word.strip_prefix('-') else {
            let path = cwd.join(word);
            return Ok((flags, Entry::Script(path.to_str().ok_or(NOT_TEXT)?.to_owned())));
        };
        if letters.is_empty() || letters.starts_with('-') {
            return Err(nothing);
        }
        // Several letters may share a dash; the last one may have its value in the same word.
        for (at, letter) in letters.char_indices() {
            let rest = &letters[at + letter.len_utf8()..];
            let mut value = || if rest.is_empty() { words.next() } else { Some(rest) };
            match letter {
                _ if FLAGS.contains(letter) => {
                    flags.push(format!("-{letter}"));
                    continue;
                }
                'm' => {
                    let module = value().filter(|module| !module.is_empty()).ok_or(nothing)?;
                    return Ok((flags, Entry::Module(module.to_owned())));
                }
                'W' => flags.extend(["-W".to_owned(), value().ok_or(nothing)?.to_owned()]),
                'X' => {
                    let value = value().ok_or(nothing)?;
                    let name = value.split('=').next().unwrap_or_default();
                    if !X_VALUES.contains(&name) {
                        return Err(OTHER);
                    }
                    flags.extend(["-X".to_owned(), value.to_owned()]);
                }
                'c' => return Err(nothing),
                _ => return Err(OTHER),
            }
            break;
        }
    }
    Err(nothing)
}

/// The Python of a script.
struct Shebang {
    interpreter: PathBuf,
    /// The first word of the command line.
    called: String,
    /// Between that and the script.
    words: Vec<String>,
    /// The file that was executed last. `None`: the script itself, which the kernel hands to the interpreter.
    executed: Option<PathBuf>,
}

fn shebang(head: &[u8], script: &Path, spec: &StdioConfig) -> Result<Shebang, &'static str> {
    let end = head.iter().position(|byte| *byte == b'\n').ok_or(NO_PYTHON)?;
    // Longer ones are cut by the kernel, or refused.
    let line = head[..end].strip_prefix(b"#!").filter(|_| end < 256).ok_or(NO_PYTHON)?;
    let line = std::str::from_utf8(line).map_err(|_| NO_PYTHON)?.trim_matches([' ', '\t']);
    // The kernel makes one word of all after the first.
    let (first, rest) = line.split_once([' ', '\t']).unwrap_or((line, ""));
    let rest = rest.trim_start_matches([' ', '\t']);
    let called = |path: &Path| path.to_str().map(str::to_owned).ok_or(NOT_TEXT);
    match first {
        "/usr/bin/env" | "/bin/env" => {
            let mut words = match rest.strip_prefix("-S") {
                Some(rest) if !rest.contains(['"', '\'', '\\', '$', '#']) => rest.split_ascii_whitespace(),
                None if !rest.contains([' ', '\t']) => rest.split_ascii_whitespace(),
                _ => return Err("its first line is not understood"),
            };
            let name =
                words.next().filter(|name| !name.starts_with('-') && !name.contains('=')).ok_or(NO_PYTHON)?;
            let words: Vec<String> = words.map(str::to_owned).collect();
            if !file_name(Path::new(name)).is_ok_and(is_python_name) {
                return Err(NO_PYTHON);
            }
            let found = StdioConfig { command: name.into(), ..spec.clone() };
            let found = program_path(&found).map_err(|_| "its Python is missing")?;
            let interpreter = absolute(&spec.cwd, found);
            Ok(Shebang { executed: Some(interpreter.clone()), interpreter, called: name.to_owned(), words })
        }
        "/bin/sh" if rest.is_empty() => {
            let text = std::str::from_utf8(&head[end + 1..]).or_else(|error| {
                // Cut in the middle of a character.
                std::str::from_utf8(&head[end + 1..][..error.valid_up_to()])
            });
            let interpreter = exec_line(text.map_err(|_| NO_PYTHON)?, script).ok_or(NO_PYTHON)?;
            let executed = Some(interpreter.clone());
            Ok(Shebang { called: called(&interpreter)?, interpreter, words: Vec::new(), executed })
        }
        _ => {
            let interpreter = PathBuf::from(first);
            if !interpreter.is_absolute() {
                return Err("its first line is not understood");
            }
            let words: Vec<String> =
                Some(rest).filter(|rest| !rest.is_empty()).map(str::to_owned).into_iter().collect();
            Ok(Shebang { called: called(&interpreter)?, interpreter, words, executed: None })
        }
    }
}

/// The interpreter in the lines that pip and uv write where a path has spaces, is too long, or is relative to the script. They are a
/// command to a shell and a text to a Python:
/// ```text
/// '''exec' '/path/python' "$0" "$@"
/// ' '''
/// ```
fn exec_line(text: &str, script: &Path) -> Option<PathBuf> {
    const RELATIVE: &str = "\"$(dirname -- \"$(realpath -- \"$0\")\")\"/";
    let mut lines = text.lines();
    let command = lines.next()?.strip_prefix("'''exec' ")?.strip_suffix(" \"$0\" \"$@\"")?;
    if lines.next()? != "' '''" {
        return None;
    }
    let (folder, word) = match command.strip_prefix(RELATIVE) {
        Some(word) => (script.canonicalize().ok()?.parent()?.to_owned(), word),
        None => (PathBuf::new(), command),
    };
    let quoted = |quote: char| word.strip_prefix(quote)?.strip_suffix(quote);
    let path = match (quoted('\''), quoted('"')) {
        (Some(path), _) if !path.contains('\'') => path,
        (None, Some(path)) if !path.contains(['"', '$', '`', '\\']) => path,
        (None, None) => Some(word).filter(|word| {
            !word.contains(|c: char| c.is_whitespace() || "'\"$`\\*?[]{}()<>|&;~#!".contains(c))
        })?,
        _ => return None,
    };
    let path = folder.join(path);
    path.is_absolute().then_some(path)
}

#[cfg(test)]
mod tests;
