//! The pages, and the parts of them that are loaded again.

use std::{
    path::Path,
    time::{Duration, SystemTime},
};

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
    text::{counted, cut, rounded_count, seconds},
};

pub(super) const SCRIPT: &str = include_str!("script.js");
/// Runs that are listed.
const RUNS: usize = 500;

/// The style of all pages.
pub(super) fn style() -> String {
    [page::STYLE, html::STYLE, include_str!("style.css")].concat()
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
        "<h1>Runs in {}</h1>\n<p class=\"soft\">Keys: j, k, Enter. Choose two runs to compare them. \
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
        "<div class=\"scroll\"><table class=\"list\"><thead><tr><th>run</th><th>state</th><th>began</th><th>took</th>\
         <th>tasks</th><th>passed</th><th>failed</th><th>errored</th><th>pass rate</th><th>tokens</th><th>cost</th>\
         <th class=\"words\">model</th><th class=\"words\">settings</th></tr></thead>\n<tbody>{rows}</tbody></table></div>{more}"
    )
}

fn run_row(base: &str, run: &RunInfo) -> String {
    let name = name_of(&run.dir);
    let tasks = match run.counts.ended() {
        ended if ended == run.tasks_total => ended.to_string(),
        ended => format!("{ended} of {}", run.tasks_total),
    };
    let rate = run.pass_rate.map_or_else(String::new, |rate| {
        let [value, low, high] = [rate.value, rate.low, rate.high].map(|part| 100.0 * part);
        format!("<span title=\"95 % interval {low:.1} to {high:.1}\">{value:.1} %</span>")
    });
    format!(
        "<tr><td><input type=\"checkbox\" value=\"{0}\" aria-label=\"compare {0}\"> <a href=\"{1}\">{0}</a></td>\
         <td><span class=\"badge state-{2}\">{2}</span></td><td data-head=\"began\" title=\"{3}\">{4}</td><td data-head=\"took\" title=\"{13}\">{5}</td><td data-head=\"tasks\">{tasks}</td>\
         <td data-head=\"passed\">{6}</td><td data-head=\"failed\">{7}</td><td data-head=\"errored\">{8}</td><td data-head=\"pass rate\">{rate}</td><td data-head=\"tokens\">{9}</td><td data-head=\"cost\">{10}</td><td class=\"words\" data-head=\"model\">{11}</td><td class=\"words\" data-head=\"settings\">{12}</td></tr>\n",
        escape(&name),
        link(base, &name),
        run.state.name(),
        escape(run.started.as_deref().unwrap_or_default()),
        ago(run.started.as_deref()),
        seconds(Duration::from_secs_f64((run.wall_ms / 1e3).clamp(0.0, 1e12))),
        run.counts.passed,
        run.counts.failed,
        run.counts.errored,
        rounded_count(run.tokens),
        run.cost_usd.filter(|_| run.tokens > 0).map_or_else(String::new, |cost| format!("${cost:.2}")),
        escape(&cut(run.model.as_deref().unwrap_or_default(), 60)),
        escape(&cut(&run.settings(), 120)),
        match run.paused_ms {
            paused if paused > 0.0 => format!("and {} of interruption", html::time(paused)),
            _ => String::new(),
        },
    )
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
    let body = format!(
        "<p><a href=\"{base}/\">All runs</a></p>\n<h1>Run {}</h1>\n<div id=\"list\">\n<div id=\"head\">{}</div>\n<div id=\"work\">{}</div>\n\
         <h2>Tasks</h2>\n<div id=\"filter\"><input id=\"text\" type=\"search\" placeholder=\"id, answer, error, tool\" \
         aria-label=\"filter: id, answer, error, tool\"><select id=\"status\" aria-label=\"status\"><option value=\"\">all</option>{}</select>\
         <span class=\"soft\">keys: j, k, Enter, Escape</span></div>\n<div id=\"table\">{}</div>\n<div id=\"timeline\"></div>\n</div>\n\
         <div id=\"detail\" hidden></div>",
        escape(run.id()),
        head(run, whole_run),
        run.in_work(),
        ["passed", "failed", "errored", "unscored", "cancelled", "unfinished"]
            .map(|status| format!("<option>{status}</option>"))
            .concat(),
        tasks(&run.page(&TaskQuery::default())),
    );
    whole(base, &format!("Run {}", run.id()), &link(base, name), &body)
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
