//! Starts a server in its own process group and ends that group: for systems without a guard.
//!
//! The group is ended only if the owner runs its destructors, not after SIGKILL. Helpers that left the group are not
//! ended. The leader is reaped only after its group was signalled, so the group's id cannot have been recycled. If the
//! program reaps it earlier (`waitpid(-1)`, SIGCHLD ignored), the processes with the server's mark are signalled one by
//! one instead.

use std::{
    os::fd::OwnedFd,
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tokio::process::{Child, ChildStderr, ChildStdout};

use super::{exit::ExitWatch, program};
use crate::{ProcessSpec, SpawnError, StopGrace, StopOutcome, Stopped, marks::MARKER, platform, trace};

/// Pause between two polls of a group.
const GROUP_POLL: Duration = Duration::from_millis(5);

/// A child that leads a process group. Dropping it kills the group.
pub(crate) struct GroupedProcess {
    child: Child,
    group: Pid,
    exit: ExitWatch,
    mark: String,
    reaped: bool,
    /// The process that started it. Forks of that process must not end the group.
    owner: u32,
}

impl GroupedProcess {
    /// Starts `program` as the leader of a new group. The read end of its standard input is `input`.
    pub(crate) fn spawn(
        program: &Path,
        spec: &ProcessSpec,
        mark: &str,
        input: OwnedFd,
    ) -> Result<(Self, ChildStdout, ChildStderr), SpawnError> {
        // No pre_exec hook: with one, std forks instead of calling posix_spawn, which costs 25 ms per child in a parent
        // of 512 MiB.
        let mut child = tokio::process::Command::new(program)
            .args(&spec.args)
            .env_clear()
            .envs(&*spec.env)
            .env(MARKER, mark)
            .current_dir(&spec.cwd)
            .stdin(Stdio::from(input))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(|error| program::start_error(spec, program, &error))?;
        let pid = child.id().expect("a child that was never polled has its id");
        crate::file_limit::reset_of(Some(pid));
        platform::give_short_mark(Some(pid), mark);
        let group = Pid::from_raw(pid.cast_signed()).expect("process ids are positive");
        let stdout = child.stdout.take().expect("stdout is piped");
        let stderr = child.stderr.take().expect("stderr is piped");
        // From here on `Drop` kills the child, also if the watch fails.
        let (exit, mark, owner) = (ExitWatch::polling(group), mark.to_owned(), std::process::id());
        let mut grouped = Self { child, group, exit, mark, reaped: false, owner };
        grouped.exit = ExitWatch::new(group)
            .map_err(|error| SpawnError::new(format!("could not watch process {pid}: {error}"), None))?;
        Ok((grouped, stdout, stderr))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.group.as_raw_nonzero().get().cast_unsigned()
    }

    pub(crate) fn exit_watch(&self) -> ExitWatch {
        self.exit.clone()
    }

    /// Runs the stop ladder. The caller has closed the input.
    pub(crate) async fn stop(mut self, grace: StopGrace) -> Stopped {
        let mut outcome = StopOutcome::Exited;
        if !self.exit.within(grace.eof).await {
            outcome = StopOutcome::Terminated;
            trace::stop_step("sigterm");
            self.signal(Signal::TERM);
            // A stopped process handles SIGTERM only after SIGCONT.
            self.signal(Signal::CONT);
            if !self.exit.within(grace.term).await {
                outcome = StopOutcome::Killed;
                trace::stop_step("sigkill");
                self.signal(Signal::KILL);
                self.exit.exited().await;
            }
        }
        trace::stop_step("exited");
        // The leader is a zombie now, so the group's id is still valid. Helpers that outlived it get SIGTERM before it
        // is reaped.
        let left_behind = self.helpers_live();
        self.signal(Signal::TERM);
        let mut helpers = left_behind;
        if platform::DETECTS_ZOMBIES {
            helpers |= self.end_helpers(grace.term).await;
        }
        let status = self.child.wait().await.ok();
        self.reaped = true;
        if !platform::DETECTS_ZOMBIES {
            // Here a zombie leader cannot be distinguished from living helpers. Now it is reaped and no member any
            // more.
            helpers |= self.end_helpers(grace.term).await;
        }
        Stopped { pid: self.pid(), outcome, status, helpers, killed: None }
    }

    /// Waits until the rest of the group has ended and kills it after `grace`. Returns whether there was any member.
    async fn end_helpers(&self, grace: Duration) -> bool {
        if !self.group_lives() {
            return false;
        }
        let deadline = Instant::now() + grace;
        while self.group_lives() {
            if Instant::now() >= deadline {
                self.signal(Signal::KILL);
                // No process can refuse SIGKILL; the kernel needs a moment.
                for _ in 0..200 {
                    if !self.group_lives() {
                        break;
                    }
                    tokio::time::sleep(GROUP_POLL).await;
                }
                break;
            }
            tokio::time::sleep(GROUP_POLL).await;
        }
        true
    }

    /// Whether the group has living members besides its zombie leader. Checked before they get SIGTERM, as they may
    /// have ended by the next check. Always false where zombies cannot be distinguished.
    fn helpers_live(&self) -> bool {
        platform::DETECTS_ZOMBIES && self.group_lives()
    }

    fn group_lives(&self) -> bool {
        if !self.is_ours() {
            return platform::is_marked(&self.mark);
        }
        // The quick check also counts zombies, and not every init reaps them, so the slower check follows.
        test_kill_process_group(self.group).is_ok() && platform::group_has_living(self.group)
    }

    /// Whether the group's id cannot have been recycled: its leader was not reaped yet, or was reaped by [`Self::stop`]
    /// just now.
    fn is_ours(&self) -> bool {
        self.reaped || self.exit.is_ours()
    }

    fn signal(&self, signal: Signal) {
        if self.is_ours() {
            // It fails only if no process is left.
            let _ = kill_process_group(self.group, signal);
        } else {
            // The program has reaped the leader itself, so the id may belong to another group by now.
            platform::signal_marked(&self.mark, signal);
        }
    }
}

impl Drop for GroupedProcess {
    /// Kills the group now: one system call, no runtime, no wait. The runtime, if any, reaps the leader.
    fn drop(&mut self) {
        if !self.reaped && self.owner == std::process::id() {
            self.signal(Signal::KILL);
            let _ = self.child.try_wait();
        }
    }
}
