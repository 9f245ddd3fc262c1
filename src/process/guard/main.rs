//! The guard's own program: a process that owns one server and outlives nothing of it.
//!
//! It is single-threaded, a fork of the zygote, which runs before `main` of the executable that it shares with
//! its manager. As the leader of its own session it hears no Ctrl-C; as a child subreaper it becomes the parent of whatever the
//! server leaves behind, through `setsid` and double forks too. Only unreaped direct children are signalled,
//! so a recycled process id is never hit: killing children makes orphans into children, until there are none.

use std::{
    collections::HashSet,
    ffi::OsStr,
    hash::{BuildHasherDefault, DefaultHasher},
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
    time::{Duration, Instant},
};

use nix::{
    sched::{CloneFlags, clone},
    sys::{
        signal::{self, SigSet},
        signalfd::{SfdFlags, SignalFd},
    },
    unistd::execvpe,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{
        Pid, PidfdFlags, Signal, WaitOptions, chdir, getpid, getppid, kill_process, kill_process_group,
        pidfd_open, set_child_subreaper, set_parent_process_death_signal, setpgid, setsid, wait, waitpid,
    },
    stdio::{dup2_stderr, dup2_stdin, dup2_stdout},
};

use super::{
    wire::{self, Graces, Notice, Order, Start},
    zygote::{Owner, Task},
};
use crate::process::{
    StopOutcome,
    confine::{Cgroup, Ready},
    stat::Stat,
};

/// With what it ends if it does not, as shells have it. Nobody sees it.
const NOT_STARTED: isize = 127;

/// Pause between two rounds of killing: orphans become children in between.
const KILL_ROUND: Duration = Duration::from_millis(2);

/// Runs the guard.
pub(super) fn run(task: Task) {
    let Task { socket, start, stdio, stack, owner, offered } = task;
    match Guard::start(&socket, &owner, &start, stdio, stack, offered.as_deref()) {
        Ok(mut guard) => guard.watch(),
        Err(error) => {
            // A manager that is gone reads nothing more, and there is nobody else to tell.
            let _ = wire::send(&socket, &Notice::refused(&error), &[]);
        }
    }
}

/// How far the end has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Running,
    /// The server's input is closed.
    Leaving,
    /// Everybody was sent SIGTERM.
    Terminating,
    /// Everybody is sent SIGKILL, round after round.
    Killing,
}

struct Guard<'a> {
    /// To the manager; nothing once its end is closed.
    socket: Option<&'a OwnedFd>,
    owner: &'a Owner,
    signals: SignalFd,
    server: Pid,
    exited: bool,
    stage: Stage,
    deadline: Option<Instant>,
    graces: Graces,
    /// Whom the server left behind and who had to be killed. Nobody chooses these keys against us.
    killed: HashSet<Pid, BuildHasherDefault<DefaultHasher>>,
    helpers: bool,
    cgroup: Option<Cgroup>,
}

impl<'a> Guard<'a> {
    fn start(
        socket: &'a OwnedFd,
        owner: &'a Owner,
        start: &Start,
        stdio: [OwnedFd; 3],
        stack: Vec<u8>,
        offered: Option<&Path>,
    ) -> io::Result<Self> {
        let mut heard = SigSet::empty();
        for signal in [signal::SIGCHLD, signal::SIGTERM, signal::SIGINT, signal::SIGHUP] {
            heard.add(signal);
        }
        heard.thread_set_mask()?;
        setsid()?;
        set_child_subreaper(Some(getpid()))?;
        if owner.is_gone() {
            return Err(io::Error::other("the manager ended before its server was started"));
        }
        let signals = SignalFd::with_flags(&heard, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        let program = Path::new(OsStr::from_bytes(start.program.as_bytes()));
        let mut ready = start.terms.wanted.prepare(program, start.variable("PATH"), owner.pid, offered)?;
        let cgroup = ready.take_cgroup();
        let server = match spawn(start, stdio, stack, ready, cgroup.as_ref()) {
            Ok(server) => server,
            Err(error) => {
                cgroup.iter().for_each(Cgroup::remove);
                return Err(error);
            }
        };
        let mut guard = Self {
            socket: Some(socket),
            owner,
            signals,
            server,
            exited: false,
            stage: Stage::Running,
            deadline: None,
            graces: start.terms.graces,
            killed: HashSet::default(),
            helpers: false,
            cgroup,
        };
        let own = getpid();
        let started = Notice::Started { guard: own.as_raw_pid(), pid: server.as_raw_pid() };
        let handle = pidfd_open(own, PidfdFlags::empty()).ok();
        let handle: Vec<_> = handle.iter().map(AsFd::as_fd).collect();
        guard.tell(&started, &handle);
        Ok(guard)
    }

    /// Until nobody is left.
    fn watch(&mut self) {
        while self.reap() {
            let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                self.escalate();
            } else {
                self.listen(left);
            }
        }
        self.cgroup.iter().for_each(Cgroup::remove);
        self.tell(&Notice::Gone { killed: self.killed.len(), helpers: self.helpers }, &[]);
    }

