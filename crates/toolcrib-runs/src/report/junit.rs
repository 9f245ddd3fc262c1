//! The results of a run as JUnit XML, which CI servers show: a test suite for the run, a test case for each sample.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
    time::Duration,
};

use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};

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
    let mut suite = RunSuite::default();
    each_report(folder, |report| suite.add(&report))?;
    File::create(file).and_then(|out| suite.write(&mut BufWriter::new(out))).map_err(failed)
}

/// The test suite of a run.
#[derive(Default)]
pub struct RunSuite {
    run: String,
    started: String,
    seconds: f64,
    cases: Vec<TestCase>,
}

impl RunSuite {
    /// Adds the test case of one sample.
    pub fn add(&mut self, report: &TaskReport) {
        if self.cases.is_empty() || report.started < self.started {
            self.started.clone_from(&report.started);
        }
        self.run.clone_from(&report.run);
        let seconds = report.wall_ms / 1e3;
        self.seconds += seconds;
        let mut case = TestCase::new(shown(&sample_name(&report.task, report.sample)), status(report));
        case.set_classname(shown(&format!("toolcrib.{}", report.run))).set_time(time(seconds));
        self.cases.push(case);
    }

    /// Writes all of it as one document.
    pub fn write(self, out: &mut dyn Write) -> io::Result<()> {
        let Self { run, started, seconds, cases } = self;
        let mut suite = TestSuite::new(shown(&format!("run {run}")));
        // The schema of JUnit has no zone: it is UTC.
        let started = started.split('.').next().unwrap_or_default();
        suite.extra.insert("timestamp".into(), started.into());
        suite.set_time(time(seconds)).add_test_cases(cases);
        let mut report = Report::new("toolcrib");
        report.set_time(time(seconds)).add_test_suite(suite);
        report.serialize(&mut *out).map_err(io::Error::other)?;
        out.flush()
    }
}

fn status(report: &TaskReport) -> TestCaseStatus {
    let skipped = |why: &str| {
        let mut status = TestCaseStatus::skipped();
        status.set_message(why);
        status
    };
    let kind = match report.status {
        Outcome::Passed => return TestCaseStatus::success(),
        Outcome::Failed => NonSuccessKind::Failure,
        Outcome::Errored => NonSuccessKind::Error,
        Outcome::Unscored => return skipped("not scored"),
        Outcome::Cancelled => return skipped("cancelled"),
    };
    let message = match &report.error {
        Some(error) => error.message.clone(),
        None => format!("the answer is wrong: {}", report.answer.as_deref().unwrap_or_default()),
    };
    let mut text = shown(&message);
    if let Some(target) = report.target.as_ref().filter(|_| report.status == Outcome::Failed) {
        text += &format!("\nexpected: {}", shown(&target.all().join("\nor: ")));
    }
    for line in report.error.iter().flat_map(|error| &error.stderr_tail) {
        text += &format!("\n{}", shown(line));
    }
    if let Some(help) = report.error.as_ref().and_then(|error| error.help.as_ref()) {
        text += &format!("\nhelp: {}", shown(help));
    }
    let mut status = TestCaseStatus::non_success(kind);
    let reason = report.reason.as_ref().map_or_else(String::new, ToString::to_string);
    let first = shown(message.lines().next().unwrap_or_default());
    status.set_type(shown(&reason)).set_message(first).set_description(text);
    status
}

fn time(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

/// The beginning of a text. Characters that XML 1.0 does not allow become U+FFFD.
fn shown(text: &str) -> String {
    let is_allowed = |c: char| matches!(c, '\t' | '\n' | '\r' | ' '..'\u{fffe}' | '\u{10000}'..);
    text.chars().take(LONGEST).map(|c| if is_allowed(c) { c } else { '\u{fffd}' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_xml_does_not_allow_is_written_in_another_way() {
        let case =
            TestCase::new(shown("a<b & \"c\" 'd'>]]>\u{1b}[0m\u{0}\u{ffff}"), TestCaseStatus::success());
        let mut text = Vec::new();
        RunSuite { cases: vec![case], ..RunSuite::default() }.write(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let name = "a&lt;b &amp; &quot;c&quot; &apos;d&apos;&gt;]]&gt;\u{fffd}[0m\u{fffd}\u{fffd}";
        assert!(text.contains(&format!("name=\"{name}\"")), "{text}");
        assert_eq!(shown(&"x".repeat(20_000)).len(), LONGEST);
    }
}
