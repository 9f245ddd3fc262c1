//! Runs programs under test as child processes: spawn, wait, signal, and kill the rest at the end.
//!
//! This process adopts every orphan below it, so that what a run leaves behind can be reaped and, in the end,
//! ended, without the help of pid 1. Only children that were not reaped are signalled: their ids are still theirs.

use std::{
    collections::{HashMap, HashSet},
    io,
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, set_child_subreaper, wait,
};

use super::census;

/// How long the sweep may take.
const SWEEP_LIMIT: Duration = Duration::from_secs(20);
/// Time between two looks of the sweep: a process that changes its id must not be quicker for long.
const SWEEP_PAUSE: Duration = Duration::from_millis(1);

/// All children of this process.
pub(super) struct Children {
    /// Children that existed before, which belong to other code.
    before: HashSet<Pid>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The programs under test, with their status once they have ended.
    programs: HashMap<Pid, Option<WaitStatus>>,
    /// Whether nothing may be started any more.
    closed: bool,
}

impl Children {
    /// Makes this process the parent of all orphans below it.
    pub(super) fn adopt() -> io::Result<Self> {
        set_child_subreaper(Some(getpid()))?;
        Ok(Self { before: census::children().into_iter().collect(), state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a program. The caller asks for its end with [`Children::ended`].
    pub(super) fn spawn(&self, command: &mut Command) -> io::Result<Pid> {
        // Invariant: the lock is held from the start until the id is noted, so that no reaper overtakes it.
        let mut state = self.state();
        if state.closed {
            return Err(io::Error::other("the torture is over"));
        }
        let child = command.spawn()?;
        let pid = Pid::from_child(&child);
        state.programs.insert(pid, None);
        Ok(pid)
    }

    /// How `pid` ended; nothing while it runs. Reaps every child that has ended.
    pub(super) fn ended(&self, pid: Pid) -> Option<WaitStatus> {
        let mut state = self.state();
        state.reap();
        state.programs.get(&pid).copied().flatten()
    }

    /// Sends `signal` to a program that has not been reaped.
    pub(super) fn signal(&self, pid: Pid, signal: Signal) {
        if self.state().programs.get(&pid).is_some_and(Option::is_none) {
            // A zombie takes the signal and does nothing with it.
            let _ = kill_process(pid, signal);
        }
    }

    /// Kills a program and waits for its end.
    pub(super) fn end(&self, pid: Pid) {
        self.signal(pid, Signal::KILL);
        while self.ended(pid).is_none() {
            thread::sleep(SWEEP_PAUSE);
        }
        self.state().programs.remove(&pid);
    }

    /// Ends every child that was not there before, and what they leave behind, until none is left. Nothing can
    /// be started after that. Says which would not go.
    pub(super) fn sweep(&self) -> Vec<u32> {
        self.state().closed = true;
        let deadline = Instant::now() + SWEEP_LIMIT;
        loop {
            let mut state = self.state();
            state.reap();
            // Invariant: no other thread reaps while the lock is held, so each of these ids is still a child's.
            let ours: Vec<Pid> =
                census::children().into_iter().filter(|pid| !self.before.contains(pid)).collect();
            if ours.is_empty() || Instant::now() >= deadline {
                return ours.iter().map(|pid| pid.as_raw_nonzero().get().cast_unsigned()).collect();
            }
            for pid in ours {
                let _ = kill_process(pid, Signal::KILL);
            }
            drop(state);
            thread::sleep(SWEEP_PAUSE);
        }
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        self.sweep();
    }
}

impl State {
    fn reap(&mut self) {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if let Some(program) = self.programs.get_mut(&pid) {
                *program = Some(status);
            }
        }
    }
}
