//! Processes of managers that ended without a word, and without a guard that could have ended them.
//!
//! They are known by the mark in their environment, never by name. A mark names its owner by process id and
//! start time, so that an id that was given anew is not taken for it, and by process id namespace: what runs
//! in a container has an owner that cannot be seen from outside, which does not make it ownerless.

use serde::{Deserialize, Serialize};

/// A process that a dead manager left behind, and that was killed.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Leftover {
    /// Its process id.
    pub pid: u32,
    /// Its command line.
    pub command: String,
    /// The process id of the manager that had started it.
    pub owner: u32,
}

#[cfg(target_os = "linux")]
mod linux {
    use std::{collections::HashSet, os::unix::fs::MetadataExt, path::PathBuf};

    use rustix::process::{Pid, Signal, kill_process};

    use super::Leftover;
    use crate::process::{
        stat::Stat,
        survivors::{environment, mark_of, processes, sweep},
    };

    /// What a mark says about its owner.
    struct Owner {
        namespace: u64,
        pid: u32,
        started: u64,
    }

    impl Owner {
        fn this() -> Option<Self> {
            let pid = std::process::id();
            Some(Self { namespace: namespace()?, pid, started: started(pid)? })
        }

        fn of(mark: &str) -> Option<Self> {
            let mut parts = mark.split('.');
            let namespace = parts.next()?.parse().ok()?;
            Some(Self { namespace, pid: parts.next()?.parse().ok()?, started: parts.next()?.parse().ok()? })
        }

        fn is_gone(&self) -> bool {
            namespace() == Some(self.namespace) && started(self.pid) != Some(self.started)
        }
    }

    /// The inode of our process id namespace.
    fn namespace() -> Option<u64> {
        std::fs::metadata("/proc/self/ns/pid").ok().map(|namespace| namespace.ino())
    }

    /// When `pid` was started, in clock ticks since boot. Nothing for a zombie: it has ended, whoever reaps it.
    fn started(pid: u32) -> Option<u64> {
        Stat::of(pid).filter(|stat| !stat.is_zombie())?.field(22)
    }

    /// Whether one of `guards` is above `pid`: it adopts whoever loses its parent.
    fn is_guarded(pid: u32, guards: &HashSet<u32>) -> bool {
        let mut next = Some(pid).filter(|_| !guards.is_empty());
        while let Some(pid) = next.filter(|pid| !guards.contains(pid)) {
            next = Stat::of(pid).and_then(|stat| stat.parent());
        }
        next.is_some()
    }

    pub(crate) fn new_mark() -> String {
        let random = fastrand::u64(..);
        match Owner::this() {
            Some(Owner { namespace, pid, started }) => format!("{namespace}.{pid}.{started}.{random:016x}"),
            None => format!("{random:016x}"),
        }
    }

    pub(crate) fn reap_leftovers() -> Vec<Leftover> {
        let own = rustix::process::geteuid().as_raw();
        let ours = |pid: &u32| {
            std::fs::metadata(PathBuf::from(format!("/proc/{pid}"))).is_ok_and(|meta| meta.uid() == own)
        };
        let (mut guards, mut found) = (HashSet::new(), Vec::new());
        for pid in processes().filter(ours) {
            let environment = environment(pid);
            let Some(mark) = mark_of(&environment) else { continue };
            let Some(owner) = Owner::of(&mark).filter(Owner::is_gone) else { continue };
            if crate::process::guard::is_guard(&environment) {
                // It is at work: what it has is ended in a moment, more politely than here. Unless somebody
                // stopped it: a stopped guard has not even heard that its owner is gone.
                if let Some(guard) = Pid::from_raw(pid.cast_signed()) {
                    let _ = kill_process(guard, Signal::CONT);
                }
                guards.insert(pid);
            } else {
                let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                let command = String::from_utf8_lossy(&line).replace('\0', " ").trim_end().to_owned();
                found.push((mark, Leftover { pid, command, owner: owner.pid }));
            }
        }
        found.retain(|(_, leftover)| !is_guarded(leftover.pid, &guards));
        for (mark, _) in &found {
            sweep(mark);
        }
        found.into_iter().map(|(_, leftover)| leftover).collect()
    }
}

#[cfg(target_os = "linux")]
pub(crate) use linux::{new_mark, reap_leftovers};

/// A mark for the processes of one manager.
#[cfg(not(target_os = "linux"))]
pub(crate) fn new_mark() -> String {
    format!("{}-{:016x}", std::process::id(), fastrand::u64(..))
}

/// Nothing can be found here.
#[cfg(not(target_os = "linux"))]
pub(crate) fn reap_leftovers() -> Vec<Leftover> {
    Vec::new()
}
