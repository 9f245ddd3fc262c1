//! Recent stderr lines and events of servers, in bounded memory: a noisy server evicts only
//! its own lines.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;

use super::wire::{LogLine, LogStream};
use crate::{start::ServerEvent, tool::ServerName};

/// Lines kept of each server, of 500 bytes at most; and as many messages of 4096.
const LINES: usize = 1000;
/// Events kept for those who follow a start.
const EVENTS: usize = 4096;

/// Written by the observer of the manager, read by any number of followers at their own pace.
pub(super) struct Log {
    // Std mutex: held for one line, or for a copy of what is new.
    kept: Mutex<LogBuffer>,
    /// The number of the next entry.
    next: watch::Sender<u64>,
}

#[derive(Default)]
struct LogBuffer {
    next: u64,
    /// Lines by server, messages apart: they would soon drive out everything else.
    lines: BTreeMap<(ServerName, bool), VecDeque<(u64, LogLine)>>,
    events: VecDeque<(u64, ServerEvent)>,
}

impl Default for Log {
    fn default() -> Self {
        Self { kept: Mutex::default(), next: watch::Sender::new(0) }
    }
}

impl Log {
    /// Takes in what happened. Never blocks for long, never waits for a reader.
    pub(super) fn add(&self, event: ServerEvent) {
        let mut kept = self.kept();
        let number = kept.next;
        kept.next += 1;
        if let Some(line) = as_line(&event) {
            let lines = kept.lines.entry((line.server.clone(), line.stream.is_wire())).or_default();
            if lines.len() == LINES {
                lines.pop_front();
            }
            lines.push_back((number, line));
        }
        if !matches!(event, ServerEvent::Wrote { .. } | ServerEvent::Message { .. }) {
            if kept.events.len() == EVENTS {
                kept.events.pop_front();
            }
            kept.events.push_back((number, event));
        }
        let next = kept.next;
        drop(kept);
        self.next.send_replace(next);
    }

    /// Changes with every entry.
    pub(super) fn follow(&self) -> watch::Receiver<u64> {
        self.next.subscribe()
    }

    /// The number that the next entry will have.
    pub(super) fn next(&self) -> u64 {
        self.kept().next
    }

    /// The lines from number `from` on, in order, of servers that `wanted` says, and the number to go on from.
    pub(super) fn lines(&self, from: u64, wanted: impl Fn(&ServerName) -> bool) -> (Vec<LogLine>, u64) {
        let kept = self.kept();
        let mut found: Vec<(u64, LogLine)> = Vec::new();
        for (_, lines) in kept.lines.iter().filter(|((server, _), _)| wanted(server)) {
            let new = lines.partition_point(|(number, _)| *number < from);
            found.extend(lines.range(new..).cloned());
        }
        found.sort_by_key(|(number, _)| *number);
        (found.into_iter().map(|(_, line)| line).collect(), kept.next)
    }

    /// The events from number `from` on, and the number to go on from.
    pub(super) fn events(&self, from: u64) -> (Vec<ServerEvent>, u64) {
        let kept = self.kept();
        let new = kept.events.partition_point(|(number, _)| *number < from);
        (kept.events.range(new..).map(|(_, event)| event.clone()).collect(), kept.next)
    }

    fn kept(&self) -> MutexGuard<'_, LogBuffer> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An event in one line; `None` for what is not worth one.
fn as_line(event: &ServerEvent) -> Option<LogLine> {
    match event {
        ServerEvent::Wrote { server, line } => {
            Some(LogLine::now(server.clone(), LogStream::Stderr, line.clone()))
        }
        ServerEvent::Message { server, sent, text } => {
            let stream = if *sent { LogStream::Sent } else { LogStream::Received };
            Some(LogLine::now(server.clone(), stream, text.clone()))
        }
        event => {
            let (server, text) = event.in_words()?;
            Some(LogLine::now(server.clone(), LogStream::Events, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrote(server: &str, line: usize) -> ServerEvent {
        ServerEvent::Wrote { server: ServerName::new(server).unwrap(), line: line.to_string() }
    }

    #[test]
    fn a_noisy_server_evicts_only_its_own_lines() {
        let log = Log::default();
        log.add(wrote("quiet", 0));
        for line in 0..LINES + 10 {
            log.add(wrote("noisy", line));
        }
        let (lines, next) = log.lines(0, |_| true);
        assert_eq!((lines.len(), lines[0].text.as_str(), lines[1].text.as_str()), (LINES + 1, "0", "10"));
        log.add(wrote("quiet", 7));
        let (lines, _) = log.lines(next, |server| server.as_str() == "quiet");
        assert_eq!(lines.iter().map(|line| line.text.as_str()).collect::<Vec<_>>(), ["7"]);
        assert!(log.events(0).0.is_empty());
    }
}
