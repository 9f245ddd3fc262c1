//! What a server may use and reach: budgets, and the sandbox.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Budgets of one server and all that it starts, on Linux. Held by cgroup v2 where a cgroup is delegated to us,
/// by resource limits otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct ResourceLimits {
    /// Memory in bytes. As a resource limit (`RLIMIT_DATA`) it is for each process of the server, and counts
    /// what the process may write to and shares with no other process.
    pub memory_max: Option<u64>,
    /// Processors, such as 1.5. A cgroup alone can hold it.
    pub cpu_max: Option<f64>,
    /// Processes and threads. As a resource limit (`RLIMIT_NPROC`) it is counted on top of what the user runs
    /// already, and does not hold for root.
    pub processes_max: Option<u32>,
}

/// What one server may reach, on Linux: files through Landlock, sockets and what Landlock has no right for through
/// seccomp. All of it holds for whatever the server starts.
///
/// What every program needs is open without being named: the program, the interpreters that it and they name, and
/// `../lib`, `../lib64` and `../pyvenv.cfg` of each that lies in a folder `bin`; `/usr`, `/bin`, `/sbin`, `/lib*`,
/// `/nix/store`, `/gnu/store`; public files of `/etc` (loader, users, hosts, time zone, release, certificates without keys);
/// `/proc`, `/sys/devices/system/cpu`, `/sys/fs/cgroup`; and, for writing too, `/dev/null`, `/dev/zero`, `/dev/full`,
/// `/dev/random` and `/dev/urandom`. Not open unless named: the working directory, `/tmp`, the home folder.
///
/// Paths are resolved once at each start, and nothing that a sandboxed server may write has a say in it: no symbolic
/// link below a `write` folder is followed, and a script or link there that leads to an interpreter elsewhere opens
/// nothing (what it needs has to be named in `read`).
///
/// Processes outside can be neither looked into nor, from Linux 6.12 on, signalled. Refused are also the user's kernel
/// keys, owners, extended attributes and flags of files, set-user-ID programs, user namespaces, shared memory and queues
/// of System V, io_uring, and all of root's privileges but those to use files and ports that are open.
///
/// What no kernel can hold: modes and times of any file of the user can be changed, by path. Names and sizes of files,
/// and command lines, stay visible everywhere.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// Files and folders that may be read and executed, besides those that every program needs. None of them may lie
    /// below one of `write`.
    pub read: Vec<PathBuf>,
    /// Files and folders that may be changed too. None of them may lie below another one.
    pub write: Vec<PathBuf>,
    /// Whether sockets may be made, other than local ones.
    pub network: bool,
    /// Whether local sockets may be made: a service that listens on one (Docker, the session bus, a database) does for
    /// a server what its sandbox refuses. Without, pairs of connected sockets and pipes remain.
    pub local_sockets: bool,
    /// Whether the server runs with less than this where the kernel cannot do all of it. Otherwise it does not
    /// start there.
    pub best_effort: bool,
    /// What other servers in sandboxes may write, and therefore decide. Set where a configuration is read.
    pub written_by_others: Vec<PathBuf>,
}

impl Sandbox {
    /// Folders that every sandbox leaves open for reading: programs, libraries and what they ask about the machine.
    ///
    /// `/proc` as a whole, since a process's own folder there has no fixed name. The kernel itself refuses a process
    /// in a sandbox to look into one outside: its memory, environment and open files. Command lines can be seen.
    pub const ALWAYS_READABLE: &[&str] = &[
        "/usr",
        "/bin",
        "/sbin",
        "/lib",
        "/lib32",
        "/lib64",
        "/libx32",
        "/nix/store",
        "/gnu/store",
        "/proc",
        "/sys/devices/system/cpu",
        "/sys/fs/cgroup",
        "/sys/kernel/mm/transparent_hugepage",
    ];
}

impl ResourceLimits {
    /// Whether nothing is limited.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
