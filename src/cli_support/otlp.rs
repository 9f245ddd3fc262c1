//! Sends the spans of docs/tracing.md to an OpenTelemetry collector, as the standard variables `OTEL_...` say. The SDK
//! reads most of them by itself: endpoint, headers, time limit, sampler, resource, sizes of its queue.

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use hyper::{Response, body::Bytes};
use opentelemetry::{
    Context,
    trace::{TraceContextExt as _, TracerProvider as _},
};
use opentelemetry_http::{HttpClient, HttpError, Request};
use opentelemetry_otlp::{Protocol, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{SdkTracer, SdkTracerProvider, Span, SpanData, SpanExporter, SpanProcessor},
};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use crate::{
    config::HttpConfig,
    error::{Error, Result},
    http::{self, HttpClients},
    trace::{TraceContext, pass_trace_context},
};

/// How long the end of the program waits for spans that are still to be sent.
const END_LIMIT: Duration = Duration::from_secs(5);
/// How long one request may take: less, so that its end is known by then.
const SEND_LIMIT: Duration = Duration::from_secs(4);
/// Bytes of an answer of a collector.
const MAX_ANSWER: usize = 64 << 10;

/// A sender of spans to a collector. It is ended by [`SpanSender::end`].
pub struct SpanSender {
    provider: SdkTracerProvider,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    ended: AtomicU64,
    sent: AtomicU64,
    failure: Mutex<Option<String>>,
}

/// Spans that no collector got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostSpans {
    /// How many.
    pub count: u64,
    /// How sending failed last; nothing if it was too slow for what there was to send.
    pub why: Option<String>,
}

