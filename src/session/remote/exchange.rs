//! One request over HTTP: the message that is sent, and the streams on which its answer may come.
//!
//! It runs in the task of its caller. If that gives up, its stream is closed: in the era of 2026-07-28 this is the
//! cancellation; before, the server is told by a notification.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use futures_util::future::BoxFuture;
use hyper::{HeaderMap, StatusCode, body::Bytes, header::HeaderValue};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep, timeout, timeout_at},
};

use super::{
    connection::{Connection, Origin, Wire},
    error::RemoteFailure,
    events::{EventStream, MAX_MESSAGE, StreamEnd, is_message},
    http::{EVENTS, HttpFailure, JSON, LAST_EVENT_ID, SESSION_ID, content_type, error_body, shown, whole},
};
use crate::{
    http::HttpAnswer,
    session::{
        connect::handshake::Era,
        result::reply::CallLimits,
        rpc::{
            decode,
            requests::{AnswerForm, Listener, RequestProgress, RpcAnswer, Waiting},
            write,
        },
    },
};

/// How long the end of an answer may come after its message.
const END_LIMIT: Duration = Duration::from_secs(1);
/// How often a stream that ended too early is asked for in a row without an event.
const MAX_RESUMES: u32 = 10;
/// The pause before that, if the server names none: it doubles, up to a limit.
const RESUME_PAUSE: Duration = Duration::from_millis(500);
const MAX_RESUME_PAUSE: Duration = Duration::from_secs(30);
/// The least pauses, of the stream of a request and of the one that belongs to none: a server that says 0 is not asked
/// without end.
const LEAST_PAUSE: Duration = Duration::from_millis(20);
const LEAST_LISTEN_PAUSE: Duration = Duration::from_millis(500);
/// How long the head of a stream may take that belongs to no request: some servers send it with the first event.
const HEAD_LIMIT: Duration = Duration::from_secs(300);
/// How long requests wait for that head: for a server that sends it with the first event they must not wait.
const LISTENING_LIMIT: Duration = Duration::from_secs(2);
/// A stream that stood for so long has not failed.
const STOOD: Duration = Duration::from_secs(10);

/// A request to be sent.
pub(super) struct Outgoing<'a> {
    pub(super) method: &'a str,
    /// Headers of its own.
    pub(super) headers: HeaderMap,
    /// It is sent once, whatever comes of it.
    pub(super) once: bool,
    /// The server is told when it is given up.
    pub(super) cancel: bool,
    pub(super) exchange: Option<u64>,
    pub(super) listener: Option<Listener>,
    pub(super) form: AnswerForm,
}

impl<'a> Outgoing<'a> {
    /// A question, which may be asked again.
    pub(super) fn question(method: &'a str) -> Self {
        let (headers, exchange, listener) = Default::default();
        Self { method, headers, once: false, cancel: true, exchange, listener, form: AnswerForm::Decoded }
    }
}

/// A request under way. Dropped before its answer, the server is told.
struct OpenRequest<'a> {
    connection: &'a Arc<Connection>,
    id: i64,
    cancel: bool,
}

impl Drop for OpenRequest<'_> {
    fn drop(&mut self) {
        let Self { connection, id, cancel } = self;
        if connection.requests.give_up(*id, true) && *cancel && !connection.is_modern() {
            connection.tell(write::cancellation(*id));
        }
    }
}

/// How the reading of a stream ended.
enum Read {
    /// With the answer.
    Answered,
    /// Without it.
    Ended,
}

/// Where a stream goes on.
#[derive(Default)]
struct Resumption {
    last_id: Option<String>,
    /// As the server says.
    retry: Option<Duration>,
    /// Times that it was asked for without an event.
    fruitless: u32,
}

impl Resumption {
    /// Takes over what a stream has said.
    fn learn(&mut self, stream: &EventStream) {
        if let Some(id) = stream.last_id() {
            self.last_id = Some(id.to_owned());
        }
        self.retry = stream.retry().or(self.retry);
    }

