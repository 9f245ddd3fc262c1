//! Tells when a child has ended, without reaping it: its id stays ours until the group was signalled.

use std::{io, process::ExitStatus, sync::Arc, time::Duration};

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

#[cfg(target_os = "linux")]
type Notice = tokio::io::unix::AsyncFd<std::os::fd::OwnedFd>;
#[cfg(not(target_os = "linux"))]
type Notice = ();

/// A cheap, shareable watch on one child.
#[derive(Clone)]
pub(crate) struct ExitWatch {
    pid: Pid,
    notice: Option<Arc<Notice>>,
}

impl ExitWatch {
    /// Watches `pid`, a child of this process. On Linux through a pidfd.
    #[cfg(target_os = "linux")]
    pub(crate) fn new(pid: Pid) -> io::Result<Self> {
        let fd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
        #[expect(deprecated, reason = "sound here: an owned descriptor stays the same while registered")]
        let notice = Notice::with_interest(fd, tokio::io::Interest::READABLE)?;
        Ok(Self { pid, notice: Some(Arc::new(notice)) })
    }

    /// Watches `pid`, a child of this process.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn new(pid: Pid) -> io::Result<Self> {
        Ok(Self::none(pid))
    }

    /// A watch that looks instead of being told.
    pub(crate) fn none(pid: Pid) -> Self {
        Self { pid, notice: None }
    }

    /// Returns once the child has ended.
    pub(crate) async fn exited(&self) {
        while self.running() {
            #[cfg(target_os = "linux")]
            if let Some(notice) = &self.notice {
                // A pidfd is readable from the end of its process on; an error means that the runtime's I/O
                // driver is gone, and then looking is all that is left.
                if notice.readable().await.is_ok() {
                    return;
                }
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Whether the child ends within `limit`.
    pub(crate) async fn within(&self, limit: Duration) -> bool {
        tokio::time::timeout(limit, self.exited()).await.is_ok()
    }

    fn running(&self) -> bool {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        matches!(waitid(WaitId::Pid(self.pid), look), Ok(None))
    }

    /// The status of a child that has ended and was not reaped yet.
    pub(crate) fn status(&self) -> Option<ExitStatus> {
        use std::os::unix::process::ExitStatusExt;
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        let ended = waitid(WaitId::Pid(self.pid), look).ok()??;
        if let Some(code) = ended.exit_status() {
            return Some(ExitStatus::from_raw(code << 8));
        }
        ended.terminating_signal().map(ExitStatus::from_raw)
    }
}
