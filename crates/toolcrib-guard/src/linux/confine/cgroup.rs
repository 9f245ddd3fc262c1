//! Enforces budgets by cgroup v2, for a server and its descendants together, where a cgroup is delegated to us.
//!
//! A cgroup can enable controllers for its children only while it has no processes itself. If they are not enabled yet,
//! the manager and its guards move into a child cgroup once, but only if the cgroup was delegated to us and no other
//! process is in it.

use std::{
    fs, io,
    io::Write,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::process::Pid;

use super::limits::size;
use crate::{ResourceLimits, linux::inspect::stat::Stat};

/// The period of `cpu.max` in microseconds: the kernel's default.
const PERIOD: f64 = 100_000.0;
/// The child cgroup of the manager and its guards: a cgroup that enables controllers for its children must have no
/// processes.
const OWNER: &str = "toolcrib-owner";
/// The beginning of the names of our cgroups, before the manager's process id.
const PREFIX: &str = "toolcrib-";
/// How often to retry while guards that start at the same time are moved.
const ASIDE: usize = 5;

/// The cgroup of one server.
pub(crate) struct Cgroup {
    folder: PathBuf,
    limits: ResourceLimits,
}

impl Cgroup {
    /// Creates a cgroup below that of `manager`. The error says why this is not possible.
    pub(super) fn delegated(name: &str, limits: &ResourceLimits, manager: Pid) -> Result<Self, String> {
        let parent = base()?;
        let missing = usable(&parent, limits, manager)?;
        if !missing.is_empty() {
            hand_down(&parent, &missing, manager)
                .map_err(|error| format!("{} is not delegated to us: {error}", parent.display()))?;
        }
        Self::below(&parent, name, limits)
    }

    /// Creates a cgroup without budgets below `parent`, the folder of [`offered`].
    pub(super) fn plain(parent: &Path, name: &str) -> Option<Self> {
        Self::below(parent, name, &ResourceLimits::default()).ok()
    }

    fn below(parent: &Path, name: &str, limits: &ResourceLimits) -> Result<Self, String> {
        sweep(parent);
        let folder = parent.join(name);
        fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let cgroup = Self { folder, limits: *limits };
        cgroup.set().map_err(|error| {
            cgroup.remove();
            format!("{}: {error}", cgroup.folder.display())
        })?;
        Ok(cgroup)
    }

    fn set(&self) -> io::Result<()> {
        let ResourceLimits { memory_max, cpu_max, processes_max } = self.limits;
        if let Some(bytes) = memory_max {
            self.write("memory.max", &bytes.to_string())?;
            // Kill the whole server: without one helper it might run but not work.
            self.write("memory.oom.group", "1")?;
            // Swap would only delay the end. A kernel without swap does not have this file.
            let _ = self.write("memory.swap.max", "0");
        }
        if let Some(cores) = cpu_max {
            self.write("cpu.max", &format!("{:.0} {PERIOD:.0}", cores * PERIOD))?;
        }
        if let Some(tasks) = processes_max {
            self.write("pids.max", &tasks.to_string())?;
        }
        Ok(())
    }

    fn write(&self, file: &str, text: &str) -> io::Result<()> {
        fs::OpenOptions::new().write(true).open(self.folder.join(file))?.write_all(text.as_bytes())
    }

    /// The file that a process writes to in order to enter the cgroup.
    pub(crate) fn procs_file(&self) -> io::Result<fs::File> {
        fs::OpenOptions::new().write(true).open(self.folder.join("cgroup.procs"))
    }

    /// Moves the calling process into the cgroup.
    pub(super) fn enter(procs_file: &mut fs::File) -> io::Result<()> {
        procs_file.write_all(b"0")
    }

    /// Moves another process into the cgroup.
    pub(super) fn take(&self, process: Pid) -> io::Result<()> {
        self.write("cgroup.procs", &process.as_raw_pid().to_string())
    }

    /// Kills all its processes at once, from Linux 5.14 on.
    pub(crate) fn kill(&self) {
        let _ = self.write("cgroup.kill", "1");
    }

    /// The budget that was exceeded, in words.
    pub(crate) fn exceeded(&self) -> Option<String> {
        let count = |file: &str, key: &str| {
            let events = fs::read_to_string(self.folder.join(file)).unwrap_or_default();
            let value = events.lines().find_map(|line| line.strip_prefix(key)?.trim().parse::<u64>().ok());
            value.unwrap_or(0)
        };
        let ResourceLimits { memory_max, processes_max, .. } = self.limits;
        if let Some(bytes) = memory_max.filter(|_| count("memory.events", "oom_kill ") > 0) {
            return Some(format!("it used more than memory_max = {}", size(bytes)));
        }
        processes_max
            .filter(|_| count("pids.events", "max ") > 0)
            .map(|tasks| format!("it wanted more than processes_max = {tasks}"))
    }

    /// Removes the cgroup, which must have no processes any more.
    pub(crate) fn remove(&self) {
        // The last process may need a moment to leave it.
        for _ in 0..20 {
            match fs::remove_dir(&self.folder) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                _ => return,
            }
        }
    }
}

