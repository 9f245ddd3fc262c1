//! Tasks as rows: the table of all of them, and the few that went wrong with what was expected beside the answer.

use std::collections::HashSet;

use serde_json::Value;

use super::{anchor, badge, fragment, time};
use crate::{
    report::{
        figures::{Figures, STATUSES},
        folder::{RunFolder, RunTask, TaskLine},
        page::escape,
    },
    text::{counted, cut, rounded_count as count},
};

/// The attributes of a cell that says what was expected.
const EXPECTED: &str = "class=\"words expected\" data-head=\"expected\"";
/// Rows of what went wrong.
pub(in crate::report) const FAILURES: usize = 12;

/// The place of what did not go wrong.
const FINE: u8 = 3;

/// Whether a task with this status went wrong.
pub(in crate::report) fn went_wrong(status: &str) -> bool {
    rank(status) < FINE
}

/// Place of a status in the order of interest: tasks that went wrong come first.
pub(in crate::report) fn rank(status: &str) -> u8 {
    match status {
        "errored" => 0,
        "unfinished" => 1,
        "failed" => 2,
        _ => FINE,
    }
}

/// The answer of a task, and before it what went wrong.
pub(in crate::report) fn task_words(line: &TaskLine) -> Vec<&str> {
    let answer = line.answer.as_deref().unwrap_or_default();
    match (&line.error, &line.reason) {
        (Some(error), reason) => vec![reason.as_ref().unwrap_or(&error.code), &error.message],
        (None, Some(reason)) => vec![reason, answer],
        (None, None) => vec![answer],
    }
}

/// The expected answer of a task, each alternative on a line of its own.
pub(super) fn expected(target: &Value) -> String {
    match target {
        Value::String(text) => text.clone(),
        Value::Array(all) => all.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\nor "),
        other => other.to_string(),
    }
}

/// A row of the table of tasks.
pub(in crate::report) struct TaskCells<'a> {
    pub(in crate::report) name: &'a str,
    /// The part of its address after `#`.
    pub(in crate::report) link: Option<&'a str>,
    pub(in crate::report) status: &'a str,
    pub(in crate::report) took_ms: f64,
    /// Turns, calls, errors of calls, retries.
    pub(in crate::report) counts: [u32; 4],
    pub(in crate::report) tokens: u64,
    /// Its line of `results.jsonl`, if it has ended.
    pub(in crate::report) line: Option<&'a TaskLine>,
}

impl TaskCells<'_> {
    fn name(&self) -> String {
        let name = escape(&cut(self.name, 60));
        match self.link {
            Some(link) => format!("<a href=\"#{link}\">{name}</a>"),
            None => name,
        }
    }

    /// The cell of what was expected.
    fn expected(&self) -> String {
        let target = self.line.and_then(|line| line.target.as_ref());
        match target.map(expected) {
            Some(words) => format!("<td {EXPECTED}>{}</td>", escape(&cut(words.trim(), 90))),
            None => "<td class=\"words expected\"></td>".to_owned(),
        }
    }

    /// The row in the table of all tasks.
    pub(in crate::report) fn row(&self) -> String {
        let [turns, calls, errors, retries] = self.counts;
        let words = self.line.map(|line| task_words(line).join(": ")).unwrap_or_default();
        format!(
            "<tr data-status=\"{}\"><td>{}</td><td data-n=\"{}\">{}</td><td data-n=\"{:.3}\">{}</td><td>{turns}</td>\
             <td>{calls}</td><td>{errors}</td><td>{retries}</td><td>{}</td>{}\
             <td class=\"words\">{}</td></tr>\n",
            escape(self.status),
            self.name(),
            STATUSES.iter().position(|status| *status == self.status).unwrap_or_default(),
            badge(self.status),
            self.took_ms,
            time(self.took_ms),
            count(self.tokens),
            self.expected(),
            escape(&cut(words.trim(), 90)),
        )
    }

    /// The row among those that went wrong.
    pub(in crate::report) fn failure(&self) -> String {
        let (mut reason, mut answer) = ("", "");
        if let Some(line) = self.line {
            let words = task_words(line);
            answer = words[words.len() - 1];
            reason = if words.len() > 1 { words[0] } else { "" };
        }
        format!(
            "<tr><td>{} {}<span class=\"small\">{}</span></td>{}<td class=\"words\" data-head=\"answer\">{}</td></tr>\n",
            badge(self.status),
            self.name(),
            escape(&reason.replace('_', " ")),
            self.expected(),
            escape(&cut(answer.trim(), 240)),
        )
    }
}

