//! MCP messages over lines, as a transport of the SDK.
//!
//! In place of the SDK's own child-process transport, which hangs for ever when a helper of a dead server
//! keeps its stdout open, when an answer is malformed or too long, and when a server stops reading. Here each
//! of these ends in an answer or in the end of the stream. Messages keep their order on the wire.

use std::{
    future::{Future, pending},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rmcp::{
    model::{ClientJsonRpcMessage, ErrorData, RequestId, ServerJsonRpcMessage},
    service::RoleClient,
    transport::Transport,
};
use serde_json::Value;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::process::{ExitWatch, Line, LineReader, LineWriter, Pipes, WriteError};

/// What a server wrote before it died is still read for so long, whoever else holds its stdout.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// Lines that are not JSON before the stream counts as something else than MCP.
const JUNK_LIMIT: usize = 100;

/// A stream of MCP messages to and from one server.
pub(super) struct LineTransport {
    reader: LineReader,
    writer: LineWriter,
    ended: Pin<Box<dyn Future<Output = ()> + Send>>,
    junk: Junk,
}

/// Lines on stdout that are not messages: the usual reason for a server that "does not answer".
#[derive(Clone, Default)]
pub(super) struct Junk(Arc<Mutex<(usize, Vec<String>)>>);

impl Junk {
    /// The first such lines, cut.
    pub(super) fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    /// Keeps the first three lines; says whether there were too many.
    fn push(&self, line: &[u8]) -> bool {
        let mut junk = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        junk.0 += 1;
        if junk.1.len() < 3 {
            junk.1.push(String::from_utf8_lossy(line).chars().take(200).collect());
        }
        junk.0 > JUNK_LIMIT
    }
}

impl LineTransport {
    /// Talks over `pipes`; the stream ends with the process of `exit`, if there is one.
    pub(super) fn new(pipes: Pipes, exit: Option<ExitWatch>) -> Self {
        let ended: Pin<Box<dyn Future<Output = ()> + Send>> = match exit {
            Some(exit) => Box::pin(async move {
                exit.exited().await;
                tokio::time::sleep(LAST_WORDS).await;
            }),
            None => Box::pin(pending()),
        };
        Self { reader: pipes.reader, writer: pipes.writer, ended, junk: Junk::default() }
    }

    /// Where lines that are not messages are kept.
    pub(super) fn junk(&self) -> Junk {
        self.junk.clone()
    }
}

impl Transport<RoleClient> for LineTransport {
    type Error = WriteError;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), WriteError>> + Send + 'static {
        let writer = self.writer.clone();
        async move {
            let mut line = serde_json::to_vec(&message)
                .map_err(|error| WriteError { may_have_left: false, reason: error.to_string() })?;
            line.push(b'\n');
            writer.write(&line).await
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        loop {
            let line = tokio::select! {
                biased;
                line = self.reader.next() => line?,
                () = self.writer.closed() => return None,
                () = &mut self.ended => return None,
            };
            match decode(&line) {
                Decoded::Message(message) => return Some(*message),
                Decoded::Blank => {}
                Decoded::Junk(text) => {
                    tracing::warn!(line = %String::from_utf8_lossy(text), "not a message on stdout");
                    if self.junk.push(text) {
                        return None;
                    }
                }
            }
        }
    }

    async fn close(&mut self) -> Result<(), WriteError> {
        self.writer.close();
        Ok(())
    }
}

/// A transport that tells when the SDK has let go of it: then the connection has ended, whoever ended it.
pub(super) struct Telling<T> {
    inner: T,
    _gone: DropGuard,
}

impl<T> Telling<T> {
    /// The transport, and the token that is cancelled at its end.
    pub(super) fn new(inner: T) -> (Self, CancellationToken) {
        let gone = CancellationToken::new();
        (Self { inner, _gone: gone.clone().drop_guard() }, gone)
    }
}

impl<T: Transport<RoleClient>> Transport<RoleClient> for Telling<T> {
    type Error = T::Error;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), T::Error>> + Send + 'static {
        self.inner.send(message)
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        self.inner.receive().await
    }

    async fn close(&mut self) -> Result<(), T::Error> {
        self.inner.close().await
    }
}

enum Decoded<'a> {
    Message(Box<ServerJsonRpcMessage>),
    Junk(&'a [u8]),
    Blank,
}

fn decode<'a>(line: &Line<'a>) -> Decoded<'a> {
    match *line {
        Line::Whole(bytes) if bytes.trim_ascii().is_empty() => Decoded::Blank,
        Line::Whole(bytes) => match serde_json::from_slice(bytes) {
            Ok(message) => Decoded::Message(Box::new(message)),
            Err(error) => {
                // An answer that does not fit the protocol must end its call, or the call would wait for ever.
                let value: Option<Value> = serde_json::from_slice(bytes).ok();
                let answer = value.as_ref().filter(|value| value.get("method").is_none());
                let id = answer.and_then(|answer| answer.get("id")).and_then(request_id);
                id.map_or(Decoded::Junk(bytes), |id| failed(id, format!("malformed answer: {error}")))
            }
        },
        Line::TooLong { head, tail, total } => {
            let limit = crate::process::MAX_LINE;
            match find_id(head).or_else(|| find_id(tail)) {
                Some(id) => failed(id, format!("the answer has {total} bytes, the limit is {limit}")),
                None => Decoded::Junk(&head[..head.len().min(200)]),
            }
        }
    }
}

/// An answer of our own in place of one that cannot be used.
fn failed(id: RequestId, why: String) -> Decoded<'static> {
    let error = ErrorData::internal_error(why, None);
    Decoded::Message(Box::new(ServerJsonRpcMessage::error(error, Some(id))))
}

fn request_id(id: &Value) -> Option<RequestId> {
    serde_json::from_value(id.clone()).ok()
}

/// The id of a message that is not decoded, looked for in a part of it. Ours are whole numbers.
fn find_id(part: &[u8]) -> Option<RequestId> {
    let text = String::from_utf8_lossy(part);
    let after = text[text.find("\"id\"")? + 4..].trim_start().strip_prefix(':')?.trim_start();
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok().map(RequestId::Number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(decoded: &Decoded<'_>) -> String {
        match decoded {
            Decoded::Message(message) => serde_json::to_string(message).unwrap(),
            Decoded::Junk(bytes) => format!("junk {}", String::from_utf8_lossy(bytes)),
            Decoded::Blank => "blank".to_owned(),
        }
    }

    #[test]
    fn every_line_ends_as_something() {
        let whole = |line: &'static str| text(&decode(&Line::Whole(line.as_bytes())));
        assert_eq!(whole("  "), "blank");
        assert_eq!(whole("Welcome!"), "junk Welcome!");
        assert!(whole(r#"{"jsonrpc":"2.0","id":4,"result":{}}"#).contains(r#""id":4"#));
        assert!(whole(r#"{"id":4,"nothing":true}"#).contains("malformed answer"));
        let long = Line::TooLong { head: br#"{"jsonrpc":"2.0","id": 12,"result""#, tail: b"}}", total: 99 };
        assert!(text(&decode(&long)).contains("the answer has 99 bytes"));
        assert!(text(&decode(&long)).contains(r#""id":12"#));
    }
}
