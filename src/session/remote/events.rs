//! The events of one answer, each of a bearable size.

use std::{collections::VecDeque, time::Duration};

use futures_util::FutureExt;

use crate::http::{
    HttpAnswer, RequestError,
    sse::{Event, Parser},
};

/// The longest message: of one event, or of one body.
pub(super) const MAX_MESSAGE: usize = 16 << 20;
/// Bytes that are taken in before others on this thread have their turn.
const TURN: usize = 128 << 10;

/// Whether an event is a message of the protocol: some carry an id alone.
pub(super) fn is_message(event: &Event) -> bool {
    event.name.as_deref().is_none_or(|name| name == "message") && !event.data.is_empty()
}

/// The events of an answer.
pub(super) struct EventStream {
    answer: HttpAnswer,
    parser: Parser,
    ready: VecDeque<Event>,
    /// Bytes since others had their turn.
    turn: usize,
    over: bool,
}

/// Why there is no next event.
#[derive(Debug)]
pub(super) enum StreamEnd {
    Lost(RequestError),
    /// It has more than [`MAX_MESSAGE`] bytes.
    TooLarge,
}

impl EventStream {
    pub(super) fn new(answer: HttpAnswer) -> Self {
        let (parser, ready) = Default::default();
        Self { answer, parser, ready, turn: 0, over: false }
    }

    /// The next event; none at the end of the answer.
    pub(super) async fn next(&mut self) -> Result<Option<Event>, StreamEnd> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            if self.over {
                return Ok(None);
            }
            match self.answer.chunk().await {
                Ok(Some(chunk)) => {
                    let mut events = Vec::new();
                    self.parser.feed(&chunk, &mut events);
                    self.ready.extend(events);
                    if self.parser.held() > MAX_MESSAGE {
                        return Err(StreamEnd::TooLarge);
                    }
                    self.turn += chunk.len();
                    if self.turn > TURN {
                        self.turn = 0;
                        tokio::task::yield_now().await;
                    }
                }
                Ok(None) => self.over = true,
                Err(error) => {
                    self.over = true;
                    return Err(StreamEnd::Lost(RequestError::Broken(error)));
                }
            }
        }
    }

    /// Whether the answer is over, as far as that is known without waiting: its connection is free then.
    pub(super) fn is_over(&mut self) -> bool {
        if self.over || !self.ready.is_empty() {
            return self.over && self.ready.is_empty();
        }
        match self.next().now_or_never() {
            Some(Ok(Some(event))) => {
                self.ready.push_front(event);
                false
            }
            Some(_) => true,
            None => false,
        }
    }

    /// The id of the last event.
    pub(super) fn last_id(&self) -> Option<&str> {
        self.parser.last_id()
    }

    /// How long to wait before the stream is asked for again, as the server says.
    pub(super) fn retry(&self) -> Option<Duration> {
        self.parser.retry()
    }
}