/// Why tasks went wrong, and `rows` of the first of them, `all` in number, with what was expected beside the answer.
pub(in crate::report) fn failures(figures: &Figures, rows: &[String], all: usize) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let list = |rows: &[(String, usize)]| {
        let parts: Vec<String> =
            rows.iter().take(12).map(|(what, n)| format!("{n} <code>{}</code>", escape(what))).collect();
        format!("{}{}", parts.join(", "), if rows.len() > 12 { ", and others" } else { "" })
    };
    let sum = |rows: &[(String, usize)]| counted(rows.iter().map(|(_, n)| n).sum(), "task");
    let mut html = "<h2>What went wrong</h2>\n".to_owned();
    if !figures.reasons.is_empty() {
        html += &format!(
            "<p id=\"reasons\">{} failed or errored: {}</p>\n",
            sum(&figures.reasons),
            list(&figures.reasons)
        );
    }
    if !figures.errors.is_empty() {
        html += &format!("<p>{} errored, by server: {}</p>\n", sum(&figures.errors), list(&figures.errors));
    }
    html += &format!(
        "<table class=\"rows\" id=\"failures\"><thead><tr><th>task</th><th>expected</th><th>answer or error</th></tr></thead>\n\
         <tbody>{}</tbody></table>\n",
        rows.concat()
    );
    match all - rows.len() {
        0 => {}
        more => html += &format!("<p class=\"soft\">{more} more are first in the table of all tasks.</p>\n"),
    }
    html
}

/// The heads of the table of tasks.
pub(in crate::report) const COLUMNS: [&str; 10] = [
    "task",
    "status",
    "took",
    "turns",
    "calls",
    "errors",
    "retries",
    "tokens",
    "expected",
    "answer or error",
];

fn cells<'a>(task: &'a RunTask, anchor: &'a str, link: Option<&'a str>) -> TaskCells<'a> {
    let line = &task.result;
    TaskCells {
        name: &anchor["task/".len()..],
        link,
        status: &task.status,
        took_ms: task.took_ms(),
        counts: [line.turns, line.tool_calls, line.tool_errors, line.llm_retries],
        tokens: line.tokens.total(),
        line: Some(line),
    }
}

/// The element id of each task of `rows`, and the link to it, if the page shows the task.
fn anchors(rows: &[&RunTask], told: &HashSet<String>) -> Vec<(String, Option<String>)> {
    let link = |anchor: &String| told.contains(anchor).then(|| fragment(anchor));
    rows.iter().map(|task| anchor(task)).map(|anchor| (anchor.clone(), link(&anchor))).collect()
}

/// The section about tasks that went wrong; `rows` are the tasks of the run, the worst first.
pub(super) fn failed_tasks(figures: &Figures, rows: &[&RunTask], told: &HashSet<String>) -> String {
    let rows: Vec<&RunTask> = rows.iter().copied().filter(|task| went_wrong(&task.status)).collect();
    let shown = &rows[..rows.len().min(FAILURES)];
    let anchors = anchors(shown, told);
    let first: Vec<String> = shown
        .iter()
        .zip(&anchors)
        .map(|(task, (anchor, link))| cells(task, anchor, link.as_deref()).failure())
        .collect();
    failures(figures, &first, rows.len())
}

/// The table of all tasks.
pub(super) fn table(run: &RunFolder, rows: &[&RunTask], told: &HashSet<String>) -> String {
    let anchors = anchors(rows, told);
    let body: String = rows
        .iter()
        .zip(&anchors)
        .map(|(task, (anchor, link))| cells(task, anchor, link.as_deref()).row())
        .collect();
    let left = run.tasks.len() - rows.len();
    let note = match left {
        0 => String::new(),
        n => format!(
            "<p class=\"soft\">{n} more are in <code>results.jsonl</code>: what went wrong or took longest is here.</p>\n"
        ),
    };
    let heads: String = COLUMNS.iter().map(|name| column(name, "", name)).collect();
    format!(
        "<h2>All tasks</h2>\n<div id=\"filter\"></div>\n<div class=\"scroll\">{}</div>\n{note}",
        table_of(&heads, &body)
    )
}

/// The table of tasks of these heads and rows. Where nothing was expected of any task, it has no column for that.
pub(in crate::report) fn table_of(heads: &str, body: &str) -> String {
    let class = if body.contains(EXPECTED) { "" } else { " class=\"no-expected\"" };
    format!("<table id=\"tasks\"{class}><thead><tr>{heads}</tr></thead>\n<tbody>{body}</tbody></table>")
}

/// A head of the table of tasks: its name, attributes and what is inside.
pub(in crate::report) fn column(name: &str, attributes: &str, inside: &str) -> String {
    let class = match name {
        "expected" => " class=\"words expected\"",
        "answer or error" => " class=\"words\"",
        _ => "",
    };
    format!("<th{class}{attributes}>{inside}</th>")
}
