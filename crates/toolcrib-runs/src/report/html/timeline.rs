//! All tasks of a run side by side on one axis of time, and under them what happened to the servers.

use std::collections::BTreeSet;

use maud::{Markup, html};

use super::{anchor, fragment, sign, time};
use crate::{
    report::{
        figures::STATUSES,
        folder::{RunFolder, RunPause, RunServerStart, RunTask, SpanKind, millis},
        page::{self, Axis},
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
) -> Markup {
    let begun: Vec<&RunTask> = tasks.iter().filter(|task| task.end_ms > task.start_ms).collect();
    if begun.is_empty() {
        return Markup::default();
    }
    let axis = Axis { span: run.wall_ms.max(0.001) };
    let lanes = lanes(&begun);
    let many = match lanes.len() {
        0..=24 => "",
        25..=80 => " thin",
        _ => " thinner",
    };
    let insides = begun.len() <= INSIDES;
    let mut room = DRAWN;
    let drawn: Vec<&[&RunTask]> = lanes
        .iter()
        .take(LANES)
        .map(|lane| {
            let lane = &lane[..lane.len().min(room)];
            room -= lane.len();
            lane
        })
        .collect();
    let hidden = begun.len() - (DRAWN - room);
    html! {
        h2 { "Timeline" }
        (keys())
        figure class={ "timeline" (many) } {
            (axis_row(&axis))
            @for (number, lane) in drawn.into_iter().enumerate() {
                div class="row" {
                    span class="name" { @if number == 0 { "tasks" } }
                    div class="track" {
                        @if begun.len() > BLOCKS {
                            (strip(lane, axis.span))
                        } @else {
                            @for task in lane { (block(task, axis.span, insides, linked(task))) }
                        }
                    }
                }
            }
            (servers(run, &axis))
            (pauses(run, &axis))
        }
        @if run.servers.iter().any(|server| !server.incidents.is_empty()) { (incidents(run)) }
        @if hidden > 0 { p class="soft" { (hidden) " more tasks are not drawn." } }
    }
}

/// A strip for each server: when it was there, and what happened to it.
fn servers(run: &RunFolder, axis: &Axis) -> Markup {
    let strips = |start: &RunServerStart| match start {
        RunServerStart::Ready { at_ms, took_ms, .. } => html! {
            (part("strip starting", at_ms - took_ms, *at_ms, axis.span))
            (part("strip", *at_ms, run.wall_ms, axis.span))
        },
        RunServerStart::Failed { at_ms, took_ms, .. } => {
            part("strip bad", at_ms - took_ms, *at_ms, axis.span)
        }
        RunServerStart::Parked { .. } | RunServerStart::Unknown => Markup::default(),
    };
    html! {
        @for (number, server) in run.servers.iter().take(STRIPS).enumerate() {
            @let name = cut(&server.name, 40);
            div class={ "row server" @if number == 0 { " first" } } {
                span class="name" title=(name) { (name) }
                div class="track" {
                    (strips(&server.start))
                    @for mark in server.incidents.iter().take(200) {
                        b class={ "tick" @if mark.bad { " bad" } } style=(left(percent(mark.at_ms, axis.span)))
                            title={ (time(mark.at_ms)) " " (server.name) ": " (cut(&mark.words, 200)) } {}
                    }
                }
            }
        }
    }
}

/// A line for each time in which nobody worked on the run, with how long it was: they take no room on the axis.
pub(in crate::report) fn pauses(run: &RunFolder, axis: &Axis) -> Markup {
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
    html! {
        @for (at, pause) in marks.iter().take(PAUSES) {
            div class={ "pause" @if *at > 0.5 { " end" } } style={ "--at:" (format_args!("{at:.4}")) } {
                span { (time(pause.took_ms)) @if pause.after_end { " after its end" } @else { " interrupted" } }
            }
        }
    }
}

/// A row of round marks.
pub(in crate::report) fn axis_row(axis: &Axis) -> Markup {
    html! {
        div class="row axis" {
            span class="name" {}
            div class="track" {
                @for (at, words) in axis.ticks() {
                    @let at = percent(at, axis.span);
                    span class=[(at > 94.0).then_some("end")] style=(left(at)) { (words) }
                }
            }
        }
    }
}

/// A part of a track.
pub(super) fn part(class: &str, from: f64, to: f64, span: f64) -> Markup {
    html! { i class=(class) style=(place(from, to, span)) {} }
}

/// Where something lies on its track.
fn place(from: f64, to: f64, span: f64) -> String {
    let (from, to) = (percent(from, span), percent(to, span));
    format!("{};{}", left(from), page::width((to - from).max(0.0)))
}

fn left(percent: f64) -> String {
    format!("left:{percent:.2}%")
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

fn block(task: &RunTask, span: f64, inside: bool, told: bool) -> Markup {
    let took = task.end_ms - task.start_ms;
    let (class, style) = (format!("block {}", task.status), place(task.start_ms, task.end_ms, span));
    let title = cut(&format!("{}: {}, {}", task.task, task.status, time(took)), 120);
    let content = html! {
        // A name is cut off by the page where it has no room.
        @if 100.0 * took / span > 3.0 {
            span { (sign(&task.status)) " " (cut(&task.task, 40)) }
        }
        @if inside { (parts(task, took)) }
    };
    html! {
        @if told {
            a href={ "#" (fragment(&anchor(task))) } class=(class) style=(style) title=(title) { (content) }
        } @else {
            div class=(class) style=(style) title=(title) { (content) }
        }
    }
}

/// A whole lane as one drawing, a thousandth of it to the unit.
fn strip(lane: &[&RunTask], span: f64) -> Markup {
    let path = |status: &str| {
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
        path
    };
    let paths = STATUSES.map(|status| (status, path(status)));
    html! {
        svg class="lane" viewBox="0 0 1000 1" preserveAspectRatio="none" {
            @for (status, path) in paths.iter().filter(|(_, path)| !path.is_empty()) {
                path class=(status) d=(path) {}
            }
        }
    }
}

/// Steps of a task, as parts of its own length.
fn parts(task: &RunTask, took: f64) -> Markup {
    let mut parts = Vec::new();
    for span in task.spans.iter().take(PARTS) {
        let from = span.start_ms - task.start_ms;
        let to = span.end_ms(task.end_ms) - task.start_ms;
        match &span.kind {
            SpanKind::Call { .. } => parts.push(("k-tools", from, to)),
            SpanKind::Model(end) => {
                parts.push(("k-model", from, to));
                let mut at = from;
                for attempt in end.iter().flat_map(|end| &end.attempts) {
                    let queued = at + millis(attempt.waited_ns);
                    let sent = queued + millis(attempt.queued_ns);
                    parts.extend([("k-wait", at, queued), ("k-queue", queued, sent)]);
                    at = sent + millis(attempt.took_ns);
                }
            }
        }
    }
    let parts = parts.into_iter().filter(|(_, from, to)| to > from);
    html! { @for (class, from, to) in parts { (part(class, from, to, took)) } }
}

fn incidents(run: &RunFolder) -> Markup {
    let mut marks: Vec<_> = run
        .servers
        .iter()
        .flat_map(|server| server.incidents.iter().map(move |mark| (&server.name, mark)))
        .collect();
    marks.sort_by(|a, b| a.1.at_ms.total_cmp(&b.1.at_ms));
    let more = marks.len().saturating_sub(50);
    html! {
        ul class="marks" {
            @for (server, mark) in marks.iter().take(50) {
                li { b { (time(mark.at_ms)) } " " (server) ": " (cut(&mark.words, 200)) }
            }
            @if more > 0 { li { "and " (more) " more" } }
        }
    }
}

fn keys() -> Markup {
    html! {
        p class="keys" {
            @for status in ["passed", "failed", "errored"] { (page::key(&format!("block {status}"), status)) }
            (kinds())
        }
    }
}

/// Legend for the colours of requests, calls and waits.
pub(super) fn kinds() -> Markup {
    let kinds = [("model", "model"), ("tools", "tools"), ("wait", "retry wait"), ("queue", "queue")];
    html! { @for (class, words) in kinds { (page::key(&format!("k-{class}"), words)) } }
}
