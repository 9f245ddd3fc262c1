//! Tells when a server's process has ended: by its guard, or as our own child without reaping it, so that its
//! id stays ours until the group was signalled.

use std::{io, process::ExitStatus, sync::Arc, time::Duration};

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

#[cfg(target_os = "linux")]
type Notice = tokio::io::unix::AsyncFd<std::os::fd::OwnedFd>;
#[cfg(not(target_os = "linux"))]
type Notice = ();

/// A cheap, shareable watch on one process.
#[derive(Clone)]
pub struct ExitWatch(Watched);

#[derive(Clone)]
enum Watched {
    Child {
        pid: Pid,
        notice: Option<Arc<Notice>>,
    },
    #[cfg(target_os = "linux")]
    Guarded(Arc<super::guard::Control>),
}

impl ExitWatch {
    /// Hears from the guard.
    #[cfg(target_os = "linux")]
    pub(super) fn guarded(control: Arc<super::guard::Control>) -> Self {
        Self(Watched::Guarded(control))
    }

    /// Watches `pid`, a child of this process. On Linux through a pidfd.
    #[cfg(target_os = "linux")]
    pub fn new(pid: Pid) -> io::Result<Self> {
        let fd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
        #[expect(deprecated, reason = "sound here: an owned descriptor stays the same while registered")]
        let notice = Notice::with_interest(fd, tokio::io::Interest::READABLE)?;
        Ok(Self(Watched::Child { pid, notice: Some(Arc::new(notice)) }))
    }

    /// Watches `pid`, a child of this process.
    #[cfg(not(target_os = "linux"))]
    pub fn new(pid: Pid) -> io::Result<Self> {
        Ok(Self::none(pid))
    }

    /// A watch that looks instead of being told.
    pub fn none(pid: Pid) -> Self {
        Self(Watched::Child { pid, notice: None })
    }

    /// Returns once the process has ended.
    pub async fn exited(&self) {
        match &self.0 {
            #[cfg(target_os = "linux")]
            Watched::Guarded(control) => control.over().await,
            Watched::Child { pid, notice } => child_exited(*pid, notice.as_deref()).await,
        }
    }

    /// Returns once all that the process started has ended too, where a guard follows that.
    pub async fn gone(&self) {
        match &self.0 {
            #[cfg(target_os = "linux")]
            Watched::Guarded(control) => control.gone().await,
            Watched::Child { .. } => self.exited().await,
        }
    }

    /// Whether the process ends within `limit`.
    pub async fn within(&self, limit: Duration) -> bool {
        tokio::time::timeout(limit, self.exited()).await.is_ok()
    }

    /// Whether a child is not reaped yet, by whomever: its id cannot be that of another process.
    pub(super) fn is_ours(&self) -> bool {
        match &self.0 {
            #[cfg(target_os = "linux")]
            Watched::Guarded(_) => false,
            Watched::Child { pid, notice } => {
                let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
                waitid(wait_id(*pid, notice.as_deref()), look).is_ok()
            }
        }
    }

    /// The status of a process that has ended, as long as it is known.
    pub fn status(&self) -> Option<ExitStatus> {
        match &self.0 {
            #[cfg(target_os = "linux")]
            Watched::Guarded(control) => control.exited(),
            Watched::Child { pid, .. } => child_status(*pid),
        }
    }
}

#[cfg(target_os = "linux")]
fn wait_id(pid: Pid, notice: Option<&Notice>) -> WaitId<'_> {
    notice.map_or(WaitId::Pid(pid), |notice| WaitId::PidFd(std::os::fd::AsFd::as_fd(notice.get_ref())))
}

#[cfg(not(target_os = "linux"))]
fn wait_id(pid: Pid, _notice: Option<&Notice>) -> WaitId<'static> {
    WaitId::Pid(pid)
}

async fn child_exited(pid: Pid, notice: Option<&Notice>) {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    while matches!(waitid(WaitId::Pid(pid), look), Ok(None)) {
        #[cfg(target_os = "linux")]
        if let Some(notice) = notice {
            // A pidfd is readable from the end of its process on; an error means that the runtime's I/O
            // driver is gone, and then looking is all that is left.
            if notice.readable().await.is_ok() {
                return;
            }
        }
        #[cfg(not(target_os = "linux"))]
        let _ = notice;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn child_status(pid: Pid) -> Option<ExitStatus> {
    use std::os::unix::process::ExitStatusExt;
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    let ended = waitid(WaitId::Pid(pid), look).ok()??;
    if let Some(code) = ended.exit_status() {
        return Some(ExitStatus::from_raw(code << 8));
    }
    ended.terminating_signal().map(ExitStatus::from_raw)
}
