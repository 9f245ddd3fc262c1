//! Tracing: one span for each start, stop, call, task, model request, attempt and wait, under the names of
//! `docs/tracing.md`. A change of a name or a field needs a change of that table; a test compares them.
//!
//! All spans and the events in them have the target `toolcrib` and the level DEBUG. Where no subscriber wants them, an
//! action costs one comparison: nothing is allocated and no clock is read. No field holds an argument, a result, a
//! prompt, an answer, a header or a key.

use std::{
    fmt::Display,
    future::poll_fn,
    pin::pin,
    sync::OnceLock,
    task::Poll,
    time::{Duration, Instant},
};

use tracing::{
    Instrument as _, Span, Value, debug, debug_span,
    field::{Empty, display},
};

use crate::address::host_and_port;

const TARGET: &str = "toolcrib";

/// The place of a span in a trace, as W3C Trace Context writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TraceContext {
    /// The value of `traceparent`: version, trace, span and flags.
    pub traceparent: String,
    /// The value of `tracestate`, if there is one.
    pub tracestate: Option<String>,
}

impl TraceContext {
    /// A context without `tracestate`.
    pub fn new(traceparent: impl Into<String>) -> Self {
        Self { traceparent: traceparent.into(), tracestate: None }
    }

    /// The id of the trace: 32 hexadecimal digits.
    #[doc(hidden)]
    pub fn trace_id(&self) -> Option<&str> {
        self.traceparent.split('-').nth(1)
    }
}

/// Says what the trace context of a span is.
type ContextSource = fn(&Span) -> Option<TraceContext>;

static CONTEXT: OnceLock<ContextSource> = OnceLock::new();

/// Passes the trace context of each tool call to its server, in `_meta` of the request (SEP-414 of the Model Context
/// Protocol). `source` gives that of a span, or nothing for a span that is part of no trace; the subscriber of the
/// program knows it. Without such a source, which is the default, nothing is passed and a call costs nothing more. It is
/// set once for the program: false says that it was set before.
///
/// ```
/// # use toolcrib_core as toolcrib;
/// # use toolcrib::{TraceContext, pass_trace_context};
/// # fn of_my_subscriber(_: &tracing::Span) -> Option<String> { None }
/// pass_trace_context(|span| of_my_subscriber(span).map(TraceContext::new));
/// ```
pub fn pass_trace_context(source: fn(&Span) -> Option<TraceContext>) -> bool {
    CONTEXT.set(source).is_ok()
}

/// The trace context of the current span, where it is to be passed.
pub fn context() -> Option<TraceContext> {
    CONTEXT.get().and_then(|source| source(&Span::current()))
}

/// An action under way. [`Action::end`] tells how it ended; if it is dropped before, it was cancelled.
#[must_use = "dropped at once it counts as cancelled"]
pub struct Action {
    span: Span,
    /// `None`: no subscriber wants the span, or it has ended.
    began: Option<Instant>,
}

impl Action {
    fn new(span: Span) -> Self {
        let began = (!span.is_disabled()).then(Instant::now);
        Self { span, began }
    }

    /// The span for the futures that are part of the action.
    pub fn span(&self) -> Span {
        self.span.clone()
    }

    /// Whether a subscriber wants the span: costly fields are computed only then.
    pub fn is_on(&self) -> bool {
        self.began.is_some()
    }

    /// The id of the trace that the action is part of, where traces are passed on.
    pub fn trace_id(&self) -> Option<String> {
        let source = CONTEXT.get().filter(|_| self.is_on())?;
        source(&self.span)?.trace_id().map(str::to_owned)
    }

    /// Sets a field that the span has.
    pub fn record(&self, field: &'static str, value: impl Value) {
        self.span.record(field, value);
    }

    /// Sets the server's address; nothing else of `url` is looked at.
    pub fn address(&self, url: &str) {
        let (host, port) = host_and_port(url);
        self.record("server.address", host);
        self.record("server.port", port);
    }

