//! All tasks of a run side by side on one axis of time, and under them what happened to the servers.

use std::collections::BTreeSet;

use super::{anchor, fragment, sign, time};
use crate::{
    report::{
        figures::STATUSES,
        folder::{RunFolder, RunPause, RunServerStart, RunTask, SpanKind, millis},
        page::{Axis, escape},
    },
    text::cut,
};

/// Tasks that are drawn.
const DRAWN: usize = 40_000;
/// Up to so many tasks, each is an element that can be pointed at and gone to.
const BLOCKS: usize = 1000;
/// Up to so many tasks, what each did is drawn inside of it.
const INSIDES: usize = 400;
/// Parts inside of one task.
const PARTS: usize = 60;
/// Lanes that are drawn.
const LANES: usize = 300;
/// Interruptions that are drawn.
const PAUSES: usize = 50;
/// Servers that have a strip.
const STRIPS: usize = 60;

/// The timeline of `tasks`. Those that are `linked` have details on the page.
pub(in crate::report) fn timeline(
    run: &RunFolder,
    tasks: &[RunTask],
    linked: impl Fn(&RunTask) -> bool,
) -> String {
    let begun: Vec<&RunTask> = tasks.iter().filter(|task| task.end_ms > task.start_ms).collect();
    if begun.is_empty() {
        return String::new();
    }
    let axis = Axis { span: run.wall_ms.max(0.001) };
    let lanes = lanes(&begun);
    let many = match lanes.len() {
        0..=24 => "",
        25..=80 => " thin",
        _ => " thinner",
    };
    let mut text =
        format!("<h2>Timeline</h2>\n{}<figure class=\"timeline{many}\">{}", key(), axis_row(&axis, ""));
    let insides = begun.len() <= INSIDES;
    let mut drawn = 0;
    for (number, lane) in lanes.iter().take(LANES).enumerate() {
        let name = if number == 0 { "tasks" } else { "" };
        text.push_str(&format!("<div class=\"row\"><span class=\"name\">{name}</span><div class=\"track\">"));
        let lane = &lane[..lane.len().min(DRAWN - drawn)];
        drawn += lane.len();
        if begun.len() > BLOCKS {
            text.push_str(&strip(lane, axis.span));
        } else {
            for task in lane {
                text.push_str(&block(task, axis.span, insides, linked(task)));
            }
        }
        text.push_str("</div></div>\n");
    }
    text.push_str(&servers(run, &axis));
    text.push_str(&pauses(run, &axis));
    text.push_str("</figure>\n");
    let marks: usize = run.servers.iter().map(|server| server.incidents.len()).sum();
    if marks > 0 {
        text.push_str(&incidents(run));
    }
    let left = begun.len() - drawn;
    if left > 0 {
        text.push_str(&format!("<p class=\"soft\">{left} more tasks are not drawn.</p>\n"));
    }
    text
}

/// A strip for each server: when it was there, and what happened to it.
fn servers(run: &RunFolder, axis: &Axis) -> String {
    let mut text = String::new();
    for (number, server) in run.servers.iter().take(STRIPS).enumerate() {
        let from = match &server.start {
            RunServerStart::Ready { at_ms, took_ms, .. } => format!(
                "<i class=\"strip starting\" style=\"{}\"></i><i class=\"strip\" style=\"{}\"></i>",
                place(at_ms - took_ms, *at_ms, axis.span),
                place(*at_ms, run.wall_ms, axis.span)
            ),
            RunServerStart::Failed { at_ms, took_ms, .. } => {
                format!("<i class=\"strip bad\" style=\"{}\"></i>", place(at_ms - took_ms, *at_ms, axis.span))
            }
            RunServerStart::Parked { .. } | RunServerStart::Unknown => String::new(),
        };
        let first = if number == 0 { " first" } else { "" };
        text.push_str(&format!(
            "<div class=\"row server{first}\"><span class=\"name\" title=\"{0}\">{0}</span><div class=\"track\">{from}",
            escape(&cut(&server.name, 40)),
        ));
        for mark in server.incidents.iter().take(200) {
            text.push_str(&format!(
                "<b class=\"tick{}\" style=\"left:{:.2}%\" title=\"{} {}: {}\"></b>",
                if mark.bad { " bad" } else { "" },
                percent(mark.at_ms, axis.span),
                time(mark.at_ms),
                escape(&server.name),
                escape(&cut(&mark.words, 200)),
            ));
        }
        text.push_str("</div></div>\n");
    }
    text
}

