//! Finds the living processes of a trial by a mark in their environment, anywhere in the process tree.

use std::{fs, path::Path};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::proc::beginning;

/// The variable that the program under test is given. It may keep it from its servers.
pub(super) const OWNER_MARK: &str = "TOOLCRIB_TORTURE_OWNER";

/// A living process.
#[derive(Debug, Clone)]
pub(super) struct Living {
    pub(super) pid: Pid,
    /// Its command line, or its name where that is empty.
    pub(super) command: String,
}

/// Ids of the living processes that hold one of `entries` (`NAME=value`) in their environment.
///
/// A zombie's environment reads as empty, and so does one that is not ours to read.
pub(super) fn marked(entries: &[&str]) -> Vec<Pid> {
    processes().into_iter().filter(|pid| holds(*pid, entries)).collect()
}

fn holds(pid: Pid, entries: &[&str]) -> bool {
    let environment = beginning(file(pid, "environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|held| entries.iter().any(|entry| entry.as_bytes() == held))
}

/// Kills `pid` if it still has one of `entries`: the id may have been recycled meanwhile.
pub(super) fn kill(pid: Pid, entries: &[&str]) {
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    if holds(pid, entries) {
        // The only failure is that it is gone, which is what was wanted.
        let _ = pidfd_send_signal(process, Signal::KILL);
    }
}

/// Describes a process that was found by its command line or name.
pub(super) fn describe(pid: Pid) -> Living {
    let words = beginning(file(pid, "cmdline")).unwrap_or_default();
    let words = String::from_utf8_lossy(&words);
    let command = words.trim_end_matches('\0').replace('\0', " ");
    let name = || fs::read_to_string(file(pid, "comm")).unwrap_or_default().trim().to_owned();
    Living { pid, command: if command.is_empty() { name() } else { command } }
}

/// Ids of the processes whose parent is this one, zombies included.
pub(super) fn children() -> Vec<Pid> {
    let own = rustix::process::getpid().as_raw_nonzero().get().to_string();
    let is_child = |pid: &Pid| {
        // Fields after the parenthesised name: state, parent.
        let stat = fs::read_to_string(file(*pid, "stat")).unwrap_or_default();
        stat.rsplit(')').next().and_then(|fields| fields.split_whitespace().nth(1)) == Some(&*own)
    };
    processes().into_iter().filter(is_child).collect()
}

fn file(pid: Pid, name: &str) -> std::path::PathBuf {
    Path::new("/proc").join(pid.as_raw_nonzero().to_string()).join(name)
}

fn processes() -> Vec<Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let number = |name: std::ffi::OsString| name.to_str().and_then(|name| name.parse().ok());
    entries.filter_map(|entry| number(entry.file_name()).and_then(Pid::from_raw)).collect()
}
