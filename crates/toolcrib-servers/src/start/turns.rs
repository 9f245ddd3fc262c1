//! Turns: how many servers start at once, and which one is next.
//!
//! # How many
//! Starting an interpreter and its imports is CPU time, and more starts than cores only make all of them late:
//! of 32 real servers on 2 cores, all at once, the first was ready after 3.8 s and the last after 9.3 s; two at a
//! time, after 0.4 s and 8.8 s, with a tenth less CPU time. But a server that waits, for a network or a clock, must
//! not hold up others that could work meanwhile. So under [`StartJobs::Cores`] a start holds a slot for as long as
//! its processes work: seen twice in a row without a running thread and without CPU time in between, it gives
//! the slot to the next one and does not need it again. The check runs only while another server waits. A server whose
//! earlier starts took next to no CPU time needs no slot at all. One that waits for a template that another one has begun gives
//! its slot up, and takes one again only if it is not forked.
//!
//! Where `/proc` cannot tell (other systems than Linux), a start keeps its slot until it is ready, but at most for
//! a second. A fixed number of slots is strict everywhere: they are held until the server is ready or has failed.
//!
//! # Which one
//! By how long their earlier starts took. Shortest first makes the first tools usable soonest, but then the last slot
//! ends with the longest start alone; longest first packs the cores best, but no server is ready for long. Both are
//! had: one slot takes the shortest start that is left, the other slots the longest; and of the last ones, two for each
//! slot, every slot takes the longest, so that what is left over at the very end is short. Servers without history
//! count as long, as they may have to be installed, and keep the order of the configuration.
//!
//! The first server of those that were forked the last time begins a template in its turn. The others come next, before all
//! that work by themselves, under [`StartJobs::Cores`]: they give their slot up at once.