impl SpanSender {
    /// Reads the variables by `variable`. Nothing: they ask for no spans, which takes an endpoint or
    /// `OTEL_TRACES_EXPORTER=otlp`.
    ///
    /// # Errors
    /// [`Error::Input`] for a variable with a value that cannot be carried out.
    pub fn from_env(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        let set = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let first = |names: [&'static str; 2]| {
            names.into_iter().find_map(|name| Some((name, set(name)?.trim().to_owned())))
        };
        if set("OTEL_SDK_DISABLED").is_some_and(|value| value.trim().eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        let endpoint = first(["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"]);
        match set("OTEL_TRACES_EXPORTER").as_deref().map(str::trim) {
            Some("none") => return Ok(None),
            None if endpoint.is_none() => return Ok(None),
            None | Some("otlp") => {}
            Some(other) => {
                let help = "toolcrib has `otlp` and `none`".to_owned();
                return Err(Error::input(format!("OTEL_TRACES_EXPORTER is `{other}`"), Some(help)));
            }
        }
        let protocol = first(["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"]);
        if let Some((name, protocol)) = protocol.filter(|(_, protocol)| protocol != "http/protobuf") {
            let help = "toolcrib speaks `http/protobuf`, by default on port 4318".to_owned();
            return Err(Error::input(format!("{name} is `{protocol}`"), Some(help)));
        }
        if let Some((name, endpoint)) = endpoint
            && !url::Url::parse(&endpoint).is_ok_and(|url| matches!(url.scheme(), "http" | "https"))
        {
            let help = "write it as http://127.0.0.1:4318".to_owned();
            return Err(Error::input(format!("{name} is no address: `{endpoint}`"), Some(help)));
        }
        let propagators = set("OTEL_PROPAGATORS").unwrap_or_else(|| "tracecontext".to_owned());
        let propagates = propagators.split(',').any(|name| name.trim() == "tracecontext");
        let sender = Self::new(set("OTEL_SERVICE_NAME").is_none())?;
        if propagates {
            pass_trace_context(context_of);
        }
        Ok(Some(sender))
    }

    fn new(unnamed: bool) -> Result<Self> {
        let counts = Arc::<Counts>::default();
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_http_client(Client(HttpClients::new(&HttpConfig::default())?))
            .build()
            .map_err(|error| Error::input(format!("the variables OTEL_EXPORTER_OTLP_...: {error}"), None))?;
        let mut resource = Resource::builder();
        // Of the variables, OTEL_RESOURCE_ATTRIBUTES can name it too.
        let found = Resource::builder().build();
        let known = found.get(&"service.name".into()).map(|name| name.to_string()).unwrap_or_default();
        if unnamed && known.starts_with("unknown_service") {
            resource = resource.with_service_name("toolcrib");
        }
        let provider = SdkTracerProvider::builder()
            .with_resource(resource.build())
            .with_span_processor(CountEnded(counts.clone()))
            .with_batch_exporter(CountSent { exporter, counts: counts.clone() })
            .build();
        Ok(Self { provider, counts })
    }

    /// The tracer that makes the spans.
    pub fn tracer(&self) -> SdkTracer {
        self.provider.tracer("toolcrib")
    }

    /// Sends what is left, for five seconds at most. Says what no collector got.
    pub fn end(self) -> Option<LostSpans> {
        // An error is among what is counted.
        let _ = self.provider.shutdown_with_timeout(END_LIMIT);
        let Counts { ended, sent, failure } = &*self.counts;
        let count = ended.load(Relaxed).saturating_sub(sent.load(Relaxed));
        let why = failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        (count > 0).then_some(LostSpans { count, why })
    }
}

/// The trace context of a span, for the servers of its calls.
fn context_of(span: &tracing::Span) -> Option<TraceContext> {
    let context = span.context();
    let context = context.span().span_context().clone();
    context.is_valid().then(|| {
        let (trace, span, flags) = (context.trace_id(), context.span_id(), context.trace_flags().to_u8());
        let mut passed = TraceContext::new(format!("00-{trace}-{span}-{flags:02x}"));
        passed.tracestate = Some(context.trace_state().header()).filter(|state| !state.is_empty());
        passed
    })
}

/// Counts the spans that are to be sent.
#[derive(Debug)]
struct CountEnded(Arc<Counts>);

impl SpanProcessor for CountEnded {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if span.span_context.is_sampled() {
            self.0.ended.fetch_add(1, Relaxed);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// Counts the spans that were sent.
#[derive(Debug)]
struct CountSent<E> {
    exporter: E,
    counts: Arc<Counts>,
}

impl<E: SpanExporter> SpanExporter for CountSent<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len() as u64;
        let sent = self.exporter.export(batch).await;
        match &sent {
            Ok(()) => drop(self.counts.sent.fetch_add(count, Relaxed)),
            Err(error) => {
                let mut failure = self.counts.failure.lock().unwrap_or_else(PoisonError::into_inner);
                *failure = Some(error.to_string());
            }
        }
        sent
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

/// The HTTP client of the exporter, which calls it from a thread of its own without a runtime.
#[derive(Debug)]
struct Client(HttpClients);

impl Client {
    async fn send(client: &http::HttpClient, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let mut answer = client.send(request).await?;
        let mut body = Vec::new();
        while let Some(piece) = answer.chunk().await? {
            if body.len() + piece.len() > MAX_ANSWER {
                return Err(io::Error::other("the collector's answer is too long").into());
            }
            body.extend_from_slice(&piece);
        }
        let mut response = Response::new(body.into());
        *response.status_mut() = answer.status;
        *response.headers_mut() = answer.headers;
        Ok(response)
    }
}

impl HttpClient for Client {
    fn send_bytes<'a: 'b, 'b>(
        &'a self,
        request: Request<Bytes>,
    ) -> BoxFuture<'b, Result<Response<Bytes>, HttpError>>
    where
        Self: 'b,
    {
        Box::pin(async move {
            let client = self.0.tools_for(&request.uri().to_string()).clone();
            let asked = client.clone();
            let sending = async move { tokio::time::timeout(SEND_LIMIT, Self::send(&asked, request)).await };
            client.apart(sending).await?.unwrap_or_else(|late| Err(late.into()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variables_decide_whether_spans_are_sent() {
        let from = |variables: &[(&str, &str)]| {
            let found = |name: &str| {
                variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
            };
            SpanSender::from_env(found).map(|sender| sender.is_some()).map_err(|error| error.to_string())
        };
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9");
        assert_eq!(from(&[]), Ok(false));
        assert_eq!(from(&[endpoint, ("OTEL_SDK_DISABLED", "TRUE")]), Ok(false));
        assert_eq!(from(&[endpoint, ("OTEL_TRACES_EXPORTER", "none")]), Ok(false));
        for (name, value) in [
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"),
            ("OTEL_TRACES_EXPORTER", "console"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "localhost:4318"),
        ] {
            let refused = from(&[endpoint, (name, value)]).unwrap_err();
            assert!(refused.contains(name) && refused.contains(value), "{refused}");
        }
    }
}
