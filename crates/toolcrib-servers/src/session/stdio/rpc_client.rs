//! The JSON-RPC client over stdio: sends requests, and hands each answer to its caller.
//!
//! It replaces the SDK's service loop, which costs more than everything else about a call, and 30 KB a session.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use rmcp::model::ErrorData;
use serde::Serialize;
use serde_json::{Map, Value, value::RawValue};
use tokio::sync::{Notify, oneshot};

use super::queue::{Kind, Queue, QueuedLine};
use crate::session::{
    NEVER,
    progress::ProgressListener,
    result::reply::{CallLimits, CallReply, NoReply},
    rpc::{
        requests::{AnswerForm, AnswerKind, Listener, RequestProgress, RequestTable, RpcAnswer, Waiting},
        write::{self, CallArguments, CallParams, RequestWriter},
    },
    server_messages::{ClientAnswer, Counting},
};
use crate::{
    json_rpc::RawObject,
    process::{LinePosition, LineWriter, WriteError},
};

/// Replies up to this length, in bytes, count against the limit of those that wait.
const SHORT_REPLY: usize = 4096;

/// The requests of one connection. Clones share them.
#[derive(Clone)]
pub(in crate::session) struct RpcClient(Arc<RpcClientState>);

struct RpcClientState {
    writer: LineWriter,
    requests: RequestTable,
    request_writer: RequestWriter,
    /// The last request of the handshake.
    handshake: Mutex<Option<i64>>,
    /// Lines that cannot be written at once, for the transport to write. No channel: one takes 1.3 KB with nothing in
    /// it.
    queue: Mutex<Queue>,
    /// Lines in the queue.
    queued: AtomicUsize,
    /// Notified of each line in the queue.
    arrived: Notify,
}

impl RpcClient {
    /// Requests over `writer`.
    pub(super) fn new(writer: LineWriter) -> Self {
        Self(Arc::new(RpcClientState {
            writer,
            requests: RequestTable::new(),
            request_writer: RequestWriter::default(),
            handshake: Mutex::default(),
            queue: Mutex::default(),
            queued: AtomicUsize::new(0),
            arrived: Notify::new(),
        }))
    }

    /// The requests that wait for their answers.
    pub(super) fn requests(&self) -> &RequestTable {
        &self.0.requests
    }

    /// Sets what `_meta` of every request is to hold, once it is known.
    pub(in crate::session) fn set_meta(&self, meta: RawObject) {
        self.0.request_writer.set_meta(meta);
    }

    /// Calls `tool`. If the time is over, or the future is dropped, the server is told to cancel.
    pub(in crate::session) async fn call(
        &self,
        tool: &str,
        arguments: CallArguments<'_>,
        call_limits: CallLimits<'_>,
        listener: Option<&ProgressListener>,
    ) -> Result<CallReply, NoReply> {
        let params = CallParams { name: tool, arguments };
        let line = |id| self.0.request_writer.request(id, "tools/call", &params);
        let listener = listener.cloned().map(Listener::Decoded);
        Ok(match self.send(line, call_limits, Sending { listener, ..Sending::default() }).await? {
            RpcAnswer::Plain(result) => CallReply::Result(result),
            RpcAnswer::Result(result) => CallReply::decoded(&result),
            RpcAnswer::Refused(error) => CallReply::Refused(error),
        })
    }

    /// Asks for anything else. If the time is over, or the future is dropped, the server is told to cancel.
    pub(in crate::session) async fn ask(
        &self,
        method: &str,
        params: &Map<String, Value>,
        limit: Duration,
    ) -> Result<RpcAnswer, NoReply> {
        let line = |id| self.0.request_writer.request(id, method, params);
        self.send(line, CallLimits { limit, ceiling: limit, notice: None }, Sending::default()).await
    }

    /// Sends a request of somebody else's: `params` without `_meta`, and `meta`, whose members count before our own. The
    /// answer is as it was written.
    pub(in crate::session) async fn forward(
        &self,
        method: &str,
        (params, meta): (&RawObject, &RawObject),
        call_limits: CallLimits<'_>,
        (form, listener, exchange): (AnswerForm, Option<Listener>, u64),
    ) -> Result<RpcAnswer, NoReply> {
        let line = |id| self.0.request_writer.forwarded(id, method, (params, meta));
        let exchange = Some(exchange);
        self.send(line, call_limits, Sending { listener, form, exchange, uncancelled: false }).await
    }

