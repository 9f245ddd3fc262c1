//! The faults of the chaos server by name, and the command line that selects them.

use std::{path::PathBuf, time::Duration};

/// One way to be wrong.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Fault {
    SlowStart(Duration),
    Exit,
    HangInitialize,
    WrongVersion(String),
    Garbage(u64),
    Pages(Cursor),
    SlowReader(Duration),
    HalfMessage,
    GiantLine(u64),
    InvalidUtf8,
    Malformed,
    Duplicate(u64),
    UnknownId(u64),
    HugeResult(u64),
    HugeImage(u64),
    HugeData(u64),
    Crash(Moment),
    StdoutClosed,
    StdinClosed,
    NeverReads,
    NeverAnswers,
    Late(Duration),
    IgnoresCancel(Duration),
    Progress(Duration),
    StderrFlood(u64),
    ToolsChange(Told),
}

/// How a tool list goes on without end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Cursor {
    New,
    Same,
}

/// When a crash happens, relative to the work of the call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Moment {
    Before,
    During,
    After,
}

/// Whether a change is announced.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Told {
    Yes,
    No,
}

/// The revision of the protocol that is spoken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Era {
    Legacy,
    Modern,
}

impl Era {
    pub(super) fn is_modern(self) -> bool {
        self == Self::Modern
    }
}

struct Entry {
    name: &'static str,
    /// The value that it has if none is given; empty if it takes none.
    default: &'static str,
    help: &'static str,
    make: fn(&str) -> Result<Fault, String>,
}

const fn entry(
    name: &'static str,
    default: &'static str,
    make: fn(&str) -> Result<Fault, String>,
    help: &'static str,
) -> Entry {
    Entry { name, default, help, make }
}

/// Faults from the start on; `at` does not apply.
const AT_START: &[Entry] = &[
    entry("slow-start", "5s", |v| time(v).map(Fault::SlowStart), "reads nothing for so long"),
    entry("exit", "", |_| Ok(Fault::Exit), "exits at once, with the code of `code`"),
    entry("hang-initialize", "", |_| Ok(Fault::HangInitialize), "never answers the handshake"),
    entry(
        "wrong-version",
        "1999-01-01",
        |v| Ok(Fault::WrongVersion(v.to_owned())),
        "agrees on a revision that does not exist",
    ),
    entry(
        "garbage",
        "1",
        |v| number(v).map(Fault::Garbage),
        "writes so many lines of text before each message",
    ),
    entry(
        "pages",
        "new",
        |v| word(v, &[("new", Fault::Pages(Cursor::New)), ("same", Fault::Pages(Cursor::Same))]),
        "lists tools without end: `new` cursors, or the `same` one",
    ),
    entry(
        "slow-reader",
        "200us",
        |v| time(v).map(Fault::SlowReader),
        "pauses so long after each byte it reads",
    ),
];

/// At the call that `at` names.
const AT_CALL: &[Entry] = &[
    entry("half-message", "", |_| Ok(Fault::HalfMessage), "writes half of the answer and no more"),
    entry("giant-line", "1GiB", |v| size(v).map(Fault::GiantLine), "answers with a line of so many bytes"),
    entry("invalid-utf8", "", |_| Ok(Fault::InvalidUtf8), "answers with bytes that are no text"),
    entry("malformed", "", |_| Ok(Fault::Malformed), "answers with JSON that is no answer"),
    entry("duplicate", "1", |v| number(v).map(Fault::Duplicate), "answers so many times more"),
    entry("unknown-id", "1", |v| number(v).map(Fault::UnknownId), "answers so many requests that never were"),
    entry(
        "huge-result",
        "10MiB",
        |v| size(v).map(Fault::HugeResult),
        "answers with so many bytes of numbered lines",
    ),
    entry(
        "huge-data",
        "10MiB",
        |v| size(v).map(Fault::HugeData),
        "answers with so many bytes of structured content: a list of zeros",
    ),
    entry("huge-image", "2MiB", |v| size(v).map(Fault::HugeImage), "answers with an image of so many bytes"),
    entry(
        "crash",
        "during",
        |v| {
            let moments = [("before", Moment::Before), ("during", Moment::During), ("after", Moment::After)];
            word(v, &moments.map(|(name, moment)| (name, Fault::Crash(moment))))
        },
        "exits `before` the tool runs, `during` it (it has run), or `after` the answer",
    ),
    entry("stdout-closed", "", |_| Ok(Fault::StdoutClosed), "closes its stdout and goes on running"),
    entry("stdin-closed", "", |_| Ok(Fault::StdinClosed), "answers, closes its stdin and goes on running"),
    entry("never-reads", "", |_| Ok(Fault::NeverReads), "answers, and reads nothing any more"),
    entry("never-answers", "", |_| Ok(Fault::NeverAnswers), "never answers this call"),
    entry(
        "late",
        "5s",
        |v| time(v).map(Fault::Late),
        "answers after so long, or ends the call if that is cancelled",
    ),
    entry(
        "ignores-cancel",
        "5s",
        |v| time(v).map(Fault::IgnoresCancel),
        "answers after so long, cancelled or not",
    ),
    entry(
        "progress",
        "50ms",
        |v| time(v).map(Fault::Progress),
        "reports progress so often until it is cancelled",
    ),
    entry(
        "stderr-flood",
        "100MB",
        |v| size(v).map(Fault::StderrFlood),
        "writes so much to stderr, then answers",
    ),
    entry(
        "tools-change",
        "told",
        |v| word(v, &[("told", Fault::ToolsChange(Told::Yes)), ("silent", Fault::ToolsChange(Told::No))]),
        "has one tool more from now on, and says so or not",
    ),
];

