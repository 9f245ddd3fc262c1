//! One connection to a remote server: what it is made of, what comes in on any of its streams, and what is sent beside
//! requests.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use hyper::{HeaderMap, body::Bytes, header::HeaderValue};
use serde_json::value::RawValue;
use tokio::{
    runtime::Handle,
    sync::{Notify, SetOnce},
    task::JoinSet,
    time::{Instant, timeout},
};
use url::Url;

use super::{
    error::{RemoteFailure, StatusAnswer},
    http::{EVENTS, PROTOCOL_VERSION, RemoteHttp, SESSION_ID, content_type, message_headers},
};
use crate::{
    cancel::CancellationToken,
    session::{
        SessionEvent,
        connect::handshake::Era,
        recovery::health::{self, Health},
        result::truncate::Truncator,
        rpc::{
            decode::{self, Decoded},
            requests::{AnswerKind, RequestTable, RpcAnswer},
            write::{self, RequestWriter},
        },
        server_messages::{Counting, MessageSink},
        wire_log::WireLog,
    },
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
pub(super) enum Wire {
    /// Streamable HTTP of one of the two eras.
    Streamable(Era),
    /// The transport of 2024-11-05: answers come on one stream of events, which names the address for messages.
    Sse,
}

/// One connection. Requests that are under way share it, and the tasks beside them.
pub(super) struct Connection {
    pub(super) wire: Wire,
    pub(super) http: RemoteHttp,
    pub(super) requests: RequestTable,
    pub(super) writer: RequestWriter,
    pub(super) sink: MessageSink,
    pub(super) gone: CancellationToken,
    /// Headers that every request has, once they are known: the protocol version, and the session below.
    pub(super) version: OnceLock<HeaderValue>,
    pub(super) session: OnceLock<HeaderValue>,
    /// Where messages go, if not to the address of the server.
    pub(super) endpoint: OnceLock<Url>,
    /// There is a stream for what belongs to no request.
    pub(super) listening: AtomicBool,
    /// When that stream was asked for, and whether the server has answered since.
    pub(super) listened: (OnceLock<Instant>, SetOnce<()>),
    pub(super) health: Health,
    tap: WireLog,
    truncator: Truncator,
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

/// Where a message came in.
#[derive(Clone, Copy, Default)]
pub(super) struct Origin {
    /// The request of ours whose stream it came on.
    pub(super) request: Option<i64>,
    /// The number of that request, if it is a forwarded one.
    pub(super) exchange: Option<u64>,
}

/// Parts that a connection is built from.
#[derive(Clone)]
pub(super) struct ConnectionParts {
    pub(super) http: RemoteHttp,
    pub(super) health: Health,
    pub(super) truncator: Truncator,
    pub(super) tap: WireLog,
    pub(super) messages: Option<Arc<dyn crate::session::ServerMessages>>,
}

impl Connection {
    pub(super) fn new(wire: Wire, parts: ConnectionParts) -> Arc<Self> {
        let ConnectionParts { http, health, truncator, tap, messages } = parts;
        let sink = MessageSink { server: tap.server.clone(), messages, changed: Arc::default() };
        Arc::new(Self {
            wire,
            http,
            requests: RequestTable::new(),
            writer: RequestWriter::default(),
            sink,
            gone: CancellationToken::new(),
            version: OnceLock::new(),
            session: OnceLock::new(),
            endpoint: OnceLock::new(),
            listening: AtomicBool::new(false),
            listened: (OnceLock::new(), SetOnce::new()),
            health,
            tap,
            truncator,
            owed: AtomicUsize::new(0),
            outbox: Mutex::default(),
            told: Notify::new(),
            tasks: Mutex::new(Some(JoinSet::new())),
        })
    }

    pub(super) fn is_modern(&self) -> bool {
        self.wire == Wire::Streamable(Era::Modern)
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

    /// Records a message that is being sent.
    pub(super) fn sent(&self, message: &[u8]) {
        self.tap.sent(message);
    }

    /// Records a message that has come.
    pub(super) fn received(&self, message: &[u8]) {
        self.tap.received(message);
    }

    /// The end of the connection, from either side: nothing is sent or taken in any more.
    pub(super) fn end(&self) {
        self.requests.end();
        // Outside of the lock: what is dropped with a task may want to add one.
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(tasks);
        self.gone.cancel();
    }

    /// Whether the server has a session with us that it may forget.
    pub(super) fn has_session(&self) -> bool {
        self.session.get().is_some() || self.wire == Wire::Sse
    }

    /// Says something about the server that a person may want to change, in words that continue "server X ...". Once for
    /// all connections to it.
    pub(super) fn warn_once(&self, text: &str) {
        let (server, text) = (&self.sink.server, self.tap.secrets.hide(text));
        if self.http.warns_first() {
            tracing::warn!(%server, "{text}");
            (self.tap.tell)(server, SessionEvent::Warning { text });
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
        self.tap.received(&message);
        let mut answered = false;
        let mut ahead = VecDeque::from([message]);
        while let Some(message) = ahead.pop_front() {
            match self.decoded(message).await? {
                Decoded::Several(mended) => {
                    self.health.mended(&mended.faults);
                    ahead.extend(mended.messages);
                }
                decoded => answered |= self.take_one(decoded, origin)?,
            }
        }
        Ok(answered)
    }

    fn take_one(self: &Arc<Self>, decoded: Decoded, origin: Origin) -> Result<bool, RemoteFailure> {
        match decoded {
            Decoded::Answer(id, answer) => match self.sink.answered(&self.requests, id, answer) {
                AnswerKind::Expected => {
                    self.health.answered();
                    return Ok(origin.request == Some(id));
                }
                AnswerKind::Late => {}
                AnswerKind::Unasked => self.bear(self.health.unasked(), health::StreamEnd::Unasked)?,
            },
            Decoded::Stray => self.bear(self.health.unasked(), health::StreamEnd::Unasked)?,
            Decoded::Junk(text) => self.bear(self.health.junk(&text), health::StreamEnd::Garbage)?,
            // An error that names no request is for the one that it came in answer to.
            Decoded::Unnamed(error) => match origin.request {
                Some(id) => {
                    let answer = Ok(RpcAnswer::Refused(error));
                    return Ok(self.requests.answer(id, answer) == AnswerKind::Expected);
                }
                None => self.health.unnamed(&error),
            },
            Decoded::Request(id, method, params) => self.asked(id, method, params, origin)?,
            Decoded::Notification(method, params) => {
                self.sink.notified(&self.requests, &method, params.as_deref(), origin.exchange);
            }
            Decoded::Blank | Decoded::Several(_) => {}
        }
        Ok(false)
    }

    async fn decoded(self: &Arc<Self>, message: Vec<u8>) -> Result<Decoded, RemoteFailure> {
        let wants_raw = self.requests.wants_raw();
        if message.len() <= decode::short_limit(&self.truncator) {
            return Ok(if wants_raw { decode::undecoded(&message) } else { decode::short(&message) });
        }
        if !wants_raw && let Some(decoded) = decode::large(&message, &self.truncator) {
            return Ok(decoded);
        }
        let connection = self.clone();
        let work = move || {
            decode::long(&message, &connection.truncator, wants_raw, |id| connection.requests.form(id))
        };
        // It writes a file, and no task has to wait for it.
        tokio::task::spawn_blocking(work).await.map_err(|_| RemoteFailure::Ended)
    }

    /// Ends the connection if the server is not to be borne any more.
    fn bear(&self, bearable: bool, end: health::StreamEnd) -> Result<(), RemoteFailure> {
        if bearable {
            return Ok(());
        }
        self.health.ended(end);
        self.end();
        Err(RemoteFailure::Ended)
    }

    /// Has a request of the server answered.
    fn asked(
        self: &Arc<Self>,
        id: Box<RawValue>,
        method: String,
        params: Option<Box<RawValue>>,
        origin: Origin,
    ) -> Result<(), RemoteFailure> {
        if self.is_modern() {
            // Servers of this era ask in their results. There is no way to answer.
            let text = format!("a request of the server's: {method}");
            return self.bear(self.health.junk(&text), health::StreamEnd::Garbage);
        }
        let cost = ANSWER + id.get().len();
        if self.owed.fetch_add(cost, Relaxed) + cost > MAX_OWED {
            tracing::warn!(server = %self.sink.server, "asks faster than it takes answers: its connection is ended");
            self.end();
            return Err(RemoteFailure::Ended);
        }
        let (connection, own) = (self.clone(), id.clone());
        self.sink.asked(id, method, params, origin.exchange, move |answer, counting| {
            let (body, replying) = (write::reply(&own, answer), connection.clone());
            connection.spawn(async move {
                let _counting = counting;
                replying.deliver(body).await;
                replying.owed.fetch_sub(cost, Relaxed);
            });
        });
        Ok(())
    }

    /// Tells the server what asks for no answer, after what it was told before.
    pub(super) fn tell(self: &Arc<Self>, message: Vec<u8>, counting: Option<Counting>) {
        let mut outbox = self.outbox.lock().unwrap_or_else(PoisonError::into_inner);
        if outbox.bytes + message.len() > MAX_OUTBOX {
            tracing::warn!(server = %self.sink.server, "takes no notifications: one is dropped");
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

    /// Waits until the server was told all that it is to be told: that a call was given up, say.
    pub(super) async fn all_told(&self) {
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
                let why = self.tap.secrets.hide(&failure.words(self.http.url()));
                tracing::debug!(server = %self.sink.server, why, "takes no message");
            }
            Err(_) => tracing::debug!(server = %self.sink.server, "does not take a message in time"),
        }
    }

    /// Sends what asks for no answer; the server has to accept it.
    pub(super) async fn accepted(&self, message: Vec<u8>) -> Result<(), RemoteFailure> {
        self.sent(&message);
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
