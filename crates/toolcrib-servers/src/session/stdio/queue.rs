//! Lines that wait until a server reads: requests that can still be taken back, replies up to a limit.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    process::LinePosition,
    session::{rpc::requests::RequestProgress, server_messages::Counting},
};

/// Bytes of replies that wait for a server to read them. A server that sends more requests without reading gets no
/// answers.
const MAX_REPLIES: usize = 64 << 10;

/// Bytes of notifications and long replies that wait. What comes on top is dropped: nobody waits for it.
const MAX_TOLD: usize = 32 << 20;
/// Bytes that a line is counted with besides its text.
const OF_LINE: usize = 128;

/// Lines in the order of their arrival. Those whose callers have stopped waiting are removed.
#[derive(Default)]
pub(super) struct Queue {
    pub(super) lines: BTreeMap<u64, QueuedLine>,
    /// The place of the last one. The first one has 1.
    last: u64,
    /// Bytes of replies among them.
    replies: usize,
    /// Bytes of notifications and long replies.
    told: usize,
    /// They are not written any more.
    ended: bool,
}

/// A line to be written.
pub(super) struct QueuedLine {
    pub(super) line: Vec<u8>,
    pub(super) kind: Kind,
    /// Guard that counts the line towards the limit of its sender.
    pub(super) counting: Option<Counting>,
}

/// Kind of a line.
pub(super) enum Kind {
    /// A request of ours.
    Request(i64, Arc<RequestProgress>),
    /// An answer to the server.
    Reply(LinePosition),
    /// The notice that a request of ours is given up. There are no more of these than requests that were sent and have no
    /// answer.
    Cancellation(LinePosition),
    Notification(LinePosition),
}

impl Kind {
    pub(super) fn position(&self) -> &LinePosition {
        match self {
            Self::Request(_, course) => &course.position,
            Self::Reply(position) | Self::Cancellation(position) | Self::Notification(position) => position,
        }
    }
}

impl Queue {
    pub(super) fn push(&mut self, later: QueuedLine) -> Option<u64> {
        if self.ended {
            return None;
        }
        if let Kind::Reply(_) = later.kind {
            let replies = self.replies + later.line.len();
            if replies > MAX_REPLIES {
                return None;
            }
            self.replies = replies;
        }
        if let Kind::Notification(_) = later.kind {
            let told = self.told + later.line.len() + OF_LINE;
            if told > MAX_TOLD {
                return None;
            }
            self.told = told;
        }
        self.last += 1;
        let place = self.last;
        self.lines.insert(place, later);
        Some(place)
    }

    pub(super) fn take(&mut self, place: u64) -> Option<QueuedLine> {
        let later = self.lines.remove(&place)?;
        match later.kind {
            Kind::Reply(_) => self.replies -= later.line.len(),
            Kind::Notification(_) => self.told -= later.line.len() + OF_LINE,
            Kind::Request(..) | Kind::Cancellation(_) => {}
        }
        Some(later)
    }

    /// Drops all lines, those to come too.
    pub(super) fn end(&mut self) {
        *self = Self { ended: true, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn later(kind: Kind, bytes: usize) -> QueuedLine {
        QueuedLine { line: vec![b'x'; bytes], kind, counting: None }
    }

    #[test]
    fn all_but_requests_is_limited_in_the_queue() {
        let mut queue = Queue::default();
        let reply = || Kind::Reply(LinePosition::default());
        let taken = (0..10_000).filter(|_| queue.push(later(reply(), 300)).is_some()).count();
        assert_eq!(taken, MAX_REPLIES / 300);
        let request = queue.push(later(Kind::Request(1, Arc::default()), 1 << 20)).unwrap();
        assert_eq!(queue.take(request).unwrap().line.len(), 1 << 20);
        assert!(queue.take(request).is_none(), "it can be taken once");
        assert!(queue.push(later(reply(), 300)).is_none());
        assert!(queue.take(1).is_some());
        assert!(queue.push(later(reply(), 300)).is_some(), "what is read makes room");
        let told = |bytes| later(Kind::Notification(LinePosition::default()), bytes);
        assert_eq!((0..100).filter(|_| queue.push(told(4 << 20)).is_some()).count(), 7);
        // Short ones, too: there may be any number of them.
        let all = (0..200_000).filter(|_| queue.push(told(100)).is_some()).count();
        assert_eq!(all, (MAX_TOLD - 7 * ((4 << 20) + OF_LINE)) / (100 + OF_LINE));
        assert!(queue.push(later(Kind::Cancellation(LinePosition::default()), 100)).is_some());
        queue.end();
        assert!(queue.lines.is_empty());
        assert!(queue.push(later(Kind::Notification(LinePosition::default()), 1)).is_none());
    }
}
