//! Finds processes by their group and by the mark in their environment.
//!
//! If `/proc` belongs to another PID namespace its ids mean other processes, so no process is found.

use std::path::PathBuf;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::{
    inspect::{ENVIRONMENT_MAX, beginning},
    linux::{
        guard,
        inspect::stat::{Stat, proc_is_ours},
        marks::{
            frozen::thaw,
            limit::{ShortMark, has as has_short_mark, short_marked},
        },
    },
    marks::MARKER,
};

/// The most rounds of finding and killing: a process that is forked during one round is found in the next.
const SWEEPS: usize = 20;

/// Whether `group` has a member that is not a zombie.
pub(crate) fn group_has_living(group: Pid) -> bool {
    let wanted = group.as_raw_nonzero().get();
    processes()
        .any(|pid| Stat::of(pid).is_some_and(|stat| stat.field(5) == Some(wanted) && !stat.is_zombie()))
}

/// Ids of all living processes with the mark `marker`, also with the server's part after it, or with the short one of it.
pub fn marked_processes(marker: &str) -> Vec<u32> {
    // A mark that only begins with the same characters is a different one.
    let belongs =
        |mark: &str| mark.strip_prefix(marker).is_some_and(|rest| matches!(rest.as_bytes(), [] | [b'/', ..]));
    marked(belongs).chain(short_marked(marker)).collect()
}

/// Kills the processes that have the short mark of `marker`, and of which no mark can be read, but those below a guard or
/// zygote with that mark, which ends them. Returns how many there were.
pub fn sweep_short_marked(marker: &str) -> usize {
    let Some(short) = ShortMark::of(marker) else { return 0 };
    let is_orphan = |pid: u32| has_short_mark(pid, short) && !is_guarded_by(pid, marker);
    let find =
        || short_marked(marker).into_iter().filter(|pid| is_orphan(*pid)).map(|pid| (pid, ())).collect();
    sweep_all(find, is_orphan).len()
}

/// Whether a process has a guard or a zygote with this mark as an ancestor, or is one.
fn is_guarded_by(pid: u32, marker: &str) -> bool {
    let is_it = |pid: u32| {
        let environment = environment(pid);
        guard::is_guard(&environment) && mark_of(&environment).is_some_and(|mark| mark == marker)
    };
    let mut next = Some(pid);
    while let Some(pid) = next.filter(|pid| *pid > 1) {
        if is_it(pid) {
            return true;
        }
        next = Stat::of(pid).and_then(|stat| stat.parent());
    }
    false
}

/// Thaws frozen groups in which nothing but processes with the mark `marker` is. Then what they were sent ends them.
pub fn thaw_marked(marker: &str) {
    let marked = marked_processes(marker);
    for pid in &marked {
        thaw(*pid, |member| marked.contains(&member));
    }
}

/// Ids of living processes whose mark is `wanted`.
pub(crate) fn marked(wanted: impl Fn(&str) -> bool) -> impl Iterator<Item = u32> {
    processes().filter(move |pid| mark_of(&environment(*pid)).is_some_and(|mark| wanted(&mark)))
}

/// Whether a process has exactly this mark.
fn has_mark(pid: u32, mark: &str) -> bool {
    mark_of(&environment(pid)).is_some_and(|found| found == mark)
}

/// The beginning of the environment of a process. Empty if it is not readable or the process is a zombie.
pub(crate) fn environment(pid: u32) -> Vec<u8> {
    match beginning(format!("/proc/{pid}/environ"), ENVIRONMENT_MAX) {
        Ok(read) if !read.is_empty() => read,
        // Its first thread has ended, and with it what is read of the process as a whole.
        _ if is_without_leader(pid) => {
            let read = |thread: PathBuf| beginning(thread.join("environ"), ENVIRONMENT_MAX).ok();
            threads(pid).filter_map(read).find(|read| !read.is_empty()).unwrap_or_default()
        }
        _ => Vec::new(),
    }
}

/// Whether the first thread of a process has ended, and others go on.
fn is_without_leader(pid: u32) -> bool {
    Stat::of(pid).is_some_and(|stat| matches!(stat.state(), Some('Z' | 'X')) && !stat.is_zombie())
}

/// The folders of the threads of a process.
fn threads(pid: u32) -> impl Iterator<Item = PathBuf> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads.map(|thread| thread.path())
}

/// The program of a process.
pub(super) fn program_of(pid: u32) -> Option<PathBuf> {
    let link = |folder: PathBuf| std::fs::read_link(folder.join("exe")).ok();
    link(format!("/proc/{pid}").into()).or_else(|| threads(pid).find_map(link))
}

/// The mark in an environment.
pub(crate) fn mark_of(environment: &[u8]) -> Option<String> {
    let value =
        |variable: &[u8]| variable.strip_prefix(MARKER.as_bytes())?.strip_prefix(b"=").map(<[u8]>::to_vec);
    String::from_utf8(environment.split(|byte| *byte == 0).find_map(value)?).ok()
}

/// Kills all processes with the mark of one server, in rounds. Returns how many there were.
pub(crate) fn sweep(mark: &str) -> usize {
    sweep_all(
        || processes().filter(|pid| has_mark(*pid, mark)).map(|pid| (pid, ())).collect(),
        |pid| has_mark(pid, mark),
    )
    .len()
}

