//! Work on what is large, beside the thread on which everything else waits.
//!
//! The command line runs on one thread. What is small is worked on there, at once. A message of megabytes is parsed, checked and
//! rewritten elsewhere: on few threads, with one for each who wants it, and those who wait take turns.

use std::{
    collections::VecDeque,
    fmt, mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{runtime::Handle, sync::oneshot, task::spawn_blocking};

/// Bytes of text that are worked on at once: a few milliseconds, whatever they say.
pub const LARGE: usize = 64 << 10;
/// Threads at a time.
const THREADS: usize = 4;
/// Bytes of one that may wait, and of all. What waits alone may be longer.
const MOST_OF_ONE: usize = 64 << 20;
const MOST: usize = 256 << 20;

/// Who wants work done: those who are equal have one thread at a time, and their turns are in the order in which they came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct WhoseWork(usize);

impl WhoseWork {
    /// Identifies those who share this value.
    pub fn of<T>(shared: &Arc<T>) -> Self {
        Self(Arc::as_ptr(shared).addr())
    }
}

/// Why work on something large was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotDone {
    /// Too much waits.
    Crowd,
    /// It has ended with the program, or by a fault of ours.
    Ended,
}

impl fmt::Display for NotDone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Crowd => "too many large messages wait to be looked at: send it again later",
            Self::Ended => "work on a large message has failed",
        })
    }
}

/// Does `work` on so many bytes once it is the turn of who wants it. Dropping the future leaves the line; work that has begun
/// is done to its end.
///
/// # Errors
/// It was not done.
pub async fn beside<T: Send + 'static>(
    whose: WhoseWork,
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, NotDone> {
    let turn = turn(&LINE, whose, bytes).await?;
    let work = move || {
        let _turn = turn;
        work()
    };
    spawn_blocking(work).await.map_err(|_| NotDone::Ended)
}

/// Does `work` on so many bytes: at once if these are few, and else as [`beside`] does.
///
/// # Errors
/// It was not done.
pub async fn at_turn<T: Send + 'static>(
    whose: WhoseWork,
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, NotDone> {
    match bytes {
        0..=LARGE => Ok(work()),
        _ => Box::pin(beside(whose, bytes, work)).await,
    }
}

/// Drops what takes long to drop, elsewhere.
pub fn drop_beside(large: impl Send + 'static) {
    match Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn_blocking(move || drop(large))),
        Err(_) => drop(large),
    }
}

static LINE: Mutex<Line> = Mutex::new(Line::new());

/// Who works, and who waits.
struct Line {
    working: Vec<WhoseWork>,
    waiting: VecDeque<Waiting>,
    bytes: usize,
}

/// Work that waits for turns, all of the same owner.
struct Waiting {
    whose: WhoseWork,
    bytes: usize,
    turns: VecDeque<(usize, oneshot::Sender<Turn>)>,
}

/// A place at a thread, which is handed on when this is dropped.
struct Turn {
    line: &'static Mutex<Line>,
    whose: WhoseWork,
}

async fn turn(line: &'static Mutex<Line>, whose: WhoseWork, bytes: usize) -> Result<Turn, NotDone> {
    let turn = {
        let mut line_now = lock(line);
        if line_now.is_free(whose) {
            line_now.working.push(whose);
            return Ok(Turn { line, whose });
        }
        line_now.wait(whose, bytes)?
    };
    turn.await.map_err(|_| NotDone::Ended)
}

impl Line {
    const fn new() -> Self {
        Self { working: Vec::new(), waiting: VecDeque::new(), bytes: 0 }
    }

    fn is_free(&self, whose: WhoseWork) -> bool {
        self.working.len() < THREADS && !self.working.contains(&whose)
    }

