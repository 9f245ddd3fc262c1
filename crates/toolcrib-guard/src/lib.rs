//! One child process: spawn, line pipes, stderr tail, stop ladder, kill on drop. Knows no MCP.
//!
//! Owner of: every spawn, signal and wait of this crate. Invariants:
//! - on Linux a guard stands over each server ([`guard`]): nothing of it outlives the owner, however that
//!   ends; elsewhere, and where a guard cannot be, the process group is what is kept ([`group`]);
//! - stderr is always drained, stdout lines are bounded;
//! - every early return kills: dropping a [`Process`] ends all of it synchronously, with or without a
//!   runtime.

mod activity;
mod bounds;
#[cfg(target_os = "linux")]
mod confine;
mod detach;
mod error;
mod exit;
mod group;
#[cfg(target_os = "linux")]
mod guard;
#[cfg(target_os = "linux")]
mod inherited;
mod keeping;
mod leftovers;
mod lines;
mod millis;
mod peer;
mod program;
mod redact;
mod spec;
mod stat;
mod stderr;
mod support;
mod survivors;
mod trace;
mod usage;
mod writer;

use std::{
    fmt, io,
    process::ExitStatus,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

pub use activity::{Activity, activity, cpu_time};
pub use bounds::{ResourceLimits, Sandbox};
pub use detach::{Detached, leave_session};
pub use error::{SpawnError, SpawnErrorKind};
pub use exit::ExitWatch;
#[cfg(target_os = "linux")]
pub use inherited::{ignores_hangup, reset_inherited};
pub use keeping::Keeping;
pub use leftovers::Leftover;
pub use leftovers::{hurry_guards, is_guarded_or_gone, new_mark, owner_is_gone, reap_leftovers};
pub use lines::{Line, LineReader, MAX_LINE, Traffic};
pub use peer::is_sandboxed;
#[cfg(target_os = "linux")]
pub use peer::{Peer, peer_of};
pub use program::{check_bounds, find_program, program_path};
pub use redact::Redact;
pub use spec::{Guard, ProcessSpec, StopGrace};
pub use stat::{ENVIRONMENT_MAX, beginning};
pub use stderr::StderrTail;
pub use support::Support;
pub use survivors::{behind_guards, marked_processes};
pub use usage::ProcessUsage;
pub use usage::{of_descendants, of_groups, of_trees, own_memory};
pub use writer::{LinePosition, LineWriter, WriteError};

/// Name of the environment variable that marks every process of one manager, descendants included.
pub const MARKER: &str = "TOOLCRIB_OWNER";

/// A running server process and all that it started.
pub struct Process {
    keeper: Keeper,
    stdin: LineWriter,
    /// The inode of the pipe behind `stdin`: both of its ends have it.
    input_id: Option<u64>,
    stderr: StderrTail,
    limits: ResourceLimits,
    sandboxed: bool,
    started: Instant,
}

/// Who makes sure that the process ends.
enum Keeper {
    #[cfg(target_os = "linux")]
    Guard(guard::Guarded),
    Group(group::Grouped),
}

/// What processes of one manager have in common.
#[derive(Clone)]
pub struct Kinship {
    /// Marks every process in its environment.
    pub marker: std::sync::Arc<str>,
    /// What makes sure that they end.
    pub keeping: Keeping,
    /// Where their guards come from.
    #[cfg(target_os = "linux")]
    guards: guard::Guards,
}

impl Kinship {
    /// Of no process yet.
    pub fn new(marker: std::sync::Arc<str>, keeping: Keeping) -> Self {
        Self {
            marker,
            keeping,
            #[cfg(target_os = "linux")]
            guards: guard::Guards::default(),
        }
    }

    /// Begins what the first start would wait for, so that it boots while other things are done. What cannot be begun
    /// is told by that start.
    pub fn prepare(&self) {
        #[cfg(target_os = "linux")]
        if let Keeping::Guard { executable } = &self.keeping {
            self.guards.prepare(executable, &self.marker);
        }
    }

    /// Ends what stood ready to start more of them.
    pub async fn end(&self) {
        #[cfg(target_os = "linux")]
        self.guards.end().await;
    }

    /// The same at once, with or without a runtime.
    pub fn dismiss(&self) {
        #[cfg(target_os = "linux")]
        self.guards.dismiss();
    }
}

/// The two ends to talk to a child.
pub struct Pipes {
    /// Lines that it writes.
    pub reader: LineReader,
    /// Lines that it reads.
    pub writer: LineWriter,
}

#[cfg(target_os = "linux")]
impl SpawnError {
    /// There is no guard for `server`.
    fn of_guard(server: &std::path::Path, error: &io::Error) -> Self {
        use rustix::io::Errno;

        let (kind, help) = match Errno::from_io_error(error) {
            Some(Errno::MFILE) => (
                SpawnErrorKind::Other,
                "raise the limit of open files (ulimit -n), or start fewer servers at a time",
            ),
            Some(Errno::NFILE) => (
                SpawnErrorKind::Other,
                "the system has too many open files: raise fs.file-max (sysctl), or end programs",
            ),
            _ => (SpawnErrorKind::Guard, "without a guard it may work: `Guard::Off`"),
        };
        let what = format!("could not start the guard of {}: {error}", server.display());
        Self { kind, what, help: Some(help.to_owned()) }
    }
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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
pub struct Stopped {
    /// Its id.
    pub pid: u32,
    /// The strongest means that was needed.
    pub outcome: StopOutcome,
    /// As `wait` gave it, if it is known.
    pub status: Option<ExitStatus>,
    /// Whether it left processes behind that had to be ended.
    pub helpers: bool,
    /// How many of these had to be killed, where a guard has counted them.
    pub killed: Option<usize>,
}

impl Process {
    /// Starts `spec`, with the kin's marker in its environment; `grace` is the ladder that it is ended by if
    /// this process ends without a word.
    pub async fn spawn(
        spec: &ProcessSpec,
        kin: &Kinship,
        grace: StopGrace,
    ) -> Result<(Self, Pipes), SpawnError> {
        let program = program_path(spec)?;
        let started = Instant::now();
        // Told apart from the other servers of this manager, and from earlier lives of this one.
        let mark = format!("{}/{:08x}", kin.marker, fastrand::u32(..));
        let (sender, input) = pipe().map_err(|error| program::refused(spec, &program, &error))?;
        let input_id = rustix::fs::fstat(&sender).ok().map(|about| about.st_ino);
        let (keeper, stdout, stderr) = match &kin.keeping {
            #[cfg(target_os = "linux")]
            Keeping::Guard { executable } => {
                let (guards, family) = (&kin.guards, &*kin.marker);
                let start =
                    guard::Start { guards, executable, family, program: &program, mark: &mark, grace };
                let (guarded, out, err) = guard::Guarded::spawn(start, spec, input).await?;
                (Keeper::Guard(guarded), out, err)
            }
            Keeping::Group { because } => {
                if spec.is_confined() {
                    return Err(program::unguarded(because));
                }
                let (grouped, out, err) = group::Grouped::spawn(&program, spec, &mark, input)?;
                (Keeper::Group(grouped), out, err)
            }
        };
        let stdin = LineWriter::pipe(sender);
        let reader = LineReader::new(stdout);
        let stderr = StderrTail::drain(stderr, spec.redact.clone());
        let (limits, sandboxed) = (spec.limits, spec.sandbox.is_some());
        let process = Self { keeper, stdin: stdin.clone(), input_id, stderr, limits, sandboxed, started };
        Ok((process, Pipes { reader, writer: stdin }))
    }

    /// Id of the server's process, which leads its own group.
    pub fn pid(&self) -> u32 {
        match &self.keeper {
            #[cfg(target_os = "linux")]
            Keeper::Guard(guarded) => guarded.pid(),
            Keeper::Group(grouped) => grouped.pid(),
        }
    }

    /// Id of the process above all that the server starts: its guard's, where there is one.
    pub fn root(&self) -> u32 {
        match &self.keeper {
            #[cfg(target_os = "linux")]
            Keeper::Guard(guarded) => guarded.root(),
            Keeper::Group(grouped) => grouped.pid(),
        }
    }

    /// Tells when the server's process has ended.
    pub fn exit_watch(&self) -> ExitWatch {
        match &self.keeper {
            #[cfg(target_os = "linux")]
            Keeper::Guard(guarded) => ExitWatch::guarded(guarded.control()),
            Keeper::Group(grouped) => grouped.exit_watch(),
        }
    }

    /// The bound that it died of, in words: known from its cgroup, or likely from how it died.
    #[cfg(target_os = "linux")]
    pub fn exceeded(&self) -> Option<String> {
        let known = match &self.keeper {
            Keeper::Guard(guarded) => guarded.control().exceeded(),
            Keeper::Group(_) => None,
        };
        let status = self.exit_watch().status();
        known.or_else(|| confine::suspected(&self.limits, self.sandboxed, status, &self.stderr.lines()))
    }

    /// Budgets need a guard, and guards need Linux.
    #[cfg(not(target_os = "linux"))]
    pub fn exceeded(&self) -> Option<String> {
        debug_assert!(self.limits.is_empty() && !self.sandboxed, "refused at the start");
        None
    }

    /// How long ago it was started.
    pub fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// Bytes that were written to it and not read yet, where that can be known.
    pub fn unread_input(&self) -> Option<u64> {
        self.stdin.unread()
    }

    /// The pipe of its standard input, by which other processes that hold it can be known.
    pub fn input_id(&self) -> Option<u64> {
        self.input_id
    }

    /// The last lines of its stderr.
    pub fn stderr(&self) -> &StderrTail {
        &self.stderr
    }

    /// The stop ladder: close stdin, wait, TERM everybody, wait, KILL, reap.
    pub async fn stop(self, grace: StopGrace) -> Stopped {
        self.stdin.close();
        trace::stop_step("stdin_closed");
        match self.keeper {
            #[cfg(target_os = "linux")]
            Keeper::Guard(guarded) => guarded.stop(grace).await,
            Keeper::Group(grouped) => grouped.stop(grace).await,
        }
    }
}

/// A pipe: our end to write, and the other one for the child's standard input.
fn pipe() -> io::Result<(tokio::net::unix::pipe::Sender, std::os::fd::OwnedFd)> {
    // Not tokio's own pair, both ends of which it would watch.
    let (receiver, sender) = io::pipe()?;
    Ok((tokio::net::unix::pipe::Sender::from_owned_fd(sender.into())?, receiver.into()))
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process").field("pid", &self.pid()).finish_non_exhaustive()
    }
}

/// An exit status in words: `exited with code 1`, `was killed by signal 9`.
pub fn describe(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}

#[cfg(fuzzing)]
pub use leftovers::fuzz as fuzz_mark;

#[cfg(test)]
mod tests;
