//! Looks for processes that should be gone: by group, and by the marker in their environment.
//!
//! On systems without `/proc` only the group is known; the README says so.

use rustix::process::Pid;

/// Whether `group` has a member that is not a zombie.
#[cfg(target_os = "linux")]
pub(super) fn group_has_living(group: Pid) -> bool {
    let wanted = group.as_raw_nonzero().get();
    processes().any(|pid| {
        // Fields after the parenthesised name: state, parent, group.
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let state = fields.next();
        let group = fields.nth(1).and_then(|field| field.parse::<i32>().ok());
        group == Some(wanted) && !matches!(state, Some("Z" | "X"))
    })
}

/// Whether `group` has a member.
#[cfg(not(target_os = "linux"))]
pub(super) fn group_has_living(_group: Pid) -> bool {
    true
}

/// Ids of living processes whose environment holds `marker`, wherever in the process tree they are.
#[cfg(target_os = "linux")]
pub(crate) fn marked_processes(marker: &str) -> Vec<u32> {
    let entry = format!("{}={marker}", super::MARKER).into_bytes();
    processes()
        .filter(|pid| {
            // A zombie's environment is empty, and so is one that is not ours to read.
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == entry)
        })
        .collect()
}

/// Nothing can be said here.
#[cfg(not(target_os = "linux"))]
pub(crate) fn marked_processes(_marker: &str) -> Vec<u32> {
    Vec::new()
}

#[cfg(target_os = "linux")]
fn processes() -> impl Iterator<Item = u32> {
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse().ok()))
}
