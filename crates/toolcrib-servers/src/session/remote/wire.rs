//! The wire of a remote server: what a connection is made of, what comes in on any of its streams, and what is sent beside
//! requests.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use hyper::{HeaderMap, body::Bytes, header::HeaderValue};
use serde_json::value::RawValue;
use tokio::{
    runtime::Handle,
    sync::{Notify, SetOnce},
    task::JoinSet,
    time::{Instant, timeout, timeout_at},
};
use url::Url;

use super::{
    error::{RemoteFailure, StatusAnswer},
    http::{EVENTS, PROTOCOL_VERSION, RemoteHttp, SESSION_ID, content_type, message_headers},
    session_end, tool_headers,
};
use crate::{
    session::{
        SessionEvent,
        connect::handshake::Era,
        recovery::health::StreamEnd,
        result::reply::{CallLimits, NoReply},
        rpc::{
            client::{Rpc, Unanswered, Wire},
            decode::Decoded,
            receive::{self, Origin},
            requests::{OutgoingRequest, RequestProgress, RpcAnswer},
            write,
        },
        server_messages::Counting,
    },
    tool::Tool,
};

/// Requests of the server that may wait for their answers, in bytes: so much each, and its id. A server that asks for
/// more is given up.
const MAX_OWED: usize = 64 << 10;
const ANSWER: usize = 256;
/// Bytes of notifications that wait to be sent.
const MAX_OUTBOX: usize = 1 << 20;
/// How long the server may take to accept a notification or an answer.
const ACCEPT_LIMIT: Duration = Duration::from_secs(30);

/// How messages go to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RemoteTransport {
    /// Streamable HTTP of one of the two eras.
    Streamable(Era),
    /// The transport of 2024-11-05: answers come on one stream of events, which names the address for messages.
    Sse,
}

/// One connection. Requests that are under way share it, and the tasks beside them.
pub(in crate::session) struct RemoteWire {
    pub(super) transport: RemoteTransport,
    pub(super) http: RemoteHttp,
    pub(super) rpc: Rpc,
    /// Headers that every request has, once they are known: the protocol version, and the session below.
    pub(super) version: OnceLock<HeaderValue>,
    pub(super) session: OnceLock<HeaderValue>,
    /// Where messages go, if not to the address of the server.
    pub(super) endpoint: OnceLock<Url>,
    /// There is a stream for what belongs to no request.
    pub(super) listening: AtomicBool,
    /// When that stream was asked for, and whether the server has answered since.
    pub(super) listened: (OnceLock<Instant>, SetOnce<()>),
    /// Bytes held for requests of the server that are not answered yet.
    owed: AtomicUsize,
    outbox: Mutex<Outbox>,
    /// Notified when nothing waits in it any more.
    told: Notify,
    /// Everything beside the requests. `None`: the connection has ended. Std mutex: held to add one.
    tasks: Mutex<Option<JoinSet<()>>>,
}

/// Notifications that wait to be sent, one after the other.
#[derive(Default)]
struct Outbox {
    messages: VecDeque<(Vec<u8>, Option<Counting>)>,
    bytes: usize,
    /// A task is sending them.
    sending: bool,
}

impl Wire for RemoteWire {
    type Failure = RemoteFailure;
    type Sending<'a> = BoxFuture<'a, Result<(), RemoteFailure>>;

    fn rpc(&self) -> &Rpc {
        &self.rpc
    }

