//! The page of a run: figures, charts, tables, and as many tasks as fit.

mod samples;
pub(crate) mod task;
mod timeline;

#[cfg(feature = "view")]
pub(super) use self::timeline::axis_row;
pub(super) use self::timeline::timeline;

use std::collections::HashSet;

use super::{
    figures::{Figures, STATUSES, TimesRow, status_words},
    folder::{RunFolder, RunServerStart, RunTask, TaskLine, millis},
    listing::RunState,
    page::{
        self, escape,
        start_chart::{Bar, End, Picture, legend, svg},
    },
    words,
};
use crate::{
    run_files::RunEnd,
    session::Phases,
    text::{counted, cut, rounded_count as count},
};

pub(crate) const STYLE: &str = include_str!("html/style.css");
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
        let title = format!("Run {}", run.manifest["run"].as_str().unwrap_or("without a name"));
        let (details, told) = details(run, rows);
        let told: HashSet<String> = told.into_iter().collect();
        let html = [
            page::head(&title, STYLE, Some(SCRIPT)),
            about(run, None),
            counts(run, &figures, run.tasks.len()),
            samples::samples(run),
            where_time_goes(&figures),
            starts(run),
            timeline(run, &run.tasks, |task| told.contains(&anchor(task))),
            reasons(&figures),
            tools(run, &figures),
            table(run, rows, &told),
            details,
            page::tail(&json, Some(SCRIPT)),
        ];
        Self { html: html.concat(), json, summary: figures.words(run) }
    }
}

/// What a page of a run that goes on has above its tasks; `ended` of them have ended.
#[cfg(feature = "view")]
pub(super) fn head(run: &RunFolder, figures: &Figures, ended: usize, state: RunState) -> String {
    let parts = [
        about(run, Some(state)),
        counts(run, figures, ended),
        where_time_goes(figures),
        reasons(figures),
        tools(run, figures),
    ];
    parts.concat()
}

