//! Draws one start as SVG: a row for each server, its phases to scale. A pure function.
//!
//! It is drawn twice, for wide windows and for narrow ones, and the page's style shows one of them: a drawing that is
//! only scaled down to a narrow window has letters that are too small.
//!
//! Phases differ by pattern as well as by colour, and every bar says in words what it came to. The colours are
//! classes, so that the page decides on them.

use std::time::Duration;

use maud::{Markup, PreEscaped, html};
use serde::{Deserialize, Serialize};

use super::Axis;
use crate::{
    session::Phases,
    start::ServerStart,
    task::millis,
    text::{counted, cut},
};

/// Sizes in the units of the drawing, which is scaled to the page.
const THICK: f64 = 13.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 22.0;
/// Letters of a name.
const NAME_LETTERS: usize = 24;
/// A letter is a good six units wide.
const LETTER: f64 = 6.5;
const BOLD_LETTER: f64 = 7.2;
/// Width of the cap of a failed bar.
const CAP: f64 = 5.0;

/// How a drawing is laid out, in its units.
struct Layout {
    /// Class of the drawing.
    class: &'static str,
    width: f64,
    /// Where bars begin, and how long the longest is. Beyond it there is room for half of the last mark's words.
    left: f64,
    bars: f64,
    /// Height of a server's row, and of the line of words above its bar.
    row: f64,
    words: f64,
}

/// Names before the bars, words behind them.
const WIDE: Layout = Layout { class: "wide", width: 1000.0, left: 170.0, bars: 560.0, row: 22.0, words: 0.0 };
/// Names and words above the bars.
const NARROW: Layout =
    Layout { class: "narrow", width: 480.0, left: 24.0, bars: 400.0, row: 37.0, words: 16.0 };

/// Phases in their order: class and what it means.
pub const PHASES: [(&str, &str); 5] = [
    ("template", "wait for a template"),
    ("spawn", "spawn"),
    ("boot", "first byte"),
    ("handshake", "handshake"),
    ("list", "tool list"),
];

/// Fill patterns that are distinguishable without colour; once a page.
pub const PATTERNS: PreEscaped<&str> = PreEscaped(concat!(
    r#"<svg width="0" height="0" aria-hidden="true"><defs>"#,
    r#"<pattern id="p-boot" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">"#,
    r#"<rect class="boot-ground" width="6" height="6"/><rect class="ink" width="1.5" height="6"/></pattern>"#,
    r#"<pattern id="p-template" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(-45)">"#,
    r#"<rect class="template-ground" width="6" height="6"/><rect class="ink" width="1" height="6"/></pattern>"#,
    r#"<pattern id="p-list" width="5" height="5" patternUnits="userSpaceOnUse">"#,
    r#"<rect class="list-ground" width="5" height="5"/><circle class="ink" cx="2.5" cy="2.5" r="1"/></pattern>"#,
    r#"<pattern id="p-failed" width="6" height="6" patternUnits="userSpaceOnUse">"#,
    r#"<path class="cross" d="M0 0L6 6M6 0L0 6"/></pattern>"#,
    "</defs></svg>"
));

/// One run, to be drawn.
#[derive(Serialize, Deserialize)]
pub struct Picture {
    /// Time from the first server to the last.
    pub wall_ms: f64,
    /// The server that was ready last.
    pub last: Option<String>,
    /// Servers in the order of the configuration.
    pub servers: Vec<Bar>,
}

impl Picture {
    /// The time that its bars need, in milliseconds.
    pub fn span(&self) -> f64 {
        self.servers.iter().map(|bar| bar.ended_ms).fold(self.wall_ms, f64::max)
    }

    /// Whether a server has waited for a template.
    pub fn has_templates(&self) -> bool {
        let waited =
            |bar: &Bar| matches!(&bar.end, End::Ready { phases_ms, .. } if !phases_ms.template.is_zero());
        self.servers.iter().any(waited)
    }
}

/// One server in one run.
#[derive(Serialize, Deserialize)]
pub struct Bar {
    /// Its name.
    pub name: String,
    /// Time of its end, from the beginning of the whole start.
    pub ended_ms: f64,
    /// Time before its own start.
    pub queue_ms: f64,
    /// Outcome of its start.
    pub end: End,
}

/// Outcome of a start.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// It serves calls.
    Ready {
        /// How long each phase took.
        phases_ms: Phases,
        /// Tools that it lists.
        tools: usize,
        /// Why it was not forked from a template, if it is a Python server that can be.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        not_forked: Option<String>,
    },
    /// It was left for later.
    Parked {
        /// Tools that are remembered of it.
        tools: usize,
    },
    /// It did not come up.
    Failed {
        /// The reason.
        cause: String,
    },
}

