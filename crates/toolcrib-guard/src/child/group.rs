//! TeardownScope a server by its process group: what every Unix has, and what remains where there is no guard.
//!
//! Ends with its owner's orderly end only: SIGKILL of the owner and helpers that left the group are not
//! followed. The leader is reaped only after its group was signalled, so the group's id cannot have been
//! recycled. Where the program reaps it (`waitpid(-1)`, SIGCHLD ignored), those with the server's mark are signalled
//! one by one instead.

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

/// Pause between looks at a group that has no other way to tell that it is gone.
const GROUP_POLL: Duration = Duration::from_millis(5);

/// A child that leads a process group. Dropping it kills the group.
pub(crate) struct Grouped {
    child: Child,
    group: Pid,
    exit: ExitWatch,
    mark: String,
    reaped: bool,
    /// The process that made it. It is not its forks' to end anybody.
    owner: u32,
}

impl Grouped {
    /// Starts `program` as the leader of a new group. The read end of its standard input is `input`.
    pub(crate) fn spawn(
        program: &Path,
        spec: &ProcessSpec,
        mark: &str,
        input: OwnedFd,
    ) -> Result<(Self, ChildStdout, ChildStderr), SpawnError> {
        // Why no pre_exec hook: with one, std forks instead of calling posix_spawn, which costs 25 ms per
        // child in a parent of 512 MiB.
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
            .map_err(|error| program::refused(spec, program, &error))?;
        let pid = child.id().expect("a child that was never polled has its id");
        let group = Pid::from_raw(pid.cast_signed()).expect("process ids are positive");
        let stdout = child.stdout.take().expect("stdout is piped");
        let stderr = child.stderr.take().expect("stderr is piped");
        // From here on `Drop` holds: a failing watch kills the child.
        let (exit, mark, owner) = (ExitWatch::none(group), mark.to_owned(), std::process::id());
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

    /// The stop ladder; the input is closed already.
    pub(crate) async fn stop(mut self, grace: StopGrace) -> Stopped {
        let mut outcome = StopOutcome::Exited;
        if !self.exit.within(grace.eof).await {
            outcome = StopOutcome::Terminated;
            trace::stop_step("sigterm");
            self.signal(Signal::TERM);
            // A stopped process hears SIGTERM only once it goes on.
            self.signal(Signal::CONT);
            if !self.exit.within(grace.term).await {
                outcome = StopOutcome::Killed;
                trace::stop_step("sigkill");
                self.signal(Signal::KILL);
                self.exit.exited().await;
            }
        }
        trace::stop_step("exited");
        // The leader is a zombie now: its id, and so the group's, is still ours. Helpers that outlived it are
        // asked to end before it is reaped.
        let left_behind = self.helpers_live();
        self.signal(Signal::TERM);
        let mut helpers = left_behind;
        if platform::TELLS_ZOMBIES {
            helpers |= self.end_helpers(grace.term).await;
        }
        let status = self.child.wait().await.ok();
        self.reaped = true;
        if !platform::TELLS_ZOMBIES {
            // There a dead leader cannot be told from living helpers, and is no member any more now.
            helpers |= self.end_helpers(grace.term).await;
        }
        Stopped { pid: self.pid(), outcome, status, helpers, killed: None }
    }

    /// Waits for the rest of the group and kills what stays; says whether there was anybody.
    async fn end_helpers(&self, grace: Duration) -> bool {
        if !self.group_lives() {
            return false;
        }
        let deadline = Instant::now() + grace;
        while self.group_lives() {
            if Instant::now() >= deadline {
                self.signal(Signal::KILL);
                // SIGKILL cannot be refused; what is left is the kernel's work.
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

    /// Whether the group has others than its dead leader, before they are asked to end: they may be gone by
    /// the next look. Known only where zombies can be told apart.
    fn helpers_live(&self) -> bool {
        platform::TELLS_ZOMBIES && self.group_lives()
    }

    fn group_lives(&self) -> bool {
        if !self.is_ours() {
            return platform::is_carried(&self.mark);
        }
        // Zombies answer a signal too, and not every init reaps: the slower look tells them apart.
        test_kill_process_group(self.group).is_ok() && platform::group_has_living(self.group)
    }

    /// Whether the group's id is ours for certain: its leader is not reaped, or we have just done it ourselves.
    fn is_ours(&self) -> bool {
        self.reaped || self.exit.is_ours()
    }

    fn signal(&self, signal: Signal) {
        if self.is_ours() {
            // The only failure is that nobody is left, which is what was wanted.
            let _ = kill_process_group(self.group, signal);
        } else {
            // The program waits for any child, and has taken ours: the id may be that of others by now.
            platform::signal_marked(&self.mark, signal);
        }
    }
}

impl Drop for Grouped {
    /// Kills the group now: one system call, no runtime, no wait. The runtime, if any, reaps the leader.
    fn drop(&mut self) {
        if !self.reaped && self.owner == std::process::id() {
            self.signal(Signal::KILL);
            let _ = self.child.try_wait();
        }
    }
}