    fn send<'a>(
        self: &'a Arc<Self>,
        request: &'a OutgoingRequest<'a>,
        id: i64,
        _: &Arc<RequestProgress>,
        limits: CallLimits<'_>,
    ) -> Self::Sending<'a> {
        let message = self.rpc.writer.text(id, request);
        self.rpc.tap.sent(&message);
        let until = limits.until.unwrap_or_else(|| Instant::now() + limits.limit);
        // Boxed: it is large, and its caller may be kept for long.
        Box::pin(self.exchange(id, request, message.into(), until))
    }

    fn take_back(&self, _: &RequestProgress) -> bool {
        false
    }

    /// After what it was told before.
    fn tell(self: &Arc<Self>, message: Vec<u8>, counting: Option<Counting>) {
        let mut outbox = self.outbox.lock().unwrap_or_else(PoisonError::into_inner);
        if outbox.bytes + message.len() > MAX_OUTBOX {
            tracing::warn!(server = %self.rpc.sink.server, "takes no notifications: one is dropped");
            return;
        }
        outbox.bytes += message.len();
        outbox.messages.push_back((message, counting));
        if std::mem::replace(&mut outbox.sending, true) {
            return;
        }
        drop(outbox);
        let telling = self.clone();
        self.spawn(async move {
            loop {
                let next = {
                    let mut outbox = telling.outbox.lock().unwrap_or_else(PoisonError::into_inner);
                    let next = outbox.messages.pop_front();
                    outbox.bytes -= next.as_ref().map_or(0, |(message, _)| message.len());
                    outbox.sending = next.is_some();
                    next
                };
                let Some((message, _counting)) = next else { return telling.told.notify_waiters() };
                telling.deliver(message).await;
            }
        });
    }

    fn cancel(self: &Arc<Self>, id: i64) {
        // In the era of 2026-07-28 the end of its stream is the cancellation.
        if !self.is_modern() {
            self.tell(write::cancellation(id), None);
        }
    }

    fn asked(
        self: &Arc<Self>,
        id: Box<RawValue>,
        method: String,
        params: Option<Box<RawValue>>,
        origin: Origin,
    ) -> Result<(), StreamEnd> {
        let Rpc { health, sink, .. } = &self.rpc;
        if self.is_modern() {
            // Servers of this era ask in their results. There is no way to answer.
            let is_bearable = health.junk(&format!("a request of the server's: {method}"));
            return if is_bearable { Ok(()) } else { Err(StreamEnd::Garbage) };
        }
        let cost = ANSWER + id.get().len();
        if self.owed.fetch_add(cost, Relaxed) + cost > MAX_OWED {
            tracing::warn!(server = %sink.server, "asks faster than it takes answers: its connection is ended");
            return Err(StreamEnd::Closed);
        }
        let (wire, own) = (self.clone(), id.clone());
        sink.asked(id, method, params, origin.exchange, move |answer, counting| {
            let (body, replying) = (write::reply(&own, answer), wire.clone());
            wire.spawn(async move {
                let _counting = counting;
                replying.deliver(body).await;
                replying.owed.fetch_sub(cost, Relaxed);
            });
        });
        Ok(())
    }

    fn judged(&self, request: &OutgoingRequest<'_>, answer: RpcAnswer) -> Result<RpcAnswer, RemoteFailure> {
        match answer {
            RpcAnswer::Refused(error)
                if !opens(request) && session_end::is_end_answer(&error, self.has_session()) =>
            {
                Err(RemoteFailure::SessionEnded(format!("{} ({})", error.message, error.code.0)))
            }
            answer => Ok(answer),
        }
    }

    fn failure(&self, _: i64, _: &RequestProgress, why: Unanswered) -> RemoteFailure {
        match why {
            Unanswered::NotSent => RemoteFailure::NotSent,
            Unanswered::NotWritten(error) => RemoteFailure::Broken(error.reason),
            Unanswered::Ended => RemoteFailure::Ended,
            Unanswered::Timeout(limit) => RemoteFailure::Timeout(limit),
        }
    }
}

/// Whether a request opens the session: before that there is none that could be unknown to the server.
pub(super) fn opens(request: &OutgoingRequest<'_>) -> bool {
    matches!(request.method, "initialize" | "server/discover")
}

impl RemoteWire {
    pub(super) fn new(transport: RemoteTransport, http: RemoteHttp, rpc: Rpc) -> Arc<Self> {
        Arc::new(Self {
            transport,
            http,
            rpc,
            version: OnceLock::new(),
            session: OnceLock::new(),
            endpoint: OnceLock::new(),
            listening: AtomicBool::new(false),
            listened: (OnceLock::new(), SetOnce::new()),
            owed: AtomicUsize::new(0),
            outbox: Mutex::default(),
            told: Notify::new(),
            tasks: Mutex::new(Some(JoinSet::new())),
        })
    }

    pub(super) fn is_modern(&self) -> bool {
        self.transport == RemoteTransport::Streamable(Era::Modern)
    }

    pub(in crate::session) fn no_reply(&self, failure: RemoteFailure) -> NoReply {
        failure.into_no_reply(self.http.url())
    }

    /// Whether requests are under way.
    pub(in crate::session) fn is_busy(&self) -> bool {
        self.rpc.requests.is_busy()
    }

    /// Leaves out tools that this transport cannot call, as the protocol has it.
    pub(in crate::session) fn drop_unusable(&self, tools: &mut Vec<Tool>) {
        if !self.is_modern() {
            return;
        }
        tools.retain(|tool| match tool_headers::check(&tool.input_schema) {
            Ok(()) => true,
            Err(why) => {
                tracing::warn!(server = %self.rpc.sink.server, tool = tool.name, why, "the tool is left out");
                false
            }
        });
    }

    /// Ends the session; the server is told so within `limit`.
    pub(in crate::session) async fn close(&self, limit: Duration) {
        let until = Instant::now() + limit;
        if !self.rpc.requests.is_ended() {
            let _ = timeout_at(until, self.all_told()).await;
        }
        self.end();
        if self.session.get().is_some() {
            let _ = timeout_at(until, self.http.delete(self.session_headers())).await;
        }
    }

