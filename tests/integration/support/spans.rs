//! Spans and events as a subscriber of an embedder sees them, and the tables of docs/tracing.md about them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{Json, Router, extract::State, http::StatusCode, routing::post};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};
use tracing_subscriber::{Layer, layer::Context, registry::LookupSpan};

use super::{
    model_server::{calls, say},
    served,
};

const DOCUMENT: &str = include_str!("../../../docs/tracing.md");

/// Texts that nothing may show.
pub(crate) const PRIVATE: [&str; 4] = ["private-argument", "private-prompt", "private-answer", "private-key"];

type Values = BTreeMap<&'static str, String>;

/// A span, with the events in it.
pub(crate) struct Seen {
    pub(crate) name: &'static str,
    pub(crate) declared: BTreeSet<&'static str>,
    pub(crate) parent: Option<usize>,
    pub(crate) values: Values,
    pub(crate) events: Vec<Values>,
}

#[derive(Clone, Default)]
pub(crate) struct Capture(pub(crate) Arc<Mutex<(Vec<Seen>, Vec<Values>)>>);

/// The place of a span among those seen.
struct Place(usize);

struct Visitor<'a>(&'a mut Values);

impl Visit for Visitor<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Capture {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, spans: Context<'_, S>) {
        let span = spans.span(id).unwrap();
        if span.metadata().target() != "toolcrib" {
            return;
        }
        let parent =
            span.scope().skip(1).find_map(|outer| outer.extensions().get().map(|Place(place)| *place));
        let mut values = Values::new();
        attributes.record(&mut Visitor(&mut values));
        let declared = span.metadata().fields().iter().map(|field| field.name()).collect();
        let mut seen = self.0.lock().unwrap();
        span.extensions_mut().insert(Place(seen.0.len()));
        seen.0.push(Seen { name: span.name(), declared, parent, values, events: Vec::new() });
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, spans: Context<'_, S>) {
        if let Some(Place(place)) = spans.span(id).unwrap().extensions().get() {
            values.record(&mut Visitor(&mut self.0.lock().unwrap().0[*place].values));
        }
    }

    fn on_event(&self, event: &Event<'_>, spans: Context<'_, S>) {
        if event.metadata().target() != "toolcrib" {
            return;
        }
        let mut values = Values::new();
        event.record(&mut Visitor(&mut values));
        let mut seen = self.0.lock().unwrap();
        let span = spans.event_span(event);
        match span.as_ref().and_then(|span| span.extensions().get().map(|Place(place)| *place)) {
            Some(place) => seen.0[place].events.push(values),
            None => seen.1.push(values),
        }
    }
}

/// The backticked words of a cell.
fn words(cell: &str) -> BTreeSet<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// First and last cells of the table below that heading.
pub(crate) fn table(heading: &str) -> BTreeMap<&'static str, BTreeSet<&'static str>> {
    let section = DOCUMENT.split(&format!("## {heading}\n")).nth(1).unwrap();
    let rows = section.lines().skip_while(|line| !line.starts_with("| `"));
    let rows = rows.take_while(|line| line.starts_with("| `"));
    let row = |line: &'static str| {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").collect();
        (*words(cells[0]).first().unwrap(), words(cells.last().unwrap()))
    };
    rows.map(row).collect()
}

/// A model that is overloaded once, then calls a tool, then answers for ever.
pub(crate) async fn model() -> (String, JoinSet<()>) {
    async fn answer(
        State(asked): State<Arc<AtomicUsize>>,
        Json(_): Json<Value>,
    ) -> (StatusCode, Json<Value>) {
        let (status, mut body) = match asked.fetch_add(1, Ordering::SeqCst) {
            0 => (StatusCode::SERVICE_UNAVAILABLE, json!({"error": {"message": "still loading"}})),
            // The tool's own name has no capital letter.
            1 => (StatusCode::OK, calls(&[("one__Echo", "{\"text\": \"private-argument\"}")])),
            _ => (StatusCode::OK, say("private-answer")),
        };
        body["model"] = json!("m-1");
        (status, Json(body))
    }
    let router = Router::new().route("/v1/chat/completions", post(answer)).with_state(Arc::default());
    served(router).await
}