/// The folder below which cgroups without budgets may be created: a cgroup that is delegated to us. `None` if there is
/// none.
pub(crate) fn offered() -> Option<PathBuf> {
    base().ok().filter(|parent| is_delegated(parent))
}

/// Whether `parent` was delegated to us. Root may write to every cgroup, so for root the attribute of systemd decides
/// (systemd.resource-control(5), `Delegate=`).
fn is_delegated(parent: &Path) -> bool {
    let writable = |path: &Path| rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok();
    let mine = marked(parent) || !rustix::process::geteuid().is_root();
    mine && writable(parent) && writable(&parent.join("cgroup.procs"))
}

fn marked(folder: &Path) -> bool {
    ["trusted.delegate", "user.delegate"].into_iter().any(|name| {
        let mut mark = [0; 4];
        matches!(rustix::fs::getxattr(folder, name, &mut mark), Ok(1) if mark[0] == b'1')
    })
}

/// Why no cgroup can enforce all three budgets; `None` if one probably can. Changes nothing.
pub(crate) fn no_cgroup() -> Option<String> {
    no_cgroup_for(&ResourceLimits { memory_max: Some(1), cpu_max: Some(1.0), processes_max: Some(1) })
}

/// Why no cgroup can enforce `limits`, see [`no_cgroup`].
pub(crate) fn no_cgroup_for(limits: &ResourceLimits) -> Option<String> {
    base().and_then(|parent| usable(&parent, limits, rustix::process::getpid())).err()
}

/// The controllers that `parent` must still enable for `limits`, or why it cannot.
fn usable(parent: &Path, limits: &ResourceLimits, manager: Pid) -> Result<Vec<&'static str>, String> {
    let words = |file: &str| fs::read_to_string(parent.join(file)).unwrap_or_default();
    let lacks = |list: &str, name: &str| !list.split_whitespace().any(|word| word == name);
    let needed = [
        ("memory", limits.memory_max.is_some()),
        ("cpu", limits.cpu_max.is_some()),
        ("pids", limits.processes_max.is_some()),
    ];
    let needed = needed.into_iter().filter(|(_, needed)| *needed).map(|(name, _)| name);
    let (available, handed_down) = (words("cgroup.controllers"), words("cgroup.subtree_control"));
    if let Some(name) = needed.clone().find(|name| lacks(&available, name)) {
        return Err(format!("{} has no controller `{name}`", parent.display()));
    }
    let missing: Vec<&str> = needed.filter(|name| lacks(&handed_down, name)).collect();
    if !missing.is_empty() {
        if !is_delegated(parent) {
            return Err(format!("{} is not delegated to us (systemd: Delegate=yes)", parent.display()));
        }
        if let Some(stranger) = members(parent).into_iter().find(|pid| !descends(*pid, manager)) {
            return Err(format!("process {stranger}, which is not ours, is in {} too", parent.display()));
        }
    }
    Ok(missing)
}

