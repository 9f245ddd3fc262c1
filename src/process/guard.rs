//! The Linux guard, seen from the manager: a process between it and each server that outlives nothing of it.
//!
//! The guard is this very executable, started once more with a variable that a hook before `main` looks for
//! ([`GUARD`]): whoever links the library has it, without a line in their `main` and without a second file.
//! Where the library is not part of the executable (a plug-in of another program, say a Python extension)
//! there is none, and [`TeardownLevel::here`] says so.
//!
//! Server and manager talk over pipes that the guard does not touch. The guard hears the manager over a
//! socket whose end the kernel closes, however the manager ends: then the stop ladder begins.

mod main;
mod wire;

use std::{
    ffi::OsString,
    io,
    os::{fd::OwnedFd, unix::process::ExitStatusExt},
    path::Path,
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::unix::AsyncFd,
    process::{Child, ChildStderr, ChildStdout},
};

use self::wire::{Notice, Order};
use super::{
    SpawnError, StopOutcome, Stopped,
    confine::{Wanted, name_for},
    program, survivors,
};
use crate::config::{StdioConfig, StopGrace};

/// Name of the variable that makes a process a guard; its value is the version of what is said over the socket.
const GUARD: &str = "TOOLCRIB_GUARD";
const VERSION: &str = "1";
/// What a guard is called in lists of processes.
const NAME: &str = "toolcrib-guard";
/// Where the dynamic linker looks: the guard needs the manager's, being the same executable, the server its own.
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
/// The executable of this process, replaced or removed as it may be.
pub(super) const OWN_EXECUTABLE: &str = "/proc/self/exe";

ctor::declarative::ctor! {
    /// Runs before `main` of every executable that this library is part of. Costs one look at the environment.
    #[ctor(unsafe)]
    fn before_main() {
        if std::env::var_os(GUARD).is_some() {
            be_guard();
        }
    }
}

/// Whether an environment is that of a guard.
pub(super) fn is_guard(environment: &[u8]) -> bool {
    let is =
        |variable: &[u8]| variable.strip_prefix(GUARD.as_bytes()).is_some_and(|rest| rest.starts_with(b"="));
    environment.split(|byte| *byte == 0).any(is)
}

/// Runs the guard and ends the process, if it was started as one.
fn be_guard() {
    use std::os::unix::ffi::OsStringExt;
    // Not from `std::env::args`: where the C library is not glibc it is empty before `main`.
    let line = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    let line = line.strip_suffix(b"\0").unwrap_or(&line);
    let mut words = line.split(|byte| *byte == 0).map(|word| OsString::from_vec(word.to_vec()));
    // The variable alone may have come by accident.
    if words.next().is_some_and(|name| name == NAME) {
        main::run(&words.collect::<Vec<_>>());
        #[expect(
            clippy::exit,
            clippy::disallowed_methods,
            reason = "the guard is a program of its own: nothing of the host's main may run"
        )]
        std::process::exit(0);
    }
}

/// Why this process has no guard to offer; nothing if it has.
pub(super) fn missing() -> Option<String> {
    let own = match std::fs::read_link(OWN_EXECUTABLE) {
        Ok(own) => own,
        Err(error) => return Some(format!("{OWN_EXECUTABLE} cannot be read: {error}")),
    };
    // Started once more, a program that does not hold the hook would run its own `main`.
    let hook = be_guard as fn() as usize;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let holder = maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let bounds = usize::from_str_radix(from, 16).ok()?..usize::from_str_radix(to, 16).ok()?;
        bounds.contains(&hook).then(|| rest.find('/').map(|at| Path::new(&rest[at..]).to_owned()))?
    });
    match holder {
        Some(holder) if holder == own => None,
        Some(holder) => {
            Some(format!("toolcrib is loaded from {}, not part of {}", holder.display(), own.display()))
        }
        None => Some("/proc/self/maps does not tell where toolcrib is loaded from".to_owned()),
    }
}