/// A line for each time in which nobody worked on the run, with how long it was: they take no room on the axis.
pub(in crate::report) fn pauses(run: &RunFolder, axis: &Axis) -> String {
    let mut marks: Vec<(f64, RunPause)> = Vec::new();
    for pause in &run.pauses {
        let at = percent(run.working_ms(pause.ended_ms), axis.span) / 100.0;
        match marks.last_mut() {
            // There is no room for the words of both: an interruption tells more.
            Some((last, told)) if at - *last < 0.02 => match (told.after_end, pause.after_end) {
                (false, true) => {}
                (true, false) => *told = *pause,
                _ => told.took_ms += pause.took_ms,
            },
            _ => marks.push((at, *pause)),
        }
    }
    let mark = |(at, pause): &(f64, RunPause)| {
        let side = if *at > 0.5 { " end" } else { "" };
        let words = if pause.after_end { "after its end" } else { "interrupted" };
        format!(
            "<div class=\"pause{side}\" style=\"--at:{at:.4}\"><span>{} {words}</span></div>",
            time(pause.took_ms)
        )
    };
    marks.iter().take(PAUSES).map(mark).collect()
}

/// A row of round marks; `words` stand where the names of rows do.
pub(in crate::report) fn axis_row(axis: &Axis, words: &str) -> String {
    let ticks = axis
        .ticks()
        .into_iter()
        .map(|(at, words)| {
            let left = percent(at, axis.span);
            let class = if left > 94.0 { " class=\"end\"" } else { "" };
            format!("<span{class} style=\"left:{left:.2}%\">{words}</span>")
        })
        .collect::<Vec<String>>()
        .concat();
    format!(
        "<div class=\"row axis\"><span class=\"name\">{words}</span><div class=\"track\">{ticks}</div></div>\n"
    )
}

/// Where something lies on its track.
pub(super) fn place(from: f64, to: f64, span: f64) -> String {
    let (left, right) = (percent(from, span), percent(to, span));
    format!("left:{left:.2}%;width:{:.2}%", (right - left).max(0.0))
}

fn percent(ms: f64, span: f64) -> f64 {
    (100.0 * ms / span).clamp(0.0, 100.0)
}

/// Each task in the first lane that is free when it begins.
fn lanes<'a>(tasks: &[&'a RunTask]) -> Vec<Vec<&'a RunTask>> {
    let mut tasks = tasks.to_vec();
    tasks.sort_by(|a, b| a.start_ms.total_cmp(&b.start_ms));
    let mut lanes: Vec<Vec<&RunTask>> = Vec::new();
    // The lanes that are taken by the end of their task, and the free ones. Times are not negative: their bits sort as they do.
    let (mut taken, mut free) = (BTreeSet::new(), BTreeSet::new());
    for task in tasks {
        while let Some((end, lane)) = taken.pop_first() {
            if f64::from_bits(end) > task.start_ms {
                taken.insert((end, lane));
                break;
            }
            free.insert(lane);
        }
        let lane = free.pop_first().unwrap_or_else(|| {
            lanes.push(Vec::new());
            lanes.len() - 1
        });
        lanes[lane].push(task);
        taken.insert((task.end_ms.max(0.0).to_bits(), lane));
    }
    lanes
}

fn block(task: &RunTask, span: f64, inside: bool, told: bool) -> String {
    let took = task.end_ms - task.start_ms;
    let words = format!("{}: {}, {}", task.task, task.status, time(took));
    let inner = if inside { parts(task, took) } else { String::new() };
    // A name is cut off by the page where it has no room.
    let name = if 100.0 * took / span > 3.0 {
        format!("<span>{} {}</span>", sign(&task.status), escape(&cut(&task.task, 40)))
    } else {
        String::new()
    };
    let (open, close) = match told {
        true => (format!("a href=\"#{}\"", fragment(&anchor(task))), "a"),
        false => ("div".to_owned(), "div"),
    };
    format!(
        "<{open} class=\"block {}\" style=\"{}\" title=\"{}\">{name}{inner}</{close}>",
        escape(&task.status),
        place(task.start_ms, task.end_ms, span),
        escape(&cut(&words, 120)),
    )
}