    /// Takes leave of everyone who has ended; whether there are others.
    fn reap(&mut self) -> bool {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.server => {
                    self.exited = true;
                    let outcome = match self.stage {
                        Stage::Running | Stage::Leaving => StopOutcome::Exited,
                        Stage::Terminating => StopOutcome::Terminated,
                        Stage::Killing => StopOutcome::Killed,
                    };
                    let exceeded = self.cgroup.as_ref().and_then(Cgroup::exceeded);
                    self.tell(&Notice::Exited { status: status.as_raw(), outcome, exceeded }, &[]);
                    // What it left behind has nothing to wait for.
                    if self.stage <= Stage::Leaving {
                        self.stage = Stage::Leaving;
                        self.deadline = Some(Instant::now());
                    }
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }

    fn escalate(&mut self) {
        let now = Instant::now();
        if self.stage < Stage::Terminating {
            self.stage = Stage::Terminating;
            self.deadline = now.checked_add(self.graces.term());
            self.signal(Signal::TERM);
            // A stopped process hears SIGTERM only once it goes on.
            self.signal(Signal::CONT);
        } else {
            self.stage = Stage::Killing;
            self.deadline = Some(now + KILL_ROUND);
            self.cgroup.iter().for_each(Cgroup::kill);
            let others = self.signal(Signal::KILL);
            self.killed.extend(others);
        }
    }

    /// Signals the server's group and all direct children; returns those of them who are not the server.
    fn signal(&mut self, signal: Signal) -> Vec<Pid> {
        if !self.exited {
            let _ = kill_process_group(self.server, signal);
        }
        let mut others = children();
        // Whoever ended meanwhile waits to be reaped and takes the signal without effect.
        others.retain(|child| kill_process(*child, signal).is_ok() && *child != self.server);
        self.helpers |= !others.is_empty();
        others
    }

    fn listen(&mut self, wait: Option<Duration>) {
        let wait = wait.and_then(|wait| Timespec::try_from(wait).ok());
        let running = self.stage == Stage::Running;
        let signals = self.signals.as_fd();
        let mut files = vec![PollFd::from_borrowed_fd(signals, PollFlags::IN)];
        let socket = self.socket.map(|socket| PollFd::new(socket, PollFlags::IN));
        let owner = self.owner.handle.as_ref().filter(|_| running);
        let owner = owner.map(|owner| PollFd::new(owner, PollFlags::IN));
        let socket_at = files.len();
        files.extend(socket);
        let owner_at = files.len();
        files.extend(owner);
        if poll(&mut files, wait.as_ref()).is_err() {
            return;
        }
        let ready = |at: usize| files.get(at).is_some_and(|file| !file.revents().is_empty());
        let heard_signal = ready(0);
        let heard_socket = self.socket.is_some() && ready(socket_at);
        let owner_gone = running && self.owner.handle.is_some() && ready(owner_at);
        drop(files);
        if heard_signal {
            self.hear_signals();
        }
        if heard_socket {
            self.hear_orders();
        }
        if owner_gone {
            self.leave(self.graces);
        }
    }

    fn hear_signals(&mut self) {
        while let Ok(Some(info)) = self.signals.read_signal() {
            if info.ssi_signo != signal::SIGCHLD as u32 && self.stage < Stage::Terminating {
                self.stage = Stage::Leaving;
                self.deadline = Some(Instant::now());
            }
        }
    }

    fn hear_orders(&mut self) {
        while let Some(socket) = self.socket {
            match wire::receive::<Order>(socket) {
                Ok(Some((Order::Stop(graces), _))) => self.leave(graces),
                Ok(Some((Order::Kill, _))) => {
                    self.stage = Stage::Killing;
                    self.deadline = Some(Instant::now());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Ok(None) | Err(_) => {
                    self.socket = None;
                    self.leave(self.graces);
                }
            }
        }
    }

    /// The first step of the ladder: the server's input is closed, by order or by the manager's end. A server that
    /// left before the order was heard is on the ladder already: none of its steps takes longer than ordered.
    fn leave(&mut self, graces: Graces) {
        self.graces = graces;
        let grace = match self.stage {
            Stage::Running | Stage::Leaving => graces.eof(),
            Stage::Terminating => graces.term(),
            Stage::Killing => return,
        };
        let latest = Instant::now().checked_add(grace);
        self.stage = self.stage.max(Stage::Leaving);
        self.deadline = [self.deadline, latest].into_iter().flatten().min();
    }

    fn tell(&mut self, notice: &Notice, files: &[BorrowedFd<'_>]) {
        if let Some(socket) = self.socket {
            let _ = wire::send(socket, notice, files);
        }
    }
}

/// Starts the server. Its files are closed here when it has them.
///
/// As by vfork(2): until the server is there, its process has our memory and we stand still. A fork, which is what a
/// hook between fork and exec costs in the standard library, copies the tables of that memory for nothing.
fn spawn(
    start: &Start,
    stdio: [OwnedFd; 3],
    mut stack: Vec<u8>,
    mut ready: Ready,
    cgroup: Option<&Cgroup>,
) -> io::Result<Pid> {
    let guard = getpid();
    let mut door = cgroup.map(Cgroup::door).transpose()?;
    let mut prepare = || {
        // Nobody resets the mask on the way: the server would never see a SIGTERM.
        SigSet::empty().thread_set_mask()?;
        // Safe to use here, where the parent has one thread: it fires when that thread ends.
        set_parent_process_death_signal(Some(Signal::KILL))?;
        if getppid() != Some(guard) {
            return Err(io::Error::other("the guard has ended"));
        }
        ready.put_on(door.as_mut())?;
        let [input, output, error] = &stdio;
        dup2_stdin(input)?;
        dup2_stdout(output)?;
        dup2_stderr(error)?;
        chdir(&*start.folder)?;
        setpgid(None, None)?;
        // As shells have it: a script without a first line that says otherwise is run by one.
        execvpe(&start.program, &start.args, &start.env)?;
        Ok(())
    };
    let mut failure = None;
    let become_server = || {
        failure = prepare().err();
        NOT_STARTED
    };
    let flags = CloneFlags::CLONE_VM | CloneFlags::CLONE_VFORK;
    #[expect(unsafe_code, reason = "no safe way to do something between fork and exec; a single thread")]
    // SAFETY: this process has one thread, which the kernel holds until the child has another memory or has ended.
    // What the child does to the common memory until then is as if this thread did it in a call.
    let child = unsafe { clone(Box::new(become_server), &mut stack, flags, Some(signal::SIGCHLD as i32)) }?;
    // The server has them: whoever waits for the end of one of them is not to wait for us.
    drop(stdio);
    let child = Pid::from_raw(child.as_raw()).expect("process ids are positive");
    match failure {
        None => Ok(child),
        Some(error) => {
            while matches!(waitpid(Some(child), WaitOptions::empty()), Err(Errno::INTR)) {}
            Err(error)
        }
    }
}

/// Ids of the direct children of this process, which has a single thread.
fn children() -> Vec<Pid> {
    let parse = |text: &str| text.parse().ok().and_then(Pid::from_raw);
    if let Ok(list) = std::fs::read_to_string("/proc/thread-self/children") {
        return list.split_ascii_whitespace().filter_map(parse).collect();
    }
    // A kernel without CONFIG_PROC_CHILDREN: every process is asked for its parent.
    let own = getpid().as_raw_nonzero().get();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter(|entry| Stat::in_folder(&entry.path()).and_then(|stat| stat.parent()) == Some(own))
        .filter_map(|entry| parse(entry.file_name().to_str()?))
        .collect()
}
