//! The stream of MCP messages from one server: read, decoded, and brought to whom they concern.
//!
//! Other clients hang for ever when a helper of a dead server keeps its stdout open, when an answer is malformed or
//! too long, and when a server stops reading. Here each of these ends in an answer or in the end of the stream.
//! Messages keep their order on the wire.

use std::{
    future::{Future, pending},
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::{
    cut::Cutter,
    decode::{self, Decoded, Told},
    health::{End, Health},
    lane::{Lane, Later, REMEMBERED, Standing},
    wiretap::Wiretap,
};
use crate::process::{ExitWatch, Line, LineReader, LineWriter, Pipes};

/// What a server wrote before it died is still read for so long, whoever else holds its stdout.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// How long the end of a stream may be ahead of that of its process.
const EXIT_LAG: Duration = Duration::from_millis(300);

type Waiting<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What brings the messages of one server to those who wait for them.
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
    lane: Lane,
    /// What is being written.
    outbox: FuturesUnordered<Waiting<()>>,
    changed: Arc<Notify>,
    gone: CancellationToken,
}

impl Drop for LineTransport {
    fn drop(&mut self) {
        self.lane.end();
        self.gone.cancel();
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
        let lane = Lane::new(pipes.writer.clone());
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
            lane,
            outbox: FuturesUnordered::new(),
            changed: Arc::default(),
            gone: CancellationToken::new(),
        }
    }

    /// For requests.
    pub(super) fn lane(&self) -> Lane {
        self.lane.clone()
    }

    /// Told when the server says that its tools changed.
    pub(super) fn changed(&self) -> Arc<Notify> {
        self.changed.clone()
    }

    /// Cancelled when the connection has ended, whoever ended it.
    pub(super) fn gone(&self) -> CancellationToken {
        self.gone.clone()
    }

    /// Reads until the stream ends.
    pub(super) async fn run(mut self) {
        let end = loop {
            if let Err(end) = self.decoded().await.and_then(|decoded| self.take_in(decoded)) {
                break end;
            }
        };
        self.health.ended(end);
    }

    /// The next line, decoded, or why there is none.
    async fn decoded(&mut self) -> Result<Decoded, End> {
        loop {
            let line = tokio::select! {
                biased;
                Some(()) = self.outbox.next() => continue,
                later = self.lane.next_line() => {
                    self.write_later(later);
                    continue;
                }
                line = self.reader.next() => match line {
                    Some(line) => line,
                    None => return Err(self.cut_off(End::Closed).await),
                },
                () = &mut self.unwritable => return Err(self.cut_off(End::Input).await),
                () = &mut self.ended => return Err(End::Exited),
            };
            if let Line::Whole(line) = &line {
                self.tap.received(line);
            }
            match line {
                Line::Whole(line) if line.len() <= decode::short_limit(&self.cutter) => {
                    return Ok(decode::short(line));
                }
                Line::Whole(line) => {
                    if let Some(decoded) = decode::large(line, &self.cutter) {
                        return Ok(decoded);
                    }
                    let (line, cutter) = (self.reader.take_line(), self.cutter.clone());
                    let work = move || decode::long(&line, &cutter);
                    // Its memory is bounded by the longest line; it writes a file and needs nobody to wait.
                    return tokio::task::spawn_blocking(work).await.map_err(|_| End::Closed);
                }
                Line::TooLong { head, tail, total } => return Ok(decode::skipped(head, tail, total)),
                Line::Torn { total } => return Err(End::Torn(total)),
                Line::Endless { total } => return Err(End::Endless(total)),
            }
        }
    }

    /// Tells a server that ended from one that closed a stream and goes on, before our side is closed too and
    /// makes it end.
    async fn cut_off(&mut self, end: End) -> End {
        let Some(exit) = &self.exit else { return end };
        let until = *self.closed.get_or_insert_with(Instant::now) + EXIT_LAG;
        match tokio::time::timeout_at(until.into(), exit.exited()).await {
            Ok(()) => End::Exited,
            Err(_) => end,
        }
    }

    /// Brings a message to whom it concerns, or says why the stream cannot go on.
    fn take_in(&mut self, decoded: Decoded) -> Result<(), End> {
        match decoded {
            Decoded::Answer(id, answer) => match self.lane.answer(id, Ok(answer)) {
                Standing::Unasked if !self.health.unasked() => return Err(End::Unasked),
                Standing::Expected | Standing::Late | Standing::Unasked => {}
            },
            Decoded::Stray if !self.health.unasked() => return Err(End::Unasked),
            Decoded::Junk(line) if !self.health.junk(&line) => return Err(End::Garbage),
            Decoded::Unnamed(error) => self.lane.refuse_handshake(error),
            Decoded::Asked(id, method) => self.reply(id.get(), &method),
            Decoded::Told(Told::Progress(id, report)) => self.lane.progress(id, report),
            Decoded::Told(Told::ToolsChanged) => self.changed.notify_one(),
            Decoded::Told(Told::Other) | Decoded::Stray | Decoded::Junk(_) | Decoded::Blank => {}
        }
        Ok(())
    }

    /// Answers a request of the server's. We have told it that we can do nothing; what asks all the same gets the
    /// answer that lets it go on.
    fn reply(&self, id: &str, method: &str) {
        // Who asks and asks, and does not read, is not answered any more.
        if self.outbox.len() > REMEMBERED {
            return;
        }
        let outcome = match method {
            "ping" => r#""result":{}"#,
            "roots/list" => r#""result":{"roots":[]}"#,
            "elicitation/create" => r#""result":{"action":"decline"}"#,
            _ => r#""error":{"code":-32601,"message":"toolcrib has no such method"}"#,
        };
        let line = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},{outcome}}}\n").into_bytes();
        self.write_later(Later { request: None, line });
    }

    fn write_later(&self, Later { request, line }: Later) {
        let (writer, lane) = (self.writer.clone(), self.lane.clone());
        self.outbox.push(Box::pin(async move {
            if let (Err(error), Some(id)) = (writer.write(&line).await, request) {
                lane.answer(id, Err(error));
            }
        }));
    }
}
