//! The page that compares two runs.

use super::pages::{link, name_of, whole};
use crate::report::{
    ComparedTask, RunComparison, RunInfo, TaskChange, TaskPair,
    html::{badge, fragment, time},
    page::escape,
};
use crate::text::{counted, rounded_count};

/// Rows of the table of tasks.
const ROWS: usize = 1000;

pub(super) fn page(base: &str, comparison: &RunComparison) -> String {
    let (before, after) = (&comparison.before, &comparison.after);
    let shown = comparison.tasks.iter().filter(|pair| pair.change != TaskChange::Same);
    let all = shown.clone().count();
    let rows: String = shown.take(ROWS).map(|pair| row(base, comparison, pair)).collect();
    let note = match all {
        0 => "<p>Every task ended in the same way in both runs.</p>".to_owned(),
        all if all > ROWS => {
            format!("<p class=\"soft\">{} more: <code>toolcrib --json diff</code> has all.</p>", all - ROWS)
        }
        _ => String::new(),
    };
    let tasks = match all {
        0 => String::new(),
        _ => format!(
            "<div class=\"scroll\"><table id=\"changes\"><thead><tr><th>task</th><th>change</th><th>before</th><th>after</th>\
             <th>took</th><th>tokens</th></tr></thead>\n<tbody>{rows}</tbody></table></div>"
        ),
    };
    let mut sentences = comparison.cautions();
    if comparison.in_both() > 0 {
        sentences.push(comparison.paired_test.words());
    }
    let body = format!(
        "<p><a href=\"{base}/\">All runs</a></p>\n<h1>Run {} against {}</h1>\n{}\n<p class=\"soft\">Time, turns, calls, tokens and cost are those of the tasks that both runs have.</p>\n<p>{}.</p>\n{}\n<h2>Tasks that differ</h2>\n{tasks}{note}",
        escape(&before.run),
        escape(&after.run),
        figures(base, comparison),
        escape(&sentences.join(". ")),
        bar(comparison),
    );
    whole(base, "Compare", "", &body)
}

/// Both runs side by side.
fn figures(base: &str, comparison: &RunComparison) -> String {
    let row = |cells: [String; 4]| {
        let cells = cells.map(|cell| format!("<td>{}</td>", escape(&cell)));
        format!("<tr>{}</tr>\n", cells.concat())
    };
    let rows: String = comparison.figures().into_iter().map(row).collect();
    let head = |run: &RunInfo| {
        format!("<th><a href=\"{}\">{}</a></th>", link(base, &name_of(&run.dir)), escape(&run.run))
    };
    format!(
        "<div class=\"scroll\"><table class=\"figures\"><thead><tr><th></th>{}{}<th>change</th></tr></thead>\n<tbody>{rows}</tbody></table></div>",
        head(&comparison.before),
        head(&comparison.after)
    )
}

/// The changes as one bar.
fn bar(comparison: &RunComparison) -> String {
    let kinds = [
        (TaskChange::Fixed, "k-fixed", "fixed"),
        (TaskChange::Same, "k-other", "the same"),
        (TaskChange::Changed, "k-queue", "changed"),
        (TaskChange::Regressed, "k-bad", "regressed"),
        (TaskChange::OnlyBefore, "k-wait", "only before"),
        (TaskChange::OnlyAfter, "k-init", "only after"),
    ];
    let all = comparison.tasks.len().max(1) as f64;
    let counts = kinds.map(|(change, class, words)| (class, words, comparison.count(change)));
    let (mut bar, mut key) = (String::new(), String::new());
    for (class, words, n) in counts.into_iter().filter(|(_, _, n)| *n > 0) {
        bar.push_str(&format!(
            "<i class=\"{class}\" style=\"width:{:.2}%\" title=\"{words}: {n}\"></i>",
            100.0 * n as f64 / all
        ));
        key.push_str(&format!("<span class=\"key\"><i class=\"swatch {class}\"></i>{n} {words}</span>"));
    }
    format!(
        "<h2>{}</h2>\n<div class=\"stack\">{bar}</div>\n<p class=\"keys\">{key}</p>",
        counted(comparison.tasks.len(), "task")
    )
}

fn row(base: &str, comparison: &RunComparison, pair: &TaskPair) -> String {
    let id = match pair.sample {
        0 | 1 => pair.task.clone(),
        sample => format!("{}#{sample}", pair.task),
    };
    let cell = |run: &RunInfo, task: Option<&ComparedTask>| match task {
        None => "<td>-</td>".to_owned(),
        Some(task) => format!(
            "<td><a href=\"{}#{}\">{}</a> <span class=\"soft\">{}</span></td>",
            link(base, &name_of(&run.dir)),
            fragment(&format!("task/{id}")),
            badge(&task.status),
            escape(task.reason.as_deref().unwrap_or_default())
        ),
    };
    let both = |of: fn(&ComparedTask) -> String| {
        let words = |task: &Option<ComparedTask>| task.as_ref().map_or_else(|| "-".to_owned(), of);
        format!("{} \u{2192} {}", words(&pair.before), words(&pair.after))
    };
    let change = match pair.change {
        TaskChange::Regressed => "\u{2193} regressed",
        TaskChange::Fixed => "\u{2191} fixed",
        TaskChange::Changed => "changed",
        TaskChange::OnlyBefore => "only before",
        TaskChange::OnlyAfter => "only after",
        TaskChange::Same => "",
    };
    format!(
        "<tr><td>{}</td><td>{change}</td>{}{}<td>{}</td><td>{}</td></tr>\n",
        escape(&pair.name()),
        cell(&comparison.before, pair.before.as_ref()),
        cell(&comparison.after, pair.after.as_ref()),
        both(|task| time(task.wall_ms)),
        both(|task| rounded_count(task.tokens)),
    )
}
