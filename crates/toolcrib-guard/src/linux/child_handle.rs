//! A handle of a child, by which its end is told.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use rustix::process::{Pid, PidfdFlags, WaitId, pidfd_open};
use tokio::io::{Interest, unix::AsyncFd};

/// A pidfd.
pub(crate) struct ChildHandle(AsyncFd<OwnedFd>);

impl ChildHandle {
    /// Of `pid`, a child of this process.
    pub(crate) fn open(pid: Pid) -> io::Result<Option<Self>> {
        let handle = pidfd_open(pid, PidfdFlags::empty())?;
        #[expect(deprecated, reason = "sound here: an owned descriptor stays the same while registered")]
        let handle = AsyncFd::with_interest(handle, Interest::READABLE)?;
        Ok(Some(Self(handle)))
    }

    /// Returns when the child has ended, and true; false if that cannot be told, as the runtime's I/O driver is gone.
    pub(crate) async fn ended(&self) -> bool {
        // It is readable from the end of its process on.
        self.0.readable().await.is_ok()
    }

    /// What waitid(2) takes.
    pub(crate) fn wait_id(&self) -> WaitId<'_> {
        WaitId::PidFd(self.0.get_ref().as_fd())
    }
}