use std::{
    num::NonZeroUsize,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::oneshot;

pub(super) use self::held::HeldTurn;
use crate::config::StartJobs;

mod held;

/// Starts for each slot that are the last ones.
const LAST: usize = 2;

/// The slots of one start of many servers. Clones share them.
#[derive(Clone)]
pub(super) struct Turns {
    jobs: StartJobs,
    slots: Option<NonZeroUsize>,
    line: Arc<Mutex<StartQueue>>,
}

/// Who has a slot and who waits for one.
#[derive(Default)]
struct StartQueue {
    free: usize,
    /// Whether a start that was chosen as the shortest holds a slot.
    shortest: bool,
    /// Whether any start was ever chosen as the shortest.
    opened: bool,
    /// Whether any start was chosen that was forked the last time.
    forks: bool,
    waiting: Vec<QueuedStart>,
    /// Starts that have given up their slot and will want it again.
    given_up: usize,
    /// Starts that wait no more and have not ended, with a slot or without.
    under_way: usize,
}

struct QueuedStart {
    expected: Option<Duration>,
    /// It was forked the last time.
    forked: bool,
    turn: oneshot::Sender<Turn>,
}

/// A slot, given to the next one on drop.
pub(super) struct Turn {
    turns: Turns,
    shortest: bool,
}

impl Turns {
    pub(super) fn new(jobs: StartJobs) -> Self {
        // Asked once: it costs several files to read where there are cgroups.
        let slots = jobs.slots();
        let free = slots.map_or(0, NonZeroUsize::get);
        Self { jobs, slots, line: Arc::new(Mutex::new(StartQueue { free, ..StartQueue::default() })) }
    }

    pub(super) fn jobs(&self) -> StartJobs {
        self.jobs
    }

    /// Whether a server, that works or only waits, needs a slot.
    fn needs_slot(&self, works: bool) -> bool {
        works || self.jobs != StartJobs::Cores
    }

    /// Waits for a slot; `None` if none is needed. `expected` is what earlier starts took, `works` whether it takes CPU
    /// time; `queued` gets the number of slots if none is free.
    pub(super) async fn next(
        &self,
        expected: Option<Duration>,
        works: bool,
        queued: impl FnOnce(NonZeroUsize),
    ) -> Option<Turn> {
        let slots = self.slots.filter(|_| self.needs_slot(works))?;
        self.line_up(slots, (expected, false), queued).await
    }

    /// Waits for a turn like [`Turns::next`], for a server that works and was forked from a template the last time.
    pub(super) async fn next_forked(
        &self,
        expected: Option<Duration>,
        queued: impl FnOnce(NonZeroUsize),
    ) -> Option<Turn> {
        self.line_up(self.slots?, (expected, true), queued).await
    }

    async fn line_up(
        &self,
        slots: NonZeroUsize,
        (expected, forked): (Option<Duration>, bool),
        queued: impl FnOnce(NonZeroUsize),
    ) -> Option<Turn> {
        let (turn, mut given) = oneshot::channel();
        self.line().waiting.push(QueuedStart { expected, forked, turn });
        // All that are to start now line up before the first one is chosen.
        tokio::task::yield_now().await;
        self.advance();
        if let Ok(turn) = given.try_recv() {
            return Some(turn);
        }
        queued(slots);
        // The line is kept by `self`, so this is never an error.
        given.await.ok()
    }

    /// Gives free slots to those who are next.
    fn advance(&self) {
        loop {
            let mut line = self.line();
            // Cancelled starts have left the queue.
            line.waiting.retain(|waiting| !waiting.turn.is_closed());
            if line.free == 0 || line.waiting.is_empty() {
                return;
            }
            let slots = self.slots.map_or(1, NonZeroUsize::get);
            let last = line.opened && slots > 1 && line.waiting.len() <= LAST * slots;
            let shortest = !line.shortest && !last;
            let next = match line.forks && self.jobs == StartJobs::Cores {
                true => line.choose_forked(),
                false => None,
            };
            let next = next.unwrap_or_else(|| line.choose(shortest));
            line.forks |= next.forked;
            line.free -= 1;
            line.shortest |= shortest;
            line.opened |= shortest;
            drop(line);
            // Not under the lock: a turn that is not taken is dropped, and gives its slot back.
            let _ = next.turn.send(Turn { turns: self.clone(), shortest });
        }
    }

    /// How many wait for a slot, have one, or have given it up; where none is needed, how many are under way.
    fn at_once(&self) -> usize {
        let line = self.line();
        match self.slots {
            Some(slots) => line.waiting.len() + slots.get().saturating_sub(line.free) + line.given_up,
            None => line.under_way,
        }
    }

    fn has_waiting(&self) -> bool {
        !self.line().waiting.is_empty()
    }

    fn line(&self) -> MutexGuard<'_, StartQueue> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StartQueue {
    /// Takes one out of the line that will most likely only wait for its template, which an earlier one has begun.
    fn choose_forked(&mut self) -> Option<QueuedStart> {
        let index = self.waiting.iter().position(|waiting| waiting.forked)?;
        Some(self.waiting.remove(index))
    }

    /// Takes the one with the shortest or the longest start out of the line, which is not empty.
    fn choose(&mut self, shortest: bool) -> QueuedStart {
        let time = |waiting: &QueuedStart| waiting.expected.unwrap_or(Duration::MAX);
        let better =
            |a: &QueuedStart, b: &QueuedStart| if shortest { time(a) < time(b) } else { time(a) > time(b) };
        let best = (1..self.waiting.len()).fold(0, |best, index| {
            if better(&self.waiting[index], &self.waiting[best]) { index } else { best }
        });
        self.waiting.remove(best)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut line = self.turns.line();
        line.free += 1;
        line.shortest &= !self.shortest;
        drop(line);
        self.turns.advance();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use futures_util::future::join_all;
    use tokio::sync::watch;

    use super::*;
    use crate::{forking::StartTurn, session::SpawnedProcess};

    /// The order in which starts of these times (0: unknown) get their turns, each ending after the next began.
    async fn order(jobs: StartJobs, times: &[u64]) -> Vec<u64> {
        let turns = Turns::new(jobs);
        let order = RefCell::default();
        let starts = times.iter().map(|time| {
            let (turns, order): (_, &RefCell<Vec<u64>>) = (&turns, &order);
            async move {
                let expected = Some(*time).filter(|time| *time > 0).map(Duration::from_secs);
                let _turn = turns.next(expected, true, |_| ()).await;
                order.borrow_mut().push(*time);
                tokio::time::sleep(Duration::from_secs(*time)).await;
            }
        });
        join_all(starts).await;
        order.into_inner()
    }

    fn at_most(jobs: usize) -> StartJobs {
        StartJobs::AtMost(NonZeroUsize::new(jobs).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn one_slot_takes_the_shortest_start_the_others_the_longest() {
        // Those that begin in the same moment do so in the order given.
        assert_eq!(order(at_most(1), &[5, 1, 9, 3]).await, [1, 3, 5, 9]);
        assert_eq!(order(at_most(2), &[7, 2, 9, 4, 1, 8]).await, [9, 1, 8, 7, 4, 2]);
        assert_eq!(order(at_most(2), &[7, 2, 9, 4, 1, 8, 3]).await, [9, 1, 2, 8, 7, 4, 3]);
        assert_eq!(order(at_most(3), &[1, 5, 6, 7]).await, [1, 6, 7, 5]);
        assert_eq!(order(StartJobs::Unlimited, &[3, 1, 2]).await, [3, 1, 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn starts_that_will_wait_for_a_template_come_next() {
        for (jobs, expected) in [(StartJobs::Cores, [9, 1, 2, 6, 4, 3]), (at_most(2), [9, 1, 6, 4, 3, 2])] {
            let turns = Turns { jobs, ..Turns::new(at_most(2)) };
            let order = RefCell::default();
            let starts = [3_u64, 9, 1, 2, 4, 6].map(|seconds| {
                let (turns, order): (_, &RefCell<Vec<u64>>) = (&turns, &order);
                async move {
                    let (expected, forked) =
                        (Some(Duration::from_secs(seconds)), [9, 2, 6].contains(&seconds));
                    let turn = match forked {
                        true => turns.next_forked(expected, |_| ()).await,
                        false => turns.next(expected, true, |_| ()).await,
                    };
                    order.borrow_mut().push(seconds);
                    // Only the first one that is forked holds its turn.
                    let held = if forked && seconds != 9 { 0 } else { seconds };
                    tokio::time::sleep(Duration::from_secs(held)).await;
                    drop(turn);
                }
            });
            join_all(starts).await;
            assert_eq!(order.into_inner(), expected, "{jobs:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn unknown_start_times_count_as_long() {
        assert_eq!(order(at_most(1), &[0, 2, 1]).await, [1, 2, 0]);
        assert_eq!(order(at_most(2), &[3, 0, 1]).await, [0, 1, 3]);
    }

    #[tokio::test]
    async fn cancelled_starts_leave_the_queue_and_free_their_turn() {
        let turns = Turns::new(at_most(1));
        let first = turns.next(None, true, |_| panic!("it is free")).await.unwrap();
        let mut second = Box::pin(turns.next(None, true, |_| ()));
        let mut third = Box::pin(turns.next(None, true, |_| ()));
        assert!(
            futures_util::poll!(&mut second).is_pending() && futures_util::poll!(&mut third).is_pending()
        );
        drop(second);
        drop(first);
        drop(third.await.unwrap());
        // Given its turn and dropped before it saw it.
        let first = turns.next(None, true, |_| ()).await;
        let mut second = Box::pin(turns.next(None, true, |_| ()));
        assert!(futures_util::poll!(&mut second).is_pending());
        drop(first);
        drop(second);
        assert!(turns.next(None, true, |_| panic!("it is free")).await.is_some());
    }

    #[tokio::test]
    async fn servers_that_use_no_cpu_need_no_slot() {
        let turns = Turns::new(StartJobs::Cores);
        assert!(turns.next(None, false, |_| panic!("it waits")).await.is_none());
        assert!(Turns::new(at_most(1)).next(None, false, |_| ()).await.is_some());
    }

    #[tokio::test]
    async fn a_start_that_waits_for_a_template_gives_up_its_turn() {
        let turns = Turns { jobs: StartJobs::Cores, ..Turns::new(at_most(1)) };
        let first = HeldTurn::new(&turns, None, turns.next(None, true, |_| ()).await);
        // It has none to give up.
        let idle = HeldTurn::new(&turns, None, None);
        idle.give_up();
        idle.take_again().await;
        first.give_up();
        let second = turns.next(None, true, |_| panic!("it waits")).await;
        assert_eq!(turns.at_once(), 2);
        let mut again = first.take_again();
        assert!(futures_util::poll!(&mut again).is_pending());
        assert_eq!((turns.at_once(), first.has_given_up()), (2, true), "in the line it is counted once");
        drop(second);
        again.await;
        assert!(!first.has_given_up());
        assert_eq!(turns.at_once(), 1);
        let mut third = Box::pin(turns.next(None, true, |_| ()));
        assert!(futures_util::poll!(&mut third).is_pending());
        drop(first);
        assert!(third.await.is_some());
        // A fixed number of slots is strict.
        let strict = Turns::new(at_most(1));
        let first = HeldTurn::new(&strict, None, strict.next(None, true, |_| ()).await);
        first.give_up();
        assert!(futures_util::poll!(Box::pin(strict.next(None, true, |_| ()))).is_pending());
    }

    #[tokio::test]
    async fn starts_are_counted_with_and_without_slots() {
        let strict = Turns::new(at_most(1));
        let first = HeldTurn::new(&strict, None, strict.next(None, true, |_| ()).await);
        let mut second = Box::pin(strict.next(None, true, |_| ()));
        assert!(futures_util::poll!(&mut second).is_pending());
        assert_eq!(strict.at_once(), 2);
        drop(first);
        assert_eq!(strict.at_once(), 1);
        let free = Turns::new(StartJobs::Unlimited);
        let starts = (0..3).map(|_| async {
            let turn = HeldTurn::new(&free, None, free.next(None, true, |_| ()).await);
            tokio::task::yield_now().await;
            let counted = turn.at_once();
            tokio::task::yield_now().await;
            drop(turn);
            counted
        });
        assert_eq!(join_all(starts).await, [3, 3, 3]);
        assert_eq!(free.at_once(), 0);
    }

    #[tokio::test]
    #[cfg_attr(not(all(target_os = "linux", feature = "guard")), ignore = "needs /proc")]
    async fn an_idle_process_ends_its_turn() {
        let turns = Turns { jobs: StartJobs::Cores, ..Turns::new(at_most(1)) };
        let mut sleeper = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let mut worker =
            std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let turn = HeldTurn::new(&turns, None, turns.next(None, true, |_| ()).await);
        let process = |child: &std::process::Child| {
            Some(SpawnedProcess { root: child.id(), first_byte: Arc::default(), server: None })
        };
        let (_keep, seen) = watch::channel(process(&sleeper));
        // Somebody waits, so the sleeper is looked at.
        let (turn, ()) = tokio::join!(turns.next(None, true, |_| ()), turn.end_when_idle(seen));
        let (_keep, seen) = watch::channel(process(&worker));
        let turn = HeldTurn::new(&turns, None, turn);
        let mut next = Box::pin(turns.next(None, true, |_| ()));
        tokio::select! {
            _ = &mut next => panic!("it works"),
            () = turn.end_when_idle(seen) => panic!("it works"),
            () = tokio::time::sleep(Duration::from_millis(300)) => {}
        }
        drop(turn);
        assert!(next.await.is_some(), "its turn was dropped");
        for child in [&mut sleeper, &mut worker] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
