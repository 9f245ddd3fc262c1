//! How the servers of a run started: the chart, what it comes to, and what did not start.

use maud::{Markup, html};

use crate::{
    report::{
        folder::{RunFolder, RunServerStart, millis},
        page::{
            start_advice::advice,
            start_chart::{Bar, End, Picture, legend, svg},
            with_code,
        },
    },
    session::Phases,
};

/// The section of a page.
pub(in crate::report) fn starts(run: &RunFolder) -> Markup {
    if run.servers.is_empty() {
        return Markup::default();
    }
    let start_of_all = run.servers.iter().filter_map(|server| match &server.start {
        RunServerStart::Ready { at_ms, took_ms, .. } => Some((at_ms - took_ms, *at_ms, &server.name)),
        _ => None,
    });
    let wall_ms = start_of_all.clone().map(|(from, to, _)| to - from).fold(0.0, f64::max);
    let last =
        start_of_all.max_by(|a, b| (a.1 - a.0).total_cmp(&(b.1 - b.0))).map(|(_, _, name)| name.clone());
    let mut failed = Vec::new();
    let bars = run.servers.iter().map(|server| {
        let (ended_ms, queue_ms, end) = match &server.start {
            RunServerStart::Unknown => {
                (0.0, 0.0, End::Failed { cause: "was still being started".to_owned() })
            }
            RunServerStart::Parked { tools } => (0.0, 0.0, End::Parked { tools: *tools }),
            RunServerStart::Ready { took_ms, tools, phases, .. } => {
                let of = std::time::Duration::from_nanos;
                let phases_ms = Phases {
                    queue: of(phases.queue),
                    template: of(phases.template),
                    spawn: of(phases.spawn),
                    first_byte: of(phases.first_byte),
                    handshake: of(phases.handshake),
                    list: of(phases.list),
                };
                (*took_ms, millis(phases.queue), End::Ready { phases_ms, tools: *tools, not_forked: None })
            }
            RunServerStart::Failed { took_ms, error, .. } => {
                let why: Vec<&str> =
                    error.causes.iter().chain(&error.stderr_tail).map(String::as_str).collect();
                failed.push((&server.name, &error.message, why.join("\n")));
                (*took_ms, 0.0, End::Failed { cause: error.message.clone() })
            }
        };
        Bar { name: server.name.clone(), ended_ms, queue_ms, end }
    });
    let picture = Picture { wall_ms, last, servers: bars.collect() };
    html! {
        h2 { "Start of the servers" }
        @if let Some(advice) = advice(&picture) { p class="advice" { (with_code(&advice)) } }
        (legend(picture.has_templates()))
        figure { (svg(&picture, "start of the servers")) }
        @if !failed.is_empty() {
            h3 { "Did not start" }
            dl { @for (name, message, why) in &failed { dt { (name) } dd { (message) "\n" (why) } } }
        }
    }
}
