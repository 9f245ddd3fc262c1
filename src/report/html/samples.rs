//! Several samples of each task: pass@k of the run, and what became of the samples of each task.

use std::{collections::BTreeMap, fmt::Write as _};

use serde_json::Value;

use super::{escape, sign};
use crate::{
    report::folder::{RunFolder, RunTask},
    text::{counted, cut},
};

/// Rows of the table of tasks.
const ROWS: usize = 1000;
/// Samples of a row.
const SIGNS: usize = 64;

/// The samples of one task.
#[derive(Default)]
struct TaskSamples<'a> {
    /// Status of each sample, by its number.
    statuses: BTreeMap<u32, &'a str>,
    judged: usize,
    passed: usize,
}

/// How often the run carries out each task.
pub(super) fn per_task(run: &RunFolder) -> usize {
    let samples = run.manifest["samples"].as_u64().and_then(|samples| usize::try_from(samples).ok());
    samples.unwrap_or(1).max(1)
}

/// Section about the samples of a run. Empty if it has one sample of each task.
pub(super) fn samples(run: &RunFolder) -> String {
    let k = per_task(run);
    if k == 1 {
        return String::new();
    }
    let figures = &run.manifest["totals"]["samples"];
    let mut html = format!("<h2>Samples of each task</h2>\n{}{}", rates(figures), facts(figures));
    let tasks = by_task(&run.tasks);
    if tasks.is_empty() {
        return html;
    }
    let _ = write!(
        html,
        "<div class=\"scroll\"><table id=\"samples\"><thead><tr><th>task</th><th>passed</th><th>of judged</th><th>pass@1</th>\
         <th class=\"words\">{k} samples</th></tr></thead>\n<tbody>"
    );
    for (task, samples) in tasks.iter().take(ROWS) {
        let TaskSamples { statuses, judged, passed } = samples;
        let rate = match judged {
            0 => "–".to_owned(),
            judged => format!("{:.0} %", 100.0 * *passed as f64 / *judged as f64),
        };
        let mut signs = String::new();
        for (number, status) in statuses.iter().take(SIGNS) {
            let (status, sign) = (escape(status), sign(status));
            let _ = write!(signs, "<b class=\"{status}\" title=\"sample {number}: {status}\">{sign}</b>");
        }
        if statuses.len() > SIGNS {
            let _ = write!(signs, " and {} more", statuses.len() - SIGNS);
        }
        let _ = writeln!(
            html,
            "<tr><td>{}</td><td>{passed}</td><td>{judged}</td><td>{rate}</td><td class=\"words signs\">{signs}</td></tr>",
            escape(&cut(task, 80))
        );
    }
    html.push_str("</tbody></table></div>\n");
    if tasks.len() > ROWS {
        let _ = writeln!(
            html,
            "<p class=\"soft\">{} more are not shown.</p>",
            counted(tasks.len() - ROWS, "task")
        );
    }
    html
}

/// Rows of a list of rates: there is one for each power of two up to the number of samples.
const MOST_RATES: usize = 64;

/// pass@k and pass^k, a row for each k.
fn rates(figures: &Value) -> String {
    let list = |key: &str| {
        let list = figures[key].as_array().map_or(&[][..], Vec::as_slice);
        &list[..list.len().min(MOST_RATES)]
    };
    let (any, all) = (list("pass_at_k"), list("pass_hat_k"));
    if any.is_empty() {
        return String::new();
    }
    let percent = |rate: &Value| {
        rate["value"].as_f64().map_or("–".to_owned(), |value| format!("{:.1} %", 100.0 * value))
    };
    let mut rows = String::new();
    for rate in any {
        let share = 100.0 * rate["value"].as_f64().unwrap_or_default();
        let same = all.iter().find(|other| other["k"] == rate["k"]).unwrap_or(&Value::Null);
        let _ = writeln!(
            rows,
            "<tr><td>{}</td><td>{}</td><td class=\"words\"><span class=\"share\"><i style=\"width:{share:.1}%\"></i></span></td>\
             <td>{}</td><td>{}</td></tr>",
            rate["k"],
            percent(rate),
            percent(same),
            rate["tasks"]
        );
    }
    format!(
        "<div class=\"scroll\"><table id=\"pass-at-k\"><thead><tr><th>k</th><th>pass@k</th><th class=\"words\"></th><th>pass^k</th>\
         <th>tasks</th></tr></thead>\n<tbody>{rows}</tbody></table></div>\n"
    )
}

fn facts(figures: &Value) -> String {
    let percent = |value: &Value| value.as_f64().map(|value| format!("{:.1} %", 100.0 * value));
    let mut facts = Vec::new();
    facts.extend(percent(&figures["mean"]).map(|mean| format!("mean score {mean}")));
    facts.extend(percent(&figures["standard_error"]).map(|error| format!("standard error {error}")));
    facts.extend(
        percent(&figures["deviation"]).map(|deviation| format!("deviation of the rounds {deviation}")),
    );
    facts.extend(
        percent(&figures["lowest"])
            .zip(percent(&figures["highest"]))
            .map(|(low, high)| format!("rounds from {low} to {high}")),
    );
    facts.extend(percent(&figures["majority"]["value"]).map(|majority| match &figures["majority"]["ties"] {
        ties if *ties == 0 => format!("majority vote {majority}"),
        ties => format!("majority vote {majority}, ties {ties}"),
    }));
    match facts.is_empty() {
        true => String::new(),
        false => format!("<p id=\"sample-facts\">{}</p>\n", facts.join(" \u{b7} ")),
    }
}

/// The tasks with their samples; those that pass least often come first.
fn by_task(tasks: &[RunTask]) -> Vec<(&str, TaskSamples<'_>)> {
    let mut all: BTreeMap<&str, TaskSamples<'_>> = BTreeMap::new();
    // A sample that has not ended has no line, and no task that is known.
    for task in tasks.iter().filter(|task| !task.result.task.is_empty()) {
        let samples = all.entry(&task.result.task).or_default();
        samples.statuses.insert(task.result.sample.max(1), &task.status);
    }
    for samples in all.values_mut() {
        let count = |wanted: &str| samples.statuses.values().filter(|status| **status == wanted).count();
        samples.passed = count("passed");
        samples.judged = samples.passed + count("failed");
    }
    let rate = |samples: &TaskSamples<'_>| samples.passed as f64 / samples.judged.max(1) as f64;
    let mut all: Vec<_> = all.into_iter().collect();
    all.sort_by(|(_, a), (_, b)| rate(a).total_cmp(&rate(b)));
    all
}