    /// Tells that a server stands.
    pub fn started(self, pid: Option<u32>, version: &str, tools: usize) {
        self.record("process.pid", pid);
        self.record("mcp.protocol.version", version);
        self.record("toolcrib.tools", tools);
        self.end(None);
    }

    /// Tells the end: a success, or a failure of this kind (`error.type`).
    pub fn end(mut self, error: Option<&dyn Display>) {
        self.tell(error);
    }

    fn tell(&mut self, error: Option<&dyn Display>) {
        let Some(began) = self.began.take() else { return };
        let elapsed_ms = millis(began.elapsed());
        match error {
            None => debug!(target: TARGET, parent: &self.span, elapsed_ms, "ended"),
            Some(error) => {
                self.record("error.type", display(error));
                self.record("otel.status_code", "ERROR");
                debug!(target: TARGET, parent: &self.span, elapsed_ms, "error.type" = %error, "failed");
            }
        }
    }
}

impl Drop for Action {
    fn drop(&mut self) {
        self.tell(Some(&"cancelled"));
    }
}

/// A server is started: `reason` is `start`, `first_call` of one that was put off, or `restart`.
pub fn server_start(server: &str, reason: &'static str) -> Action {
    Action::new(debug_span!(
        target: TARGET,
        "server.start",
        otel.name = %format_args!("server.start {server}"),
        otel.kind = "internal",
        otel.status_code = Empty,
        toolcrib.server = server,
        toolcrib.reason = reason,
        process.pid = Empty,
        mcp.protocol.version = Empty,
        toolcrib.tools = Empty,
        "error.type" = Empty,
    ))
}

/// A template of Python servers is started. `interpreter` has its flags behind it.
pub fn template_start(interpreter: &dyn Display) -> Action {
    Action::new(debug_span!(
        target: TARGET,
        "template.start",
        otel.name = %format_args!("template.start {interpreter}"),
        otel.kind = "internal",
        otel.status_code = Empty,
        toolcrib.template = %interpreter,
        process.pid = Empty,
        toolcrib.modules = Empty,
        toolcrib.why = Empty,
        "error.type" = Empty,
    ))
}

/// A server is stopped.
pub fn server_stop(server: &str) -> Action {
    Action::new(debug_span!(
        target: TARGET,
        "server.stop",
        otel.name = %format_args!("server.stop {server}"),
        otel.kind = "internal",
        otel.status_code = Empty,
        toolcrib.server = server,
        process.pid = Empty,
        process.exit.code = Empty,
        toolcrib.outcome = Empty,
        "error.type" = Empty,
    ))
}

/// A tool is called.
pub fn tool_call(server: &str, tool: &str) -> Action {
    Action::new(debug_span!(
        target: TARGET,
        "tools/call",
        otel.name = %format_args!("tools/call {tool}"),
        otel.kind = "client",
        otel.status_code = Empty,
        mcp.method.name = "tools/call",
        gen_ai.operation.name = "execute_tool",
        toolcrib.server = server,
        gen_ai.tool.name = tool,
        mcp.protocol.version = Empty,
        network.transport = Empty,
        server.address = Empty,
        server.port = Empty,
        rpc.response.status_code = Empty,
        "error.type" = Empty,
    ))
}

/// An agent carries out a task. `task` is nothing for an agent that another one called: its task is part of that one's.
pub fn agent(agent: &str, task: Option<&str>, model: Option<&str>) -> Action {
    Action::new(debug_span!(
        target: TARGET,
        "invoke_agent",
        otel.name = %format_args!("invoke_agent {agent}"),
        otel.kind = "internal",
        otel.status_code = Empty,
        gen_ai.operation.name = "invoke_agent",
        gen_ai.agent.name = agent,
        toolcrib.task = task,
        gen_ai.request.model = model,
        toolcrib.outcome = Empty,
        toolcrib.turns = Empty,
        toolcrib.tool_calls = Empty,
        gen_ai.usage.input_tokens = Empty,
        gen_ai.usage.output_tokens = Empty,
        "error.type" = Empty,
    ))
}

