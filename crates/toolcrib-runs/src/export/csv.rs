//! A table with one row for each task, as RFC 4180 describes it.

use std::{borrow::Cow, io::Write};

use serde_json::Value;

use super::{
    ExportSummary, output,
    run_reader::{EndedTask, RunReader},
};
use crate::{error::Result, task::Target};

/// A column: its name, who its texts come from, and what a task has in it.
type Column = (&'static str, Source, fn(&EndedTask) -> Option<String>);

#[derive(Clone, Copy, PartialEq)]
enum Source {
    /// A task file, a model or a tool.
    Outside,
    /// Words and numbers of our own.
    Own,
}
use Source::{Outside, Own};

pub(super) fn write(run: &RunReader, out: &mut dyn Write) -> Result<ExportSummary> {
    let mut summary = ExportSummary::default();
    row(out, COLUMNS.iter().map(|(name, ..)| Cow::from(*name)))?;
    run.each_task(|task| {
        summary.tasks += 1;
        let cells = COLUMNS.iter().map(|(_, source, get)| match (get(&task).unwrap_or_default(), source) {
            (text, Outside) => Cow::from(harmless(&text).into_owned()),
            (text, Own) => text.into(),
        });
        row(out, cells)
    })?;
    Ok(summary)
}

fn row<'a>(out: &mut dyn Write, cells: impl Iterator<Item = Cow<'a, str>>) -> Result<()> {
    let cells: Vec<String> = cells.map(|cell| quoted(&cell).into_owned()).collect();
    write!(out, "{}\r\n", cells.join(",")).map_err(output::failed)
}

fn quoted(cell: &str) -> Cow<'_, str> {
    match cell.contains(['"', ',', '\r', '\n']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")).into(),
        false => cell.into(),
    }
}

/// Spreadsheets take a cell that begins with one of these for a formula, some of them also behind blanks and breaks, and in
/// the wide forms of the letters. Numbers stay as they are.
fn harmless(text: &str) -> Cow<'_, str> {
    const SIGNS: [char; 8] = ['=', '+', '-', '@', '\u{ff1d}', '\u{ff0b}', '\u{ff0d}', '\u{ff20}'];
    let skipped = |c: char| c.is_whitespace() || c.is_control() || UNSEEN.contains(&c);
    let formula = text.starts_with(['\t', '\r', '\n']) || text.trim_start_matches(skipped).starts_with(SIGNS);
    if formula && text.trim().parse::<f64>().is_err() { format!("'{text}").into() } else { text.into() }
}

/// Letters that take no place: a byte order mark, and what joins or parts others.
const UNSEEN: [char; 6] = ['\u{feff}', '\u{200b}', '\u{200c}', '\u{200d}', '\u{2060}', '\u{ad}'];

const COLUMNS: &[Column] = &[
    ("run", Outside, |task| Some(task.report.run.clone())),
    ("task", Outside, |task| Some(task.report.task.clone())),
    ("sample", Own, |task| Some(task.report.sample.to_string())),
    ("attempt", Own, |task| Some(task.report.attempt.to_string())),
    ("status", Own, |task| Some(task.report.status.name().to_owned())),
    ("reason", Own, EndedTask::reason),
    ("score", Own, |task| task.report.score.map(|score| score.to_string())),
    ("answer", Outside, |task| task.report.answer.clone()),
    ("target", Outside, |task| task.report.target.as_ref().map(target)),
    ("error_code", Own, |task| Some(task.report.error.as_ref()?.code.to_string())),
    ("error_message", Outside, |task| Some(task.report.error.as_ref()?.message.clone())),
    ("started", Own, |task| Some(task.report.started.clone())),
    ("ended", Own, |task| Some(task.report.ended.clone())),
    ("wall_ms", Own, |task| Some(task.report.wall_ms.to_string())),
    ("queue_ms", Own, |task| Some(task.report.time_ms.queue.to_string())),
    ("model_ms", Own, |task| Some(task.report.time_ms.model.to_string())),
    ("tools_ms", Own, |task| Some(task.report.time_ms.tools.to_string())),
    ("retry_wait_ms", Own, |task| Some(task.report.time_ms.retry_wait.to_string())),
    ("turns", Own, |task| Some(task.report.turns.to_string())),
    ("tool_calls", Own, |task| Some(task.report.tool_calls.to_string())),
    ("tool_errors", Own, |task| Some(task.report.tool_errors.to_string())),
    ("llm_calls", Own, |task| Some(task.report.llm_calls.to_string())),
    ("llm_retries", Own, |task| Some(task.report.llm_retries.to_string())),
    ("tokens_in", Own, |task| Some(task.report.tokens.input.to_string())),
    ("tokens_out", Own, |task| Some(task.report.tokens.output.to_string())),
    ("tokens_cached", Own, |task| Some(task.report.tokens.cached.to_string())),
    ("tokens_reasoning", Own, |task| Some(task.report.tokens.reasoning.to_string())),
    ("cost_usd", Own, |task| task.report.cost_usd.map(|cost| cost.to_string())),
    ("model", Outside, |task| task.report.model.clone()),
    ("servers", Outside, |task| Some(task.report.servers.join(" "))),
    ("messages", Outside, |task| task.report.messages.clone()),
    ("metadata", Outside, metadata),
];

/// One target as it is, several as a list in JSON.
fn target(target: &Target) -> String {
    match target {
        Target::One(one) => one.clone(),
        Target::AnyOf(many) => Value::from(many.clone()).to_string(),
    }
}

fn metadata(task: &EndedTask) -> Option<String> {
    let metadata = &task.report.metadata;
    (!metadata.is_empty()).then(|| Value::Object(metadata.clone()).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_cannot_be_formulas() {
        for (text, shown) in [
            ("=1+1", "'=1+1"),
            ("+cmd", "'+cmd"),
            ("-cmd|' /C calc'!A0", "'-cmd|' /C calc'!A0"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("\t=1", "'\t=1"),
            ("\n=1", "'\n=1"),
            ("\nwords", "'\nwords"),
            (" =1", "' =1"),
            ("\u{a0}\u{200b}@a", "'\u{a0}\u{200b}@a"),
            ("\u{ff1d}1+1", "'\u{ff1d}1+1"),
            ("\u{ff0b}1+a", "'\u{ff0b}1+a"),
            (" -4", " -4"),
            (" words", " words"),
            ("-4", "-4"),
            ("+4.5e3", "+4.5e3"),
            ("a=b", "a=b"),
            ("", ""),
        ] {
            assert_eq!(harmless(text), shown);
        }
        assert_eq!(quoted("a \"b\", c\n"), "\"a \"\"b\"\", c\n\"");
    }
}
