//! Spans that are sent to an OpenTelemetry collector.

use toolcrib::{
    Error,
    cli_support::otlp::{LostSpans, SpanSender},
};
use tracing::Subscriber;
use tracing_subscriber::{Layer, registry::LookupSpan};

use super::ours;
use crate::cli::terminal::ui::{Ui, counted};

/// Spans that are sent to a collector.
#[derive(Default)]
pub(crate) struct Sending(Option<SpanSender>);

impl Sending {
    pub(super) fn from_env() -> Result<Self, Error> {
        SpanSender::from_env(|name| std::env::var(name).ok()).map(Self)
    }

    pub(super) fn layer<S: Subscriber + for<'a> LookupSpan<'a>>(&self) -> Option<impl Layer<S>> {
        let spans = tracing_opentelemetry::layer().with_tracer(self.0.as_ref()?.tracer());
        // The place in the sources is of no use to who reads a trace.
        Some(spans.with_location(false).with_threads(false).with_target(false).with_filter(ours()))
    }

    /// Sends what is left.
    pub(crate) fn end(self, ui: &Ui) {
        if let Some(LostSpans { count, why }) = self.0.and_then(SpanSender::end) {
            let why = why.unwrap_or_else(|| "there were too many at once".to_owned());
            ui.warn(format!(
                "{} not sent: {why}",
                counted(usize::try_from(count).unwrap_or(usize::MAX), "span")
            ));
        }
    }
}