/// What a guard is told and where it comes from.
pub(super) struct Start<'a> {
    /// An executable that this library is part of.
    pub(super) executable: &'a Path,
    /// The server's.
    pub(super) program: &'a Path,
    /// Marks the server and all that it starts.
    pub(super) mark: &'a str,
    /// The ladder by which it is ended when this process ends without a word.
    pub(super) grace: StopGrace,
}

/// A guard and, through it, its server. Dropping it kills both, and all that the server started.
pub(super) struct Guarded {
    guard: Child,
    control: Arc<Control>,
    pid: u32,
    mark: String,
    over: bool,
}

/// The manager's end of the socket, and what was heard over it.
pub(super) struct Control {
    socket: AsyncFd<OwnedFd>,
    heard: Mutex<Heard>,
}

#[derive(Default)]
struct Heard {
    started: Option<io::Result<i32>>,
    exited: Option<(ExitStatus, StopOutcome)>,
    exceeded: Option<String>,
    gone: Option<(usize, bool)>,
    /// The stream has ended.
    silent: bool,
}

impl Guarded {
    /// Starts a guard, and through it the server. The read end of the server's standard input is `input`.
    pub(super) async fn spawn(
        start: Start<'_>,
        spec: &StdioConfig,
        input: OwnedFd,
    ) -> Result<(Self, ChildStdout, ChildStderr), SpawnError> {
        let Start { executable, program: server, mark, grace } = start;
        let failed = |error: io::Error| SpawnError {
            what: format!("could not start the guard of {}: {error}", server.display()),
            help: Some("without a guard it may work: `guard = \"off\"` in [defaults]".to_owned()),
        };
        let (ours, theirs) = wire::pair().map_err(failed)?;
        let order = wire::Start {
            owner: std::process::id().cast_signed(),
            graces: grace.into(),
            wanted: Wanted {
                limits: spec.limits,
                sandbox: spec.sandbox.clone(),
                name: name_for(std::process::id()),
            },
            library_path: spec.env.get(LIBRARY_PATH).cloned(),
        };
        // The socket keeps it until there is somebody to read it.
        wire::send(&ours, &Order::Start(order), Some(&input)).map_err(failed)?;
        drop(input);
        // Why no pre_exec hook here: with one, std forks instead of calling posix_spawn, which costs 25 ms
        // per child in a parent of 512 MiB.
        let mut guard = tokio::process::Command::new(executable)
            .arg0(NAME)
            .arg(server)
            .args(&spec.args)
            .env_clear()
            .envs(&spec.env)
            .env(super::MARKER, mark)
            .env(GUARD, VERSION)
            .envs(std::env::var_os(LIBRARY_PATH).map(|path| (LIBRARY_PATH, path)))
            .current_dir(&spec.cwd)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let stdout = guard.stdout.take().expect("stdout is piped");
        let stderr = guard.stderr.take().expect("stderr is piped");
        let control = Arc::new(Control::new(ours).map_err(failed)?);
        let mut guarded = Self { guard, control, pid: 0, mark: mark.to_owned(), over: false };
        guarded.control.until(|heard| heard.started.is_some()).await;
        let started = guarded.control.heard().started.take();
        let started = started.ok_or_else(|| failed(io::Error::other("it ended at once")))?;
        let pid = started.map_err(|error| {
            let mut refusal = program::refused(server, &error);
            // Told in words, so not by the system: by what was to be put on.
            let bounds =
                || "correct `sandbox`, `memory_max`, `cpu_max` or `processes_max`, or remove it".to_owned();
            refusal.help = refusal.help.or_else(|| error.raw_os_error().is_none().then(bounds));
            refusal
        })?;
        guarded.pid = pid.cast_unsigned();
        Ok((guarded, stdout, stderr))
    }

    /// Of the server, which leads its own group.
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Of the guard, or of the server where that has ended.
    pub(super) fn root(&self) -> u32 {
        self.guard.id().unwrap_or(self.pid)
    }

    pub(super) fn control(&self) -> Arc<Control> {
        self.control.clone()
    }

