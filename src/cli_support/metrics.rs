//! Counts metrics from the spans of docs/tracing.md.

use std::{fmt::Debug, sync::Arc};

use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};
use tracing_subscriber::{Layer, layer::Context, registry::LookupSpan};

pub use toolcrib_gateway::metrics::MetricsServer;
use toolcrib_gateway::metrics::{Metrics, metrics};

use crate::StartOptions;
pub use crate::manager::Toolboxes;

const TARGET: &str = "toolcrib";

/// The options of a manager whose servers the metrics of `toolboxes` show.
pub fn shown_in(toolboxes: &Toolboxes, options: StartOptions) -> StartOptions {
    options.listed_in(toolboxes)
}

/// Counts what spans tell.
pub struct MetricsLayer(Arc<Metrics>);

impl MetricsLayer {
    /// Counts in [`metrics`].
    #[expect(clippy::new_without_default, reason = "it is made once")]
    pub fn new() -> Self {
        Self(metrics().clone())
    }

    /// The action of a span has ended.
    fn ended(&self, span: &str, fields: &Fields, parent: Option<&Fields>, end: &End) {
        let Self(metrics) = self;
        let (seconds, failed) = (end.elapsed_ms / 1e3, end.error.as_deref());
        let outcome = failed.unwrap_or("ok");
        match span {
            "tools/call" => {
                let (server, tool) = (&*fields.server, &*fields.tool);
                let outcome = match outcome {
                    "ok" | "tool_error" | "cancelled" => outcome,
                    "call_timeout" => "timeout",
                    "session_lost" | "outcome_unknown" => "lost",
                    _ => "error",
                };
                metrics.add("toolcrib_tool_calls_total", &[server, tool, outcome], 1.0);
                metrics.observe("toolcrib_tool_call_seconds", &[server, tool], seconds);
                metrics.add("toolcrib_tool_calls_in_flight", &[server], -1.0);
            }
            "chat" => {
                metrics.add("toolcrib_llm_requests_total", &[&fields.model, outcome], 1.0);
                metrics.observe("toolcrib_llm_request_seconds", &[&fields.model], seconds);
                metrics.add("toolcrib_llm_tokens_total", &["input"], fields.input_tokens);
                metrics.add("toolcrib_llm_tokens_total", &["output"], fields.output_tokens);
            }
            "attempt" if fields.retry => metrics.add("toolcrib_llm_retries_total", &[outcome], 1.0),
            "wait" => match (&*fields.reason, parent) {
                ("backoff" | "retry_after", _) => {
                    metrics.add("toolcrib_llm_retry_wait_seconds_total", &[], seconds);
                }
                ("call_limit", Some(call)) => {
                    metrics.observe("toolcrib_queue_seconds", &[&call.server], seconds);
                }
                _ => {}
            },
            "server.start" if failed.is_some() => {
                metrics.add("toolcrib_server_start_failures_total", &[&fields.server], 1.0);
            }
            "server.start" => {
                metrics.observe("toolcrib_server_start_seconds", &[&fields.server], seconds);
                if fields.reason != "start" {
                    metrics.add("toolcrib_server_restarts_total", &[&fields.server, &fields.reason], 1.0);
                }
            }
            "template.start" => metrics.add("toolcrib_template_starts_total", &[outcome], 1.0),
            "invoke_agent" if fields.is_task => {
                let outcome = if fields.outcome.is_empty() { "cancelled" } else { &fields.outcome };
                metrics.add("toolcrib_tasks_total", &[outcome], 1.0);
                metrics.add("toolcrib_tasks_in_flight", &[], -1.0);
            }
            _ => {}
        }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for MetricsLayer {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id).filter(|span| span.metadata().target() == TARGET) else { return };
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        match span.name() {
            "tools/call" => self.0.add("toolcrib_tool_calls_in_flight", &[&fields.server], 1.0),
            "invoke_agent" if fields.is_task => self.0.add("toolcrib_tasks_in_flight", &[], 1.0),
            _ => {}
        }
        span.extensions_mut().insert(fields);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Fields>()
        {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        if event.metadata().target() != TARGET {
            return;
        }
        let mut end = End::default();
        event.record(&mut end);
        if let Some(phase) = &end.phase
            && let Some(span) = context.event_span(event)
            && let Some(start) = span.extensions().get::<Fields>()
        {
            let family = "toolcrib_server_start_phase_seconds";
            self.0.observe(family, &[&start.server, phase], end.elapsed_ms / 1e3);
        }
        if let Some(fork) = &end.fork
            && let Some(span) = context.event_span(event)
            && let Some(start) = span.extensions().get::<Fields>()
        {
            match fork {
                Fork::Done => self.0.add("toolcrib_server_forks_total", &[&start.server], 1.0),
                Fork::Not => self.0.add("toolcrib_server_not_forked_total", &[&start.server, &end.why], 1.0),
            }
        }
        if let Some(wait_ms) = end.wait_ms.filter(|_| end.stays_down) {
            self.0.observe("toolcrib_reconnect_wait_seconds", &[&end.server], wait_ms / 1e3);
        }
        // Every action tells its end once, in its span.
        if let Some(span) = event.parent().and_then(|id| context.span(id)).filter(|_| end.is_end) {
            let parent = span.parent();
            let around = parent.as_ref().map(|parent| parent.extensions());
            let around = around.as_ref().and_then(|around| around.get::<Fields>());
            if let Some(fields) = span.extensions().get::<Fields>() {
                self.ended(span.name(), fields, around, &end);
            }
        }
    }
}

/// The fields of a span that metrics are about.
#[derive(Default)]
struct Fields {
    server: String,
    tool: String,
    model: String,
    reason: String,
    outcome: String,
    is_task: bool,
    retry: bool,
    input_tokens: f64,
    output_tokens: f64,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.record_str(field, &format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let place = match field.name() {
            "toolcrib.server" => &mut self.server,
            "gen_ai.tool.name" => &mut self.tool,
            "gen_ai.request.model" => &mut self.model,
            "toolcrib.reason" => &mut self.reason,
            "toolcrib.outcome" => &mut self.outcome,
            "toolcrib.task" => {
                self.is_task = true;
                return;
            }
            _ => return,
        };
        value.clone_into(place);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "gen_ai.usage.input_tokens" => self.input_tokens = value as f64,
            "gen_ai.usage.output_tokens" => self.output_tokens = value as f64,
            _ => {}
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        if field.name() == "toolcrib.retry" {
            self.retry = value;
        }
    }
}

/// The end of a start that could have been a fork.
enum Fork {
    Done,
    Not,
}

/// The event at the end of an action, or of a phase of it; that of a fork; or that of a server that stays down for a while.
#[derive(Default)]
struct End {
    is_end: bool,
    stays_down: bool,
    server: String,
    wait_ms: Option<f64>,
    elapsed_ms: f64,
    error: Option<String>,
    fork: Option<Fork>,
    /// Why it was not forked.
    why: String,
    /// The phase of a start that has ended; the start itself goes on.
    phase: Option<String>,
}

impl Visit for End {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "toolcrib.phase" => self.phase = Some(value.to_owned()),
            "toolcrib.server" => value.clone_into(&mut self.server),
            "toolcrib.why" => value.clone_into(&mut self.why),
            _ => self.record_debug(field, &format_args!("{value}")),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => {
                let message = format!("{value:?}");
                self.is_end = matches!(&*message, "ended" | "failed");
                self.stays_down = message == "stays down";
                self.fork = match &*message {
                    "forked" => Some(Fork::Done),
                    "not forked" => Some(Fork::Not),
                    _ => None,
                };
            }
            "error.type" => self.error = Some(format!("{value:?}")),
            _ => {}
        }
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        match field.name() {
            "elapsed_ms" => self.elapsed_ms = value,
            "toolcrib.wait_ms" => self.wait_ms = Some(value),
            _ => {}
        }
    }
}
