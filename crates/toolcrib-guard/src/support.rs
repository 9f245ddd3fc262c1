//! Detects what this system supports: teardown scope, sandbox, budgets.

use serde::Serialize;

use crate::{Guard, TeardownScope, platform};

/// Features that this system supports: for `toolcrib doctor`, and for programs that check before they start servers.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Support {
    /// How far the teardown reaches.
    #[serde(rename = "keeping")]
    pub teardown_scope: TeardownScope,
    /// The version of Landlock, which restricts the use of files; 0 without it. A sandbox needs 3.
    pub landlock_abi: u8,
    /// Whether the network can be forbidden to a server (seccomp).
    pub seccomp: bool,
    /// Why budgets are enforced by resource limits instead of a cgroup; `None` if a cgroup can be used.
    pub no_cgroup: Option<String>,
    /// Whether this process runs as root. For root, `processes_max` needs a cgroup.
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

    /// Whether bytes that an ended process has not read can be taken back from the pipe of its standard input.
    pub fn takes_back_unread() -> bool {
        platform::TAKES_BACK
    }

    /// Restrictions that a sandbox cannot make on this system. Without file or network restrictions, a server starts only with
    /// `best_effort`. Without the restriction of signals it starts, and everything else is enforced.
    pub fn sandbox_gaps(&self) -> Vec<&'static str> {
        let gaps = [
            (self.landlock_abi < 3, "files"),
            (!self.seccomp, "network and local sockets"),
            (self.landlock_abi < 6, "signals to other processes of this user"),
            // Landlock has no right for these, and installers need to change them.
            (true, "modes and times of this user's files"),
        ];
        gaps.into_iter().filter(|(missing, _)| *missing).map(|(_, what)| what).collect()
    }
}
