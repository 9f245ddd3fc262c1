//! Groups of the freezer of cgroup v1: a process in a frozen one takes no signal until it is thawed, not even SIGKILL.
//! A server that runs as root can put its helpers into one. (In cgroup v2 SIGKILL ends frozen processes.)

use std::{
    ffi::OsStr,
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use crate::inspect::beginning;

/// Bytes of a file that are read.
const LONGEST: usize = 1 << 20;
/// Groups within one that are looked at. One with more is not thawed.
const MOST_GROUPS: usize = 1000;

/// The frozen group that a process is in.
pub fn frozen_group(pid: u32) -> Option<PathBuf> {
    let (mount, group) = group_of(pid)?;
    let is_frozen = |group: &&Path| {
        let state = beginning(group.join("freezer.state"), LONGEST).unwrap_or_default();
        state.starts_with(b"FROZEN") || state.starts_with(b"FREEZING")
    };
    Some(group.as_path()).filter(|group| *group != mount).filter(is_frozen).map(Path::to_owned)
}

/// Thaws the group that a process is frozen in, and those above it, as long as nothing but processes that are `ours` is
/// in them. Groups of others stay as they are.
pub(crate) fn thaw(pid: u32, ours: impl Fn(u32) -> bool) {
    let Some(group) = frozen_group(pid) else { return };
    let Some((mount, _)) = group_of(pid) else { return };
    for group in group.ancestors().take_while(|group| *group != mount && group.starts_with(&mount)) {
        let is_itself =
            beginning(group.join("freezer.self_freezing"), LONGEST).is_ok_and(|word| word.starts_with(b"1"));
        if is_itself && members(group).is_some_and(|members| members.into_iter().all(&ours)) {
            // What cannot be thawed is named as a process that is left.
            let _ = fs::write(group.join("freezer.state"), "THAWED");
        }
    }
}

/// Finds the mount of the freezer, and the folder of a process's group there.
fn group_of(pid: u32) -> Option<(PathBuf, PathBuf)> {
    let groups = beginning(format!("/proc/{pid}/cgroup"), LONGEST).ok()?;
    let path = groups.split(|byte| *byte == b'\n').find_map(|line| {
        let mut parts = line.splitn(3, |byte| *byte == b':').skip(1);
        let controllers = parts.next()?;
        let is_freezer = controllers.split(|byte| *byte == b',').any(|name| name == b"freezer");
        parts.next().filter(|_| is_freezer)
    })?;
    let mounts = String::from_utf8(beginning("/proc/self/mounts", LONGEST).ok()?).ok()?;
    let mount = mounts.lines().find_map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let [_, place, "cgroup", options, ..] = words[..] else { return None };
        options.split(',').any(|option| option == "freezer").then(|| PathBuf::from(place))
    })?;
    let below = Path::new(OsStr::from_bytes(path)).strip_prefix("/").ok()?.to_owned();
    Some((mount.clone(), mount.join(below)))
}

/// The processes in a group and in those within it. `None`: not all could be seen.
fn members(group: &Path) -> Option<Vec<u32>> {
    let (mut found, mut groups, mut next) = (Vec::new(), vec![group.to_owned()], 0);
    while let Some(group) = groups.get(next).cloned() {
        next += 1;
        let text = String::from_utf8(beginning(group.join("cgroup.procs"), LONGEST).ok()?).ok()?;
        for line in text.lines() {
            found.push(line.parse().ok()?);
        }
        for entry in fs::read_dir(&group).ok()?.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                groups.push(entry.path());
            }
        }
        if groups.len() > MOST_GROUPS || text.len() >= LONGEST {
            return None;
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use std::{
        process::Command,
        time::{Duration, Instant},
    };

    use super::*;
    use crate::{
        linux::marks::find::{environment, mark_of, marked_processes, sweep},
        marks::{MARKER, new_mark, thaw_marked},
    };

    fn until(what: &str, is_so: impl Fn() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < Duration::from_secs(30), "{what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[toolcrib_testing::requires(freezer)]
    #[test]
    fn frozen_processes_are_thawed_and_ended_if_all_are_ours() {
        let (mount, _) = group_of(std::process::id()).unwrap();
        let group = mount.join(format!("toolcrib-test-{}", std::process::id()));
        fs::create_dir(&group).unwrap();
        let mark = new_mark();
        let mut ours = Command::new("sleep").arg("600").env(MARKER, &mark).spawn().unwrap();
        let mut other = Command::new("sleep").arg("600").spawn().unwrap();
        for pid in [ours.id(), other.id()] {
            fs::write(group.join("cgroup.procs"), pid.to_string()).unwrap();
        }
        until("both have begun", || mark_of(&environment(ours.id())).is_some());
        fs::write(group.join("freezer.state"), "FROZEN").unwrap();
        until("it is frozen", || {
            fs::read_to_string(group.join("freezer.state")).unwrap().starts_with("FROZEN")
        });
        assert_eq!(frozen_group(ours.id()).as_ref(), Some(&group));
        assert_eq!(frozen_group(std::process::id()), None);
        // The other one is not ours to let go on.
        thaw_marked(&mark);
        assert_eq!(frozen_group(ours.id()).as_ref(), Some(&group));
        fs::write(group.parent().unwrap().join("cgroup.procs"), other.id().to_string()).unwrap();
        sweep(&mark);
        ours.wait().unwrap();
        assert!(marked_processes(&mark).is_empty());
        other.kill().unwrap();
        other.wait().unwrap();
        until("the group is gone", || fs::remove_dir(&group).is_ok());
    }
}
