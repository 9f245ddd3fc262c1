//! Writes the measurement as one HTML file: works from disk, without a network and without scripts, in print and in the
//! dark. The JSON document is part of it, to be taken out again.

use super::{
    document::{Document, ModeRow},
    table::{cells, mebibytes, time},
};
use toolcrib::cli_support::{
    counted,
    page::{
        self, escape,
        start_chart::{End, Picture, legend, svg},
    },
};

/// The page. `json` is the document as it is written elsewhere.
pub(super) fn html(document: &Document, json: &str) -> String {
    let total = document.modes.first().map_or(0, |mode| mode.total);
    let title = format!("Start of {total} servers");
    let mut text = page::head(&title, "", None);
    text.push_str(&format!(
        "<p class=\"soft\">toolcrib {}, {} in each mode, start jobs {}, {} cores</p>\n",
        escape(&document.version),
        counted(document.runs, "run"),
        escape(document.jobs.as_str().unwrap_or(&document.jobs.to_string())),
        document.cores,
    ));
    if let Some((main, picture)) = document.main_picture() {
        let templates =
            document.modes.iter().filter_map(|mode| mode.picture.as_ref()).any(Picture::has_templates);
        text.push_str(&legend(templates));
        text.push_str(&figure(main, picture));
        text.push_str(&facts(document, main));
        text.push_str(&failures(picture));
    }
    text.push_str(&modes(document));
    let main = document.main_picture().map(|(mode, _)| mode.mode.as_str());
    for mode in document.modes.iter().filter(|mode| Some(mode.mode.as_str()) != main) {
        if let Some(picture) = &mode.picture {
            text.push_str(&figure(mode, picture));
        }
    }
    text.push_str(&page::tail(json, None));
    text
}

fn figure(mode: &ModeRow, picture: &Picture) -> String {
    let title = format!("mode {}: the run with the median wall time", mode.mode);
    let note = mode.note.as_ref().map_or_else(String::new, |note| format!("; {}", escape(note)));
    let call = mode.first_call.as_ref().map_or_else(String::new, |call| {
        format!("; then {} was answered after {}", escape(&call.tool), time(call.ms.median))
    });
    format!(
        "<h2>{}</h2>\n<figure>{}<figcaption>{}{note}{call}</figcaption></figure>\n",
        escape(&mode.mode),
        svg(picture, &title),
        escape(&title)
    )
}

/// The result of the chart in words.
fn facts(document: &Document, main: &ModeRow) -> String {
    let wall = main.wall_ms.median;
    let mut facts = vec![format!("wall {}", time(wall))];
    let sequential = document.mode("sequential").filter(|mode| mode.mode != main.mode);
    if let Some(sequential) = sequential.and_then(|mode| mode.wall_ms.median) {
        facts.push(format!("one after the other, measured: {}", time(Some(sequential))));
        if let Some(wall) = wall.filter(|wall| *wall > 0.0) {
            facts.push(format!("{:.1} times as fast", sequential / wall));
        }
    }
    facts.push(format!("CPU {} on {} cores", time(Some(main.cpu_ms)), document.cores));
    facts.push(format!("peak memory of the servers {}", mebibytes(main.peak_rss_bytes)));
    facts.push(format!("of toolcrib {}", mebibytes(main.own_rss_bytes)));
    let bound = format!(
        "the shortest possible time is {} (limit: {})",
        time(Some(document.lower_bound_ms)),
        document.bottleneck
    );
    format!("<p><strong>{}</strong></p>\n<p>{}</p>\n", facts.join(" · "), escape(&bound))
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
