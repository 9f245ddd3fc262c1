//! The page of a run: figures, charts, tables, and as many tasks as fit.

mod head;
mod samples;
mod starts;
mod table;
pub(crate) mod task;
mod timeline;

pub(crate) use self::head::title_of;
#[cfg(feature = "view")]
pub(crate) use self::head::{outcomes, title};
pub(super) use self::{head::head, starts::starts, table::rank, timeline::timeline};
#[cfg(feature = "view")]
pub(super) use self::{
    table::{COLUMNS, FAILURES, TaskCells, column, failures, table_of, task_words, went_wrong},
    timeline::{axis_row, pauses},
};

use std::collections::HashSet;

use super::{
    figures::{Figures, TimesRow},
    folder::{RunFolder, RunTask},
    page::{self, escape},
    words,
};
use crate::text::cut;

const SCRIPT: &str = include_str!("html/script.js");
/// Rows of the table of tasks.
const ROWS: usize = 3000;
/// The most bytes of the details of single tasks.
const DETAILS: usize = 1_300_000;

/// The page of a run: one file that works from disk, without a network.
#[non_exhaustive]
pub struct RunPage {
    /// The page.
    pub html: String,
    /// The document for scripts that is part of it.
    pub json: String,
    /// How the tasks ended, in words.
    pub summary: String,
}

impl RunPage {
    /// The page of the run in `run`.
    pub fn of(run: &RunFolder) -> Self {
        let figures = Figures::of(run);
        let order = by_interest(run);
        let rows = &order[..order.len().min(ROWS)];
        let json = figures.document(run, rows).to_string();
        let title = title_of(run);
        let (details, told) = details(run, rows);
        let told: HashSet<String> = told.into_iter().collect();
        let html = [
            page::head(&title, Some(SCRIPT)),
            head(run, &figures, run.tasks.len(), None),
            table::failed_tasks(&figures, rows, &told),
            samples::samples(run),
            timeline(run, &run.tasks, |task| told.contains(&anchor(task))),
            where_time_goes(&figures),
            tools(run, &figures),
            starts(run),
            table::table(run, rows, &told),
            details,
            page::tail(&json, Some(SCRIPT)),
        ];
        Self { html: html.concat(), json, summary: figures.words(run) }
    }
}

/// Where the time of a run went, by kind and by tool.
#[cfg(feature = "view")]
pub(super) fn time_and_tools(run: &RunFolder, figures: &Figures) -> String {
    where_time_goes(figures) + &tools(run, figures)
}

/// A time for people.
pub(crate) fn time(ms: f64) -> String {
    match ms {
        ms if ms < 0.95 => format!("{ms:.1} ms"),
        ms if ms < 999.5 => format!("{ms:.0} ms"),
        ms if ms < 9_995.0 => format!("{:.2} s", ms / 1e3),
        ms if ms < 59_950.0 => format!("{:.1} s", ms / 1e3),
        ms if ms < 3_599_500.0 => {
            let seconds = (ms / 1e3).round();
            format!("{:.0} min {:.0} s", (seconds / 60.0).floor(), seconds % 60.0)
        }
        ms => {
            let minutes = (ms / 60e3).round();
            format!("{:.0} h {:.0} min", (minutes / 60.0).floor(), minutes % 60.0)
        }
    }
}

/// The sign of a status, distinguishable without colour.
pub(crate) fn sign(status: &str) -> &'static str {
    match status {
        "passed" => "\u{2713}",
        "failed" => "\u{2717}",
        "errored" => "!",
        "unscored" => "\u{25cb}",
        "cancelled" => "\u{2013}",
        _ => "?",
    }
}

/// What went wrong first, then what took longest.
fn by_interest(run: &RunFolder) -> Vec<&RunTask> {
    let mut tasks: Vec<&RunTask> = run.tasks.iter().collect();
    tasks.sort_by(|a, b| {
        let took = RunTask::took_ms;
        rank(&a.status).cmp(&rank(&b.status)).then_with(|| took(b).total_cmp(&took(a)))
    });
    tasks
}

/// What an element of this task's is called.
pub(super) fn anchor(task: &RunTask) -> String {
    match task.attempt {
        1 => format!("task/{}", task.task),
        attempt => format!("task/{}/{attempt}", task.task),
    }
}

