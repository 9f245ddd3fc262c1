//! The pages, and the parts of them that are loaded again.

use std::{path::Path, time::SystemTime};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::{
    report::{
        RunFolder, RunInfo, RunTask,
        follow::{RunFollower, TaskPage, TaskQuery},
        html::{
            self,
            task::{Room, content, facts},
        },
        page::{self, escape},
    },
    style::STYLE,
    text::{counted, cut, rounded_count},
};

pub(super) const SCRIPT: &str = include_str!("script.js");
/// Runs that are listed.
const RUNS: usize = 500;

/// The style of all pages.
pub(super) fn style() -> String {
    [STYLE, include_str!("style.css")].concat()
}

/// What a run is called in addresses: the name of its folder.
pub(super) fn name_of(dir: &Path) -> String {
    let whole = || std::fs::canonicalize(dir).ok();
    let name = dir.file_name().map(ToOwned::to_owned).or_else(|| whole()?.file_name().map(ToOwned::to_owned));
    name.map_or_else(|| "run".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// The address of the page of a run.
pub(super) fn link(base: &str, run: &str) -> String {
    format!("{base}/run/{}/", utf8_percent_encode(run, NON_ALPHANUMERIC))
}

/// A page from its beginning to its end. `parts` is where its parts are loaded from.
pub(super) fn whole(base: &str, title: &str, parts: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
         <link rel=\"icon\" href=\"data:,\"><link rel=\"stylesheet\" href=\"{base}/style.css\">\n\
         <script src=\"{base}/script.js\" defer></script></head>\n<body data-parts=\"{parts}\">\n{}\n{body}\n\
         <p id=\"gone\" class=\"note\" hidden>The server does not answer: <code>toolcrib view</code> has ended.</p>\n</body></html>\n",
        page::start_chart::PATTERNS,
        title = escape(title),
    )
}

/// The list of runs.
pub(super) fn list(base: &str, folder: &Path, all: &[RunInfo]) -> String {
    let body = format!(
        "<h1>Runs</h1>\n<p class=\"soft\">Folder <code>{}</code>. Keys: j, k, Enter. Choose two runs to compare them. \
         <button id=\"compare\" disabled data-base=\"{base}\">Compare</button></p>\n<div id=\"runs\">{}</div>",
        escape(&folder.display().to_string()),
        runs(base, all)
    );
    whole(base, "Runs", &format!("{base}/"), &body)
}

/// The table of the runs.
pub(super) fn runs(base: &str, all: &[RunInfo]) -> String {
    if all.is_empty() {
        return "<p>There is no run yet. Make one: <code>toolcrib demo</code></p>".to_owned();
    }
    let rows: String = all.iter().take(RUNS).map(|run| run_row(base, run)).collect();
    let more = all.len().saturating_sub(RUNS);
    let more = if more > 0 { format!("<p class=\"soft\">and {more} more</p>") } else { String::new() };
    format!(
        "<table class=\"rows list\"><thead><tr><th>tasks and model</th><th>state</th><th>began</th><th class=\"number\">run time</th>\
         <th>results</th><th class=\"number\">pass rate</th><th class=\"number\">tokens</th></tr></thead>\n<tbody>{rows}</tbody></table>{more}"
    )
}

fn run_row(base: &str, run: &RunInfo) -> String {
    let name = name_of(&run.dir);
    let tasks = run.tasks_total / usize::try_from(run.samples).unwrap_or(1).max(1);
    let small = |words: &str| format!("<span class=\"small\">{}</span>", escape(words));
    let settings: Vec<String> = [name.clone()].into_iter().chain(run.own_settings()).collect();
    let paused = (run.interrupted_ms > 0.0)
        .then(|| small(&format!("and {} interrupted", html::time(run.interrupted_ms))));
    let rate = run.pass_rate.map_or_else(String::new, |rate| {
        let [value, low, high] = [rate.value, rate.low, rate.high].map(|part| 100.0 * part);
        format!("{value:.1} %{}", small(&format!("{low:.0} to {high:.0}")))
    });
    let cost = run.cost_usd.filter(|_| run.tokens > 0).map(|cost| small(&format!("${cost:.2}")));
    let (state, words) = state_words(run);
    format!(
        "<tr><td><input type=\"checkbox\" value=\"{0}\" aria-label=\"compare {0}\"> <span><a href=\"{1}\">{2}</a>{3}</span></td>\
         <td data-head=\"state\"><span class=\"badge state-{state}\">{words}</span></td>\
         <td data-head=\"began\" title=\"{4}\">{5}</td><td class=\"number\" data-head=\"run time\">{6}{7}</td>\
         <td class=\"results\" data-head=\"results\">{8}</td><td class=\"number\" data-head=\"pass rate\">{rate}</td>\
         <td class=\"number\" data-head=\"tokens\">{9}{10}</td></tr>\n",
        escape(&name),
        link(base, &name),
        escape(&html::title(run.tasks_file.as_deref(), run.question.as_deref(), tasks, run.model.as_deref())),
        small(&cut(&settings.join(" \u{b7} "), 160)),
        escape(run.started.as_deref().unwrap_or_default()),
        ago(run.started.as_deref()),
        html::time(run.wall_ms),
        paused.unwrap_or_default(),
        results(run),
        rounded_count(run.tokens),
        cost.unwrap_or_default(),
    )
}

/// The class of a run's state and what it is called: that every task errored is worse than how the run ended.
fn state_words(run: &RunInfo) -> (&'static str, String) {
    let (errored, ended) = (run.counts.errored, run.counts.ended());
    match errored {
        0 => (run.state.name(), run.state.name().to_owned()),
        1 if ended == 1 => ("errored", "errored".to_owned()),
        _ if errored == ended => ("errored", format!("all {errored} errored")),
        _ => (run.state.name(), run.state.name().to_owned()),
    }
}

/// How the tasks ended, as a bar and in words.
fn results(run: &RunInfo) -> String {
    let counts = &run.counts;
    let parts = [
        ("passed", counts.passed),
        ("unscored", counts.unscored),
        ("failed", counts.failed),
        ("errored", counts.errored),
        ("cancelled", counts.cancelled),
    ];
    let bar = html::outcomes(parts.into_iter(), run.tasks_total);
    let some = parts.iter().filter(|(_, n)| *n > 0);
    let mut words: Vec<String> = some.map(|(status, n)| format!("{n} {status}")).collect();
    let ended = counts.ended();
    if ended < run.tasks_total {
        words.push(format!("{ended} of {} done", run.tasks_total));
    }
    format!("{bar}<span class=\"small\">{}</span>", words.join(", "))
}

/// How long ago that was, in the largest unit that fits.
fn ago(time: Option<&str>) -> String {
    let time = time.and_then(|time| humantime::parse_rfc3339(time).ok());
    let Some(past) = time.and_then(|time| SystemTime::now().duration_since(time).ok()) else {
        return String::new();
    };
    match past.as_secs() {
        0..60 => "just now".to_owned(),
        past @ 60..3600 => format!("{} min ago", past / 60),
        past @ 3600..86_400 => format!("{} h ago", past / 3600),
        past => format!("{} ago", counted(usize::try_from(past / 86_400).unwrap_or(usize::MAX), "day")),
    }
}

/// The page of a run.
pub(super) fn run(base: &str, name: &str, run: &RunFollower, whole_run: bool) -> String {
    let title = run.title();
    let body = format!(
        "<p><a href=\"{base}/\">All runs</a></p>\n<h1>{}</h1>\n<div id=\"list\">\n<div id=\"head\">{}</div>\n<div id=\"work\">{}</div>\n\
         <h2>All tasks</h2>\n<div id=\"filter\"><input id=\"text\" type=\"search\" placeholder=\"id, answer, error, tool\" \
         aria-label=\"filter: id, answer, error, tool\"><select id=\"status\" aria-label=\"status\"><option value=\"\">all</option>{}</select>\
         <span class=\"soft\">keys: j, k, Enter, Escape</span></div>\n<div id=\"table\">{}</div>\n<div id=\"charts\"></div>\n</div>\n\
         <div id=\"detail\" hidden></div>",
        escape(&title),
        head(run, whole_run),
        run.in_work(),
        ["passed", "failed", "errored", "unscored", "cancelled", "unfinished"]
            .map(|status| format!("<option>{status}</option>"))
            .concat(),
        tasks(&run.page(&TaskQuery::default())),
    );
    whole(base, &title, &link(base, name), &body)
}

/// What is above the tasks, and where the run stands.
pub(super) fn head(run: &RunFollower, whole: bool) -> String {
    let reading = match whole {
        true => String::new(),
        false => format!(
            "<p class=\"note\">The files are being read: {:.0} % so far.</p>",
            100.0 * run.read_part()
        ),
    };
    format!("<div data-state=\"{}\" data-whole=\"{whole}\">{reading}{}</div>", run.state().name(), run.head())
}

/// A page of the table of tasks, and the way to others.
pub(super) fn tasks(page: &TaskPage) -> String {
    let button = |to: Option<usize>, words: &str| match to {
        Some(to) => format!("<button data-page=\"{to}\">{words}</button>"),
        None => format!("<button disabled>{words}</button>"),
    };
    format!(
        "<div class=\"scroll\">{}</div>\n<p class=\"pages\">{}{} <span class=\"soft\">{}, page {} of {}</span></p>",
        page.html,
        button(page.page.checked_sub(1), "previous"),
        button(Some(page.page + 1).filter(|next| *next < page.pages), "next"),
        counted(page.matching, "task"),
        page.page + 1,
        page.pages,
    )
}

/// One task.
pub(super) fn task(run: &RunFolder, task: &RunTask) -> String {
    let open = task.status == "unfinished";
    let note = match open {
        true => "<p class=\"note\">The task has no end yet. Its conversation is written when it ends.</p>\n",
        false => "",
    };
    // Here the conversation is what the page is for.
    let content =
        content(run, task, Room::ALONE).replace("<details class=\"talk\">", "<details class=\"talk\" open>");
    format!(
        "<p><a href=\"#\">All tasks</a></p>\n<h2 data-open=\"{open}\">{} {}</h2>\n<p class=\"soft\">{}</p>\n{note}{content}",
        html::badge(&task.status),
        escape(&task.task),
        facts(task),
    )
}