impl Bar {
    /// The row of a server that was started.
    pub fn of(row: &ServerStart) -> Self {
        let waited: Duration = row.waits.iter().map(|wait| wait.took).sum();
        let (queue, end) = match &row.outcome {
            Ok(ready) if ready.parked.is_some() => (Duration::ZERO, End::Parked { tools: ready.tools }),
            Ok(ready) => {
                let (phases_ms, not_forked) = (ready.phases, ready.not_forked.clone());
                (ready.phases.queue, End::Ready { phases_ms, tools: ready.tools, not_forked })
            }
            Err(error) => {
                let words = error.stderr_line().map(|line| format!("stderr: {line}"));
                let parts = [error.to_string()].into_iter().chain(error.causes()).chain(words);
                (waited, End::Failed { cause: parts.collect::<Vec<_>>().join("; ") })
            }
        };
        Self { name: row.name.to_string(), ended_ms: millis(row.took), queue_ms: millis(queue), end }
    }
}

/// The drawings of `picture`; `title` is what they show, for those who do not see it.
pub fn svg(picture: &Picture, title: &str) -> Markup {
    svg_to_scale(picture, title, picture.span())
}

/// The same with bars to the scale of a longer time, in milliseconds: drawings of one scale can be compared.
pub fn svg_to_scale(picture: &Picture, title: &str, span: f64) -> Markup {
    html! { @for layout in [WIDE, NARROW] { (drawing(picture, title, &layout, span)) } }
}

fn drawing(picture: &Picture, title: &str, layout: &Layout, span: f64) -> Markup {
    let bottom = TOP + layout.row * picture.servers.len() as f64;
    let (width, height) = (layout.width, bottom + BOTTOM);
    let scale = Scale { layout, span: span.max(0.001) };
    html! {
        svg class={ "waterfall " (layout.class) } viewBox={ "0 0 " (width) " " (height) } role="img" {
            title { (title) }
            @for (at, words) in (Axis { span: scale.span }).ticks() {
                (line("grid", (scale.x(at), TOP), (scale.x(at), bottom)))
                text class="axis" x=(units(scale.x(at))) y=(units(bottom + 15.0)) { (words) }
            }
            @if let Some(last) = &picture.last { (all_ready(picture, last, &scale)) }
            @for (number, bar) in picture.servers.iter().enumerate() {
                (row(bar, &scale, TOP + layout.row * number as f64))
            }
        }
    }
}

/// The line at which all are ready, and who was the last.
fn all_ready(picture: &Picture, last: &str, scale: &Scale<'_>) -> Markup {
    let ready = picture.servers.iter().find(|bar| bar.name == last).map_or(0.0, |bar| bar.ended_ms);
    let x = scale.x(ready);
    let words = format!("all ready at {}, set by {}", seconds(ready), cut(last, NAME_LETTERS));
    // They end at the line, or begin at the edge where there is no room before it.
    let room = words.chars().count() as f64 * BOLD_LETTER <= x;
    let (class, at) = if room { ("ready-words", x) } else { ("ready-words early", 0.0) };
    html! {
        (line("ready", (x, TOP - 8.0), (x, TOP)))
        text class=(class) x=(units(at)) y="14" { (words) }
        (scale.ready_line(picture, x))
    }
}

fn row(bar: &Bar, scale: &Scale<'_>, top: f64) -> Markup {
    let layout = scale.layout;
    let middle = top + f64::midpoint(layout.words, layout.row);
    let y = middle - THICK / 2.0;
    let above = layout.words > 0.0;
    let text_at = units(if above { top + layout.words - 2.0 } else { middle + 4.0 });
    let part = |class: &str, from: f64, to: f64| {
        rect(class, (scale.x(from), y), ((scale.x(to) - scale.x(from)).max(0.5), THICK))
    };
    let ended = scale.x(bar.ended_ms);
    let end = if matches!(bar.end, End::Failed { .. }) { ended + CAP } else { ended };
    let (class, x, room) = if above {
        ("label above", layout.width, layout.width - LETTER * (NAME_LETTERS as f64 + 1.0))
    } else {
        ("label", end + 5.0, layout.width - end - 5.0)
    };
    html! {
        g class="server" {
            title { (bar.name) ": " (words(bar)) }
            text class="name" x="0" y=(text_at) { (cut(&bar.name, NAME_LETTERS)) }
            @if bar.queue_ms > 0.0 {
                (line("queue", (scale.x(0.0), middle), (scale.x(bar.queue_ms), middle)))
            }
            @match &bar.end {
                End::Ready { phases_ms, .. } => {
                    @for (class, from, to) in drawn(phases_ms, bar.queue_ms) { (part(class, from, to)) }
                }
                End::Failed { .. } => {
                    (part("failed", bar.queue_ms, bar.ended_ms))
                    (rect("cap", (ended, y - 2.0), (CAP, THICK + 4.0)))
                }
                End::Parked { .. } => {}
            }
            text class=(class) x=(units(x)) y=(text_at) { (cut(&label(bar), letters(room))) }
        }
    }
}

