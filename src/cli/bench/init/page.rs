//! Writes the measurement as one HTML file: works from disk, without a network and without scripts, in print and in the
//! dark. The JSON document is part of it, to be taken out again.

use super::{
    document::{Document, ModeRow},
    table::{cells, mebibytes, time},
};
use maud::{Markup, html};
use toolcrib::cli_support::{
    counted,
    page::{
        self,
        cards::Card,
        start_advice::advice,
        start_chart::{Bar, End, Picture, legend, svg_to_scale},
        with_code,
    },
};

/// The page. `json` is the document as it is written elsewhere.
pub(super) fn html(document: &Document, json: &str) -> String {
    let total = document.modes.first().map_or(0, |mode| mode.total);
    let pictures = document.modes.iter().filter_map(|mode| Some((mode, mode.picture.as_ref()?)));
    // One scale for all: bars of the same length are of the same time.
    let span = pictures.clone().map(|(_, picture)| picture.span()).fold(0.0, f64::max);
    let has_templates = pictures.clone().any(|(_, picture)| picture.has_templates());
    let main = document.main_picture();
    let others = pictures.filter(|(mode, _)| main.is_none_or(|(main, _)| mode.mode != main.mode));
    let jobs = document.jobs.as_str().map_or_else(|| document.jobs.to_string(), str::to_owned);
    let body = html! {
        p class="soft" {
            "toolcrib " (document.version) ", " (counted(document.runs, "run")) " of each mode, start jobs " (jobs) ", "
            (counted(document.cores, "core"))
        }
        @if let Some((mode, picture)) = main {
            (cards(document, mode))
            @if let Some(advice) = advice(picture) { p class="advice" { (with_code(&advice)) } }
            (legend(has_templates))
            (figure(mode, picture, span))
        }
        @for (mode, picture) in others { (figure(mode, picture, span)) }
        @if let Some((_, picture)) = main { (failures(picture)) }
        (modes(document))
    };
    page::page(&format!("Start of {}", counted(total, "server")), None, &body, json)
}

fn figure(mode: &ModeRow, picture: &Picture, span: f64) -> Markup {
    let title = format!("mode {}, the run with the median wall time", mode.mode);
    html! {
        h2 { (mode.mode) }
        figure {
            (svg_to_scale(picture, &title, span))
            figcaption {
                (title)
                @if let Some(note) = &mode.note { "; " (note) }
                @if let Some(call) = &mode.first_call {
                    "; then " (call.tool) " was answered after " (time(call.ms.median))
                }
            }
        }
    }
}

/// The result of the measurement in figures.
fn cards(document: &Document, main: &ModeRow) -> Markup {
    let wall = main.wall_ms.median;
    let mut cards = vec![Card::new(time(wall), format!("until all are ready, mode {}", main.mode))];
    let sequential = document.mode("sequential").filter(|mode| mode.mode != main.mode);
    if let Some(sequential) = sequential.and_then(|mode| mode.wall_ms.median) {
        cards.push(Card::new(time(Some(sequential)), "one after the other"));
        if let Some(wall) = wall.filter(|wall| *wall > 0.0) {
            cards.push(Card::new(format!("{:.1} times", sequential / wall), "as fast"));
        }
    }
    let least = format!("shortest possible: {}", document.bottleneck);
    cards.push(Card::new(time(Some(document.lower_bound_ms)), least));
    cards.push(Card::new(time(Some(main.cpu_ms)), format!("CPU, on {}", counted(document.cores, "core"))));
    cards.push(Card::new(mebibytes(main.peak_rss_bytes), "memory of the servers"));
    cards.push(Card::new(mebibytes(main.own_rss_bytes), "memory of toolcrib"));
    Card::list(&cards)
}

fn failures(picture: &Picture) -> Markup {
    let has_failed = |bar: &Bar| matches!(bar.end, End::Failed { .. });
    html! {
        @if picture.servers.iter().any(has_failed) {
            h2 { "Failed" }
            dl {
                @for bar in &picture.servers {
                    @if let End::Failed { cause } = &bar.end { dt { (bar.name) } dd { (cause) } }
                }
            }
        }
    }
}

fn modes(document: &Document) -> Markup {
    let heads = [
        "mode",
        "ready",
        "min",
        "median",
        "max",
        "first",
        "CPU",
        "memory",
        "own CPU",
        "own memory",
        "guards",
    ];
    let row = |mode: &ModeRow| cells(mode).into_iter().chain([mebibytes(mode.guards_rss_bytes)]).zip(heads);
    html! {
        h2 { "All modes" }
        table class="modes" {
            thead { tr { @for head in heads { th { (head) } } } }
            tbody {
                @for mode in &document.modes {
                    tr { @for (cell, head) in row(mode) { td data-head=(head) { (cell) } } }
                }
            }
        }
    }
}
