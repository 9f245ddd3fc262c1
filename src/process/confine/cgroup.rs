//! Budgets through cgroup v2: for the server and all that it starts together, where a cgroup is delegated to us.

use std::{
    fs, io,
    io::Write,
    path::{Path, PathBuf},
    time::Duration,
};

use super::limits::size;
use crate::config::ResourceLimits;

/// Length of the period in which the processor time is given out, in microseconds: the kernel's default.
const PERIOD: f64 = 100_000.0;
/// Where we go ourselves: a cgroup that hands controllers down must not have processes of its own.
const OWNER: &str = "toolcrib-owner";

/// The cgroup of one server.
pub(in crate::process) struct Cgroup {
    folder: PathBuf,
    limits: ResourceLimits,
}

impl Cgroup {
    /// Makes a cgroup below our own; the error is the reason why there can be none.
    pub(super) fn delegated(name: &str, limits: &ResourceLimits) -> Result<Self, String> {
        Self::below(&own()?, name, limits)
    }

    /// Makes a cgroup without budgets where cgroups are ours to make without anybody's harm.
    pub(super) fn offered(name: &str) -> Option<Self> {
        let parent = own().ok().filter(|parent| is_delegated(parent))?;
        Self::below(&parent, name, &ResourceLimits::default()).ok()
    }

    fn below(parent: &Path, name: &str, limits: &ResourceLimits) -> Result<Self, String> {
        hand_down(parent, limits)?;
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
            // All of the server or nothing: one killed helper would leave a server that only looks alive.
            self.write("memory.oom.group", "1")?;
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

    /// What a process writes into to get in.
    pub(in crate::process) fn door(&self) -> io::Result<fs::File> {
        fs::OpenOptions::new().write(true).open(self.folder.join("cgroup.procs"))
    }

    /// Puts the calling process in.
    pub(super) fn enter(door: &mut fs::File) -> io::Result<()> {
        door.write_all(b"0")
    }

    /// Kills everybody in it at once, where the kernel can (5.14).
    pub(in crate::process) fn kill(&self) {
        let _ = self.write("cgroup.kill", "1");
    }

    /// Which budget was hit, in words.
    pub(in crate::process) fn exceeded(&self) -> Option<String> {
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

    /// Removes it; nobody may be in it any more.
    pub(in crate::process) fn remove(&self) {
        // The last one to leave may not be out of it yet.
        for _ in 0..20 {
            match fs::remove_dir(&self.folder) {
                Err(error) if error.raw_os_error() == Some(nix::libc::EBUSY) => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                _ => return,
            }
        }
    }
}

/// Whether `parent` was given to us. What root may write to is not for that reason root's: there systemd's mark
/// decides (systemd.resource-control(5), `Delegate=`).
fn is_delegated(parent: &Path) -> bool {
    if rustix::process::geteuid().is_root() {
        let mut mark = [0; 4];
        return matches!(rustix::fs::getxattr(parent, "trusted.delegate", &mut mark), Ok(1) if mark[0] == b'1');
    }
    rustix::fs::access(parent, rustix::fs::Access::WRITE_OK).is_ok()
        && rustix::fs::access(parent.join("cgroup.procs"), rustix::fs::Access::WRITE_OK).is_ok()
}

/// Why no cgroup can be had for all three budgets; nothing if it can, as far as looking tells.
pub(in crate::process) fn no_cgroup() -> Option<String> {
    let parent = match own() {
        Ok(parent) => parent,
        Err(why) => return Some(why),
    };
    let controllers = fs::read_to_string(parent.join("cgroup.controllers")).unwrap_or_default();
    let has = |name: &&str| controllers.split_whitespace().any(|word| word == *name);
    if let Some(name) = ["memory", "cpu", "pids"].iter().find(|name| !has(name)) {
        return Some(format!("{} has no controller `{name}`", parent.display()));
    }
    let control = parent.join("cgroup.subtree_control");
    rustix::fs::access(&control, rustix::fs::Access::WRITE_OK)
        .err()
        .map(|error| format!("{} is not delegated to us: {error}", parent.display()))
}

/// The folder of our own cgroup.
fn own() -> Result<PathBuf, String> {
    let read = |file: &str| fs::read_to_string(file).map_err(|error| format!("{file}: {error}"));
    let path = read("/proc/self/cgroup")?;
    let path = path.lines().find_map(|line| line.strip_prefix("0::"));
    let path = path.ok_or_else(|| "this system has no cgroup v2".to_owned())?.to_owned();
    let mounts = read("/proc/self/mountinfo")?;
    let mount = mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        after.starts_with("cgroup2 ").then(|| before.split(' ').nth(4).map(PathBuf::from))?
    });
    let mount = mount.ok_or_else(|| "cgroup v2 is not mounted".to_owned())?;
    Ok(mount.join(path.trim_start_matches('/')))
}