    fn wait(&mut self, whose: WhoseWork, bytes: usize) -> Result<oneshot::Receiver<Turn>, NotDone> {
        let place = self.waiting.iter().position(|one| one.whose == whose);
        let of_one = place.map_or(0, |place| self.waiting[place].bytes);
        let is_over = |waiting: usize, most: usize| waiting > 0 && waiting.saturating_add(bytes) > most;
        if is_over(of_one, MOST_OF_ONE) || is_over(self.bytes, MOST) && of_one > 0 {
            return Err(NotDone::Crowd);
        }
        let (sender, receiver) = oneshot::channel();
        let of_one = match place.and_then(|place| self.waiting.get_mut(place)) {
            Some(of_one) => of_one,
            None => {
                self.waiting.push_back(Waiting { whose, bytes: 0, turns: VecDeque::new() });
                let Some(of_one) = self.waiting.back_mut() else { return Err(NotDone::Ended) };
                of_one
            }
        };
        of_one.turns.push_back((bytes, sender));
        of_one.bytes += bytes;
        self.bytes += bytes;
        Ok(receiver)
    }

    /// Takes the next one out of the line who may begin: who has a thread already waits on.
    fn next(&mut self) -> Option<(WhoseWork, oneshot::Sender<Turn>)> {
        loop {
            if self.working.len() >= THREADS {
                return None;
            }
            let place = self.waiting.iter().position(|one| !self.working.contains(&one.whose))?;
            let mut of_one = self.waiting.remove(place)?;
            let (bytes, sender) = of_one.turns.pop_front()?;
            let whose = of_one.whose;
            of_one.bytes -= bytes;
            self.bytes -= bytes;
            if !of_one.turns.is_empty() {
                self.waiting.push_back(of_one);
            }
            // Some have left the line.
            if !sender.is_closed() {
                return Some((whose, sender));
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut gone = Some(self.whose);
        loop {
            let next = {
                let mut line = lock(self.line);
                if let Some(place) = gone.and_then(|whose| line.working.iter().position(|one| *one == whose))
                {
                    line.working.swap_remove(place);
                }
                let next = line.next();
                line.working.extend(next.as_ref().map(|(whose, _)| *whose));
                next
            };
            let Some((whose, sender)) = next else { return };
            // Who has left meanwhile gives the place back.
            let Err(turn) = sender.send(Turn { line: self.line, whose }) else { return };
            mem::forget(turn);
            gone = Some(whose);
        }
    }
}

fn lock(line: &Mutex<Line>) -> MutexGuard<'_, Line> {
    line.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn line() -> &'static Mutex<Line> {
        Box::leak(Box::new(Mutex::new(Line::new())))
    }

    fn now(line: &'static Mutex<Line>, whose: usize, bytes: usize) -> Option<Result<Turn, NotDone>> {
        turn(line, WhoseWork(whose), bytes).now_or_never()
    }

    #[tokio::test]
    async fn those_who_want_work_take_turns() {
        let line = line();
        let first = now(line, 1, 1).unwrap().unwrap();
        let many: Vec<_> = (0..3).map(|_| Box::pin(turn(line, WhoseWork(1), 1))).collect();
        let mut many = futures_util::future::join_all(many);
        assert!((&mut many).now_or_never().is_none(), "one has one thread at a time");
        let others: Vec<_> = (2..=THREADS).map(|whose| now(line, whose, 1).unwrap().unwrap()).collect();
        let mut late = Box::pin(turn(line, WhoseWork(9), 1));
        assert!((&mut late).now_or_never().is_none(), "all threads are taken");
        // A place is free: the one behind the three is next, since their owner has a thread.
        drop(others);
        let late = (&mut late).now_or_never().unwrap().unwrap();
        drop(many);
        drop((first, late));
        assert!(lock(line).working.is_empty() && lock(line).bytes == 0);
    }

    #[tokio::test]
    async fn bytes_that_wait_are_bounded_for_each() {
        let line = line();
        let _working = now(line, 1, 1).unwrap().unwrap();
        let mut waiting = Box::pin(turn(line, WhoseWork(1), MOST_OF_ONE + 1));
        assert!((&mut waiting).now_or_never().is_none(), "one alone may be longer");
        assert_eq!(now(line, 1, 1).unwrap().err(), Some(NotDone::Crowd));
        assert!(now(line, 2, 1).unwrap().is_ok(), "another one has what is its own");
    }

    #[tokio::test]
    async fn work_that_panics_gives_its_turn_back() {
        let whose = WhoseWork(usize::MAX);
        let failed = beside(whose, 1, || panic!("an expected panic of this test")).await;
        assert_eq!(failed, Err::<(), _>(NotDone::Ended));
        assert_eq!(beside(whose, 1, || 7).await, Ok(7));
    }
}