    /// Headers of every request: those of the session.
    pub(super) fn session_headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        self.add_session(&mut headers);
        headers
    }

    /// Headers of every message.
    pub(super) fn message_headers(&self) -> HeaderMap {
        let mut headers = message_headers();
        self.add_session(&mut headers);
        headers
    }

    fn add_session(&self, headers: &mut HeaderMap) {
        for (name, value) in [(PROTOCOL_VERSION, &self.version), (SESSION_ID, &self.session)] {
            if let Some(value) = value.get() {
                headers.insert(name, value.clone());
            }
        }
    }

    /// The end of the connection, from either side: nothing is sent or taken in any more.
    pub(in crate::session) fn end(&self) {
        self.rpc.requests.end();
        // Outside of the lock: what is dropped with a task may want to add one.
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(tasks);
        self.rpc.gone.cancel();
    }

    /// Whether the server has a session with us that it may forget.
    pub(super) fn has_session(&self) -> bool {
        self.session.get().is_some() || self.transport == RemoteTransport::Sse
    }

    /// Says something about the server that a person may want to change, in words that continue "server X ...". Once for
    /// all connections to it.
    pub(super) fn warn_once(&self, text: &str) {
        let Rpc { tap, .. } = &self.rpc;
        let (server, text) = (&tap.server, tap.secrets.hide(text));
        if self.http.warns_first() {
            tracing::warn!(%server, "{text}");
            (tap.tell)(server, SessionEvent::Warning { text });
        } else {
            tracing::debug!(%server, "{text}");
        }
    }

    /// Runs something beside the requests, up to the end of the connection.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        // Without a runtime nothing can be sent.
        let Ok(runtime) = Handle::try_current() else { return };
        if let Some(tasks) = &mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner) {
            while tasks.try_join_next().is_some() {}
            tasks.spawn_on(task, &runtime);
        }
    }

    /// Takes in a message, or a batch of them. Says whether the request whose stream it came on has its answer.
    pub(super) async fn take_in(
        self: &Arc<Self>,
        message: Vec<u8>,
        origin: Origin,
    ) -> Result<bool, RemoteFailure> {
        let Rpc { tap, health, .. } = &self.rpc;
        tap.received(&message);
        let mut answered = false;
        let mut ahead = VecDeque::from([message]);
        while let Some(message) = ahead.pop_front() {
            match receive::decoded(self, message).await.map_err(|end| self.broken(end))? {
                Decoded::Several(mended) => {
                    health.mended(&mended.faults);
                    ahead.extend(mended.messages);
                }
                decoded => {
                    answered |= receive::take_in(self, decoded, origin).map_err(|end| self.broken(end))?;
                }
            }
        }
        Ok(answered)
    }

    /// Ends the connection, which cannot go on.
    fn broken(&self, end: StreamEnd) -> RemoteFailure {
        self.rpc.health.ended(end);
        self.end();
        RemoteFailure::Ended
    }

    /// Waits until the server was told all that it is to be told: that a call was given up, say.
    async fn all_told(&self) {
        loop {
            let told = self.told.notified();
            if !self.outbox.lock().unwrap_or_else(PoisonError::into_inner).sending {
                return;
            }
            told.await;
        }
    }

    /// Sends what asks for no answer.
    async fn deliver(&self, message: Vec<u8>) {
        match timeout(ACCEPT_LIMIT, self.accepted(message)).await {
            Ok(Ok(())) => {}
            Ok(Err(failure)) => {
                let why = self.rpc.tap.secrets.hide(&failure.words(self.http.url()));
                tracing::debug!(server = %self.rpc.sink.server, why, "takes no message");
            }
            Err(_) => tracing::debug!(server = %self.rpc.sink.server, "does not take a message in time"),
        }
    }

    /// Sends what asks for no answer; the server has to accept it.
    pub(super) async fn accepted(&self, message: Vec<u8>) -> Result<(), RemoteFailure> {
        self.rpc.tap.sent(&message);
        let headers = self.message_headers();
        let body = Bytes::from(message);
        let mut answer = match self.endpoint.get() {
            Some(endpoint) => self.http.post_to(endpoint, headers, body).await?,
            None => self.http.post(headers, body).await?,
        };
        // A stream of events has no end.
        if answer.status.is_success() && content_type(&answer).as_deref() == Some(EVENTS) {
            return Ok(());
        }
        // Read to its end, which makes the connection free for the next request.
        let refused = StatusAnswer::read(&mut answer, 1).await.0;
        if answer.status.is_success() { Ok(()) } else { Err(RemoteFailure::Status(refused)) }
    }
}