/// The phases that took any time, from `queue_ms` on: class, beginning and end.
fn drawn(phases: &Phases, queue_ms: f64) -> Vec<(&'static str, f64, f64)> {
    let all = [phases.template, phases.spawn, phases.first_byte, phases.handshake, phases.list];
    let mut at = queue_ms;
    let mut drawn = Vec::new();
    for ((class, _), took) in PHASES.iter().zip(all.map(millis)) {
        if took > 0.0 {
            drawn.push((*class, at, at + took));
        }
        at += took;
    }
    drawn
}

fn line(class: &str, from: (f64, f64), to: (f64, f64)) -> Markup {
    let [x1, y1, x2, y2] = [from.0, from.1, to.0, to.1].map(units);
    html! { line class=(class) x1=(x1) y1=(y1) x2=(x2) y2=(y2) {} }
}

fn rect(class: &str, at: (f64, f64), size: (f64, f64)) -> Markup {
    let [x, y, width, height] = [at.0, at.1, size.0, size.1].map(units);
    html! { rect class=(class) x=(x) y=(y) width=(width) height=(height) {} }
}

fn units(value: f64) -> String {
    format!("{value:.1}")
}

/// Legend of the colours and patterns; `with_templates` says whether a server has waited for a template.
pub fn legend(with_templates: bool) -> Markup {
    let key = |drawing: Markup, words: &str| {
        html! {
            span class="key" { svg viewBox="0 0 26 13" aria-hidden="true" { (drawing) } (words) }
        }
    };
    let whole = |class: &str| rect(class, (0.0, 0.0), (26.0, 13.0));
    let phases = PHASES.iter().filter(|(class, _)| with_templates || *class != "template");
    html! {
        p {
            (key(line("queue", (0.0, 6.5), (26.0, 6.5)), "queue"))
            @for (class, words) in phases { (key(whole(class), words)) }
            (key(html! { (whole("failed")) (rect("cap", (21.0, 0.0), (5.0, 13.0))) }, "failed"))
            (key(line("ready", (13.0, 0.0), (13.0, 13.0)), "all ready"))
        }
    }
}

/// The result that a bar is labelled with: `0.77s, 2 tools`.
pub fn label(bar: &Bar) -> String {
    match &bar.end {
        End::Ready { tools, .. } => format!("{}, {}", seconds(bar.ended_ms), counted(*tools, "tool")),
        End::Parked { tools } => format!("not started, {}", counted(*tools, "tool")),
        End::Failed { cause } => format!("{} failed: {cause}", seconds(bar.ended_ms)),
    }
}

/// All that is known of a bar, for a tool tip.
fn words(bar: &Bar) -> String {
    let End::Ready { phases_ms: phases, .. } = &bar.end else { return label(bar) };
    let all = [
        ("queue", phases.queue),
        ("template", phases.template),
        ("spawn", phases.spawn),
        ("first byte", phases.first_byte),
        ("handshake", phases.handshake),
        ("tool list", phases.list),
    ];
    let all = all.iter().filter(|(name, took)| *name != "template" || !took.is_zero());
    let all: Vec<String> =
        all.map(|(name, took)| format!("{name} {:.1} ms", took.as_secs_f64() * 1e3)).collect();
    format!("{} ({})", label(bar), all.join(", "))
}

struct Scale<'a> {
    layout: &'a Layout,
    /// Milliseconds of the whole width of bars.
    span: f64,
}

impl Scale<'_> {
    /// The line at which all are ready, in each row where it meets no words.
    fn ready_line(&self, picture: &Picture, x: f64) -> Markup {
        let layout = self.layout;
        let is_free = |bar: &Bar| {
            let (begin, width) =
                (self.x(bar.ended_ms), label(bar).chars().count() as f64 * LETTER + CAP + 5.0);
            layout.words > 0.0 || begin >= x || x >= begin + width
        };
        let rows = picture.servers.iter().enumerate().filter(|(_, bar)| is_free(bar));
        let tops = rows.map(|(number, _)| TOP + layout.row * number as f64);
        html! { @for top in tops { (line("ready", (x, top + layout.words), (x, top + layout.row))) } }
    }

    fn x(&self, millis: f64) -> f64 {
        self.layout.left + millis / self.span * self.layout.bars
    }
}

/// Letters that have room in so many units.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count of letters")]
fn letters(room: f64) -> usize {
    (room.max(0.0) / LETTER) as usize
}