/// The parent of the servers' cgroups: our own cgroup, or its parent if we are in a child of the delegated one, because
/// we moved there or were started there (`DelegateSubgroup=`).
fn base() -> Result<PathBuf, String> {
    let own = own()?;
    let above = own.parent().filter(|above| own.ends_with(OWNER) || marked(above));
    Ok(above.map_or_else(|| own.clone(), Path::to_owned))
}

/// The folder of our own cgroup.
fn own() -> Result<PathBuf, String> {
    let read = |file: &str| fs::read_to_string(file).map_err(|error| format!("{file}: {error}"));
    locate(&read("/proc/self/cgroup")?, &read("/proc/self/mountinfo")?)
}

/// The folder of our own cgroup, from the content of the two files.
fn locate(cgroup: &str, mounts: &str) -> Result<PathBuf, String> {
    let own = cgroup.lines().find_map(|line| line.strip_prefix("0::"));
    let own = own.ok_or_else(|| "this system has no cgroup v2".to_owned())?;
    // Before the dash: id, parent, device, root, mount point, options ...; after it first the type.
    let mount = mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut fields = before.split(' ').skip(3);
        after.starts_with("cgroup2 ").then(|| Some((fields.next()?, fields.next()?)))?
    });
    let (root, point) = mount.ok_or_else(|| "cgroup v2 is not mounted".to_owned())?;
    // In a container only a part of the tree may be mounted, and we may be outside of it.
    let below = own.strip_prefix(root.trim_end_matches('/'));
    let below = below.filter(|below| matches!(below.as_bytes(), [] | [b'/', ..]) && !below.contains("/.."));
    let below =
        below.ok_or_else(|| format!("our cgroup {own} is outside of the mounted hierarchy {root}"))?;
    Ok(PathBuf::from(point).join(below.trim_start_matches('/')).components().collect())
}

/// Enables `controllers` for the cgroups below `parent`. Several guards may do this at the same time.
fn hand_down(parent: &Path, controllers: &[&str], manager: Pid) -> io::Result<()> {
    let wanted: Vec<String> = controllers.iter().map(|name| format!("+{name}")).collect();
    let enable = || {
        let control = fs::OpenOptions::new().write(true).open(parent.join("cgroup.subtree_control"));
        control.and_then(|mut control| control.write_all(wanted.join(" ").as_bytes()))
    };
    let mut outcome = enable();
    for _ in 0..ASIDE {
        match &outcome {
            // The cgroup has processes: the manager and its guards.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => step_aside(parent, manager)?,
            _ => break,
        }
        outcome = enable();
    }
    outcome
}

/// Moves the manager and all that descends from it from `parent` into a cgroup of their own.
fn step_aside(parent: &Path, manager: Pid) -> io::Result<()> {
    let members = members(parent);
    if members.iter().any(|pid| !descends(*pid, manager)) {
        return Err(io::Error::other("other processes are in it"));
    }
    let aside = parent.join(OWNER);
    match fs::create_dir(&aside) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    for pid in members {
        // Fails for a process that has ended. Any other failure shows at the next try.
        let _ = fs::write(aside.join("cgroup.procs"), pid.to_string());
    }
    Ok(())
}

fn members(folder: &Path) -> Vec<i32> {
    let list = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    list.lines().filter_map(|line| line.parse().ok()).collect()
}

/// Whether a process is `ancestor` or descends from it. True for a process that has ended.
fn descends(pid: i32, ancestor: Pid) -> bool {
    let mut next = pid;
    while next != ancestor.as_raw_nonzero().get() {
        let Some(stat) = Stat::of(next) else { return next == pid };
        match stat.parent() {
            Some(parent @ 1..) => next = parent,
            _ => return false,
        }
    }
    true
}

/// Removes cgroups of managers that have ended. The kernel keeps those with processes.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split_once('-')?.0.parse().ok());
        if owner.is_some_and(|owner: u32| !Path::new("/proc").join(owner.to_string()).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// A name for the cgroup of a server of `manager`.
pub(crate) fn name_for(manager: u32) -> String {
    format!("{PREFIX}{manager}-{:016x}", fastrand::u64(..))
}

#[cfg(test)]
mod tests;
