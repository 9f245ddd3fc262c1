//! The restrictions of a server: budgets and the sandbox.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Budgets of one server and its descendants, on Linux. They are enforced by cgroup v2 where a cgroup is delegated to
/// this process, by resource limits otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct ResourceLimits {
    /// Memory in bytes. As a resource limit (`RLIMIT_DATA`) it applies to each process of the server, and counts its
    /// private writable memory.
    pub memory_max: Option<u64>,
    /// Processors, such as 1.5. Only a cgroup can enforce it.
    pub cpu_max: Option<f64>,
    /// Processes and threads. As a resource limit (`RLIMIT_NPROC`) it is added to the number of processes that the user
    /// runs already, and has no effect for root.
    pub processes_max: Option<u32>,
}

/// The sandbox of one server, on Linux: Landlock restricts files; seccomp restricts sockets and system calls that
/// Landlock has no right for. All descendants of the server are restricted too.
///
/// Files that every program needs are always open: the program and the chain of its interpreters; `../lib`, `../lib64` and
/// `../pyvenv.cfg` of each of these that lies in a folder `bin`; `/usr`, `/bin`, `/sbin`, `/lib*`, `/nix/store`, `/gnu/store`;
/// public files of `/etc` (loader, users, hosts, time zone, release, certificates without keys); `/proc`,
/// `/sys/devices/system/cpu`, `/sys/fs/cgroup`; and, for writing too, `/dev/null`, `/dev/zero`, `/dev/full`, `/dev/random` and
/// `/dev/urandom`. Not open unless named: the working directory, `/tmp`, the home folder.
///
/// Paths are resolved once at each start. Files that a sandboxed server may write have no influence on this: no
/// symbolic link below a `write` folder is followed, and a script or link there opens no interpreter elsewhere (name
/// what it needs in `read`).
///
/// The server can neither inspect processes outside of the sandbox nor, from Linux 6.12 on, signal them. Also refused
/// are the user's kernel keys, owners, extended attributes and flags of files, set-user-ID programs, user namespaces,
/// shared memory and queues of System V, io_uring, and all capabilities of root except those for files and ports that
/// the sandbox opens.
///
/// Modes and times of any file of the user can still be changed by path: no kernel can restrict that. Names and sizes of files,
/// and command lines of processes, stay visible.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// Files and folders that may be read and executed, besides those that every program needs. None of them may lie
    /// below one of `write`.
    pub read: Vec<PathBuf>,
    /// Files and folders that may also be changed. None of them may lie below another one.
    pub write: Vec<PathBuf>,
    /// Whether network sockets (all families except local ones) may be created.
    pub network: bool,
    /// Whether local sockets may be created. A service that listens on one (Docker, the session bus, a database) can do
    /// for a server what its sandbox refuses. Pairs of connected sockets and pipes are always allowed.
    pub local_sockets: bool,
    /// Whether the server also starts where the kernel cannot enforce all of this. Otherwise its start fails there.
    pub best_effort: bool,
    /// Paths that other sandboxed servers may write: links in them are not followed. Set when a configuration is read.
    pub written_by_others: Vec<PathBuf>,
}

impl Sandbox {
    /// Folders that are readable in every sandbox: programs, libraries and information about the machine.
    ///
    /// All of `/proc` is readable, because the folder of a process there has no fixed name. The kernel itself refuses a
    /// sandboxed process the memory, environment and open files of processes outside. Command lines are visible.
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
