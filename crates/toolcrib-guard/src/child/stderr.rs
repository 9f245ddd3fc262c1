//! Keeps the last lines of a child's stderr. The stream is always drained, the lines are bounded and secrets hidden.

use std::{
    collections::VecDeque,
    future::poll_fn,
    mem::MaybeUninit,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Poll, ready},
    time::Duration,
};

use tokio::io::{AsyncRead, ReadBuf};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::Redact;

/// Lines kept.
const LINES: usize = 20;
/// Bytes kept of one line.
const LINE_BYTES: usize = 500;

/// Bytes that are read at once.
const BUFFER: usize = 8 << 10;
/// The most lines of one read that are passed to a listener; of more lines it gets only the number. Text has fewer, but
/// 8 KiB of empty lines would block the other tasks of this thread.
const LISTENER_LINES: usize = 256;

/// Gets each whole line. It runs in the task that reads, so it must not block.
type Listener = Box<dyn Fn(String) + Send>;

/// The tail of one child's stderr. Dropping the last clone ends the draining.
#[derive(Clone)]
pub struct StderrTail {
    tail: Arc<Mutex<Tail>>,
    /// Cancelled when stderr has ended.
    ended: CancellationToken,
    redact: Arc<dyn Redact>,
    _drain: Arc<AbortOnDropHandle<()>>,
}

#[derive(Default)]
struct Tail {
    lines: VecDeque<Vec<u8>>,
    /// Whether the last line has not ended yet.
    open: bool,
    listener: Option<Listener>,
}

impl StderrTail {
    /// Reads `stream` to its end in the background.
    pub fn drain(mut stream: impl AsyncRead + Send + Unpin + 'static, redact: Arc<dyn Redact>) -> Self {
        let tail = Arc::<Mutex<Tail>>::default();
        let ended = CancellationToken::new();
        let (shared, done) = (tail.clone(), ended.clone().drop_guard());
        let hidden = redact.clone();
        #[expect(clippy::disallowed_methods, reason = "the handle in `_drain` ends the task with its owner")]
        let drain = AbortOnDropHandle::new(tokio::spawn(async move {
            let _done = done;
            // The buffer is on the stack, and only during a read: most servers write nothing.
            let mut more = poll_fn(|context| {
                let mut space = [MaybeUninit::uninit(); BUFFER];
                let mut read = ReadBuf::uninit(&mut space);
                let outcome = ready!(Pin::new(&mut stream).poll_read(context, &mut read));
                let bytes = read.filled();
                let more = outcome.is_ok() && !bytes.is_empty();
                if more {
                    shared.lock().unwrap_or_else(PoisonError::into_inner).push(bytes, &*hidden);
                }
                Poll::Ready(more)
            });
            // A stream that is always readable would otherwise yield only after tokio's budget of 128 reads.
            while (&mut more).await {
                tokio::task::yield_now().await;
            }
            shared.lock().unwrap_or_else(PoisonError::into_inner).end(&*hidden);
        }));
        Self { tail, ended, redact, _drain: Arc::new(drain) }
    }

    /// The last lines, oldest first.
    pub fn lines(&self) -> Vec<String> {
        let tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        tail.lines.iter().map(|line| shown(line, &*self.redact)).filter(|line| !line.is_empty()).collect()
    }

    /// Passes the kept lines and every later whole line to `listener`.
    pub fn set_listener(&self, listener: impl Fn(String) + Send + 'static) {
        let mut tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        let whole = tail.lines.len() - usize::from(tail.open);
        tail.lines.iter().take(whole).for_each(|line| listener(shown(line, &*self.redact)));
        tail.listener = Some(Box::new(listener));
    }

    /// Waits until stderr has ended, at most `limit`: the last lines often say why a server ended.
    pub async fn settled(&self, limit: Duration) {
        let _ = tokio::time::timeout(limit, self.ended.cancelled()).await;
    }
}

/// A kept line without its secrets, also without one that was cut in half.
fn shown(line: &[u8], redact: &dyn Redact) -> String {
    let text = String::from_utf8_lossy(line);
    match line.len() {
        LINE_BYTES.. => redact.redact(&text, true),
        _ => redact.redact(&text, false).trim_end().to_owned(),
    }
}

