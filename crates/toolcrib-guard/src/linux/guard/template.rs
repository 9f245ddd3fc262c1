//! Templates, on the manager's side: starts one through the zygote, and servers from it.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Signal, pidfd_send_signal},
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    net::unix::pipe,
    process::{ChildStderr, ChildStdout},
};

use super::{
    ADOPT, GUARD, GuardedProcess, NAME, TEMPLATE, VERSION,
    control::Control,
    descendants::Subreaper,
    guard_start_error,
    start::{ForkHeader, ForkWords, GuardSettings, Start, write_fork},
    templates::is_closed,
    wire::{self, ForkOrder},
    zygote_client::{LIBRARY_PATH, Request},
};
use crate::{
    ProcessSpec, SpawnError, SpawnErrorKind,
    inspect::Activity,
    linux::{
        confine::{ConfineError, Confinement, name_for},
        inspect::{
            activity::activity,
            stat::{Stat, sleep_of},
        },
    },
    marks::MARKER,
    process::{ForkStart, GuardStart},
};

/// The most bytes of the short name of a process (prctl(2), `PR_SET_NAME`).
const NAME_MAX: usize = 15;
/// The most bytes of one report.
const MAX_REPORT: usize = 128 << 10;
/// Time between two looks at what the template does, while it is to fork. A look costs some 50 us.
const LOOK: Duration = Duration::from_millis(10);
/// Looks in turn that see it stopped until it counts as stopped.
const STOPPED: u32 = 2;
/// Looks in turn that see it asleep over an order, or its fork asleep over the start of the server, until it counts as silent.
const SILENT: u32 = 4;
/// Pause before an order is sent again if the socket was full.
const RETRY: Duration = Duration::from_millis(1);

/// A template. Dropping it ends it.
pub(crate) struct TemplateProcess {
    /// The socket to the zygote. The zygote ends the template when it closes.
    orders: Control,
    reports: AsyncFd<OwnedFd>,
    /// The template never reads to the end of its standard input.
    _stdin: OwnedFd,
    pid: u32,
    /// A pidfd; `None` where the kernel has no pidfds.
    handle: Option<OwnedFd>,
    zygote: Option<Subreaper>,
    /// It, or a fork of it, has slept over an order.
    is_silent: AtomicBool,
    family: String,
    /// The process that started it. A fork of that process has copies of all files, but must not end it.
    owner: u32,
}

/// A process that sleeps over an order, and what changes when it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asleep {
    /// How often it has let go of its core.
    Template(u64),
    /// The CPU time of the fork and its server.
    Fork(Duration),
}

