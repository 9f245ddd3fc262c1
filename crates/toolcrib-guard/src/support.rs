//! What this system can do for servers: teardown, sandbox, budgets.

use serde::Serialize;

use crate::{Guard, TeardownScope, platform};

/// What holds here, for `toolcrib doctor` and for programs that want to know before they ask for it.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Support {
    /// How far the teardown reaches.
    #[serde(rename = "keeping")]
    pub teardown_scope: TeardownScope,
    /// Version of Landlock, which keeps servers from files; 0 without it. A sandbox needs 3.
    pub landlock_abi: u8,
    /// Whether the network can be closed to a server (seccomp).
    pub seccomp: bool,
    /// Why budgets cannot be held by a cgroup and resource limits stand in; `None` if a cgroup can.
    pub no_cgroup: Option<String>,
    /// Whether this process runs as root, for whom `processes_max` needs a cgroup.
    pub root: bool,
}

impl Support {
    /// Looks at this system; changes nothing.
    pub fn detect() -> Self {
        let teardown_scope = TeardownScope::new(&Guard::Auto);
        let root = rustix::process::geteuid().is_root();
        let (landlock_abi, seccomp, no_cgroup) =
            (platform::landlock_abi(), platform::has_seccomp(), platform::no_cgroup());
        Self { teardown_scope, landlock_abi, seccomp, no_cgroup, root }
    }

    /// Whether what a lost process has not read can be taken back from the pipe of its standard input.
    pub fn takes_back_unread() -> bool {
        platform::TAKES_BACK
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