/// Lets cgroups below `parent` have the controllers that `limits` need.
fn hand_down(parent: &Path, limits: &ResourceLimits) -> Result<(), String> {
    let words = |file: &str| fs::read_to_string(parent.join(file)).unwrap_or_default();
    let has = |file: &str, name: &str| words(file).split_whitespace().any(|word| word == name);
    let needed = [
        ("memory", limits.memory_max.is_some()),
        ("cpu", limits.cpu_max.is_some()),
        ("pids", limits.processes_max.is_some()),
    ];
    let missing: Vec<&str> = needed.into_iter().filter(|(_, needed)| *needed).map(|(name, _)| name).collect();
    let unavailable: Vec<&&str> = missing.iter().filter(|name| !has("cgroup.controllers", name)).collect();
    if let [name, ..] = unavailable[..] {
        return Err(format!("{} has no controller `{name}`", parent.display()));
    }
    let wanted: Vec<String> = missing
        .iter()
        .filter(|name| !has("cgroup.subtree_control", name))
        .map(|name| format!("+{name}"))
        .collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let enable = || {
        let control = fs::OpenOptions::new().write(true).open(parent.join("cgroup.subtree_control"));
        control.and_then(|mut control| control.write_all(wanted.join(" ").as_bytes()))
    };
    let explain = |error: io::Error| format!("{} is not delegated to us: {error}", parent.display());
    match enable() {
        // There are processes in it. If that is toolcrib alone, it can go into a cgroup of its own.
        Err(error) if error.raw_os_error() == Some(nix::libc::EBUSY) => {
            step_aside(parent).map_err(explain)?;
            enable().map_err(explain)
        }
        outcome => outcome.map_err(explain),
    }
}

/// Moves this process and its manager, if nobody else is there, from `parent` into a cgroup of their own.
fn step_aside(parent: &Path) -> io::Result<()> {
    let members = fs::read_to_string(parent.join("cgroup.procs"))?;
    let ours = [Some(rustix::process::getpid()), rustix::process::getppid()];
    let ours: Vec<String> = ours.into_iter().flatten().map(|pid| pid.as_raw_nonzero().to_string()).collect();
    if members.lines().any(|member| !ours.iter().any(|pid| pid == member)) {
        return Err(io::Error::other("other processes are in it"));
    }
    let aside = parent.join(OWNER);
    match fs::create_dir(&aside) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    for member in members.lines() {
        fs::write(aside.join("cgroup.procs"), member)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    //! A plain folder stands in for the kernel's: what is read and written is tested, not what comes of it.

    use super::*;

    const LIMITS: ResourceLimits =
        ResourceLimits { memory_max: Some(64 << 20), cpu_max: Some(1.5), processes_max: Some(7) };

    fn parent(controllers: &str, handed_down: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("cgroup.controllers"), controllers).unwrap();
        fs::write(folder.path().join("cgroup.subtree_control"), handed_down).unwrap();
        folder
    }

    #[test]
    fn controllers_are_handed_down_or_the_reason_is_told() {
        let folder = parent("cpu memory pids", "cpu");
        hand_down(folder.path(), &LIMITS).unwrap();
        assert_eq!(
            fs::read_to_string(folder.path().join("cgroup.subtree_control")).unwrap(),
            "+memory +pids"
        );
        let folder = parent("cpu memory", "cpu memory");
        let why = hand_down(folder.path(), &LIMITS).unwrap_err();
        assert!(why.ends_with("has no controller `pids`"), "{why}");
    }

    #[test]
    fn budgets_are_written_and_their_events_read() {
        let folder = parent("cpu memory pids", "cpu memory pids");
        let cgroup = Cgroup { folder: folder.path().to_owned(), limits: LIMITS };
        for file in ["memory.max", "memory.oom.group", "cpu.max", "pids.max", "cgroup.procs", "cgroup.kill"] {
            fs::write(folder.path().join(file), "").unwrap();
        }
        cgroup.set().unwrap();
        let written = |file: &str| fs::read_to_string(folder.path().join(file)).unwrap();
        assert_eq!(
            ["memory.max", "memory.oom.group", "cpu.max", "pids.max"].map(written),
            ["67108864", "1", "150000 100000", "7"]
        );
        Cgroup::enter(&mut cgroup.door().unwrap()).unwrap();
        cgroup.kill();
        assert_eq!(["cgroup.procs", "cgroup.kill"].map(written), ["0", "1"]);
        assert_eq!(cgroup.exceeded(), None);
        fs::write(folder.path().join("pids.events"), "max 2\n").unwrap();
        assert_eq!(cgroup.exceeded().unwrap(), "it wanted more than processes_max = 7");
        fs::write(folder.path().join("memory.events"), "low 0\noom 1\noom_kill 1\n").unwrap();
        assert_eq!(cgroup.exceeded().unwrap(), "it used more than memory_max = 64MiB");
    }

    #[test]
    fn a_real_cgroup_ends_whoever_is_in_it() {
        // Where none can be made there is nothing to try: the file protocol is tested above.
        let Ok(Ok(cgroup)) =
            own().map(|parent| Cgroup::below(&parent, "toolcrib-test", &ResourceLimits::default()))
        else {
            return;
        };
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        cgroup.door().unwrap().write_all(child.id().to_string().as_bytes()).unwrap();
        cgroup.kill();
        assert!(!child.wait().unwrap().success());
        cgroup.remove();
        assert!(!cgroup.folder.exists());
    }

    #[test]
    fn others_in_our_cgroup_are_left_where_they_are() {
        let folder = parent("memory", "");
        fs::write(folder.path().join("cgroup.procs"), "1\n").unwrap();
        let why = step_aside(folder.path()).unwrap_err();
        assert_eq!(why.to_string(), "other processes are in it");
        assert!(!folder.path().join(OWNER).exists());
    }
}
