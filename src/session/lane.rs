//! The short way of a tool call over lines: its request is written, and its answer taken off the stream, without
//! the SDK's loop, which costs more than everything else about a call. All other messages go through the SDK.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rmcp::model::{
    JsonRpcMessage, JsonRpcNotification, NumberOrString, RequestMetaObject, ServerJsonRpcMessage,
    ServerNotification,
};
use serde_json::{Map, Value};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, timeout_at},
};

use super::{
    asked::{REMEMBERED, Standing},
    reply::{NoReply, Patience, Reply},
};
use crate::process::{LineWriter, WriteError};

/// The first id of a call here; the SDK counts its own from 0. The last one is that of 32 bits: some servers read
/// no more.
pub(super) const FIRST: i64 = 1 << 30;
const LAST: i64 = i32::MAX as i64;

/// The calls of one connection. Clones share them.
#[derive(Clone)]
pub(super) struct Lane(Arc<Shared>);

struct Shared {
    writer: LineWriter,
    /// What `_meta` of every request begins with, as JSON: members, each with its comma behind it.
    meta: OnceLock<String>,
    began: Instant,
    // Held for a look or a change, never across an await.
    calls: Mutex<Calls>,
    /// Lines that cannot be written at once, for the transport to write.
    later: mpsc::UnboundedSender<Later>,
}

struct Calls {
    open: HashMap<i64, Waiting>,
    given_up: VecDeque<i64>,
    next: i64,
    ended: bool,
}

/// A call that waits for its answer.
struct Waiting {
    reply: oneshot::Sender<Result<Reply, WriteError>>,
    /// When its progress was reported last, in microseconds of the lane; 0 if never.
    progress: Arc<AtomicU64>,
}

/// A line to be written, and the call whose request it is.
pub(super) struct Later {
    pub(super) call: Option<i64>,
    pub(super) line: Vec<u8>,
}

impl Lane {
    /// Calls over `writer`, and the lines that the transport is to write for them.
    pub(super) fn new(writer: LineWriter) -> (Self, mpsc::UnboundedReceiver<Later>) {
        let (later, lines) = mpsc::unbounded_channel();
        let calls = Calls { open: HashMap::new(), given_up: VecDeque::new(), next: FIRST, ended: false };
        let calls = Mutex::new(calls);
        (Self(Arc::new(Shared { writer, meta: OnceLock::new(), began: Instant::now(), calls, later })), lines)
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
        patience: Patience,
    ) -> Result<Reply, NoReply> {
        let (reply, mut replied) = oneshot::channel();
        let progress = Arc::<AtomicU64>::default();
        let Some(id) = self.calls().open(Waiting { reply, progress: progress.clone() }) else {
            return Err(NoReply::NotSent);
        };
        let _call = OpenCall { lane: self, id };
        let line = self.request(id, tool, arguments);
        // Our future may be dropped at any time, and half a line would be the end of the stream. What takes no
        // waiting is written here, the rest by the transport.
        if !self.0.writer.write_now(&line) {
            self.later(Some(id), line);
        }
        let began = Instant::now();
        let mut deadline = began + patience.limit;
        loop {
            match timeout_at(deadline, &mut replied).await {
                Ok(Ok(reply)) => return reply.map_err(NoReply::NotWritten),
                Ok(Err(_)) => return Err(NoReply::Ended),
                Err(_) => {}
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

    fn request(&self, id: i64, tool: &str, arguments: &Map<String, Value>) -> Vec<u8> {
        let meta = self.0.meta.get().map_or("", String::as_str);
        let mut line = Vec::with_capacity(192 + meta.len());
        line.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
        line.extend_from_slice(id.to_string().as_bytes());
        line.extend_from_slice(br#","method":"tools/call","params":{"_meta":{"#);
        line.extend_from_slice(meta.as_bytes());
        line.extend_from_slice(br#""progressToken":"#);
        line.extend_from_slice(id.to_string().as_bytes());
        line.extend_from_slice(br#"},"name":"#);
        // Text and a tree of JSON values always can be written, and a vector takes all.
        let _ = serde_json::to_writer(&mut line, tool);
        line.extend_from_slice(br#","arguments":"#);
        let _ = serde_json::to_writer(&mut line, arguments);
        line.extend_from_slice(b"}}\n");
        line
    }

    fn later(&self, call: Option<i64>, line: Vec<u8>) {
        // Without a receiver the connection has ended, and so have its calls.
        let _ = self.0.later.send(Later { call, line });
    }

    /// Gives a call its reply; says whether it was waited for.
    pub(super) fn reply(&self, id: i64, reply: Result<Reply, WriteError>) -> Standing {
        let mut calls = self.calls();
        match calls.open.remove(&id) {
            Some(waiting) => {
                drop(calls);
                let _ = waiting.reply.send(reply);
                Standing::Expected
            }
            None => match calls.given_up.iter().position(|given_up| *given_up == id) {
                Some(at) => {
                    calls.given_up.remove(at);
                    Standing::Late
                }
                None => Standing::Unasked,
            },
        }
    }

    /// Takes note of a sign of life of a call.
    pub(super) fn progress(&self, id: i64) {
        if let Some(waiting) = self.calls().open.get(&id) {
            let now = u64::try_from(self.0.began.elapsed().as_micros()).unwrap_or(u64::MAX);
            waiting.progress.store(now, Ordering::Relaxed);
        }
    }

    /// The connection has ended: nobody waits any more.
    pub(super) fn end(&self) {
        let mut calls = self.calls();
        calls.ended = true;
        calls.open.clear();
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.0.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The call that a message answers or reports on, if it is one here.
pub(super) fn concerns(message: &ServerJsonRpcMessage) -> Option<i64> {
    call(match message {
        JsonRpcMessage::Response(answer) => &answer.id,
        JsonRpcMessage::Error(answer) => answer.id.as_ref()?,
        JsonRpcMessage::Notification(JsonRpcNotification {
            notification: ServerNotification::ProgressNotification(progress),
            ..
        }) => &progress.params.progress_token.0,
        JsonRpcMessage::Request(_) | JsonRpcMessage::Notification(_) => return None,
    })
}

/// The call that an id or progress token is of, if it is one here.
fn call(id: &NumberOrString) -> Option<i64> {
    match id {
        NumberOrString::Number(id) => is_call(*id).then_some(*id),
        NumberOrString::String(_) => None,
    }
}

/// Whether an id is one of a call here.
pub(super) fn is_call(id: i64) -> bool {
    (FIRST..=LAST).contains(&id)
}

impl Calls {
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

/// A call under way. Dropped before its reply, by its clock or by its caller, it tells the server.
struct OpenCall<'a> {
    lane: &'a Lane,
    id: i64,
}

impl Drop for OpenCall<'_> {
    fn drop(&mut self) {
        let mut calls = self.lane.calls();
        if calls.open.remove(&self.id).is_none() {
            return;
        }
        calls.given_up.push_back(self.id);
        if calls.given_up.len() > REMEMBERED {
            calls.given_up.pop_front();
        }
        drop(calls);
        let cancel = format!(
            "{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":{{\"requestId\":{},\
             \"reason\":\"given up by the caller\"}}}}\n",
            self.id
        );
        self.lane.later(None, cancel.into_bytes());
    }
}