/// How the servers of a run started.
#[cfg(feature = "view")]
pub(super) fn servers(run: &RunFolder) -> String {
    starts(run)
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

/// What went wrong first, then what took longest.
fn by_interest(run: &RunFolder) -> Vec<&RunTask> {
    let rank = |task: &RunTask| match task.status.as_str() {
        "errored" => 0,
        "unfinished" => 1,
        "failed" => 2,
        _ => 3,
    };
    let mut tasks: Vec<&RunTask> = run.tasks.iter().collect();
    tasks.sort_by(|a, b| {
        let took = RunTask::took_ms;
        rank(a).cmp(&rank(b)).then_with(|| took(b).total_cmp(&took(a)))
    });
    tasks
}

fn about(run: &RunFolder, state: Option<RunState>) -> String {
    let manifest = &run.manifest;
    let text = |key: &str| manifest[key].as_str().map(str::to_owned);
    let tasks = match samples::per_task(run) {
        1 => counted(run.tasks_total, "task"),
        samples => format!(
            "{} of {}",
            counted(run.tasks_total, "sample"),
            counted(run.tasks_total / samples, "task")
        ),
    };
    let mut parts = vec![format!("{tasks}, {} at once", run.jobs)];
    parts.extend(text("model").map(|model| format!("model {model}")));
    parts.extend(run.started.clone());
    parts.push(format!("took {}", time(run.wall_ms)));
    if run.paused_ms() > 0.0 {
        parts.push(format!("and {} of interruption", time(run.paused_ms())));
    }
    parts.extend(text("config"));
    parts.push(format!("toolcrib {}", text("toolcrib").unwrap_or_default()));
    let mut html = format!("<p class=\"soft\">{}</p>\n", escape(&parts.join(" \u{b7} ")));
    let mut notes = Vec::new();
    if manifest["model_scripted"] == true {
        notes.push("The model was a script.".to_owned());
    }
    if manifest["replay"] == true {
        notes.push("Answers came from a cassette: times are those of the replay.".to_owned());
    }
    match (run.end, state) {
        (_, Some(RunState::Running)) => notes.push("The run goes on.".to_owned()),
        (Some(RunEnd::Finished), _) => {}
        (Some(RunEnd::BudgetUsedUp), _) => {
            notes.push("The budget of the run was used up before its end.".to_owned());
        }
        (Some(RunEnd::Stopped), _) => notes.push("The run was stopped before its end.".to_owned()),
        (None, Some(_)) => notes.push("The run was killed: the same command continues it.".to_owned()),
        (None, None) => notes.push("The run has no end: it was killed, or it goes on.".to_owned()),
    }
    let warnings = manifest["warnings"].as_array().into_iter().flatten();
    notes.extend(warnings.filter_map(|warning| Some(format!("Warning: {}.", warning["message"].as_str()?))));
    if run.dropped > 0 {
        notes.push(format!("{} events were not written: there were too many.", run.dropped));
    }
    if !notes.is_empty() {
        html.push_str(&format!("<p class=\"note\">{}</p>\n", escape(&notes.join(" "))));
    }
    html
}

fn counts(run: &RunFolder, sums: &Figures, ended: usize) -> String {
    let badges: Vec<String> = STATUSES
        .iter()
        .zip(sums.counts)
        .filter(|(_, n)| *n > 0)
        .map(|(status, n)| {
            let words = status_words(status);
            format!("<span class=\"badge {status}\"><b>{}</b> {n} {words}</span>", sign(status))
        })
        .collect();
    let mut facts = Vec::new();
    if let Some(rate) = sums.rate {
        let percent = |part: f64| format!("{:.1}", 100.0 * part);
        let judged = sums.counts[0] + sums.counts[2];
        let mut words = format!("<strong>{} %</strong> of the {judged} judged passed", percent(rate.value));
        // It holds for independent samples: those of one task are not.
        if samples::per_task(run) == 1 {
            words += &format!(" (95 % interval {} to {})", percent(rate.low), percent(rate.high));
        }
        facts.push(words);
    }
    facts.extend(words::tokens(&sums.tokens).map(|tokens| format!("tokens: {tokens}")));
    let counted_cost = sums.cost_usd.filter(|_| sums.tokens.total() > 0);
    facts.extend(counted_cost.map(|cost| format!("cost: ${cost:.2}")));
    if run.wall_ms > 0.0 && ended > 0 {
        facts.push(format!("{:.1} tasks a minute", ended as f64 / (run.wall_ms / 60e3)));
    }
    let mut html =
        format!("<p class=\"counts\">{}</p>\n<p>{}</p>\n", badges.join(" "), facts.join(" \u{b7} "));
    if let Some(arguments) = run.manifest["arguments"].as_array() {
        let words: Vec<&str> = arguments.iter().filter_map(|word| word.as_str()).collect();
        html.push_str(&format!("<p>Again: <code>{}</code></p>\n", escape(&words.join(" "))));
    }
    html
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
    format!(
        "<h2>Where the time of the tasks goes</h2>\n<div class=\"stack\">{bar}</div>\n<p class=\"keys\">{key}</p>\n"
    )
}

fn starts(run: &RunFolder) -> String {
    if run.servers.is_empty() {
        return String::new();
    }
    let start_of_all = run.servers.iter().filter_map(|server| match &server.start {
        RunServerStart::Ready { at_ms, took_ms, .. } => Some((at_ms - took_ms, *at_ms, &server.name)),
        _ => None,
    });
    let wall_ms = start_of_all.clone().map(|(from, to, _)| to - from).fold(0.0, f64::max);
    let last =
        start_of_all.max_by(|a, b| (a.1 - a.0).total_cmp(&(b.1 - b.0))).map(|(_, _, name)| name.clone());
    let mut failed = String::new();
    let bars = run.servers.iter().map(|server| {
        let (ended_ms, queue_ms, end) = match &server.start {
            RunServerStart::Unknown => {
                (0.0, 0.0, End::Failed { cause: "was still being started".to_owned() })
            }
            RunServerStart::Parked { tools } => (0.0, 0.0, End::Parked { tools: *tools }),
            RunServerStart::Ready { took_ms, tools, phases, .. } => {
                let of = std::time::Duration::from_nanos;
                let phases_ms = Phases {
                    queue: of(phases.queue),
                    template: of(phases.template),
                    spawn: of(phases.spawn),
                    first_byte: of(phases.first_byte),
                    handshake: of(phases.handshake),
                    list: of(phases.list),
                };
                (*took_ms, millis(phases.queue), End::Ready { phases_ms, tools: *tools })
            }
            RunServerStart::Failed { took_ms, error, .. } => {
                let why: Vec<&str> =
                    error.causes.iter().chain(&error.stderr_tail).map(String::as_str).collect();
                failed.push_str(&format!(
                    "<dt>{}</dt><dd>{}\n{}</dd>",
                    escape(&server.name),
                    escape(&error.message),
                    escape(&why.join("\n"))
                ));
                (*took_ms, 0.0, End::Failed { cause: error.message.clone() })
            }
        };
        Bar { name: server.name.clone(), ended_ms, queue_ms, end }
    });
    let picture = Picture { wall_ms, last, servers: bars.collect() };
    let mut html = format!(
        "<h2>Start of the servers</h2>\n{}<figure>{}</figure>\n",
        legend(picture.has_templates()),
        svg(&picture, "start of the servers")
    );
    if !failed.is_empty() {
        html.push_str(&format!("<h3>Did not start</h3>\n<dl>{failed}</dl>\n"));
    }
    html
}

fn reasons(sums: &Figures) -> String {
    let list = |rows: &[(String, usize)]| {
        let parts: Vec<String> =
            rows.iter().take(12).map(|(what, n)| format!("{n} <code>{}</code>", escape(what))).collect();
        format!("{}{}", parts.join(", "), if rows.len() > 12 { ", and others" } else { "" })
    };
    let all = |rows: &[(String, usize)]| counted(rows.iter().map(|(_, n)| n).sum(), "task");
    let mut html = String::new();
    if !sums.reasons.is_empty() {
        html += &format!(
            "<h2>What went wrong</h2>\n<p id=\"reasons\">{} failed or errored: {}</p>\n",
            all(&sums.reasons),
            list(&sums.reasons)
        );
    }
    if !sums.errors.is_empty() {
        html += &format!("<p>{} errored, by server: {}</p>\n", all(&sums.errors), list(&sums.errors));
    }
    html
}

fn tools(run: &RunFolder, sums: &Figures) -> String {
    let total: f64 = sums.tools.iter().map(|row| row.total_ms).sum::<f64>() + sums.model.total_ms;
    if sums.tools.is_empty() && sums.model.n == 0 {
        return String::new();
    }
    let row = |row: &TimesRow| {
        let share = if total > 0.0 { 100.0 * row.total_ms / total } else { 0.0 };
        format!(
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{share:.0} %</td></tr>\n",
            escape(&cut(&row.name, 60)),
            row.n,
            row.errors,
            time(row.p50_ms),
            time(row.p95_ms),
            time(row.max_ms)
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
    if let Some(line) = words::requests(&run.manifest["totals"]) {
        // They are those of the process that ended the run.
        let since = match run.manifest["interruptions"].as_u64() {
            Some(1..) => " since the run was continued",
            _ => "",
        };
        note += &format!("<p class=\"soft\" id=\"requests\">Requests{since}: {}.</p>\n", escape(&line));
    }
    format!(
        "<h2>Model and tools</h2>\n<div class=\"scroll\"><table><thead><tr><th>name</th><th>calls</th><th>errors</th>\
         <th>median</th><th>p95</th><th>max</th><th>of the time</th></tr></thead>\n<tbody>{rows}</tbody></table></div>\n{note}"
    )
}

/// The answer of a task, and before it what went wrong.
pub(super) fn task_words(line: &TaskLine) -> Vec<&str> {
    let answer = line.answer.as_deref().unwrap_or_default();
    match (&line.error, &line.reason) {
        (Some(error), reason) => vec![reason.as_ref().unwrap_or(&error.code), &error.message],
        (None, Some(reason)) => vec![reason, answer],
        (None, None) => vec![answer],
    }
}

/// A row of the table of tasks.
pub(super) struct TaskCells<'a> {
    pub(super) name: &'a str,
    /// The part of its address after `#`.
    pub(super) link: Option<&'a str>,
    pub(super) status: &'a str,
    pub(super) took_ms: f64,
    /// Turns, calls, errors of calls, retries.
    pub(super) counts: [u32; 4],
    pub(super) tokens: u64,
    pub(super) words: &'a str,
}

pub(super) fn task_row(cells: &TaskCells<'_>) -> String {
    let name = escape(&cut(cells.name, 60));
    let name = match cells.link {
        Some(link) => format!("<a href=\"#{link}\">{name}</a>"),
        None => name,
    };
    let [turns, calls, errors, retries] = cells.counts;
    format!(
        "<tr data-status=\"{}\"><td>{name}</td><td data-n=\"{}\">{}</td><td data-n=\"{:.3}\">{}</td><td>{turns}</td>\
         <td>{calls}</td><td>{errors}</td><td>{retries}</td><td>{}</td><td class=\"words\">{}</td></tr>\n",
        escape(cells.status),
        STATUSES.iter().position(|status| *status == cells.status).unwrap_or_default(),
        badge(cells.status),
        cells.took_ms,
        time(cells.took_ms),
        count(cells.tokens),
        escape(&cut(cells.words.trim(), 90)),
    )
}

fn table(run: &RunFolder, rows: &[&RunTask], told: &HashSet<String>) -> String {
    let body: String = rows
        .iter()
        .map(|task| {
            let (line, anchor) = (&task.result, anchor(task));
            task_row(&TaskCells {
                name: &anchor["task/".len()..],
                link: told.contains(&anchor).then(|| fragment(&anchor)).as_deref(),
                status: &task.status,
                took_ms: task.took_ms(),
                counts: [line.turns, line.tool_calls, line.tool_errors, line.llm_retries],
                tokens: line.tokens.total(),
                words: &task_words(line).join(": "),
            })
        })
        .collect();
    let left = run.tasks.len() - rows.len();
    let note = match left {
        0 => String::new(),
        n => format!(
            "<p class=\"soft\">{n} more are in <code>results.jsonl</code>: what went wrong or took longest is here.</p>\n"
        ),
    };
    format!(
        "<h2>Tasks</h2>\n<div id=\"filter\"></div>\n<div class=\"scroll\"><table id=\"tasks\"><thead><tr><th>task</th>\
         <th>status</th><th>took</th><th>turns</th><th>calls</th><th>errors</th><th>retries</th><th>tokens</th>\
         <th class=\"words\">answer or error</th></tr></thead>\n<tbody>{body}</tbody></table></div>\n{note}"
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