fn seconds(millis: f64) -> String {
    format!("{:.2}s", millis / 1e3)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn picture() -> Picture {
        serde_json::from_value(json!({"wall_ms": 1000.0, "last": "a<b", "servers": [
            {"name": "a<b", "ended_ms": 1000.0, "queue_ms": 500.0, "end": {"ready": {"tools": 2, "phases_ms":
                {"queue": 500.0, "spawn": 125.0, "first_byte": 250.0, "handshake": 125.0, "list": 0.0}}}},
            {"name": "gone", "ended_ms": 250.0, "queue_ms": 0.0,
                "end": {"failed": {"cause": "</svg><script>alert(1)</script>"}}},
            {"name": "later", "ended_ms": 0.0, "queue_ms": 0.0, "end": {"parked": {"tools": 1}}},
        ]}))
        .unwrap()
    }

    #[test]
    fn phases_are_to_scale_and_empty_ones_not_drawn() {
        let text = drawing(&picture(), "t", &WIDE, 1000.0).0;
        let rects: Vec<&str> = text.matches("<rect class=\"").collect();
        assert_eq!(rects.len(), 5, "{text}");
        let of = |class: &str| text.split("<rect ").find(|part| part.starts_with(class)).unwrap_or("none");
        // 560 units for a second, from 170 on.
        assert!(
            of("class=\"spawn\"").starts_with("class=\"spawn\" x=\"450.0\" y=\"30.5\" width=\"70.0\""),
            "{text}"
        );
        assert!(
            of("class=\"boot\"").starts_with("class=\"boot\" x=\"520.0\" y=\"30.5\" width=\"140.0\""),
            "{text}"
        );
        assert!(
            of("class=\"failed\"").starts_with("class=\"failed\" x=\"170.0\" y=\"52.5\" width=\"140.0\""),
            "{text}"
        );
        assert!(text.contains("<line class=\"queue\" x1=\"170.0\" y1=\"37.0\" x2=\"450.0\""), "{text}");
        assert!(text.contains("<line class=\"ready\" x1=\"730.0\""), "{text}");
        assert!(
            text.contains(">1.00s, 2 tools</text>") && text.contains(">not started, 1 tool</text>"),
            "{text}"
        );
    }

    #[test]
    fn a_wait_for_a_template_is_drawn_where_there_was_one() {
        let mut waited = picture();
        assert!(!waited.has_templates() && !legend(false).0.contains("template"));
        assert!(!svg(&waited, "t").0.contains("template"), "no phase of other starts");
        if let End::Ready { phases_ms, .. } = &mut waited.servers[0].end {
            (phases_ms.template, phases_ms.spawn) = (phases_ms.spawn, Duration::ZERO);
        }
        let text = drawing(&waited, "t", &WIDE, 1000.0).0;
        let rect = "<rect class=\"template\" x=\"450.0\" y=\"30.5\" width=\"70.0\"";
        assert!(text.contains(rect) && text.contains("queue 500.0 ms, template 125.0 ms, spawn"), "{text}");
        assert!(waited.has_templates() && legend(true).0.contains("wait for a template"));
        // As it is written, and as earlier versions have written it.
        let written = serde_json::to_value(&waited).unwrap();
        assert_eq!(written["servers"][0]["end"]["ready"]["phases_ms"]["template"], 125.0);
        assert!(!serde_json::to_string(&picture()).unwrap().contains("template"));
    }

    #[test]
    fn a_narrow_drawing_has_labels_above_the_bars() {
        let text = drawing(&picture(), "t", &NARROW, 1000.0).0;
        assert!(text.contains("viewBox=\"0 0 480 159\""), "{text}");
        // 400 units for a second, from 24 on; below a line of words.
        assert!(text.contains("<rect class=\"spawn\" x=\"224.0\" y=\"46.0\" width=\"50.0\""), "{text}");
        assert!(text.contains("<text class=\"name\" x=\"0\" y=\"40.0\">a&lt;b</text>"), "{text}");
        assert!(text.contains("<text class=\"label above\" x=\"480.0\" y=\"40.0\">1.00s, 2 tools"), "{text}");
        assert!(text.contains("<text class=\"ready-words\" x=\"424.0\""), "{text}");
        let early = Picture { last: Some("gone".to_owned()), ..picture() };
        assert!(
            drawing(&early, "t", &NARROW, 1000.0).0.contains("<text class=\"ready-words early\" x=\"0.0\"")
        );
    }

    #[test]
    fn server_text_is_escaped_in_the_page() {
        let text = svg(&picture(), "<i>").0;
        assert!(!text.contains("<script") && !text.contains("a<b") && !text.contains("<i>"), "{text}");
        assert!(
            text.contains("&lt;script&gt;alert(1)") && text.contains("all ready at 1.00s, set by a&lt;b"),
            "{text}"
        );
    }
}
