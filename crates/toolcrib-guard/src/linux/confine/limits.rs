//! Enforces budgets by resource limits, where no cgroup can be used.

use std::{
    io,
    os::unix::{fs::MetadataExt, process::ExitStatusExt},
    process::ExitStatus,
};

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};

use super::{ConfineError, privileges};
use crate::ResourceLimits;

/// The resource limits that the child sets.
#[derive(Default)]
pub(super) struct Limits {
    memory: Option<u64>,
    tasks: Option<u64>,
}

impl Limits {
    /// The resource limits that replace a cgroup, which cannot be used because of `why`.
    pub(super) fn instead(limits: &ResourceLimits, why: &str) -> io::Result<Self> {
        let refuse = |key: &str, whom: &str| {
            let what = format!("no resource limit enforces `{key}`{whom}; a cgroup would, but {why}");
            let help = format!(
                "remove `{key}`, or start toolcrib where a cgroup is delegated to it (systemd: Delegate=yes)"
            );
            Err(io::Error::other(ConfineError::new(what, Some(help))))
        };
        if limits.cpu_max.is_some() {
            return refuse("cpu_max", "");
        }
        if limits.processes_max.is_some() && rustix::process::geteuid().is_root() {
            return refuse("processes_max", " for root");
        }
        let tasks = limits.processes_max.map(|tasks| tasks_of_user() + u64::from(tasks));
        Ok(Self { memory: limits.memory_max, tasks })
    }

    pub(super) fn apply(&self) -> io::Result<()> {
        if self.memory.is_some() {
            privileges::obey_limits()?;
        }
        for (resource, limit) in self.wanted() {
            setrlimit(resource, limit)?;
        }
        Ok(())
    }

    /// Sets the limits of a child, which has inherited those of this process. Returns whether it could raise them.
    pub(super) fn apply_to(&self, child: Pid) -> io::Result<bool> {
        for (resource, limit) in self.wanted() {
            prlimit(Some(child), resource, limit)?;
        }
        Ok(self.memory.is_some() && privileges::can_raise_limits()?)
    }

    fn wanted(&self) -> impl Iterator<Item = (Resource, Rlimit)> {
        // RLIMIT_DATA, not RLIMIT_AS: V8 and Go reserve gigabytes of addresses that they never use.
        let limits = [(Resource::Data, self.memory), (Resource::Nproc, self.tasks)];
        limits.into_iter().filter_map(|(resource, limit)| {
            let limit = limit?;
            let hard = getrlimit(resource).maximum.map_or(limit, |maximum| maximum.min(limit));
            Some((resource, Rlimit { current: Some(hard), maximum: Some(hard) }))
        })
    }
}

/// The number of processes and threads of this user: all of them count against `RLIMIT_NPROC`.
fn tasks_of_user() -> u64 {
    let own = rustix::process::getuid().as_raw();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ours = processes.filter(|process| process.metadata().is_ok_and(|meta| meta.uid() == own));
    ours.map(|process| std::fs::read_dir(process.path().join("task")).map_or(0, |tasks| tasks.count() as u64))
        .sum()
}

/// The budget or sandbox rule that most likely ended a server, guessed from its last lines and its exit status.
pub(crate) fn suspected(
    limits: &ResourceLimits,
    sandboxed: bool,
    status: Option<ExitStatus>,
    stderr: &[String],
) -> Option<String> {
    const MEMORY: [&str; 9] = [
        "memory exhausted",
        "MemoryError",
        "out of memory",
        "Out of memory",
        "Cannot allocate memory",
        "memory allocation of",
        "bad_alloc",
        // Node.js: out of memory for a buffer; and the only line about a full heap that remains after 18 lines of
        // addresses.
        "Array buffer allocation failed",
        "OOMErrorHandler",
    ];
    const TASKS: [&str; 3] = ["Resource temporarily unavailable", "can't start new thread", "EAGAIN"];
    const FILES: [&str; 5] =
        ["Permission denied", "PermissionError", "EACCES", "ModuleNotFoundError", "Operation not permitted"];
    // Trap, abort, segmentation fault: how runtimes end that cannot allocate memory, some without a message.
    const BY_ITSELF: [i32; 3] = [5, 6, 11];
    let said = |words: &[&str]| stderr.iter().any(|line| words.iter().any(|word| line.contains(word)));
    let gave_up = status.and_then(|status| status.signal()).is_some_and(|number| BY_ITSELF.contains(&number));
    if let Some(bytes) = limits.memory_max {
        let size = size(bytes);
        if said(&MEMORY) {
            return Some(format!("it was limited to memory_max = {size}"));
        }
        if gave_up {
            return Some(format!("it may have needed more than memory_max = {size}"));
        }
    }
    if let Some(tasks) = limits.processes_max.filter(|_| said(&TASKS)) {
        return Some(format!("it was limited to processes_max = {tasks}"));
    }
    (sandboxed && said(&FILES)).then(|| "its sandbox may keep it from something that it needs".to_owned())
}

/// `512MiB`.
pub(super) fn size(bytes: u64) -> String {
    let units = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let unit = units.into_iter().find(|(_, unit)| bytes >= *unit && bytes.is_multiple_of(*unit));
    unit.map_or_else(|| format!("{bytes}B"), |(name, unit)| format!("{}{name}", bytes / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_named_as_the_cause_only_with_evidence() {
        let limits = ResourceLimits { memory_max: Some(512 << 20), processes_max: Some(3), cpu_max: None };
        let blamed = |line: &str| suspected(&limits, true, None, &[line.to_owned()]).unwrap_or_default();
        assert_eq!(blamed("MemoryError"), "it was limited to memory_max = 512MiB");
        assert_eq!(blamed("RuntimeError: can't start new thread"), "it was limited to processes_max = 3");
        assert_eq!(
            blamed("cat: x: Permission denied"),
            "its sandbox may keep it from something that it needs"
        );
        assert_eq!(blamed("KeyError: 'x'"), "");
        let aborted = Some(ExitStatus::from_raw(6));
        let blamed = suspected(&limits, false, aborted, &[]).unwrap();
        assert_eq!(blamed, "it may have needed more than memory_max = 512MiB");
        let free = ResourceLimits::default();
        assert_eq!(suspected(&free, false, aborted, &["MemoryError: Permission denied".to_owned()]), None);
    }

    #[test]
    fn sizes_are_shown_in_the_unit_of_the_configuration() {
        assert_eq!([size(1 << 30), size(3 << 20), size(1000)], ["1GiB", "3MiB", "1000B"]);
    }
}