    /// Waits until the stream may be asked for again. `false`: it was asked for too often.
    async fn pause(&mut self, least: Duration) -> bool {
        self.fruitless += 1;
        let own = RESUME_PAUSE.saturating_mul(1 << (self.fruitless - 1).min(10)).min(MAX_RESUME_PAUSE);
        sleep(self.retry.unwrap_or(own).max(least)).await;
        self.fruitless <= MAX_RESUMES
    }
}

impl Connection {
    /// Sends a request, and gives its answer. `text` writes it under its id.
    pub(super) async fn request(
        self: &Arc<Self>,
        outgoing: Outgoing<'_>,
        text: impl FnOnce(i64) -> Vec<u8>,
        call_limits: CallLimits<'_>,
    ) -> Result<RpcAnswer, RemoteFailure> {
        let (answer, mut answered) = oneshot::channel();
        let course = Arc::<RequestProgress>::default();
        let (listener, form) = (outgoing.listener.clone(), outgoing.form);
        let exchange = outgoing.exchange;
        let waiting = Waiting { answer, course: course.clone(), listener, form, exchange };
        let Some(id) = self.requests.open(waiting) else { return Err(RemoteFailure::NotSent) };
        let _open = OpenRequest { connection: self, id, cancel: outgoing.cancel };
        let message = text(id);
        self.sent(&message);
        // Boxed: it is large, and its caller may be kept for long.
        let exchange: BoxFuture<'_, _> = Box::pin(self.exchange(id, outgoing, message.into()));
        let outcome = async {
            let answer = tokio::select! {
                biased;
                // On another stream.
                answer = &mut answered => answer,
                ended = exchange => {
                    ended?;
                    answered.await
                }
            };
            match answer {
                Ok(Ok(answer)) => Ok(answer),
                Ok(Err(error)) => Err(RemoteFailure::Broken(error.reason)),
                Err(_) => Err(RemoteFailure::Ended),
            }
        };
        let outcome = self.requests.within_limits(outcome, &course, call_limits).await;
        outcome.unwrap_or_else(|limit| Err(RemoteFailure::Timeout(limit)))
    }

    /// Sends a request and reads what belongs to it, up to its answer. If that does not come with it, it comes on another
    /// stream.
    async fn exchange(
        self: &Arc<Self>,
        id: i64,
        outgoing: Outgoing<'_>,
        body: Bytes,
    ) -> Result<(), RemoteFailure> {
        let origin = Origin { request: Some(id), exchange: outgoing.exchange };
        if outgoing.once || outgoing.exchange.is_some() {
            self.can_be_asked().await;
        }
        let mut headers = self.message_headers();
        headers.extend(outgoing.headers);
        let mut answer = match self.endpoint.get() {
            Some(endpoint) => self.http.post_to(endpoint, headers, body).await?,
            None if outgoing.once => self.http.post_once(headers, body).await?,
            None => self.http.post(headers, body).await?,
        };
        let status = answer.status;
        if status == StatusCode::NOT_FOUND && self.session.get().is_some() {
            return Err(self.expire());
        }
        let kind = content_type(&answer);
        if !status.is_success() {
            return self.refused(&mut answer, id).await;
        }
        if self.wire == Wire::Sse {
            // What it says beside that is for nobody.
            let _ = error_body(&mut answer).await;
            return Ok(());
        }
        if self.wire == Wire::Streamable(Era::Legacy)
            && outgoing.method == "initialize"
            && let Some(session) = answer.headers.get(SESSION_ID)
        {
            let _ = self.session.set(session.clone());
        }
        match (status, kind.as_deref()) {
            (StatusCode::ACCEPTED | StatusCode::NO_CONTENT, _) => {
                // It may come on the stream of what belongs to no request.
                if !self.listening.load(Relaxed) {
                    self.unusable(id, format!("HTTP {status}, without an answer"));
                }
                Ok(())
            }
            (_, Some(EVENTS)) => self.read_events(answer, origin).await,
            (_, Some(JSON) | None) => self.read_body(&mut answer, id, origin).await,
            (_, Some(kind)) => {
                let told = shown(&error_body(&mut answer).await, &answer.headers);
                self.unusable(id, format!("it is `{kind}` in place of JSON or events: {told}"));
                Ok(())
            }
        }
    }

