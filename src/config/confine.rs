//! What a server may use and reach: budgets, and the sandbox.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Budgets of one server and all that it starts, on Linux. Held by cgroup v2 where a cgroup is delegated to us,
/// by resource limits otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ResourceLimits {
    /// Memory in bytes. As a resource limit (`RLIMIT_DATA`) it is for each process of the server, and counts
    /// what the process may write to and shares with nobody.
    pub memory_max: Option<u64>,
    /// Processors, such as 1.5. A cgroup alone can hold it.
    pub cpu_max: Option<f64>,
    /// Processes and threads. As a resource limit (`RLIMIT_NPROC`) it is counted on top of what the user runs
    /// already, and does not hold for root.
    pub processes_max: Option<u32>,
}

/// What one server may reach, on Linux: files through Landlock, the network through seccomp. Both hold for all that
/// it starts.
///
/// What every program needs is open without being named: the program, the interpreters that it and they name, and
/// `../lib`, `../lib64` and `../pyvenv.cfg` of each that lies in a folder `bin`; `/usr`, `/bin`, `/sbin`, `/lib*`,
/// `/nix/store`, `/gnu/store`; public files of `/etc` (loader, users, hosts, time zone, certificates without keys);
/// `/proc`, `/sys/devices/system/cpu`, `/sys/fs/cgroup`; and, for writing too, `/dev/null`, `/dev/zero`, `/dev/full`,
/// `/dev/random` and `/dev/urandom`. Not open unless named: the working directory, `/tmp`, the home folder.
///
/// Processes outside can be neither looked into nor, from Linux 6.12 on, signalled, and root's privileges that would
/// break the walls are given up. Names and sizes of files, and command lines, stay visible everywhere.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Sandbox {
    /// Files and folders that may be read and executed, besides those that every program needs.
    pub read: Vec<PathBuf>,
    /// Files and folders that may be changed too.
    pub write: Vec<PathBuf>,
    /// Whether sockets may be made. Without, local ones are refused too: a service that listens on one (Docker, the
    /// session bus) could do for a server what its sandbox refuses. Pairs of sockets and pipes remain.
    pub network: bool,
    /// Whether the server runs with less than this where the kernel cannot do all of it. Otherwise it does not
    /// start there.
    pub best_effort: bool,
}

impl ResourceLimits {
    /// Whether nothing is limited.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
