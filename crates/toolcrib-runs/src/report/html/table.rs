//! Tasks as rows: the table of all of them, and the few that went wrong with what was expected beside the answer.

use std::collections::HashSet;

use maud::{Markup, html};
use serde_json::Value;

use super::{anchor, badge, fragment, time};
use crate::{
    report::{
        figures::{Figures, STATUSES},
        folder::{RunFolder, RunTask, TaskLine},
    },
    text::{counted, cut, rounded_count as count},
};

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
    fn name(&self) -> Markup {
        let name = cut(self.name, 60);
        html! {
            @match self.link {
                Some(link) => { a href={ "#" (link) } { (name) } }
                None => { (name) }
            }
        }
    }

    fn has_target(&self) -> bool {
        self.line.is_some_and(|line| line.target.is_some())
    }

    /// The cell of what was expected.
    fn expected(&self) -> Markup {
        let target = self.line.and_then(|line| line.target.as_ref());
        html! {
            @match target.map(expected) {
                Some(words) => { td class="words expected" data-head="expected" { (cut(words.trim(), 90)) } }
                None => { td class="words expected" {} }
            }
        }
    }

    /// The row in the table of all tasks.
    pub(in crate::report) fn row(&self) -> TaskTableRow {
        let words = self.line.map(|line| task_words(line).join(": ")).unwrap_or_default();
        let place = STATUSES.iter().position(|status| *status == self.status).unwrap_or_default();
        let markup = html! {
            tr data-status=(self.status) {
                td { (self.name()) }
                td data-n=(place) { (badge(self.status)) }
                td data-n=(format_args!("{:.3}", self.took_ms)) { (time(self.took_ms)) }
                @for count in self.counts { td { (count) } }
                td { (count(self.tokens)) }
                (self.expected())
                td class="words" { (cut(words.trim(), 90)) }
            }
        };
        TaskTableRow { markup, has_target: self.has_target() }
    }

    /// The row among those that went wrong.
    pub(in crate::report) fn failure(&self) -> Markup {
        let (mut reason, mut answer) = ("", "");
        if let Some(line) = self.line {
            let words = task_words(line);
            answer = words[words.len() - 1];
            reason = if words.len() > 1 { words[0] } else { "" };
        }
        html! {
            tr {
                td {
                    (badge(self.status)) " " (self.name())
                    span class="small" { (reason.replace('_', " ")) }
                }
                (self.expected())
                td class="words" data-head="answer" { (cut(answer.trim(), 240)) }
            }
        }
    }
}

/// A row of the table of all tasks, and whether something was expected of its task.
pub(in crate::report) struct TaskTableRow {
    markup: Markup,
    has_target: bool,
}

/// Why tasks went wrong, and `rows` of the first of them, `all` in number, with what was expected beside the answer.
pub(in crate::report) fn failures(figures: &Figures, rows: &[Markup], all: usize) -> Markup {
    if rows.is_empty() {
        return Markup::default();
    }
    let sum = |rows: &[(String, usize)]| counted(rows.iter().map(|(_, n)| n).sum(), "task");
    let list = |rows: &[(String, usize)]| {
        html! {
            @for (number, (what, n)) in rows.iter().take(12).enumerate() {
                @if number > 0 { ", " } (n) " " code { (what) }
            }
            @if rows.len() > 12 { ", and others" }
        }
    };
    let more = all - rows.len();
    html! {
        h2 { "What went wrong" }
        @if !figures.reasons.is_empty() {
            p id="reasons" { (sum(&figures.reasons)) " failed or errored: " (list(&figures.reasons)) }
        }
        @if !figures.errors.is_empty() {
            p { (sum(&figures.errors)) " errored, by server: " (list(&figures.errors)) }
        }
        table class="rows" id="failures" {
            thead { tr { th { "task" } th { "expected" } th { "answer or error" } } }
            tbody { @for row in rows { (row) } }
        }
        @if more > 0 { p class="soft" { (more) " more are first in the table of all tasks." } }
    }
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
pub(super) fn failed_tasks(figures: &Figures, rows: &[&RunTask], told: &HashSet<String>) -> Markup {
    let rows: Vec<&RunTask> = rows.iter().copied().filter(|task| went_wrong(&task.status)).collect();
    let shown = &rows[..rows.len().min(FAILURES)];
    let anchors = anchors(shown, told);
    let first: Vec<Markup> = shown
        .iter()
        .zip(&anchors)
        .map(|(task, (anchor, link))| cells(task, anchor, link.as_deref()).failure())
        .collect();
    failures(figures, &first, rows.len())
}

/// The table of all tasks.
pub(super) fn table(run: &RunFolder, rows: &[&RunTask], told: &HashSet<String>) -> Markup {
    let anchors = anchors(rows, told);
    let body: Vec<TaskTableRow> = rows
        .iter()
        .zip(&anchors)
        .map(|(task, (anchor, link))| cells(task, anchor, link.as_deref()).row())
        .collect();
    let heads = COLUMNS.map(|name| column(name, None, &html! { (name) }));
    let left = run.tasks.len() - rows.len();
    html! {
        h2 { "All tasks" }
        div id="filter" {}
        div class="scroll" { (table_of(&heads, &body)) }
        @if left > 0 {
            p class="soft" {
                (left) " more are in " code { "results.jsonl" }
                ": what went wrong or took longest is here."
            }
        }
    }
}

/// The table of tasks of these heads and rows. Where nothing was expected of any task, it has no column for that.
pub(in crate::report) fn table_of(heads: &[Markup], rows: &[TaskTableRow]) -> Markup {
    let class = (!rows.iter().any(|row| row.has_target)).then_some("no-expected");
    html! {
        table id="tasks" class=[class] {
            thead { tr { @for head in heads { (head) } } }
            tbody { @for row in rows { (row.markup) } }
        }
    }
}

/// A head of the table of tasks: its name, how it is sorted by it, and what is inside.
pub(in crate::report) fn column(name: &str, sorted: Option<&str>, inside: &Markup) -> Markup {
    let class = match name {
        "expected" => Some("words expected"),
        "answer or error" => Some("words"),
        _ => None,
    };
    html! { th class=[class] aria-sort=[sorted] { (inside) } }
}