    /// The stop ladder, done by the guard; the server's input is closed already.
    pub(super) async fn stop(mut self, grace: StopGrace) -> Stopped {
        self.wake();
        self.control.order(&Order::Stop(grace.into()));
        self.control.until(|heard| heard.gone.is_some()).await;
        let (exited, gone) = {
            let heard = self.control.heard();
            (heard.exited, heard.gone)
        };
        // Reaped, so that not even a zombie is left; it ends right after its last word.
        let _ = self.guard.wait().await;
        self.over = gone.is_some();
        let mut killed = gone.map_or(0, |(killed, _)| killed);
        if !self.over {
            // Somebody killed the guard. The server died with it; the others have no parent any more.
            killed += survivors::sweep(&self.mark);
            self.over = true;
        }
        Stopped {
            pid: self.pid,
            outcome: exited.map_or(StopOutcome::Killed, |(_, outcome)| outcome),
            status: exited.map(|(status, _)| status),
            helpers: killed > 0 || gone.is_some_and(|(_, helpers)| helpers),
            killed: Some(killed),
        }
    }
}

impl Guarded {
    /// Somebody may have stopped it together with its server, and a stopped guard hears nothing.
    fn wake(&self) {
        if let Some(pid) = self.guard.id().and_then(|pid| Pid::from_raw(pid.cast_signed())) {
            let _ = kill_process(pid, Signal::CONT);
        }
    }
}

impl Drop for Guarded {
    /// Orders the guard to kill everything: two system calls. Without a guard the marked ones are killed here.
    fn drop(&mut self) {
        if self.over {
            return;
        }
        self.wake();
        if !self.control.order(&Order::Kill) {
            survivors::sweep(&self.mark);
        }
        let _ = self.guard.try_wait();
    }
}

impl Control {
    fn new(socket: OwnedFd) -> io::Result<Self> {
        #[expect(deprecated, reason = "sound here: an owned descriptor stays the same while registered")]
        let socket = AsyncFd::with_interest(socket, tokio::io::Interest::READABLE)?;
        Ok(Self { socket, heard: Mutex::default() })
    }

    /// Whether the guard is there to hear it.
    fn order(&self, order: &Order) -> bool {
        wire::send(self.socket.get_ref(), order, None).is_ok()
    }

    /// The server's end, if it has ended.
    pub(super) fn exited(&self) -> Option<ExitStatus> {
        self.listen();
        self.heard().exited.map(|(status, _)| status)
    }

    /// The budget that the server hit, once it has ended.
    pub(super) fn exceeded(&self) -> Option<String> {
        self.listen();
        self.heard().exceeded.clone()
    }

    /// Returns once the server has ended.
    pub(super) async fn over(&self) {
        self.until(|heard| heard.exited.is_some()).await;
    }

    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns once `condition` holds, or nothing more will be heard.
    async fn until(&self, condition: impl Fn(&Heard) -> bool) {
        let done = || {
            self.listen();
            let heard = self.heard();
            heard.silent || condition(&heard)
        };
        while !done() {
            match self.socket.readable().await {
                // Another waiter may have taken in what made it readable, so the news is looked at, too.
                Ok(mut ready) if !done() => ready.clear_ready(),
                Ok(_) => return,
                // The runtime's I/O driver is gone, and then looking is all that is left.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }

    /// Takes in what has arrived.
    fn listen(&self) {
        let mut heard = self.heard();
        while !heard.silent {
            match wire::receive::<Notice>(self.socket.get_ref(), false) {
                Ok(Some((notice, _))) => heard.note(notice),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Ok(None) | Err(_) => heard.silent = true,
            }
        }
    }
}

impl Heard {
    fn note(&mut self, notice: Notice) {
        match notice {
            Notice::Started { pid } => self.started = Some(Ok(pid)),
            Notice::Refused { errno, what } => {
                let error = errno.map_or_else(|| io::Error::other(what), io::Error::from_raw_os_error);
                self.started = Some(Err(error));
            }
            Notice::Exited { status, outcome, exceeded } => {
                self.exited = Some((ExitStatus::from_raw(status), outcome));
                self.exceeded = exceeded;
            }
            Notice::Gone { killed, helpers } => self.gone = Some((killed, helpers)),
        }
    }
}