impl TemplateProcess {
    /// Starts the template `start.program`. Also returns the pipe of its output.
    pub(crate) async fn start(
        start: GuardStart<'_>,
        spec: &ProcessSpec,
    ) -> Result<(Self, pipe::Receiver), SpawnError> {
        let GuardStart { zygote, executable, family, program, mark, grace } = start;
        let failed = |error: io::Error| guard_start_error(program, &error);
        let settings = GuardSettings { graces: grace.into(), wanted: Confinement::default() };
        let mut spec = spec.clone();
        spec.set_env(TEMPLATE, VERSION);
        let (start, long) = Start::write(program, &spec, mark, &settings).map_err(failed)?;
        let packet = [&[wire::TEMPLATE], &start[..]].concat();
        let (stdin, writer) = io::pipe().map_err(failed)?;
        let (output, error) = io::pipe().map_err(failed)?;
        let (stdin, error) = (OwnedFd::from(stdin), OwnedFd::from(error));
        let (reports, theirs) = wire::pair().map_err(failed)?;
        let mut started = None;
        // Two attempts: the zygote may have been killed before it handled the request.
        for _ in 0..2 {
            let (ours, zygotes) = wire::queue().map_err(failed)?;
            // From here on the zygote ends the template if this future is dropped.
            let orders = Control::new(ours).map_err(failed)?;
            let files = [&zygotes, &stdin, &error, &theirs].into_iter().chain(&long);
            let files: Vec<_> = files.map(AsFd::as_fd).collect();
            let request = Request { executable, family, packet: &packet, files: &files };
            let zygote = zygote.make(&request).await.map_err(failed)?;
            drop(zygotes);
            orders.wait_until(|state| state.started.is_some()).await;
            let heard = orders.state().started.take();
            if let Some(heard) = heard {
                started = Some((orders, zygote, heard));
                break;
            }
        }
        let (orders, zygote, heard) = started.ok_or_else(|| failed(io::Error::other("it ended at once")))?;
        let refused = |error: io::Error| SpawnError {
            kind: SpawnErrorKind::Template,
            what: format!("could not start the template {}: {error}", program.display()),
            help: None,
        };
        let running = heard.map_err(refused)?;
        #[expect(deprecated, reason = "sound here: an owned descriptor stays the same while registered")]
        let reports = AsyncFd::with_interest(reports, Interest::READABLE).map_err(failed)?;
        let (pid, handle, family) = (running.server.cast_unsigned(), running.handle, family.to_owned());
        if let Some(zygote) = &zygote {
            zygote.know_template(pid, true);
        }
        let owner = std::process::id();
        let (stdin, is_silent) = (writer.into(), AtomicBool::new(false));
        let template = Self { orders, reports, _stdin: stdin, pid, handle, zygote, is_silent, family, owner };
        Ok((template, pipe::Receiver::from_owned_fd(output.into()).map_err(failed)?))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// The next packet on the socket for reports; `None` at its end, or if one is too long.
    pub(crate) async fn report(&self) -> Option<Vec<u8>> {
        let mut packet = vec![0; MAX_REPORT];
        loop {
            let mut ready = self.reports.readable().await.ok()?;
            let length = match wire::receive_bytes(self.reports.get_ref(), &mut packet) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready.clear_ready();
                    continue;
                }
                received => received.ok()?.0.len(),
            };
            packet.truncate(length);
            return Some(packet).filter(|packet| !packet.is_empty());
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        let Some(handle) = &self.handle else { return is_closed(self.reports.get_ref()) };
        let mut files = [PollFd::new(handle, PollFlags::IN)];
        poll(&mut files, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    pub(crate) fn is_stopped(&self) -> bool {
        Stat::of(self.pid).is_some_and(|stat| matches!(stat.state(), Some('T' | 't')))
    }

    pub(crate) fn is_silent(&self) -> bool {
        self.is_silent.load(Relaxed)
    }

    /// How often the zygote has let go of its core. To be asked for before an order.
    fn zygote_switches(&self) -> Option<u64> {
        Some(sleep_of(self.zygote.as_ref()?.pid())?.1)
    }

    /// The process that has the order now, if it sleeps, with a count that stays the same while it does; `None` if it may be at
    /// work. Before the zygote tells of the `fork`, that process is the template, provided that the zygote has run since the
    /// order and sleeps again: it has handed the order on, and knows of no answer. A template that waits for an order is woken
    /// by it: on a busy machine it would be ready to run. `before` is from before the order.
    fn asleep(&self, fork: Option<u32>, before: Option<u64>) -> Option<Asleep> {
        if let Some(fork) = fork {
            return match activity(fork) {
                Activity::Waiting(used) => Some(Asleep::Fork(used)),
                Activity::Busy | Activity::Unknown => None,
            };
        }
        // In this order: once the zygote sleeps, the template was woken.
        let (sleeps, switches) = sleep_of(self.zygote.as_ref()?.pid())?;
        let own = sleep_of(self.pid)?;
        (sleeps && Some(switches) != before && own.0).then_some(Asleep::Template(own.1))
    }

    /// Waits until it is seen that it will not serve an order: it is stopped, or silent. `control` hears of the fork. `before` is from
    /// before the order.
    async fn lost(&self, control: &Control, before: Option<u64>) -> &'static str {
        let (mut stopped, mut silent, mut last) = (0, 0, None);
        loop {
            tokio::time::sleep(LOOK).await;
            stopped = if self.is_stopped() { stopped + 1 } else { 0 };
            control.receive();
            let fork = control.state().forked;
            let now = self.asleep(fork, before);
            silent = match now {
                Some(_) if now == last => silent + 1,
                Some(_) => 1,
                None => 0,
            };
            last = now;
            if stopped == STOPPED {
                return "the template is stopped";
            }
            if silent == SILENT {
                self.is_silent.store(true, Relaxed);
                return match fork {
                    None => "the template sleeps, and does not look at what it is asked for",
                    Some(_) => "the fork of the template sleeps, and does not become the server",
                };
            }
        }
    }

    /// Whether it is a template of the manager with this mark.
    pub(crate) fn is_of(&self, family: &str) -> bool {
        self.family == family
    }
}

impl Drop for TemplateProcess {
    fn drop(&mut self) {
        if self.owner != std::process::id() {
            return;
        }
        // At once, also if the zygote is blocked.
        let _ = self.handle.as_ref().map(|handle| pidfd_send_signal(handle, Signal::KILL));
        if let Some(zygote) = &self.zygote {
            zygote.know_template(self.pid, false);
            let _ = zygote.signal(Signal::CONT);
        }
    }
}

impl GuardedProcess {
    /// Starts a server by a fork of a template. `input` is the read end of the server's standard input.
    pub(crate) async fn fork(
        start: ForkStart<'_>,
        spec: &ProcessSpec,
        input: OwnedFd,
    ) -> Result<(Self, ChildStdout, ChildStderr), SpawnError> {
        let ForkStart { template, mark, name, limit, grace } = start;
        let failed = |error: io::Error| fork_error(&spec.command, &error);
        let (stdout, output) = io::pipe().map_err(failed)?;
        let (stderr, error) = io::pipe().map_err(failed)?;
        let wanted = Confinement { limits: spec.limits, sandbox: None, name: name_for(std::process::id()) };
        let settings = GuardSettings { graces: grace.into(), wanted };
        let file = template.write(spec, mark, name, settings).map_err(failed)?;
        let (ours, theirs) = wire::pair().map_err(failed)?;
        // From here on `Drop` ends the guard, also if this future is dropped.
        let mut guarded = Self::pending(Arc::new(Control::new(ours).map_err(failed)?), mark);
        guarded.zygote = template.zygote.clone();
        let asked = template.zygote.as_ref().map(Subreaper::fork_asked);
        let files = [file, theirs, input, output.into(), error.into()];
        let before = template.zygote_switches();
        let starting = async {
            template.ask(&ForkOrder { graces: grace.into() }, &files).await?;
            // From here on only the zygote, the template and the guard hold the other ends.
            drop(files);
            guarded.control.wait_until(|state| state.started.is_some()).await;
            let heard = guarded.control.state().started.take();
            heard.unwrap_or_else(|| Err(io::Error::other("the template or its fork has ended")))
        };
        let late = || format!("the template has not started it within {} ms", limit.as_millis());
        let outcome = tokio::select! {
            outcome = starting => outcome,
            lost = template.lost(&guarded.control, before) => Err(io::Error::other(lost)),
            () = tokio::time::sleep(limit) => Err(io::Error::other(late())),
        };
        drop(asked);
        let running = outcome.map_err(failed)?;
        guarded.set_running(running);
        let stdout = ChildStdout::from_std(OwnedFd::from(stdout).into()).map_err(failed)?;
        let stderr = ChildStderr::from_std(OwnedFd::from(stderr).into()).map_err(failed)?;
        Ok((guarded, stdout, stderr))
    }
}

impl TemplateProcess {
    /// The file of a start.
    fn write(
        &self,
        spec: &ProcessSpec,
        mark: &str,
        name: &str,
        settings: GuardSettings,
    ) -> io::Result<OwnedFd> {
        let owner = std::process::id().to_string();
        let library_path = std::env::var_os(LIBRARY_PATH).and_then(|path| path.into_string().ok());
        let mut guard_env = BTreeMap::from([(MARKER, self.family.clone()), (GUARD, VERSION.to_owned())]);
        guard_env.extend(library_path.map(|path| (LIBRARY_PATH, path)));
        let name = (0..=NAME_MAX)
            .rev()
            .find_map(|length| name.get(..length))
            .filter(|_| name.len() > NAME_MAX)
            .unwrap_or(name);
        let fork = ForkWords { name, guard_args: [NAME, &owner, ADOPT], guard_env };
        write_fork(&ForkHeader { fork, settings }, spec, mark)
    }

    /// Sends an order for a fork.
    async fn ask(&self, order: &ForkOrder, files: &[OwnedFd]) -> io::Result<()> {
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        loop {
            if let Some(zygote) = &self.zygote {
                let _ = zygote.signal(Signal::CONT);
            }
            match self.orders.ask(order, &files) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => tokio::time::sleep(RETRY).await,
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                    return Err(io::Error::other("the template has ended"));
                }
                done => return done,
            }
        }
    }
}

/// The error of a server that was not started from its template.
fn fork_error(server: &Path, error: &io::Error) -> SpawnError {
    SpawnError {
        kind: SpawnErrorKind::Template,
        what: format!("could not start {} from its template: {error}", server.display()),
        help: ConfineError::help_of(error).map(str::to_owned),
    }
}
