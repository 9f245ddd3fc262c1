//! Writes the measurement as one HTML file: works from disk, without a network and without scripts, in print and in the
//! dark. The JSON document is part of it, to be taken out again.

use super::{
    document::{Document, ModeRow},
    table::{cells, mebibytes, time},
};
use toolcrib::cli_support::{
    counted,
    page::{
        self,
        cards::Card,
        escape,
        start_advice::advice,
        start_chart::{End, Picture, legend, svg_to_scale},
        with_code,
    },
};

/// The page. `json` is the document as it is written elsewhere.
pub(super) fn html(document: &Document, json: &str) -> String {
    let total = document.modes.first().map_or(0, |mode| mode.total);
    let title = format!("Start of {}", counted(total, "server"));
    let mut text = page::head(&title, None);
    text.push_str(&format!(
        "<p class=\"soft\">toolcrib {}, {} of each mode, start jobs {}, {}</p>\n",
        escape(&document.version),
        counted(document.runs, "run"),
        escape(document.jobs.as_str().unwrap_or(&document.jobs.to_string())),
        counted(document.cores, "core"),
    ));
    let pictures = document.modes.iter().filter_map(|mode| Some((mode, mode.picture.as_ref()?)));
    // One scale for all: bars of the same length are of the same time.
    let span = pictures.clone().map(|(_, picture)| picture.span()).fold(0.0, f64::max);
    let main = document.main_picture();
    if let Some((mode, picture)) = main {
        text.push_str(&cards(document, mode));
        if let Some(advice) = advice(picture) {
            text.push_str(&format!("<p class=\"advice\">{}</p>\n", with_code(&advice)));
        }
        text.push_str(&legend(pictures.clone().any(|(_, picture)| picture.has_templates())));
        text.push_str(&figure(mode, picture, span));
    }
    let others = pictures.filter(|(mode, _)| main.is_none_or(|(main, _)| mode.mode != main.mode));
    for (mode, picture) in others {
        text.push_str(&figure(mode, picture, span));
    }
    text.push_str(&main.map_or_else(String::new, |(_, picture)| failures(picture)));
    text.push_str(&modes(document));
    text.push_str(&page::tail(json, None));
    text
}

fn figure(mode: &ModeRow, picture: &Picture, span: f64) -> String {
    let title = format!("mode {}, the run with the median wall time", mode.mode);
    let note = mode.note.as_ref().map_or_else(String::new, |note| format!("; {}", escape(note)));
    let call = mode.first_call.as_ref().map_or_else(String::new, |call| {
        format!("; then {} was answered after {}", escape(&call.tool), time(call.ms.median))
    });
    format!(
        "<h2>{}</h2>\n<figure>{}<figcaption>{}{note}{call}</figcaption></figure>\n",
        escape(&mode.mode),
        svg_to_scale(picture, &title, span),
        escape(&title)
    )
}

/// The result of the measurement in figures.
fn cards(document: &Document, main: &ModeRow) -> String {
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

fn failures(picture: &Picture) -> String {
    let failed: Vec<String> = picture
        .servers
        .iter()
        .filter_map(|bar| match &bar.end {
            End::Failed { cause } => {
                Some(format!("<dt>{}</dt><dd>{}</dd>", escape(&bar.name), escape(cause)))
            }
            _ => None,
        })
        .collect();
    if failed.is_empty() { String::new() } else { format!("<h2>Failed</h2>\n<dl>{}</dl>\n", failed.concat()) }
}

fn modes(document: &Document) -> String {
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
    let head = heads.map(|head| format!("<th>{head}</th>")).concat();
    let row = |mode: &ModeRow| {
        let guards = [mebibytes(mode.guards_rss_bytes)];
        let cells = cells(mode).into_iter().chain(guards).zip(heads);
        let cell = |(cell, head): (String, &str)| format!("<td data-head=\"{head}\">{}</td>", escape(&cell));
        format!("<tr>{}</tr>\n", cells.map(cell).collect::<String>())
    };
    let rows: String = document.modes.iter().map(row).collect();
    format!(
        "<h2>All modes</h2>\n<table class=\"modes\"><thead><tr>{head}</tr></thead><tbody>\n{rows}</tbody></table>\n"
    )
}
