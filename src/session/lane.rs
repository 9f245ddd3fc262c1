//! Requests over lines, and their answers: whoever asks waits here for what the reader of the stream brings.
//!
//! In place of the SDK's service loop, which costs more than everything else about a call, and 30 KB a session.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rmcp::model::{ErrorData, RequestMetaObject};
use serde::Serialize;
use serde_json::{Map, Value, value::RawValue};
use tokio::{
    sync::{Notify, oneshot},
    time::{Instant, timeout_at},
};

use super::{
    NEVER,
    progress::{Progress, ProgressListener},
    reply::{NoReply, Patience, Reply},
};
use crate::{
    process::{LineWriter, WriteError},
    tool::ToolResult,
};

/// Ids are from 1 on, since some servers take 0 for none, to the last one of 32 bits, since some read no more.
const FIRST: i64 = 1;
const LAST: i64 = i32::MAX as i64;

/// Requests that were given up and may still be answered, the last ones.
pub(super) const REMEMBERED: usize = 1024;

/// The requests of one connection. Clones share them.
#[derive(Clone)]
pub(super) struct Lane(Arc<Shared>);

struct Shared {
    writer: LineWriter,
    /// What `_meta` of every request begins with, as JSON: members, each with its comma behind it.
    meta: OnceLock<String>,
    began: Instant,
    // Held for a look or a change, never across an await.
    requests: Mutex<Requests>,
    /// Lines that cannot be written at once, for the transport to write. No channel: one takes 1.3 KB with nothing in
    /// it.
    later: Mutex<VecDeque<Later>>,
    /// Told of each of them.
    arrived: Notify,
}

struct Requests {
    open: HashMap<i64, Waiting>,
    given_up: VecDeque<i64>,
    next: i64,
    /// The last one of the handshake.
    handshake: Option<i64>,
    ended: bool,
}

/// A request that waits for its answer.
struct Waiting {
    answer: oneshot::Sender<Result<Answer, WriteError>>,
    /// When its progress was reported last, in microseconds of the lane; 0 if never.
    progress: Arc<AtomicU64>,
    /// Hears of it.
    listener: Option<ProgressListener>,
}

/// The parameters of `tools/call`.
#[derive(Serialize)]
struct Call<'a> {
    name: &'a str,
    arguments: &'a Map<String, Value>,
}

/// What a server answers.
pub(super) enum Answer {
    /// The result of a tool call that is text.
    Plain(ToolResult),
    /// Any result, as it was written.
    Result(Box<RawValue>),
    /// It refused, in the protocol's own way.
    Refused(ErrorData),
}

/// What an answer is to those who ask.
#[derive(Debug, PartialEq)]
pub(super) enum Standing {
    /// It was waited for.
    Expected,
    /// Its request was given up meanwhile.
    Late,
    /// A second answer, or one to a request that never was.
    Unasked,
}

/// A line to be written, and the request that it is.
pub(super) struct Later {
    pub(super) request: Option<i64>,
    pub(super) line: Vec<u8>,
}

impl Lane {
    /// Requests over `writer`.
    pub(super) fn new(writer: LineWriter) -> Self {
        let requests = Mutex::new(Requests {
            open: HashMap::new(),
            given_up: VecDeque::new(),
            next: FIRST,
            handshake: None,
            ended: false,
        });
        Self(Arc::new(Shared {
            writer,
            meta: OnceLock::new(),
            began: Instant::now(),
            requests,
            later: Mutex::default(),
            arrived: Notify::new(),
        }))
    }

    /// Sets what `_meta` of every request is to hold, once it is known.
    pub(super) fn set_meta(&self, meta: &RequestMetaObject) {
        let object = serde_json::to_string(meta).unwrap_or_default();
        if let Some(members) = object.strip_prefix('{').and_then(|object| object.strip_suffix('}')) {
            let _ = self.0.meta.set(format!("{members},"));
        }
    }

    /// Calls `tool`. If the time is over, or the future is dropped, the server is told to cancel.
    pub(super) async fn call(
        &self,
        tool: &str,
        arguments: &Map<String, Value>,
        patience: Patience<'_>,
        listener: Option<&ProgressListener>,
    ) -> Result<Reply, NoReply> {
        let line = |id| self.line(id, "tools/call", &Call { name: tool, arguments });
        Ok(match self.send(line, patience, true, listener).await? {
            Answer::Plain(result) => Reply::Result(result),
            Answer::Result(result) => Reply::decoded(&result),
            Answer::Refused(error) => Reply::Refused(error),
        })
    }

