//! MCP messages over lines, as a transport of the SDK.
//!
//! In place of the SDK's own child-process transport, which hangs for ever when a helper of a dead server
//! keeps its stdout open, when an answer is malformed or too long, and when a server stops reading. Here each
//! of these ends in an answer or in the end of the stream. Messages keep their order on the wire.

use std::{
    future::{Future, pending, ready},
    pin::Pin,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use rmcp::{
    model::{ClientJsonRpcMessage, ClientNotification, JsonRpcMessage, ServerJsonRpcMessage},
    service::RoleClient,
    transport::Transport,
};
use serde::Serialize;
use tokio::{sync::mpsc, task::JoinHandle};
use tokio_util::sync::{CancellationToken, DropGuard, WaitForCancellationFutureOwned};

use super::{
    asked::{Asked, Standing},
    cut::Cutter,
    decode::{self, Decoded},
    health::{End, Health},
    lane::{self, Lane, Later},
    reply::Reply,
    wiretap::Wiretap,
};
use crate::process::{ExitWatch, Line, LineReader, LineWriter, Pipes, WriteError};

/// What a server wrote before it died is still read for so long, whoever else holds its stdout.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// How long the end of a stream may be ahead of that of its process.
const EXIT_LAG: Duration = Duration::from_millis(300);

type Waiting<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A stream of MCP messages to and from one server.
pub(super) struct LineTransport {
    reader: LineReader,
    writer: LineWriter,
    /// Our side is closed. Waited for once, not anew for each line.
    unwritable: Pin<Box<WaitForCancellationFutureOwned>>,
    ended: Waiting<()>,
    exit: Option<ExitWatch>,
    /// When one of the two streams was found closed.
    closed: Option<Instant>,
    health: Health,
    cutter: Cutter,
    tap: Wiretap,
    asked: Asked,
    /// A long line under work. A field, since waiting for it may be given up and taken up again.
    long_line: Option<JoinHandle<Decoded>>,
    lane: Lane,
    /// Lines of the lane that could not be written at once.
    later: mpsc::UnboundedReceiver<Later>,
    /// What is being written and the SDK does not wait for.
    outbox: FuturesUnordered<Waiting<()>>,
}

impl Drop for LineTransport {
    fn drop(&mut self) {
        self.lane.end();
    }
}

impl LineTransport {
    /// Talks over `pipes`; the stream ends with the process of `exit`, if there is one.
    pub(super) fn new(
        pipes: Pipes,
        exit: Option<ExitWatch>,
        health: Health,
        cutter: Cutter,
        tap: Wiretap,
    ) -> Self {
        let sent = tap.clone();
        pipes.writer.tell(move |line| sent.sent(line));
        let ended: Waiting<()> = match exit.clone() {
            Some(exit) => Box::pin(async move {
                exit.exited().await;
                tokio::time::sleep(LAST_WORDS).await;
            }),
            None => Box::pin(pending()),
        };
        let (lane, later) = Lane::new(pipes.writer.clone());
        Self {
            reader: pipes.reader,
            unwritable: Box::pin(pipes.writer.closed()),
            writer: pipes.writer,
            ended,
            exit,
            closed: None,
            health,
            cutter,
            tap,
            asked: Asked::default(),
            long_line: None,
            lane,
            later,
            outbox: FuturesUnordered::new(),
        }
    }

    /// For calls, which go past the SDK.
    pub(super) fn lane(&self) -> Lane {
        self.lane.clone()
    }

    /// The next line, decoded, or why there is none. Safe to cancel.
    async fn decoded(&mut self) -> Result<Decoded, End> {
        loop {
            if let Some(work) = &mut self.long_line {
                let done = work.await;
                self.long_line = None;
                return done.map_err(|_| End::Closed);
            }
            let line = tokio::select! {
                biased;
                Some(()) = self.outbox.next() => continue,
                Some(later) = self.later.recv() => {
                    self.write_later(later);
                    continue;
                }
                line = self.reader.next() => match line {
                    Some(line) => line,
                    None => return Err(self.gone(End::Closed).await),
                },
                () = &mut self.unwritable => return Err(self.gone(End::Input).await),
                () = &mut self.ended => return Err(End::Exited),
            };
            if let Line::Whole(line) = &line {
                self.tap.received(line);
            }
            match line {
                Line::Whole(line) if line.len() <= decode::short_limit(&self.cutter) => {
                    return Ok(decode::short(line));
                }
                Line::Whole(_) => {
                    let (line, cutter) = (self.reader.take_line(), self.cutter.clone());
                    let work = move || decode::long(&line, &cutter);
                    // Its memory is bounded by the longest line; it writes a file and needs nobody to wait.
                    self.long_line = Some(tokio::task::spawn_blocking(work));
                }
                Line::TooLong { head, tail, total } => return Ok(decode::skipped(head, tail, total)),
                Line::Torn { total } => return Err(End::Torn(total)),
                Line::Endless { total } => return Err(End::Endless(total)),
            }
        }
    }

    /// Tells a server that ended from one that closed a stream and goes on, before our side is closed too and
    /// makes it end.
    async fn gone(&mut self, end: End) -> End {
        let Some(exit) = &self.exit else { return end };
        let until = *self.closed.get_or_insert_with(Instant::now) + EXIT_LAG;
        match tokio::time::timeout_at(until.into(), exit.exited()).await {
            Ok(()) => End::Exited,
            Err(_) => end,
        }
    }

    /// Whether the stream can go on with what was received, and the message if it is one for the session.
    fn admit(&mut self, decoded: Decoded) -> Result<Option<ServerJsonRpcMessage>, End> {
        match decoded {
            Decoded::Blank => Ok(None),
            Decoded::Junk(line) if self.health.junk(&line) => Ok(None),
            Decoded::Junk(_) => Err(End::Garbage),
            Decoded::Result(id, result) => {
                let standing = self.lane.reply(id, Ok(Reply::Result(result)));
                self.stands(&standing).map(|_| None)
            }
            Decoded::Message(message) => match lane::concerns(&message) {
                Some(id) => {
                    let standing = match *message {
                        JsonRpcMessage::Response(answer) => self.lane.reply(id, Ok(answer.result.into())),
                        JsonRpcMessage::Error(answer) => {
                            self.lane.reply(id, Ok(Reply::Refused(answer.error)))
                        }
                        JsonRpcMessage::Request(_) | JsonRpcMessage::Notification(_) => {
                            self.lane.progress(id);
                            Standing::Expected
                        }
                    };
                    self.stands(&standing).map(|_| None)
                }
                None => {
                    let standing = self.asked.received(&message);
                    Ok(self.stands(&standing)?.then_some(*message))
                }
            },
        }
    }

    /// Whether a message is to be passed on, or why the stream cannot go on.
    fn stands(&self, standing: &Standing) -> Result<bool, End> {
        match standing {
            Standing::Expected => Ok(true),
            Standing::Late => Ok(false),
            Standing::Unasked if self.health.unasked() => Ok(false),
            Standing::Unasked => Err(End::Unasked),
        }
    }

    fn write_later(&self, Later { call, line }: Later) {
        let (writer, lane) = (self.writer.clone(), self.lane.clone());
        self.outbox.push(Box::pin(async move {
            if let (Err(error), Some(id)) = (writer.write(&line).await, call) {
                lane.reply(id, Err(error));
            }
        }));
    }
}

impl Transport<RoleClient> for LineTransport {
    type Error = WriteError;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), WriteError>> + Send + 'static {
        self.asked.sent(&message);
        let nobody_waits = is_cancel(&message);
        let write = write(self.writer.clone(), message);
        // The SDK waits for a cancel to be written before it ends a request that timed out: with a server that
        // does not read, that would be long after the request's limit.
        if nobody_waits {
            self.outbox.push(Box::pin(async move {
                let _ = write.await;
            }));
            Box::pin(ready(Ok(()))) as Waiting<_>
        } else {
            Box::pin(write)
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        loop {
            let end = match self.decoded().await.and_then(|decoded| self.admit(decoded)) {
                Ok(Some(message)) => return Some(message),
                Ok(None) => continue,
                Err(end) => end,
            };
            self.health.ended(end);
            return None;
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
    /// Where messages are not lines.
    tap: Option<Wiretap>,
    _gone: DropGuard,
}

impl<T> Telling<T> {
    /// The transport, and the token that is cancelled at its end.
    pub(super) fn new(inner: T, tap: Option<Wiretap>) -> (Self, CancellationToken) {
        let gone = CancellationToken::new();
        (Self { inner, tap, _gone: gone.clone().drop_guard() }, gone)
    }

    /// Gives `tell` the message where somebody wants to see it.
    fn show(&self, message: &impl Serialize, tell: fn(&Wiretap, &[u8])) {
        if let Some(tap) = self.tap.as_ref().filter(|tap| tap.is_on()) {
            tell(tap, &serde_json::to_vec(message).unwrap_or_default());
        }
    }
}

impl<T: Transport<RoleClient>> Transport<RoleClient> for Telling<T> {
    type Error = T::Error;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), T::Error>> + Send + 'static {
        self.show(&message, Wiretap::sent);
        self.inner.send(message)
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        let message = self.inner.receive().await?;
        self.show(&message, Wiretap::received);
        Some(message)
    }

    async fn close(&mut self) -> Result<(), T::Error> {
        self.inner.close().await
    }
}

fn is_cancel(message: &ClientJsonRpcMessage) -> bool {
    let JsonRpcMessage::Notification(message) = message else { return false };
    matches!(message.notification, ClientNotification::CancelledNotification(_))
}

async fn write(writer: LineWriter, message: ClientJsonRpcMessage) -> Result<(), WriteError> {
    let mut line = serde_json::to_vec(&message)
        .map_err(|error| WriteError { may_have_left: false, reason: error.to_string() })?;
    line.push(b'\n');
    writer.write(&line).await
}
