//! Looks for processes that should be gone: by group, and by the marker in their environment.
//!
//! On systems without `/proc` only the group is known; the README says so.

use rustix::process::Pid;

#[cfg(target_os = "linux")]
use super::stat::Stat;

/// Rounds of looking and killing: one that forks while it is looked for is found in the next.
#[cfg(target_os = "linux")]
const SWEEPS: usize = 20;

/// Whether `group` has a member that is not a zombie.
#[cfg(target_os = "linux")]
pub(super) fn group_has_living(group: Pid) -> bool {
    let wanted = group.as_raw_nonzero().get();
    processes()
        .any(|pid| Stat::of(pid).is_some_and(|stat| stat.field(5) == Some(wanted) && !stat.is_zombie()))
}

/// Whether `group` has a member.
#[cfg(not(target_os = "linux"))]
pub(super) fn group_has_living(_group: Pid) -> bool {
    true
}

/// Ids of living processes whose mark begins with `marker`, wherever in the process tree they are.
#[cfg(target_os = "linux")]
pub(crate) fn marked_processes(marker: &str) -> Vec<u32> {
    processes().filter(|pid| is_marked(*pid, marker)).collect()
}

#[cfg(target_os = "linux")]
fn is_marked(pid: u32, marker: &str) -> bool {
    mark_of(&environment(pid)).is_some_and(|mark| mark.starts_with(marker))
}

/// The environment that a process was started with, as far as it is ours to read. A zombie has none.
#[cfg(target_os = "linux")]
pub(super) fn environment(pid: u32) -> Vec<u8> {
    std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default()
}

/// The mark in an environment.
#[cfg(target_os = "linux")]
pub(super) fn mark_of(environment: &[u8]) -> Option<String> {
    let value = |variable: &[u8]| {
        variable.strip_prefix(super::MARKER.as_bytes())?.strip_prefix(b"=").map(<[u8]>::to_vec)
    };
    String::from_utf8(environment.split(|byte| *byte == 0).find_map(value)?).ok()
}

/// Kills whoever carries a mark that begins with `marker`, until nobody does or no more can be done; says how
/// many there were.
#[cfg(target_os = "linux")]
pub(super) fn sweep(marker: &str) -> usize {
    use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

    let mut killed = std::collections::HashSet::new();
    for _ in 0..SWEEPS {
        let found = marked_processes(marker);
        if found.is_empty() {
            break;
        }
        for pid in found {
            let Some(id) = Pid::from_raw(pid.cast_signed()) else { continue };
            let Ok(handle) = pidfd_open(id, PidfdFlags::empty()) else { continue };
            // Looked at once more: the handle keeps its process, the number alone could have changed hands.
            if is_marked(pid, marker) && pidfd_send_signal(&handle, Signal::KILL).is_ok() {
                killed.insert(pid);
            }
        }
    }
    killed.len()
}

/// Nothing can be said here.
#[cfg(not(target_os = "linux"))]
pub(crate) fn marked_processes(_marker: &str) -> Vec<u32> {
    Vec::new()
}

#[cfg(target_os = "linux")]
pub(super) fn processes() -> impl Iterator<Item = u32> {
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse().ok()))
}
