//! What this system can do for servers: teardown, sandbox, budgets.

use serde::Serialize;

use super::Keeping;
use crate::Guard;

/// What holds here, for `toolcrib doctor` and for programs that want to know before they ask for it.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Support {
    /// How far the teardown reaches.
    pub keeping: Keeping,
    /// Version of Landlock, which keeps servers from files; 0 without it. A sandbox needs 3.
    pub landlock_abi: u8,
    /// Whether the network can be closed to a server (seccomp).
    pub seccomp: bool,
    /// Why budgets cannot be held by a cgroup and resource limits stand in; nothing if a cgroup can.
    pub no_cgroup: Option<String>,
    /// Whether this process runs as root, for whom `processes_max` needs a cgroup.
    pub root: bool,
}

impl Support {
    /// Looks at this system; changes nothing.
    pub fn detect() -> Self {
        let keeping = Keeping::new(&Guard::Auto);
        let root = rustix::process::geteuid().is_root();
        #[cfg(target_os = "linux")]
        let (landlock_abi, seccomp, no_cgroup) =
            (super::confine::landlock_abi(), super::confine::has_seccomp(), super::confine::no_cgroup());
        #[cfg(not(target_os = "linux"))]
        let (landlock_abi, seccomp, no_cgroup) = (0, false, Some("cgroups need Linux".to_owned()));
        Self { keeping, landlock_abi, seccomp, no_cgroup, root }
    }

    /// What a sandbox does not hold here. Where more than the last is missing, only one with `best_effort` starts, or
    /// (signals) all that can be is held.
    pub fn sandbox_gaps(&self) -> Vec<&'static str> {
        let gaps = [
            (self.landlock_abi < 3, "files"),
            (!self.seccomp, "network and local sockets"),
            (self.landlock_abi < 6, "signals to other processes of this user"),
            // Landlock has no right for it, and installers need it.
            (true, "modes and times of this user's files"),
        ];
        gaps.into_iter().filter(|(missing, _)| *missing).map(|(_, what)| what).collect()
    }
}