/// A model request with all its attempts. `client` is the name in the configuration; of `url` the host and port are
/// recorded.
pub fn model_request(
    operation: &'static str,
    provider: &'static str,
    model: &str,
    client: Option<&str>,
    url: Option<&str>,
) -> Action {
    Action::new(debug_span!(
        target: TARGET,
        "chat",
        otel.name = %format_args!("{operation} {model}"),
        otel.kind = "client",
        otel.status_code = Empty,
        gen_ai.operation.name = operation,
        gen_ai.provider.name = provider,
        gen_ai.request.model = model,
        toolcrib.client = client,
        server.address = url.and_then(|url| host_and_port(url).0),
        server.port = url.and_then(|url| host_and_port(url).1),
        gen_ai.response.model = Empty,
        gen_ai.usage.input_tokens = Empty,
        gen_ai.usage.output_tokens = Empty,
        toolcrib.attempts = Empty,
        "error.type" = Empty,
    ))
}

/// One attempt of a model request, from 1.
pub fn attempt(number: u32) -> Action {
    let resent = (number > 1).then(|| number - 1);
    Action::new(debug_span!(
        target: TARGET,
        "attempt",
        otel.kind = "client",
        otel.status_code = Empty,
        toolcrib.attempt = number,
        http.request.resend_count = resent,
        http.response.status_code = Empty,
        toolcrib.retry = Empty,
        "error.type" = Empty,
    ))
}

/// A wait for `reason`, of `planned` if that is known.
pub fn waiting(reason: &'static str, planned: Option<Duration>) -> Action {
    Action::new(debug_span!(
        target: TARGET,
        "wait",
        otel.kind = "internal",
        otel.status_code = Empty,
        toolcrib.reason = reason,
        toolcrib.wait_ms = planned.map(millis),
        "error.type" = Empty,
    ))
}

/// Awaits `work`, which waits for `reason` unless it is ready at once.
pub async fn wait<T>(reason: &'static str, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    if let Poll::Ready(done) = poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await {
        return done;
    }
    let action = waiting(reason, None);
    let done = work.instrument(action.span()).await;
    action.end(None);
    done
}

/// Sleeps for `time`, for `reason`.
pub async fn pause(reason: &'static str, time: Duration) {
    let action = waiting(reason, Some(time));
    tokio::time::sleep(time).await;
    action.end(None);
}

/// A phase of the start that the current span is of has ended: `queue`, `spawn`, `first_byte`, `handshake` or `list`.
pub fn phase(phase: &'static str, took: Duration) {
    debug!(target: TARGET, { "toolcrib.phase" = phase, elapsed_ms = millis(took) }, "phase ended");
}

/// The server that is being started was forked from a template.
pub fn forked() {
    debug!(target: TARGET, "forked");
}

/// It could have been, and starts the ordinary way.
pub fn not_forked(why: &'static str) {
    debug!(target: TARGET, { "toolcrib.why" = why }, "not forked");
}

/// The agent that the current span is of decided something.
pub fn decision(event: &str) {
    debug!(target: TARGET, { "toolcrib.event" = event }, "agent event");
}

/// A server is down for `error`, and is not started again before `wait` is over, or at all.
pub fn server_stays_down(server: &str, error: &dyn Display, wait: Option<Duration>) {
    debug!(
        target: TARGET,
        { "toolcrib.server" = server, "error.type" = %error, "toolcrib.wait_ms" = wait.map(millis) },
        "stays down"
    );
}

/// The trace context of the current span as members of a JSON object, each with its comma behind it.
pub fn context_members() -> Option<String> {
    let TraceContext { traceparent, tracestate } = context()?;
    let member = |name: &str, value: &str| format!("\"{name}\":{},", serde_json::Value::from(value));
    let state = tracestate.map(|state| member("tracestate", &state)).unwrap_or_default();
    Some(member("traceparent", &traceparent) + &state)
}

/// Milliseconds, to the microsecond.
fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}