/// Kills the processes that `find` returns, in at most [`SWEEPS`] rounds, until it returns none. Returns those that
/// were killed, with the values that `find` gave for them.
pub(crate) fn sweep_all<T>(
    find: impl Fn() -> Vec<(u32, T)>,
    is_still: impl Fn(u32) -> bool,
) -> std::collections::BTreeMap<u32, T> {
    let mut killed = std::collections::BTreeMap::new();
    for _ in 0..SWEEPS {
        let found = find();
        if found.is_empty() {
            break;
        }
        for (pid, about) in found {
            if signal_if(pid, Signal::KILL, || is_still(pid)) {
                killed.insert(pid, about);
                thaw(pid, &is_still);
            }
        }
    }
    killed
}

/// Signals a process if `is_it` confirms that it is the right one. Returns whether it was signalled.
pub(crate) fn signal_if(pid: u32, signal: Signal, is_it: impl Fn() -> bool) -> bool {
    let Some(id) = Pid::from_raw(pid.cast_signed()) else { return false };
    let Ok(handle) = pidfd_open(id, PidfdFlags::empty()) else { return false };
    // Checked after the pidfd was opened: the id alone could have been recycled.
    is_it() && pidfd_send_signal(&handle, signal).is_ok()
}

/// Whether a living process has the mark of one server.
pub(crate) fn is_marked(mark: &str) -> bool {
    processes().any(|pid| has_mark(pid, mark))
}

/// Signals each process with the mark of one server.
pub(crate) fn signal_marked(mark: &str, signal: Signal) {
    for pid in processes().filter(|pid| has_mark(*pid, mark)) {
        signal_if(pid, signal, || has_mark(pid, mark));
    }
}

/// Kills the process `server` of a guard that was killed, if it still exists. The kernel kills a server together with
/// its guard, except one with raised rights, whose environment and mark cannot be read either.
pub(crate) fn end_server(server: u32, guard: u32) {
    // The session has the guard's id as long as it has a member. Afterwards the id could be recycled, so the guard must
    // be gone too.
    let is_it = || {
        let session = Stat::of(server).filter(|stat| !stat.is_zombie()).and_then(|stat| stat.field::<u32>(6));
        session == Some(guard) && Stat::of(guard).is_none_or(|stat| stat.is_zombie())
    };
    if proc_is_ours() {
        signal_if(server, Signal::KILL, is_it);
    }
}

/// `pids`, with each guard that waits for children replaced by these children.
pub fn replace_guards(pids: Vec<u32>) -> Vec<u32> {
    let (guards, mut left): (Vec<_>, Vec<_>) =
        pids.into_iter().partition(|pid| guard::is_guard(&environment(*pid)));
    let parent = |pid: u32| Stat::of(pid).filter(|stat| !stat.is_zombie())?.parent::<u32>();
    let all: Vec<_> = processes().filter_map(|pid| Some((pid, parent(pid)?))).collect();
    for guard in &guards {
        let mut waited_for = all.iter().filter(|(_, parent)| parent == guard).map(|(pid, _)| *pid).peekable();
        if waited_for.peek().is_none() {
            left.push(*guard);
        }
        left.extend(waited_for.filter(|pid| !guards.contains(pid)));
    }
    left.sort_unstable();
    left.dedup();
    left
}

pub(crate) fn processes() -> impl Iterator<Item = u32> {
    let table = proc_is_ours().then(|| std::fs::read_dir("/proc").ok());
    table
        .flatten()
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse().ok()))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[toolcrib_testing::requires(python3)]
    #[test]
    fn a_process_whose_first_thread_has_ended_keeps_its_mark() {
        let exit = if cfg!(target_arch = "x86_64") { 60 } else { 93 };
        let script = format!(
            "import ctypes, threading, time\n\
             threading.Thread(target=lambda: time.sleep(600)).start()\n\
             ctypes.CDLL(None).syscall({exit}, 0)"
        );
        let mark = crate::marks::new_mark();
        let mut child = Command::new("/usr/bin/python3");
        let mut child = child.args(["-c", &script]).env(MARKER, &mark).spawn().unwrap();
        while !is_without_leader(child.id()) {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert!(std::fs::read(format!("/proc/{}/environ", child.id())).map_or(true, |read| read.is_empty()));
        assert_eq!(mark_of(&environment(child.id())), Some(mark.clone()));
        assert_eq!(marked_processes(&mark), [child.id()]);
        assert!(program_of(child.id()).is_some());
        assert_eq!(sweep(&mark), 1);
        child.wait().unwrap();
        assert!(marked_processes(&mark).is_empty() && environment(child.id()).is_empty());
    }

    #[test]
    fn only_the_beginning_of_an_environment_is_read() {
        // Each string is shorter than the kernel allows; together they are longer than the part that is read.
        let padding = "x".repeat(100 << 10);
        let sleeper = |mark_first: bool| {
            let mut command = Command::new("env");
            command.env_clear().env("PATH", "/usr/bin:/bin").arg("-i");
            command.args(mark_first.then_some("TOOLCRIB_OWNER=first"));
            command.args((0..3).map(|number| format!("A{number}={padding}")));
            command.args((!mark_first).then_some("TOOLCRIB_OWNER=last"));
            let child = command.args(["sleep", "600"]).spawn().unwrap();
            let name = || std::fs::read(format!("/proc/{}/comm", child.id())).unwrap();
            while name() != b"sleep\n" {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            child
        };
        let mut children = [sleeper(true), sleeper(false)];
        let read = children.each_ref().map(|child| environment(child.id()));
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!(read.each_ref().map(Vec::len), [ENVIRONMENT_MAX; 2]);
        assert_eq!(read.map(|environment| mark_of(&environment)), [Some("first".to_owned()), None]);
    }
}
