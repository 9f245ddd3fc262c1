//! The measurement as one HTML file: works from disk, without a network and without scripts, in print and in the
//! dark. The JSON document is part of it, to be taken out again.

use super::{
    document::{Document, End, ModeRow, Picture},
    svg::{PATTERNS, PHASES, escape, svg},
    table::{cells, mebibytes, time},
};

/// Nothing is loaded and nothing is run.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";
/// Colours after Okabe and Ito, who chose them for all kinds of eyes.
const STYLE: &str = "
:root { --paper: #fff; --text: #1a1a1a; --soft: #5a5a5a; --grid: #ddd; --ink: #222; --spawn: #999;
  --boot: #f0e442; --handshake: #0072b2; --list: #009e73; --failed: #d55e00; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --paper: #16181d; --text: #e6e6e6; --soft: #a3a7b0;
  --grid: #33373f; --ink: #16181d; --spawn: #8b8f98; --boot: #e8dc5a; --handshake: #56a5e0; --list: #2fc497;
  --failed: #ff8a3d; } }
@media print { :root { --paper: #fff; --text: #000; --soft: #444; --grid: #ccc; --ink: #222; --spawn: #999;
  --boot: #f0e442; --handshake: #0072b2; --list: #009e73; --failed: #d55e00; color-scheme: light; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; } figure, tr { break-inside: avoid; } }
body { background: var(--paper); color: var(--text); font: 15px/1.45 system-ui, sans-serif;
  max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .3rem; }
p { margin: .3rem 0; } .soft, figcaption { color: var(--soft); }
figure { margin: .5rem 0; } svg.waterfall { width: 100%; height: auto; font-size: 12px; }
.key { display: inline-flex; align-items: center; gap: .35rem; margin-right: 1.1rem; white-space: nowrap; }
.key svg { width: 26px; height: 13px; }
svg text { fill: var(--text); } .axis { fill: var(--soft); text-anchor: middle; font-size: 11px; }
.grid { stroke: var(--grid); } .ink { fill: var(--ink); } .cross { stroke: var(--failed); fill: none; }
.queue { stroke: var(--soft); stroke-width: 1.5; } .spawn { fill: var(--spawn); }
.boot { fill: url(#p-boot); } .boot-ground { fill: var(--boot); }
.list { fill: url(#p-list); } .list-ground { fill: var(--list); }
.handshake { fill: var(--handshake); } .failed { fill: url(#p-failed); stroke: var(--failed); }
.cap { fill: var(--failed); } .ready { stroke: var(--text); stroke-width: 1.5; stroke-dasharray: 5 4; }
.ready-words { text-anchor: end; font-weight: 600; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .15rem .7rem; border-bottom: 1px solid var(--grid); }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
dt { font-weight: 600; } dd { margin: 0 0 .4rem 1.2rem; white-space: pre-wrap; overflow-wrap: anywhere; }
";

/// The page. `json` is the document as it is written elsewhere.
pub(super) fn html(document: &Document, json: &str) -> String {
    let total = document.modes.first().map_or(0, |mode| mode.total);
    let title = format!("Start of {total} servers");
    let mut text = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>{STYLE}</style></head><body>\n{PATTERNS}\n<h1>{title}</h1>\n\
         <p class=\"soft\">toolcrib {}, {} runs in each mode, start jobs {}, {} cores</p>\n",
        escape(&document.version),
        document.runs,
        escape(document.jobs.as_str().unwrap_or(&document.jobs.to_string())),
        document.cores,
    );
    if let Some((main, picture)) = document.main_picture() {
        text.push_str(&legend());
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
    // In a script element only `<` can end or nest anything, and JSON has another way to write it.
    let json = json.replace('<', "\\u003c");
    text.push_str(&format!(
        "<script type=\"application/json\" id=\"data\">{json}</script>\n</body></html>\n"
    ));
    text
}

fn legend() -> String {
    let key = |drawing: &str, words: &str| {
        format!(
            "<span class=\"key\"><svg viewBox=\"0 0 26 13\" aria-hidden=\"true\">{drawing}</svg>{words}</span>"
        )
    };
    let box_of = |class: &str| format!("<rect class=\"{class}\" width=\"26\" height=\"13\"/>");
    let mut text = String::from("<p>");
    text.push_str(&key("<line class=\"queue\" x1=\"0\" y1=\"6.5\" x2=\"26\" y2=\"6.5\"/>", "queue"));
    for (class, words) in PHASES {
        text.push_str(&key(&box_of(class), words));
    }
    let cap = "<rect class=\"cap\" x=\"21\" width=\"5\" height=\"13\"/>";
    text.push_str(&key(&format!("{}{cap}", box_of("failed")), "failed"));
    text.push_str(&key("<line class=\"ready\" x1=\"13\" y1=\"0\" x2=\"13\" y2=\"13\"/>", "all ready"));
    text.push_str("</p>\n");
    text
}

fn figure(mode: &ModeRow, picture: &Picture) -> String {
    let title = format!("mode {}: the run with the middle wall time", mode.mode);
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

/// What the picture comes to, in words.
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
    let bound = format!("no start beats {} ({})", time(Some(document.lower_bound_ms)), document.bottleneck);
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
        let cells = cells(mode).map(|cell| format!("<td>{}</td>", escape(&cell))).concat();
        format!("<tr>{cells}<td>{}</td></tr>\n", mebibytes(mode.guards_rss_bytes))
    };
    let rows: String = document.modes.iter().map(row).collect();
    format!("<h2>All modes</h2>\n<table><thead><tr>{head}</tr></thead><tbody>\n{rows}</tbody></table>\n")
}