pub(crate) fn badge(status: &str) -> String {
    format!("<span class=\"badge {0}\"><b>{1}</b> {0}</span>", escape(status), sign(status))
}

fn where_time_goes(sums: &Figures) -> String {
    let parts = Figures::parts(&sums.time);
    let all: f64 = parts.iter().map(|(_, _, ms)| ms).sum();
    if all <= 0.0 {
        return String::new();
    }
    let percent = |ms: f64| 100.0 * ms / all;
    let bar = parts
        .iter()
        .map(|(class, words, ms)| {
            let share = percent(*ms);
            format!(
                "<i class=\"k-{class}\" style=\"width:{share:.2}%\" title=\"{words}: {}\"></i>",
                time(*ms)
            )
        })
        .collect::<Vec<String>>()
        .concat();
    let key = parts
        .iter()
        .map(|(class, words, ms)| {
            let share = percent(*ms);
            format!(
                "<span class=\"key\"><i class=\"swatch k-{class}\"></i>{words} {share:.0} % ({})</span>",
                time(*ms)
            )
        })
        .collect::<Vec<String>>()
        .concat();
    format!("<h2>Where the time went</h2>\n<div class=\"stack\">{bar}</div>\n<p class=\"keys\">{key}</p>\n")
}

fn tools(run: &RunFolder, sums: &Figures) -> String {
    if sums.tools.is_empty() && sums.model.n == 0 {
        return String::new();
    }
    let row = |row: &TimesRow| {
        format!(
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
            escape(&cut(&row.name, 60)),
            row.n,
            row.errors,
            time(row.p50_ms),
            time(row.p95_ms),
            time(row.max_ms),
            time(row.total_ms)
        )
    };
    let mut rows: String = if sums.model.n > 0 { row(&sums.model) } else { String::new() };
    rows.extend(sums.tools.iter().take(200).map(row));
    let retries = sums.tries.saturating_sub(sums.model.n);
    let mut note = match retries {
        0 => String::new(),
        n => format!(
            "<p class=\"soft\" id=\"retries\">{} requests to the model took {} tries: {n} were tried again, after {} of \
             waiting: {}.</p>\n",
            sums.model.n,
            sums.tries,
            time(sums.retry_wait_ms),
            sums.retries
                .iter()
                .map(|(why, n)| format!("{n} after <code>{}</code>", escape(why)))
                .collect::<Vec<_>>()
                .join(", ")
        ),
    };
    // They are those of the process that ended the run.
    let continued = run.manifest["interruptions"].as_u64().is_some_and(|times| times > 0);
    if let Some(line) = words::requests(&run.manifest["totals"], continued) {
        let since = if continued { " since the run was continued" } else { "" };
        note += &format!("<p class=\"soft\" id=\"requests\">Requests{since}: {}.</p>\n", escape(&line));
    }
    format!(
        "<h2>Model and tools</h2>\n<div class=\"scroll\"><table><thead><tr><th>name</th><th>calls</th><th>errors</th>\
         <th>median</th><th>p95</th><th>max</th><th title=\"waits between tries included\">total</th></tr></thead>\n<tbody>{rows}</tbody></table></div>\n{note}"
    )
}

/// Escapes text for the part of an address after `#`.
pub(crate) fn fragment(anchor: &str) -> String {
    let mut text = String::new();
    for byte in anchor.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-' | b'/' => text.push(byte.into()),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

/// Single tasks, as many as there is room for, and what they are called.
fn details(run: &RunFolder, tasks: &[&RunTask]) -> (String, Vec<String>) {
    let mut text = String::from("<h2>Each task</h2>\n");
    let mut told = Vec::new();
    for entry in tasks {
        let section = task::section(run, entry);
        if text.len() + section.len() > DETAILS {
            break;
        }
        text.push_str(&section);
        told.push(anchor(entry));
    }
    match run.tasks.len() - told.len() {
        0 => {}
        n => text.push_str(&format!("<p class=\"soft\">There is no room for {n} more.</p>\n")),
    }
    if told.is_empty() { (String::new(), told) } else { (text, told) }
}
