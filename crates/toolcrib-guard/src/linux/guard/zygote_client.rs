//! Where a manager has its guards from: its zygote, started when the first one is needed and again if somebody
//! killed it.

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
    path::Path,
    process::Stdio,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rustix::process::Signal;
use tokio::process::{Child, Command};

use super::{
    GUARD, NAME, VERSION,
    descendants::{LEAVE, Root},
    wire,
};

/// Where the dynamic linker looks: the zygote needs the manager's, being the same executable.
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
/// Pause before the next attempt to hand over a request, where very many wait already.
const RETRY: Duration = Duration::from_millis(1);
/// How long the end of a zygote is waited for that has nothing to do any more.
const END_LIMIT: Duration = Duration::from_secs(1);

/// Makes guards. Clones have the same zygote; it ends with the last of them.
#[derive(Clone, Default)]
pub(crate) struct ZygoteClient(Arc<Mutex<Option<Zygote>>>);

/// Asks for a guard.
pub(super) struct Request<'a> {
    /// Where the zygote comes from.
    pub(super) executable: &'a Path,
    /// Marks it.
    pub(super) family: &'a str,
    /// See [`wire::REQUEST`].
    pub(super) packet: &'a [u8],
    pub(super) files: &'a [BorrowedFd<'a>],
}

struct Zygote {
    child: Child,
    /// A handle of it, by which no other process can be meant, whoever reaps it; `None` where the kernel has no
    /// such handles.
    handle: Option<Root>,
    requests: OwnedFd,
}

impl ZygoteClient {
    /// Has a guard made, and says by whom, where the kernel has handles. Where it says nothing and closes its socket,
    /// there is none.
    pub(super) async fn make(&self, request: &Request<'_>) -> io::Result<Option<Root>> {
        loop {
            match self.ask(request) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => tokio::time::sleep(RETRY).await,
                done => return done,
            }
        }
    }

    /// Starts the zygote, ahead of the first request.
    pub(crate) fn prepare(&self, executable: &Path, family: &str) {
        let mut zygote = self.zygote();
        if zygote.is_none() {
            *zygote = Zygote::start(executable, family).ok();
        }
    }

    fn ask(&self, request: &Request<'_>) -> io::Result<Option<Root>> {
        let mut zygote = self.zygote();
        if let Some(zygote) = &*zygote {
            match zygote.ask(request) {
                Err(error) if is_gone(&error) => {
                    tracing::debug!("the zygote has ended, another one is started");
                }
                done => return done,
            }
        }
        zygote.insert(Zygote::start(request.executable, request.family)?).ask(request)
    }

    /// Ends the zygote, now that there are no guards to be had any more. It is gone with the last of them.
    pub(crate) async fn end(&self) {
        let zygote = self.zygote().take();
        if let Some(zygote) = zygote {
            zygote.wake();
            let Zygote { mut child, handle, requests } = zygote;
            drop(requests);
            let in_time = tokio::time::timeout(END_LIMIT, child.wait()).await.is_ok();
            if let Some(handle) = handle.filter(|_| !in_time) {
                // Somebody keeps it, or one of its guards, from their work.
                handle.end().await;
                let _ = tokio::time::timeout(LEAVE, child.wait()).await;
            }
        }
    }

    /// The same without waiting for it.
    pub(crate) fn dismiss(&self) {
        drop(self.zygote().take());
    }

    fn zygote(&self) -> MutexGuard<'_, Option<Zygote>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Zygote {
    fn start(executable: &Path, family: &str) -> io::Result<Self> {
        let (requests, theirs) = wire::queue()?;
        // Why no pre_exec hook here: with one, std forks instead of calling posix_spawn, which costs 25 ms
        // per child in a parent of 512 MiB.
        let child = Command::new(executable)
            .arg0(NAME)
            .arg(std::process::id().to_string())
            .env_clear()
            .env(crate::marks::MARKER, family)
            .env(GUARD, VERSION)
            .envs(std::env::var_os(LIBRARY_PATH).map(|path| (LIBRARY_PATH, path)))
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let pid = child.id();
        // Not reaped before `child` is waited for, so the number is its own.
        let handle = pid.and_then(|pid| Root::find(pid, || true));
        Ok(Self { child, handle, requests })
    }

    fn ask(&self, request: &Request<'_>) -> io::Result<Option<Root>> {
        self.wake();
        wire::send_bytes(&self.requests, request.packet, request.files)?;
        Ok(self.handle.clone())
    }

    /// Somebody may have stopped it, and a stopped process makes nothing.
    fn wake(&self) {
        if let Some(handle) = &self.handle {
            let _ = handle.signal(Signal::CONT);
        }
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}