    /// Asks for anything else. If the time is over, or the future is dropped, the server is told to cancel.
    pub(super) async fn ask(
        &self,
        method: &str,
        params: &Map<String, Value>,
        limit: Duration,
    ) -> Result<Answer, NoReply> {
        let line = |id| self.line(id, method, params);
        self.send(line, Patience { limit, ceiling: limit, notice: None }, true, None).await
    }

    /// Asks before both sides know what they speak: `params` are all that is said, nothing is cancelled, and an
    /// error without an id is the answer to the last such request, as of servers that cannot read it.
    pub(super) async fn shake_hands(&self, method: &str, params: &impl Serialize) -> Result<Answer, NoReply> {
        let line = |id| {
            self.requests().handshake = Some(id);
            let params = serde_json::to_string(params).unwrap_or_default();
            format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\",\"params\":{params}}}\n")
                .into_bytes()
        };
        self.send(line, Patience { limit: NEVER, ceiling: NEVER, notice: None }, false, None).await
    }

    /// Sends what asks for no answer. `line` is a whole message.
    pub(super) fn tell(&self, line: &str) {
        let line = format!("{line}\n").into_bytes();
        if !self.0.writer.write_now(&line) {
            self.later(None, line);
        }
    }

    async fn send(
        &self,
        line: impl FnOnce(i64) -> Vec<u8>,
        patience: Patience<'_>,
        cancel: bool,
        listener: Option<&ProgressListener>,
    ) -> Result<Answer, NoReply> {
        let (answer, mut answered) = oneshot::channel();
        let progress = Arc::<AtomicU64>::default();
        let waiting = Waiting { answer, progress: progress.clone(), listener: listener.cloned() };
        let Some(id) = self.requests().open(waiting) else {
            return Err(NoReply::NotSent);
        };
        let _open = OpenRequest { lane: self, id, cancel };
        let line = line(id);
        // Our future may be dropped at any time, and half a line would be the end of the stream. What takes no
        // waiting is written here, the rest by the transport.
        if !self.0.writer.write_now(&line) {
            self.later(Some(id), line);
        }
        let began = Instant::now();
        let mut deadline = began + patience.limit;
        let mut notice = patience.notice.map(|notice| began + notice.every);
        loop {
            let next = notice.map_or(deadline, |notice| notice.min(deadline));
            match timeout_at(next, &mut answered).await {
                Ok(Ok(answer)) => return answer.map_err(NoReply::NotWritten),
                Ok(Err(_)) => return Err(NoReply::Ended),
                Err(_) => {}
            }
            if next < deadline {
                notice = patience.notice.map(|notice| {
                    (notice.tell)(began.elapsed());
                    next + notice.every
                });
                continue;
            }
            let heard = self.0.began + Duration::from_micros(progress.load(Ordering::Relaxed));
            let next = (heard + patience.limit).min(began + patience.ceiling);
            if next <= deadline {
                let ceiling = deadline == began + patience.ceiling;
                return Err(NoReply::Timeout(if ceiling { patience.ceiling } else { patience.limit }));
            }
            deadline = next;
        }
    }

    /// A request whose `params` are `_meta` and the members of `params`, an object.
    fn line(&self, id: i64, method: &str, params: &impl Serialize) -> Vec<u8> {
        let meta = self.0.meta.get().map_or("", String::as_str);
        let id = id.to_string();
        let mut line = Vec::with_capacity(192 + meta.len());
        for part in [
            r#"{"jsonrpc":"2.0","id":"#,
            &id,
            r#","method":""#,
            method,
            r#"","params":{"_meta":{"#,
            meta,
            r#""progressToken":"#,
            &id,
            "}",
        ] {
            line.extend_from_slice(part.as_bytes());
        }
        let begin = line.len();
        // Text and a tree of JSON values always can be written, and a vector takes all.
        let _ = serde_json::to_writer(&mut line, params);
        // Its members go on where `_meta` ends, and its end is that of all.
        match &line[begin..] {
            b"{}" => drop(line.remove(begin)),
            _ => line[begin] = b',',
        }
        line.extend_from_slice(b"}\n");
        line
    }

    fn later(&self, request: Option<i64>, line: Vec<u8>) {
        self.queue().push_back(Later { request, line });
        self.0.arrived.notify_one();
    }

    /// The next line for the transport to write. Safe to cancel.
    pub(super) async fn next_line(&self) -> Later {
        loop {
            let line = self.queue().pop_front();
            match line {
                Some(line) => return line,
                None => self.0.arrived.notified().await,
            }
        }
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<Later>> {
        self.0.later.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a request its answer; says whether it was waited for.
    pub(super) fn answer(&self, id: i64, answer: Result<Answer, WriteError>) -> Standing {
        let mut requests = self.requests();
        match requests.open.remove(&id) {
            Some(waiting) => {
                drop(requests);
                let _ = waiting.answer.send(answer);
                Standing::Expected
            }
            None => match requests.given_up.iter().position(|given_up| *given_up == id) {
                Some(at) => {
                    requests.given_up.remove(at);
                    Standing::Late
                }
                None => Standing::Unasked,
            },
        }
    }

    /// Takes in an error that names no request.
    pub(super) fn refuse_handshake(&self, error: ErrorData) {
        let handshake = self.requests().handshake.take();
        match handshake {
            Some(id) => {
                self.answer(id, Ok(Answer::Refused(error)));
            }
            None => tracing::debug!(?error, "an error that answers nothing"),
        }
    }

    /// Takes note of a sign of life of a request, and tells whoever listens what it says.
    pub(super) fn progress(&self, id: i64, report: Option<Progress>) {
        let listener = self.requests().open.get(&id).and_then(|waiting| {
            let now = u64::try_from(self.0.began.elapsed().as_micros()).unwrap_or(u64::MAX);
            waiting.progress.store(now, Ordering::Relaxed);
            waiting.listener.clone()
        });
        if let (Some(listener), Some(report)) = (listener, report) {
            listener(report);
        }
    }

    /// The connection has ended: nobody waits any more.
    pub(super) fn end(&self) {
        let mut requests = self.requests();
        requests.ended = true;
        requests.open.clear();
        drop(requests);
        self.queue().clear();
    }

    /// Whether the connection has ended.
    pub(super) fn is_ended(&self) -> bool {
        self.requests().ended
    }

    fn requests(&self) -> MutexGuard<'_, Requests> {
        self.0.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Requests {
    fn open(&mut self, waiting: Waiting) -> Option<i64> {
        if self.ended {
            return None;
        }
        loop {
            let id = self.next;
            self.next = if id == LAST { FIRST } else { id + 1 };
            if let Entry::Vacant(place) = self.open.entry(id) {
                place.insert(waiting);
                return Some(id);
            }
        }
    }
}

/// A request under way. Dropped before its answer, by its clock or by its caller, it tells the server.
struct OpenRequest<'a> {
    lane: &'a Lane,
    id: i64,
    cancel: bool,
}

impl Drop for OpenRequest<'_> {
    fn drop(&mut self) {
        let mut requests = self.lane.requests();
        if requests.open.remove(&self.id).is_none() {
            return;
        }
        requests.given_up.push_back(self.id);
        if requests.given_up.len() > REMEMBERED {
            requests.given_up.pop_front();
        }
        drop(requests);
        if self.cancel {
            let cancel = format!(
                "{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":{{\"requestId\":{},\
                 \"reason\":\"given up by the caller\"}}}}\n",
                self.id
            );
            self.lane.later(None, cancel.into_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_request_has_one_answer() {
        let lane = Lane::new(LineWriter::new(tokio::io::sink()));
        let pong = || Ok(Answer::Refused(ErrorData::internal_error("x", None)));
        assert_eq!(lane.answer(FIRST, pong()), Standing::Unasked);
        let (asking, other) = (lane.clone(), lane.clone());
        let params = Map::new();
        let asked = tokio::join!(asking.ask("ping", &params, NEVER), async {
            tokio::task::yield_now().await;
            (other.answer(FIRST, pong()), other.answer(FIRST, pong()))
        });
        assert!(asked.0.is_ok());
        assert_eq!(asked.1, (Standing::Expected, Standing::Unasked));
        assert!(lane.ask("ping", &params, Duration::from_millis(1)).await.is_err());
        assert_eq!(lane.answer(FIRST + 1, pong()), Standing::Late);
        assert_eq!(lane.answer(FIRST + 1, pong()), Standing::Unasked);
        lane.end();
        assert!(matches!(lane.ask("ping", &params, NEVER).await, Err(NoReply::NotSent)));
    }
}