/// A whole lane as one drawing, a thousandth of it to the unit.
fn strip(lane: &[&RunTask], span: f64) -> String {
    let mut text = "<svg class=\"lane\" viewBox=\"0 0 1000 1\" preserveAspectRatio=\"none\">".to_owned();
    for status in STATUSES {
        // Told apart by shape, too: what failed hangs below, what errored stands above.
        let (top, height) = match status {
            "failed" => (".35", ".65"),
            "errored" => ("0", ".65"),
            _ => ("0", "1"),
        };
        let mut path = String::new();
        for task in lane.iter().filter(|task| task.status == status) {
            let (from, to) = (10.0 * percent(task.start_ms, span), 10.0 * percent(task.end_ms, span));
            // A sliver is left between neighbours.
            path.push_str(&format!("M{from:.1} {top}h{:.1}v{height}H{from:.1}z", (to - from - 0.3).max(0.2)));
        }
        if !path.is_empty() {
            text.push_str(&format!("<path class=\"{status}\" d=\"{path}\"/>"));
        }
    }
    text.push_str("</svg>");
    text
}

/// Steps of a task, as parts of its own length.
fn parts(task: &RunTask, took: f64) -> String {
    let mut text = String::new();
    for span in task.spans.iter().take(PARTS) {
        let from = span.start_ms - task.start_ms;
        let to = span.end_ms(task.end_ms) - task.start_ms;
        let mut part = |class: &str, from: f64, to: f64| {
            if to > from {
                text.push_str(&format!("<i class=\"{class}\" style=\"{}\"></i>", place(from, to, took)));
            }
        };
        match &span.kind {
            SpanKind::Call { .. } => part("k-tools", from, to),
            SpanKind::Model(end) => {
                part("k-model", from, to);
                let mut at = from;
                for attempt in end.iter().flat_map(|end| &end.attempts) {
                    let queued = at + millis(attempt.waited_ns);
                    let sent = queued + millis(attempt.queued_ns);
                    part("k-wait", at, queued);
                    part("k-queue", queued, sent);
                    at = sent + millis(attempt.took_ns);
                }
            }
        }
    }
    text
}

fn incidents(run: &RunFolder) -> String {
    let mut marks: Vec<_> = run
        .servers
        .iter()
        .flat_map(|server| server.incidents.iter().map(move |mark| (&server.name, mark)))
        .collect();
    marks.sort_by(|a, b| a.1.at_ms.total_cmp(&b.1.at_ms));
    let rows = marks
        .iter()
        .take(50)
        .map(|(server, mark)| {
            format!(
                "<li><b>{}</b> {}: {}</li>",
                time(mark.at_ms),
                escape(server),
                escape(&cut(&mark.words, 200))
            )
        })
        .collect::<Vec<String>>()
        .concat();
    let more = marks.len().saturating_sub(50);
    let more = if more > 0 { format!("<li>and {more} more</li>") } else { String::new() };
    format!("<ul class=\"marks\">{rows}{more}</ul>\n")
}

fn key() -> String {
    let status =
        |status| format!("<span class=\"key\"><i class=\"swatch block {status}\"></i>{status}</span>");
    let statuses = ["passed", "failed", "errored"].map(status).concat();
    format!("<p class=\"keys\">{statuses}{}</p>\n", kinds())
}

/// Legend for the colours of requests, calls and waits.
pub(super) fn kinds() -> String {
    let kinds = [("model", "model"), ("tools", "tools"), ("wait", "retry wait"), ("queue", "queue")];
    let key =
        |(class, words)| format!("<span class=\"key\"><i class=\"swatch k-{class}\"></i>{words}</span>");
    kinds.map(key).concat()
}