impl Tail {
    fn push(&mut self, bytes: &[u8], redact: &dyn Redact) {
        let mut whole = 0;
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            if !self.open {
                if self.lines.len() == LINES {
                    self.lines.pop_front();
                }
                self.lines.push_back(Vec::new());
            }
            let line = self.lines.back_mut().expect("a line was pushed when none was open");
            let room = LINE_BYTES.saturating_sub(line.len());
            let text = piece.strip_suffix(b"\n").unwrap_or(piece);
            line.extend_from_slice(&text[..text.len().min(room)]);
            self.open = !piece.ends_with(b"\n");
            whole += usize::from(!self.open);
            if let (Some(listener), false, ..=LISTENER_LINES) = (&self.listener, self.open, whole) {
                listener(shown(line, redact));
            }
        }
        if let (Some(listener), Some(more @ 1..)) = (&self.listener, whole.checked_sub(LISTENER_LINES)) {
            listener(format!("({more} more lines)"));
        }
    }

    /// Ends the stream: passes a last line without line feed to the listener.
    fn end(&mut self, redact: &dyn Redact) {
        if let (Some(listener), true, Some(line)) = (&self.listener, self.open, self.lines.back()) {
            listener(shown(line, redact));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECRET: &str = "s3cret-värde-1234";

    /// Hides [`SECRET`], and at a cut its beginning.
    struct Secret;

    impl Redact for Secret {
        fn redact(&self, line: &str, is_cut: bool) -> String {
            let line = line.replace(SECRET, "****");
            let begun = SECRET.char_indices().map(|(at, _)| &SECRET[..at]).skip(1);
            let cut = |begun: &&str| line.trim_end_matches('\u{fffd}').ends_with(begun);
            match begun.filter(|_| is_cut).filter(cut).last() {
                Some(begun) => line.trim_end_matches('\u{fffd}').trim_end_matches(begun).to_owned(),
                None => line,
            }
        }
    }

    proptest! {
        #[test]
        fn any_stderr_is_bounded_and_hides_secrets(
            before in "[a-z ]{0,600}",
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..20),
            size in 1_usize..700,
        ) {
            let mut tail = Tail::default();
            for chunk in chunks {
                tail.push(&chunk, &Secret);
            }
            tail.push(b"\n", &Secret);
            // A secret anywhere in a line, in pieces of any size, and cut anywhere.
            for piece in format!("{before}{SECRET}{before}").as_bytes().chunks(size) {
                tail.push(piece, &Secret);
            }
            prop_assert!(tail.lines.len() <= LINES);
            prop_assert!(tail.lines.iter().all(|line| line.len() <= LINE_BYTES));
            let last = shown(tail.lines.back().unwrap(), &Secret);
            prop_assert!(!last.contains("s3cr"), "{last}");
        }
    }

    #[tokio::test]
    async fn a_listener_gets_every_line_once() {
        let (mut ours, theirs) = tokio::io::duplex(64);
        let tail = StderrTail::drain(theirs, Arc::new(Secret));
        tokio::io::AsyncWriteExt::write_all(&mut ours, b"before\nha").await.unwrap();
        while tail.lines().len() < 2 {
            tokio::task::yield_now().await;
        }
        let (sender, heard) = std::sync::mpsc::channel();
        tail.set_listener(move |line| sender.send(line).unwrap());
        let rest = format!("lf\n{SECRET}\nlast");
        tokio::io::AsyncWriteExt::write_all(&mut ours, rest.as_bytes()).await.unwrap();
        drop(ours);
        tail.settled(Duration::from_secs(30)).await;
        assert_eq!(heard.try_iter().collect::<Vec<_>>(), ["before", "half", "****", "last"]);
    }

    #[test]
    fn a_listener_gets_a_bounded_number_of_lines_per_read() {
        let mut tail = Tail::default();
        let (sender, heard) = std::sync::mpsc::channel();
        tail.listener = Some(Box::new(move |line| sender.send(line).unwrap()));
        let page = "a line of thirty-three characters\n".repeat(BUFFER / 34);
        tail.push(page.as_bytes(), &());
        assert_eq!(heard.try_iter().count(), BUFFER / 34);
        tail.push(&[b'\n'; BUFFER], &());
        tail.push(b"after\n", &());
        let heard: Vec<_> = heard.try_iter().collect();
        assert_eq!(heard.len(), LISTENER_LINES + 2);
        assert_eq!(
            heard[LISTENER_LINES..],
            [format!("({} more lines)", BUFFER - LISTENER_LINES), "after".to_owned()]
        );
    }

    #[tokio::test]
    async fn a_flood_yields_after_each_read() {
        // It always has something to read, as a pipe that is written at full speed.
        let tail = StderrTail::drain(tokio::io::repeat(b'\n'), Arc::new(()));
        let told = Arc::<std::sync::atomic::AtomicUsize>::default();
        let counted = told.clone();
        tail.set_listener(move |_| {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        });
        let mut most = 0;
        for _ in 0..100 {
            let before = told.load(std::sync::atomic::Ordering::Relaxed);
            tokio::task::yield_now().await;
            most = most.max(told.load(std::sync::atomic::Ordering::Relaxed) - before);
        }
        assert!((1..=LISTENER_LINES + 1).contains(&most), "{most} lines were told in one turn");
    }

    #[test]
    fn the_last_lines_are_kept_and_long_ones_cut() {
        let mut tail = Tail::default();
        for number in 0..50 {
            tail.push(format!("line {number}\n").as_bytes(), &());
        }
        tail.push(&vec![b'x'; 100_000], &());
        tail.push(b"y\nend", &());
        assert_eq!(tail.lines.len(), LINES);
        assert_eq!(tail.lines[LINES - 1], b"end");
        assert_eq!(tail.lines[LINES - 2].len(), LINE_BYTES);
        assert_eq!(tail.lines[LINES - 3], b"line 49");
    }
}