    /// Takes in an answer that is no success: an error of the protocol, if it holds one.
    async fn refused(self: &Arc<Self>, answer: &mut HttpAnswer, id: i64) -> Result<(), RemoteFailure> {
        let body = error_body(answer).await;
        let says_itself = !matches!(
            answer.status,
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS
        );
        // Servers that do not know the request name another one, or none.
        if let Some(error) = decode::error_in(&body).filter(|_| says_itself) {
            self.received(&body);
            self.requests.answer(id, Ok(RpcAnswer::Refused(error)));
            return Ok(());
        }
        Err(RemoteFailure::Status(answer.status, shown(&body, &answer.headers)))
    }

    async fn read_body(
        self: &Arc<Self>,
        answer: &mut HttpAnswer,
        id: i64,
        origin: Origin,
    ) -> Result<(), RemoteFailure> {
        let Some(body) = whole(answer, MAX_MESSAGE).await? else {
            self.too_large(origin);
            return Ok(());
        };
        let told = shown(&body[..body.len().min(1000)], &answer.headers);
        if !self.take_in(body, origin).await? {
            let told = if told.is_empty() { "<empty>" } else { &told };
            self.unusable(id, format!("it is not the answer to the request: {told}"));
        }
        Ok(())
    }

    /// Gives a request an error of ours in place of an answer that cannot be used. The session goes on.
    fn unusable(&self, id: i64, why: String) {
        self.requests.answer(id, Ok(RpcAnswer::Refused(decode::unusable_answer(why))));
    }

    fn too_large(&self, origin: Origin) {
        if let Some(id) = origin.request {
            self.unusable(id, format!("it has more than {MAX_MESSAGE} bytes"));
        }
    }

    /// Reads the events of a request up to its answer, and goes on where they broke off.
    async fn read_events(self: &Arc<Self>, answer: HttpAnswer, origin: Origin) -> Result<(), RemoteFailure> {
        let mut stream = EventStream::new(answer);
        let mut resumption = Resumption::default();
        loop {
            match self.read(&mut stream, origin, &mut resumption).await? {
                Read::Answered => {
                    self.read_rest(stream, origin);
                    return Ok(());
                }
                Read::Ended => stream = self.resumed(&mut resumption).await?,
            }
        }
    }

    /// Reads events up to the answer of a request, or to their end.
    async fn read(
        self: &Arc<Self>,
        stream: &mut EventStream,
        origin: Origin,
        resumption: &mut Resumption,
    ) -> Result<Read, RemoteFailure> {
        loop {
            let event = match stream.next().await {
                Ok(Some(event)) => event,
                Ok(None) => break,
                Err(StreamEnd::TooLarge) => {
                    self.too_large(origin);
                    return Ok(Read::Answered);
                }
                Err(StreamEnd::Lost(error)) => {
                    resumption.learn(stream);
                    // There is nothing to go on from.
                    if origin.request.is_some() && (resumption.last_id.is_none() || self.is_modern()) {
                        return Err(error.into());
                    }
                    break;
                }
            };
            resumption.fruitless = 0;
            if is_message(&event) && self.take_in(event.data.into_bytes(), origin).await? {
                return Ok(Read::Answered);
            }
        }
        resumption.learn(stream);
        Ok(Read::Ended)
    }