    /// Asks before both sides know what they speak: `params` are all that is said, nothing is cancelled, and an
    /// error without an id is the answer to the last such request, as of servers that cannot read it.
    pub(in crate::session) async fn handshake_request(
        &self,
        method: &str,
        params: &impl Serialize,
    ) -> Result<RpcAnswer, NoReply> {
        let line = |id| {
            *self.handshake() = Some(id);
            write::bare_request(id, method, params)
        };
        let sending = Sending { uncancelled: true, ..Sending::default() };
        self.send(line, CallLimits { limit: NEVER, ceiling: NEVER, notice: None }, sending).await
    }

    /// Sends what asks for no answer.
    pub(in crate::session) fn tell(
        &self,
        method: &str,
        params: Option<&RawValue>,
        counting: Option<Counting>,
    ) {
        let kind = Kind::Notification(LinePosition::default());
        self.write(ended(write::notification(method, params)), kind, counting);
    }

    /// Answers a request of the server's.
    pub(super) fn reply(&self, id: &RawValue, answer: ClientAnswer, counting: Option<Counting>) {
        let line = ended(write::reply(id, answer));
        // Few long ones are under way at once: each has a client behind it that was asked.
        let is_long = line.len() > SHORT_REPLY;
        let position = LinePosition::default();
        let kind = if is_long { Kind::Notification(position) } else { Kind::Reply(position) };
        self.write(line, kind, counting);
    }

    async fn send(
        &self,
        line: impl FnOnce(i64) -> Vec<u8>,
        call_limits: CallLimits<'_>,
        Sending { listener, form, exchange, uncancelled }: Sending,
    ) -> Result<RpcAnswer, NoReply> {
        let (answer, answered) = oneshot::channel();
        let course = Arc::<RequestProgress>::default();
        let waiting = Waiting { answer, course: course.clone(), listener, form, exchange };
        let Some(id) = self.0.requests.open(waiting) else {
            return Err(NoReply::NotSent);
        };
        let mut request = OpenRequest { client: self, id, queued: None, cancel: !uncancelled };
        // Our future may be dropped at any time, and half a line would be the end of the stream. What takes no
        // waiting is written here, the rest by the transport.
        request.queued = self.write(ended(line(id)), Kind::Request(id, course.clone()), None);
        let may_have_left = || self.0.writer.may_have_left(&course.position, head(id).as_bytes());
        let outcome = self.0.requests.within_limits(answered, &course, call_limits).await;
        match outcome.map_err(NoReply::Timeout)? {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(WriteError { reason, .. })) => {
                Err(NoReply::NotWritten(WriteError { may_have_left: may_have_left(), reason }))
            }
            Err(_) => Err(NoReply::Ended { never_left: !may_have_left() }),
        }
    }

    /// Writes a line now if nothing else waits and that takes no waiting, or else leaves it to the transport: then it
    /// has the place that is returned.
    fn write(&self, line: Vec<u8>, kind: Kind, counting: Option<Counting>) -> Option<u64> {
        if self.0.queued.load(Ordering::Relaxed) == 0 && self.0.writer.write_now(&line, kind.position()) {
            return None;
        }
        self.write_later(QueuedLine { line, kind, counting })
    }

    /// Leaves a line to the transport; says which place in the queue it has.
    fn write_later(&self, later: QueuedLine) -> Option<u64> {
        let mut queue = self.queue();
        let place = queue.push(later);
        self.0.queued.store(queue.lines.len(), Ordering::Relaxed);
        drop(queue);
        self.0.arrived.notify_one();
        place
    }

    /// Removes a line from the queue whose caller has stopped waiting.
    fn take_back(&self, place: u64) -> bool {
        let mut queue = self.queue();
        let later = queue.take(place);
        self.0.queued.store(queue.lines.len(), Ordering::Relaxed);
        later.is_some()
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what cannot be written at once, until that is not possible any more. Safe to cancel, but for a line that
    /// is written in part.
    pub(super) async fn write_queue(self) {
        let writer = &self.0.writer;
        let writing = async {
            loop {
                while self.0.queued.load(Ordering::Relaxed) == 0 {
                    self.0.arrived.notified().await;
                }
                let ready = writer.ready().await;
                let Some((QueuedLine { line, kind, counting: _counting }, begun)) =
                    self.begin_next(ready.is_err())
                else {
                    continue;
                };
                let written = match ready {
                    Ok(()) => writer.write_from(&line, begun, kind.position()).await,
                    Err(error) => Err(error),
                };
                if let Err(error) = written {
                    if let Kind::Request(id, _) = kind {
                        self.0.requests.answer(id, Err(error));
                    }
                    return;
                }
            }
        };
        tokio::select! {
            biased;
            () = writing => {}
            () = writer.closed() => {}
        }
        writer.close();
    }

    /// The first line of the queue, and how many bytes of it were written. It stays in the queue, where it can be taken
    /// back, until there is room for a part of it, or none for anything any more.
    fn begin_next(&self, closed: bool) -> Option<(QueuedLine, usize)> {
        let mut queue = self.queue();
        let (place, later) = queue.lines.first_key_value()?;
        let (place, begun) = match closed {
            true => (*place, 0),
            false => (*place, self.0.writer.begin(&later.line, later.kind.position())?),
        };
        let later = queue.take(place)?;
        self.0.queued.store(queue.lines.len(), Ordering::Relaxed);
        Some((later, begun))
    }

    /// Takes in an error that names no request: it is for a handshake that waits. False: none does.
    pub(super) fn refuse_handshake(&self, error: &ErrorData) -> bool {
        let Some(id) = self.handshake().take() else { return false };
        self.0.requests.answer(id, Ok(RpcAnswer::Refused(error.clone()))) == AnswerKind::Expected
    }

    /// The connection has ended: all waiting callers get an error.
    pub(super) fn end(&self) {
        self.0.requests.end();
        self.queue().end();
    }

    /// Whether the connection has ended.
    pub(in crate::session) fn is_ended(&self) -> bool {
        self.0.requests.is_ended()
    }

    fn handshake(&self) -> MutexGuard<'_, Option<i64>> {
        self.0.handshake.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A message as a line.
fn ended(mut message: Vec<u8>) -> Vec<u8> {
    message.push(b'\n');
    message
}

/// How a request is sent.
struct Sending {
    listener: Option<Listener>,
    form: AnswerForm,
    /// The number of a forwarded request.
    exchange: Option<u64>,
    /// The server is not told when it is given up.
    uncancelled: bool,
}

impl Default for Sending {
    fn default() -> Self {
        Self { listener: None, form: AnswerForm::Decoded, exchange: None, uncancelled: false }
    }
}

/// The beginning of the line of a request, which no other line has.
fn head(id: i64) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"#)
}