const OPTIONS: &[(&str, &str)] = &[
    ("at=N", "which call of the process a fault of the second kind is for [default: 1]"),
    ("era=REVISION", "2025-11-25 [default] or 2026-07-28"),
    ("code=N", "the exit code of `exit` and `crash` [default: 1]"),
    ("count=FILE", "where the tool `count` appends a line [default: nowhere]"),
];

/// Faults that a server is to make, and its settings.
#[derive(Debug)]
pub(super) struct Plan {
    /// Faults of the whole process.
    pub(super) always: Vec<Fault>,
    /// Faults of the call `at`.
    pub(super) once: Vec<Fault>,
    pub(super) at: u64,
    pub(super) era: Era,
    pub(super) code: u8,
    pub(super) count: Option<PathBuf>,
}

impl Plan {
    pub(super) fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut plan =
            Self { always: Vec::new(), once: Vec::new(), at: 1, era: Era::Legacy, code: 1, count: None };
        for argument in arguments {
            let (name, value) = match argument.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (argument.as_str(), None),
            };
            plan.set(name, value).map_err(|why| format!("`{argument}`: {why}"))?;
        }
        Ok(plan)
    }

    fn set(&mut self, name: &str, value: Option<&str>) -> Result<(), String> {
        match (name, value) {
            ("at", Some(value)) => self.at = number(value)?,
            ("era", Some("2025-11-25")) => self.era = Era::Legacy,
            ("era", Some("2026-07-28")) => self.era = Era::Modern,
            ("era", Some(_)) => return Err("is neither 2025-11-25 nor 2026-07-28".to_owned()),
            ("code", Some(value)) => self.code = value.parse().map_err(|_| "is no exit code".to_owned())?,
            ("count", Some(value)) => self.count = Some(value.into()),
            ("at" | "era" | "code" | "count", None) => return Err("needs a value".to_owned()),
            _ => {
                let find = |entries: &'static [Entry]| entries.iter().find(|entry| entry.name == name);
                let (entry, faults) = match (find(AT_START), find(AT_CALL)) {
                    (Some(entry), _) => (entry, &mut self.always),
                    (None, Some(entry)) => (entry, &mut self.once),
                    (None, None) => {
                        let names = AT_START.iter().chain(AT_CALL).map(|entry| entry.name);
                        let near = nearest(name, names).map(|near| format!(": did you mean `{near}`?"));
                        return Err(format!("there is no such fault{}", near.unwrap_or_default()));
                    }
                };
                if entry.default.is_empty() && value.is_some() {
                    return Err("takes no value".to_owned());
                }
                faults.push((entry.make)(value.unwrap_or(entry.default))?);
            }
        }
        Ok(())
    }

    /// Whether the whole process has that fault.
    pub(super) fn has(&self, fault: &Fault) -> bool {
        self.always.contains(fault)
    }
}

/// Every fault and option in a line.
pub(super) fn list() -> String {
    let line = |entry: &Entry| {
        let shown = match entry.default {
            "" => entry.name.to_owned(),
            default => format!("{}[={default}]", entry.name),
        };
        format!("  {shown:<28} {}\n", entry.help)
    };
    let mut text = String::from("Faults of the whole process:\n");
    text.extend(AT_START.iter().map(line));
    text += "\nFaults of one call:\n";
    text.extend(AT_CALL.iter().map(line));
    text += "\nOptions:\n";
    text.extend(OPTIONS.iter().map(|(name, help)| format!("  {name:<28} {help}\n")));
    text += "\nTools: echo (text), count, sleep (ms), pid";
    text
}

/// The name that was probably meant.
fn nearest(name: &str, names: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    let rated = names.map(|known| (strsim::normalized_damerau_levenshtein(name, known), known));
    let best = rated.max_by(|(one, _), (other, _)| one.total_cmp(other));
    best.filter(|(rating, _)| *rating > 0.6).map(|(_, known)| known)
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "is not a whole number".to_owned())
}

fn time(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| error.to_string())
}

/// A number of bytes, with or without a unit.
///
/// # Errors
/// What is wrong with it.
pub fn size(text: &str) -> Result<u64, String> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let factor = match unit {
        "" | "B" => 1,
        "KB" => 1000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return Err(format!("`{unit}` is no unit of size")),
    };
    number(&text[..text.len() - unit.len()])?.checked_mul(factor).ok_or_else(|| "is too large".to_owned())
}

fn word(text: &str, words: &[(&str, Fault)]) -> Result<Fault, String> {
    let known = || words.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let found = words.iter().find(|(name, _)| *name == text);
    found.map(|(_, fault)| fault.clone()).ok_or_else(|| format!("is none of {}", known()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Plan, String> {
        Plan::parse(&arguments.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn every_fault_has_a_default_that_it_takes() {
        for entry in AT_START.iter().chain(AT_CALL) {
            parse(&[entry.name]).unwrap();
            assert!(list().contains(entry.help));
        }
    }

    #[test]
    fn wrong_faults_are_reported() {
        let plan = parse(&["giant-line=2MB", "at=3", "era=2026-07-28"]).unwrap();
        assert_eq!((plan.once, plan.at, plan.era), (vec![Fault::GiantLine(2_000_000)], 3, Era::Modern));
        for (argument, why) in [
            ("half-mesage", "`half-mesage`: there is no such fault: did you mean `half-message`?"),
            ("half-message=2", "`half-message=2`: takes no value"),
            ("crash=soon", "`crash=soon`: is none of before, during, after"),
            ("giant-line=2GX", "`giant-line=2GX`: `GX` is no unit of size"),
            ("at", "`at`: needs a value"),
        ] {
            assert_eq!(parse(&[argument]).unwrap_err(), why);
        }
    }
}