    /// Reads on behind an answer, so that its connection can be used again.
    fn read_rest(self: &Arc<Self>, mut stream: EventStream, origin: Origin) {
        if stream.is_over() || tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let connection = self.clone();
        let mut rests = self.http.rests();
        while rests.try_join_next().is_some() {}
        rests.spawn(async move {
            let _ =
                timeout(END_LIMIT, connection.read(&mut stream, origin, &mut Resumption::default())).await;
        });
    }

    /// The stream of a request that ended without its answer, from there on.
    async fn resumed(self: &Arc<Self>, resumption: &mut Resumption) -> Result<EventStream, RemoteFailure> {
        let broken =
            |what: &str| RemoteFailure::Broken(format!("the stream of its answer ended too early{what}"));
        if self.is_modern() || resumption.last_id.is_none() {
            return Err(broken(""));
        }
        let mut last = None;
        while resumption.pause(LEAST_PAUSE).await {
            match self.events_after(resumption.last_id.as_deref()).await {
                Ok(stream) => return Ok(stream),
                Err(failure) if is_passing(&failure) => last = Some(failure),
                Err(RemoteFailure::Status(status, _)) => {
                    return Err(broken(&format!(", and the server does not resume it: HTTP {status}")));
                }
                Err(failure) => return Err(failure),
            }
        }
        Err(last.unwrap_or_else(|| broken("")))
    }

    /// The stream of what belongs to no request, or the rest of any stream.
    async fn events_after(&self, last_id: Option<&str>) -> Result<EventStream, RemoteFailure> {
        let mut headers = self.session_headers();
        if let Some(id) = last_id {
            let value = HeaderValue::try_from(id).map_err(|_| {
                RemoteFailure::Broken("the id of its last event cannot be sent back".to_owned())
            })?;
            headers.insert(LAST_EVENT_ID, value);
        }
        let (mut answer, _) = self.http.get(headers).await?;
        if answer.status == StatusCode::NOT_FOUND && self.session.get().is_some() {
            return Err(self.expire());
        }
        if answer.status.is_success() && content_type(&answer).as_deref() == Some(EVENTS) {
            return Ok(EventStream::new(answer));
        }
        let told = error_body(&mut answer).await;
        Err(RemoteFailure::Status(answer.status, shown(&told, &answer.headers)))
    }

    /// Waits until the stream of what belongs to no request is open, or known not to be: a server may ask there for what a
    /// call needs.
    async fn can_be_asked(&self) {
        let (since, answered) = &self.listened;
        if let Some(since) = since.get()
            && !answered.initialized()
            && timeout_at(*since + LISTENING_LIMIT, answered.wait()).await.is_err()
        {
            let _ = answered.set(());
        }
    }

    /// Listens to what belongs to no request, for as long as the server has a stream for that.
    pub(super) async fn listen(self: Arc<Self>) {
        let set_listening = |on| self.listening.store(on, Relaxed);
        let mut resumption = Resumption::default();
        set_listening(true);
        loop {
            let began = Instant::now();
            let stream = timeout(HEAD_LIMIT, self.events_after(resumption.last_id.as_deref())).await;
            let _ = self.listened.1.set(());
            match stream {
                Ok(Ok(mut stream)) => {
                    let Ok(Read::Ended) = self.read(&mut stream, Origin::default(), &mut resumption).await
                    else {
                        break;
                    };
                }
                Ok(Err(failure)) if !is_passing(&failure) => break,
                Ok(Err(_)) | Err(_) => {}
            }
            if began.elapsed() >= STOOD {
                resumption.fruitless = 0;
            }
            if !resumption.pause(LEAST_LISTEN_PAUSE).await {
                break;
            }
        }
        set_listening(false);
    }
}

/// Whether it may be otherwise a moment later.
fn is_passing(failure: &RemoteFailure) -> bool {
    match failure {
        RemoteFailure::Http(HttpFailure::Unanswered(_)) => true,
        RemoteFailure::Status(status, _) => {
            *status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error()
        }
        _ => false,
    }
}
