//! The results of a run as JUnit XML, which CI servers show: a test suite for the run, a test case for each sample.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
};

use super::each_report;
use crate::{
    error::{Error, Result},
    task::{Outcome, TaskReport, sample_name},
};

/// Characters of one text that are written.
const LONGEST: usize = 10_000;

/// Writes the results of the run in `folder` to `file`. All is from `results.jsonl`, which has no secrets.
///
/// Failed samples have a `failure`, errored ones an `error`; those that were not scored or were cancelled are `skipped`.
///
/// # Errors
/// [`Error::Io`]; as [`each_report`].
pub fn write_junit(folder: &Path, file: &Path) -> Result<()> {
    let failed = |error| Error::io(format!("cannot write {}", file.display()), error);
    let mut suite = TestSuite::default();
    each_report(folder, |report| suite.add(&report))?;
    let mut out = BufWriter::new(File::create(file).map_err(failed)?);
    let mut written = suite.begin(&mut out);
    each_report(folder, |report| {
        if written.is_ok() {
            written = suite.test_case(&mut out, &report);
        }
    })?;
    written.and_then(|()| suite.end(&mut out)).map_err(failed)
}

/// The test suite of a run. All reports are [added](Self::add) before it [begins](Self::begin), since it begins with their
/// counts.
#[derive(Default)]
pub(crate) struct TestSuite {
    run: String,
    started: String,
    tests: usize,
    failures: usize,
    errors: usize,
    skipped: usize,
    seconds: f64,
}

impl TestSuite {
    pub(crate) fn add(&mut self, report: &TaskReport) {
        if self.tests == 0 || report.started < self.started {
            self.started.clone_from(&report.started);
        }
        self.run.clone_from(&report.run);
        self.tests += 1;
        match report.status {
            Outcome::Passed => {}
            Outcome::Failed => self.failures += 1,
            Outcome::Errored => self.errors += 1,
            _ => self.skipped += 1,
        }
        self.seconds += report.wall_ms / 1e3;
    }

    pub(crate) fn begin(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { run, started, tests, failures, errors, skipped, seconds } = self;
        let (run, started) = (escaped(run), escaped(started.split('.').next().unwrap_or_default()));
        writeln!(out, r#"<?xml version="1.0" encoding="UTF-8"?>"#)?;
        write!(out, r#"<testsuites name="toolcrib" tests="{tests}" failures="{failures}" "#)?;
        writeln!(out, r#"errors="{errors}" time="{seconds:.3}">"#)?;
        write!(out, r#"<testsuite name="run {run}" tests="{tests}" failures="{failures}" "#)?;
        write!(out, r#"errors="{errors}" skipped="{skipped}" time="{seconds:.3}" "#)?;
        // The schema of JUnit has no zone: it is UTC.
        writeln!(out, r#"timestamp="{started}">"#)
    }

    pub(crate) fn test_case(&self, out: &mut dyn Write, report: &TaskReport) -> io::Result<()> {
        let (run, name) = (escaped(&self.run), sample_name(&report.task, report.sample));
        let (name, seconds) = (escaped(&name), report.wall_ms / 1e3);
        write!(out, r#"<testcase classname="toolcrib.{run}" name="{name}" time="{seconds:.3}""#)?;
        let element = match report.status {
            Outcome::Passed => return writeln!(out, "/>"),
            Outcome::Failed => "failure",
            Outcome::Errored => "error",
            Outcome::Unscored => return writeln!(out, r#"><skipped message="not scored"/></testcase>"#),
            Outcome::Cancelled => return writeln!(out, r#"><skipped message="cancelled"/></testcase>"#),
        };
        let reason = report.reason.as_ref().map_or_else(String::new, ToString::to_string);
        let message = match &report.error {
            Some(error) => error.message.clone(),
            None => format!("the answer is wrong: {}", report.answer.as_deref().unwrap_or_default()),
        };
        let first = escaped(message.lines().next().unwrap_or_default());
        write!(out, r#"><{element} type="{}" message="{first}">"#, escaped(&reason))?;
        write!(out, "{}", escaped(&message))?;
        if let Some(target) = report.target.as_ref().filter(|_| report.status == Outcome::Failed) {
            write!(out, "\nexpected: {}", escaped(&target.all().join("\nor: ")))?;
        }
        for line in report.error.iter().flat_map(|error| &error.stderr_tail) {
            write!(out, "\n{}", escaped(line))?;
        }
        if let Some(help) = report.error.as_ref().and_then(|error| error.help.as_ref()) {
            write!(out, "\nhelp: {}", escaped(help))?;
        }
        writeln!(out, "</{element}></testcase>")
    }

    #[expect(clippy::unused_self, reason = "it ends what `begin` began")]
    pub(crate) fn end(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "</testsuite>\n</testsuites>")?;
        out.flush()
    }
}

/// A text for XML, in an attribute too. Characters that XML 1.0 does not allow become U+FFFD.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len().min(LONGEST));
    for c in text.chars().take(LONGEST) {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\t' => escaped.push_str("&#9;"),
            '\n' => escaped.push_str("&#10;"),
            '\r' => escaped.push_str("&#13;"),
            c if c < ' ' || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_xml_does_not_allow_is_written_in_another_way() {
        assert_eq!(escaped("a<b & \"c\" 'd'>"), "a&lt;b &amp; &quot;c&quot; 'd'&gt;");
        assert_eq!(escaped("a\u{1b}[0m\u{0}b\tc\n"), "a\u{fffd}[0m\u{fffd}b&#9;c&#10;");
        assert_eq!(escaped("]]>"), "]]&gt;");
        assert_eq!(escaped(&"x".repeat(20_000)).len(), LONGEST);
    }
}