/// A request under way. Dropped before its answer, by its clock or by its caller, it is not sent any more, or the
/// server is told.
struct OpenRequest<'a> {
    client: &'a RpcClient,
    id: i64,
    /// Its place in the queue, if it was put there.
    queued: Option<u64>,
    cancel: bool,
}

impl Drop for OpenRequest<'_> {
    fn drop(&mut self) {
        let unsent = self.queued.is_some_and(|place| self.client.take_back(place));
        if self.client.0.requests.give_up(self.id, !unsent) && !unsent && self.cancel {
            // In its turn: not before the request.
            let line = ended(write::cancellation(self.id));
            let kind = Kind::Cancellation(LinePosition::default());
            self.client.write_later(QueuedLine { line, kind, counting: None });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::rpc::requests::FIRST;

    #[tokio::test]
    async fn each_request_has_one_answer() {
        let client = RpcClient::new(LineWriter::new(tokio::io::sink()));
        let pong = || Ok(RpcAnswer::Refused(ErrorData::internal_error("x", None)));
        assert_eq!(client.requests().answer(FIRST, pong()), AnswerKind::Unasked);
        let (asking, other) = (client.clone(), client.clone());
        let params = Map::new();
        let asked = tokio::join!(asking.ask("ping", &params, NEVER), async {
            tokio::task::yield_now().await;
            (other.requests().answer(FIRST, pong()), other.requests().answer(FIRST, pong()))
        });
        assert!(asked.0.is_ok());
        assert_eq!(asked.1, (AnswerKind::Expected, AnswerKind::Unasked));
        let limit = Duration::from_millis(1);
        assert!(client.ask("ping", &params, limit).await.is_err());
        assert_eq!(client.requests().answer(FIRST + 1, pong()), AnswerKind::Unasked, "it was not sent");
        tokio::select! {
            biased;
            () = client.clone().write_queue() => unreachable!("the sink takes all"),
            answer = client.ask("ping", &params, limit) => assert!(answer.is_err()),
        }
        assert_eq!(client.requests().answer(FIRST + 3, pong()), AnswerKind::Unasked, "that never was");
        assert_eq!(client.requests().answer(FIRST + 2, pong()), AnswerKind::Late);
        assert_eq!(client.requests().answer(FIRST + 2, pong()), AnswerKind::Unasked);
        client.end();
        assert!(matches!(client.ask("ping", &params, NEVER).await, Err(NoReply::NotSent)));
    }
}
