//! One child process: spawn, line pipes, stderr tail, stop ladder, kill on drop. Knows no MCP.
//!
//! Owner of: every spawn, signal and wait of this crate. Invariants:
//! - the child leads its own process group, and signals go to the group;
//! - stderr is always drained, stdout lines are bounded;
//! - every early return kills: dropping a [`Process`] kills the whole group synchronously, with or without
//!   a runtime;
//! - the leader is reaped only after its group was signalled, so the group's id cannot have been recycled.
//!
//! The Linux guard process (teardown that survives SIGKILL of the owner and follows `setsid`) is to stand
//! behind this same interface, in `process/guard.rs`.

mod exit;
mod lines;
mod program;
mod stderr;
mod survivors;
mod usage;

use std::{
    fmt,
    process::{ExitStatus, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use serde::Serialize;
use tokio::process::Child;

pub(crate) use exit::ExitWatch;
pub(crate) use lines::{Line, LineReader, LineWriter, MAX_LINE, Traffic, WriteError};
pub(crate) use stderr::StderrTail;
pub(crate) use survivors::marked_processes;
pub use usage::ProcessUsage;
pub(crate) use usage::of_groups;

use crate::config::{Secrets, StdioConfig, StopGrace};

/// Name of the environment variable that marks every process of one manager, descendants included.
pub(crate) const MARKER: &str = "TOOLCRIB_OWNER";

/// Pause between looks at a group that has no other way to tell that it is gone.
const GROUP_POLL: Duration = Duration::from_millis(5);

/// A running child process and its group.
pub(crate) struct Process {
    child: Child,
    group: Pid,
    stdin: LineWriter,
    exit: ExitWatch,
    stderr: StderrTail,
    reaped: bool,
    started: Instant,
}

/// The two ends to talk to a child.
pub(crate) struct Pipes {
    /// Lines that it writes.
    pub(crate) reader: LineReader,
    /// Lines that it reads.
    pub(crate) writer: LineWriter,
}

/// Why no process could be made.
#[derive(Debug)]
pub(crate) struct SpawnError {
    /// What was attempted, with names and folders.
    pub(crate) what: String,
    /// What to do about it.
    pub(crate) help: Option<String>,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StopOutcome {
    /// By itself, or on end of input.
    Exited,
    /// On SIGTERM.
    Terminated,
    /// On SIGKILL.
    Killed,
}

/// What stopping one process took.
#[derive(Debug, Clone)]
pub(crate) struct Stopped {
    pub(crate) pid: u32,
    pub(crate) outcome: StopOutcome,
    pub(crate) status: Option<ExitStatus>,
    /// Whether processes of its group had to be ended after the leader was gone.
    pub(crate) helpers: bool,
}

impl Process {
    /// Starts `spec` as the leader of a new process group, with `marker` in its environment.
    ///
    /// `secrets` are hidden in the stderr tail.
    pub(crate) fn spawn(
        spec: &StdioConfig,
        marker: &str,
        secrets: &Secrets,
    ) -> Result<(Self, Pipes), SpawnError> {
        let program = program::resolve(spec)?;
        // Why no pre_exec hook: with one, std forks instead of calling posix_spawn, which costs 25 ms per
        // child in a parent of 512 MiB.
        let started = Instant::now();
        let mut child = tokio::process::Command::new(&program)
            .args(&spec.args)
            .env_clear()
            .envs(&spec.env)
            .env(MARKER, marker)
            .current_dir(&spec.cwd)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(|error| SpawnError {
                what: format!("could not start {}: {error}", program.display()),
                help: program::spawn_help(&error),
            })?;
        let pid = child.id().expect("a child that was never polled has its id");
        let group = Pid::from_raw(pid.cast_signed()).expect("process ids are positive");
        let stdin = LineWriter::pipe(child.stdin.take().expect("stdin is piped"));
        let reader = LineReader::new(child.stdout.take().expect("stdout is piped"));
        let stderr = StderrTail::drain(child.stderr.take().expect("stderr is piped"), secrets.clone());
        // From here on the guard of `Drop` holds: a failing watch kills the child.
        let mut process = Self {
            child,
            group,
            stdin: stdin.clone(),
            exit: ExitWatch::none(group),
            stderr,
            reaped: false,
            started,
        };
        process.exit = ExitWatch::new(group).map_err(|error| SpawnError {
            what: format!("could not watch process {pid}: {error}"),
            help: None,
        })?;
        Ok((process, Pipes { reader, writer: stdin }))
    }

    /// Id of the group's leader.
    pub(crate) fn pid(&self) -> u32 {
        self.group.as_raw_nonzero().get().cast_unsigned()
    }

    /// Tells when the leader has ended, without reaping it.
    pub(crate) fn exit_watch(&self) -> ExitWatch {
        self.exit.clone()
    }

    /// How long ago it was started.
    pub(crate) fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// Bytes that were written to it and not read yet, where that can be known.
    pub(crate) fn unread_input(&self) -> Option<u64> {
        self.stdin.unread()
    }

    /// The last lines of its stderr.
    pub(crate) fn stderr(&self) -> &StderrTail {
        &self.stderr
    }

    /// The stop ladder: close stdin, wait, TERM the group, wait, KILL, reap; helpers of the group too.
    pub(crate) async fn stop(mut self, grace: StopGrace) -> Stopped {
        self.stdin.close();
        let mut outcome = StopOutcome::Exited;
        if !self.exit.within(grace.eof).await {
            outcome = StopOutcome::Terminated;
            self.signal(Signal::TERM);
            if !self.exit.within(grace.term).await {
                outcome = StopOutcome::Killed;
                self.signal(Signal::KILL);
                self.exit.exited().await;
            }
        }
        // The leader is a zombie now: its id, and so the group's, is still ours. Helpers that outlived it are
        // asked to end before it is reaped.
        let left_behind = self.helpers_live();
        self.signal(Signal::TERM);
        let status = self.child.wait().await.ok();
        self.reaped = true;
        let helpers = self.end_helpers(grace.term).await || left_behind;
        Stopped { pid: self.pid(), outcome, status, helpers }
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
        cfg!(target_os = "linux") && survivors::group_has_living(self.group)
    }

    fn group_lives(&self) -> bool {
        // Zombies answer a signal too, and not every init reaps: the slower look tells them apart.
        test_kill_process_group(self.group).is_ok() && survivors::group_has_living(self.group)
    }

    fn signal(&self, signal: Signal) {
        // The only failure is that nobody is left, which is what was wanted.
        let _ = kill_process_group(self.group, signal);
    }
}

impl Drop for Process {
    /// Kills the group now: one system call, no runtime, no wait. The runtime, if any, reaps the leader.
    fn drop(&mut self) {
        if !self.reaped {
            self.signal(Signal::KILL);
            let _ = self.child.try_wait();
        }
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process").field("pid", &self.pid()).finish_non_exhaustive()
    }
}

/// An exit status in words: `exited with code 1`, `was killed by signal 9`.
pub(crate) fn describe(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}

#[cfg(test)]
mod tests;
