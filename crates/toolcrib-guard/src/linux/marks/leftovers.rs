//! Finds and kills the processes of managers that have ended without stopping them and had no guards.
//!
//! They are found by the mark in their environment, never by name. A mark has the id and the start time of its owner,
//! so that a recycled id is not taken for the owner. It has the PID namespace, because the owner of a process in a
//! container is not visible from outside although it runs. It has the time namespace, because start times of two time
//! namespaces cannot be compared.
//!
//! A process can change its environment, and so have any mark, also that of another manager. So each process is judged
//! by its own mark only, which must be completely valid and name an owner that has certainly ended. A process with a
//! forged mark can only cause its own end. Where no mark can be read, the short one in a limit is judged in the same way.

use std::{cell::RefCell, collections::HashSet, os::unix::fs::MetadataExt, path::PathBuf, time::Duration};

use rustix::{
    io::Errno,
    process::{Pid, Signal, test_kill_process},
};

use crate::{
    inspect::beginning,
    linux::guard::{end_blocked, is_blocked, is_guard},
    linux::inspect::stat::Stat,
    linux::marks::{
        find::{environment, mark_of, marked, processes, program_of, signal_if, sweep_all},
        frozen::{frozen_group, thaw},
        limit,
    },
    marks::Leftover,
};

/// How often a guard that was continued is checked, and the time between: one that is stopped or traced each time cannot
/// do its work.
const LOOKS: usize = 4;
const LOOK: Duration = Duration::from_millis(50);

/// The most bytes of a short name that are read.
const NAME_MAX: usize = 64;

/// The owner that a mark names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) namespace: u64,
    /// The time namespace; 0 where the kernel has none.
    pub(super) time: u64,
    pub(super) pid: u32,
    pub(super) started: u64,
}

impl Owner {
    pub(super) fn of_process(pid: u32) -> Option<Self> {
        Some(Self { namespace: namespace()?, time: time_namespace()?, pid, started: started(pid)? })
    }

    /// Parses a mark of [`new_mark`], with or without the server's part after it. `None` for any other text.
    pub(super) fn of(mark: &str) -> Option<Self> {
        let hex = |text: &str, digits: usize| {
            text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        let (family, server) =
            mark.split_once('/').map_or((mark, None), |(family, server)| (family, Some(server)));
        let parts: Vec<&str> = family.split('.').collect();
        let &[namespace, time, pid, started, random] = &parts[..] else { return None };
        let owner = Self {
            namespace: namespace.parse().ok()?,
            time: time.parse().ok()?,
            pid: pid.parse().ok().filter(|pid| i32::try_from(*pid).is_ok_and(|pid| pid > 0))?,
            started: started.parse().ok()?,
        };
        // Numbers without signs and leading zeros, as they are written.
        let exact = owner.written(random) == family;
        (exact && hex(random, 16) && server.is_none_or(|server| hex(server, 8))).then_some(owner)
    }

    pub(super) fn written(&self, random: &str) -> String {
        format!("{}.{}.{}.{}.{random}", self.namespace, self.time, self.pid, self.started)
    }

    /// Whether the owner has certainly ended.
    pub(super) fn is_gone(&self) -> bool {
        if namespace() != Some(self.namespace) {
            return false;
        }
        match Stat::of(self.pid) {
            Some(stat) => {
                let is_another = || stat.field(22).is_some_and(|started: u64| started != self.started);
                stat.is_zombie() || time_namespace() == Some(self.time) && is_another()
            }
            // A process of another user may be hidden in `/proc` (`hidepid`).
            None => Pid::from_raw(self.pid.cast_signed())
                .is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH)),
        }
    }
}

#[cfg(test)]
impl Owner {
    fn started_later(self) -> Self {
        Self { started: self.started + 100, ..self }
    }

    fn in_another_time(self) -> Self {
        Self { time: self.time + 1, ..self }
    }
}

/// The inode of our process id namespace.
fn namespace() -> Option<u64> {
    std::fs::metadata("/proc/self/ns/pid").ok().map(|namespace| namespace.ino())
}

/// The inode of our time namespace; 0 where the kernel has none.
fn time_namespace() -> Option<u64> {
    match std::fs::metadata("/proc/self/ns/time") {
        Ok(namespace) => Some(namespace.ino()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Some(0),
        Err(_) => None,
    }
}

/// When `pid` was started, in clock ticks since boot.
fn started(pid: u32) -> Option<u64> {
    Stat::of(pid)?.field(22)
}

/// Whether one of `guards` is an ancestor of `pid`. Orphans count, as guards are subreapers.
fn is_guarded(pid: u32, guards: &HashSet<u32>) -> bool {
    let mut next = Some(pid).filter(|_| !guards.is_empty());
    while let Some(pid) = next.filter(|pid| !guards.contains(pid)) {
        next = Stat::of(pid).and_then(|stat| stat.parent());
    }
    next.is_some()
}

/// The file name of its program. Not its arguments, which may contain secrets of another configuration.
fn program(pid: u32) -> String {
    let file = program_of(pid);
    if let Some(name) = file.as_deref().and_then(std::path::Path::file_name) {
        return name.to_string_lossy().into_owned();
    }
    // Of one that is not dumpable only the short name can be read, which it chooses itself.
    match beginning(format!("/proc/{pid}/comm"), NAME_MAX) {
        Ok(name) => String::from_utf8_lossy(&name).trim_end().escape_debug().to_string(),
        Err(_) => "a program".to_owned(),
    }
}

/// A new mark for processes of which this process is the owner.
pub fn new_mark() -> String {
    let random = fastrand::u64(..);
    match Owner::of_process(std::process::id()) {
        Some(owner) => owner.written(&format!("{random:016x}")),
        None => format!("{random:016x}"),
    }
}

/// The id of a process's owner, if the owner has ended.
fn gone_owner(pid: u32, environment: &[u8]) -> Option<u32> {
    match mark_of(environment) {
        Some(mark) => Owner::of(&mark).filter(Owner::is_gone).map(|owner| owner.pid),
        None => limit::gone_owner(pid),
    }
}

/// Whether the owner of a process has ended.
fn is_ownerless(pid: u32) -> bool {
    gone_owner(pid, &environment(pid)).is_some()
}

/// Processes whose owner has ended.
#[derive(Default)]
struct Ownerless {
    guards: HashSet<u32>,
    /// Processes below one of these guards, which ends them.
    guarded: Vec<(u32, Leftover)>,
    /// No guard ends them.
    unguarded: Vec<(u32, Leftover)>,
}

/// Finds all processes of this user whose owner has ended.
fn ownerless() -> Ownerless {
    let own = rustix::process::geteuid().as_raw();
    // The folder of a process that is not dumpable is root's. Its environment cannot be read either.
    let ours = |pid: u32| {
        std::fs::metadata(PathBuf::from(format!("/proc/{pid}"))).is_ok_and(|meta| meta.uid() == own)
    };
    let (mut guards, mut found) = (HashSet::new(), Vec::new());
    for pid in processes() {
        let environment = if ours(pid) { environment(pid) } else { Vec::new() };
        let Some(owner) = gone_owner(pid, &environment) else { continue };
        if is_guard(&environment) {
            guards.insert(pid);
        } else {
            found.push((pid, Leftover { pid, command: program(pid), owner }));
        }
    }
    let (guarded, unguarded) = found.into_iter().partition(|(pid, _)| is_guarded(*pid, &guards));
    Ownerless { guards, guarded, unguarded }
}

/// Ends those guards, and all below them, that a server keeps from their work: stopped again and again, or traced. Says
/// whether there were any.
fn end_blocked_guards(mut guards: HashSet<u32>) -> bool {
    for _ in 0..LOOKS {
        guards.retain(|pid| is_blocked(*pid));
        if guards.is_empty() {
            return false;
        }
        for pid in &guards {
            signal_if(*pid, Signal::CONT, || is_ownerless_guard(*pid));
        }
        std::thread::sleep(LOOK);
    }
    for pid in guards {
        end_blocked(pid, || is_ownerless_guard(pid));
    }
    true
}

/// Whether a process is a guard, or a zygote, whose owner is gone.
fn is_ownerless_guard(pid: u32) -> bool {
    let environment = environment(pid);
    is_guard(&environment) && gone_owner(pid, &environment).is_some()
}

/// Whether a mark is valid and its manager is known to have ended.
pub fn owner_is_gone(mark: &str) -> bool {
    Owner::of(mark).is_some_and(|owner| owner.is_gone())
}

/// Whether a process has a guard as an ancestor (it is a server or a helper of one), or has ended.
pub fn is_guarded_or_gone(pid: u32) -> bool {
    let mut next = Some(pid);
    while let Some(pid) = next.filter(|pid| *pid > 0) {
        if crate::linux::guard::looks_like_guard(pid) {
            return true;
        }
        next = Stat::of(pid).and_then(|stat| stat.parent());
    }
    Pid::from_raw(pid.cast_signed()).is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH))
}

/// Continues the guards with this mark, whose manager has ended. With `force`, also ends those that are blocked
/// (stopped again, or traced) and their descendants.
pub fn wake_guards(mark: &str, force: bool) {
    for pid in marked(|found| found == mark).filter(|pid| is_ownerless_guard(*pid)) {
        signal_if(pid, Signal::CONT, || is_ownerless_guard(pid));
        if force {
            end_blocked(pid, || is_ownerless_guard(pid));
        }
    }
}

/// For the fuzz target `marks`: a mark that is parsed is equal to the mark that a manager writes.
#[cfg(any(fuzzing, test))]
#[cfg_attr(not(fuzzing), expect(unreachable_pub, reason = "it is public for the fuzz target alone"))]
pub fn fuzz(environment: &[u8]) {
    let Some(mark) = mark_of(environment) else { return };
    let Some(owner) = Owner::of(&mark) else { return };
    let rest = mark.strip_prefix(&owner.written(""));
    assert!(rest.is_some_and(|rest| matches!(rest.len(), 16 | 25)), "{mark}");
}

/// The processes of owners that are gone which no guard ends: what [`reap_leftovers`] would kill, or thaw so that their guard can
/// end them.
pub fn leftovers() -> Vec<Leftover> {
    let Ownerless { guarded, unguarded, .. } = ownerless();
    let frozen = guarded.into_iter().filter(|(pid, _)| frozen_group(*pid).is_some());
    unguarded.into_iter().chain(frozen).map(|(_, leftover)| leftover).collect()
}

/// Kills the processes of owners that are gone and had no guard, or one that is kept from its work. Thaws those that their guard
/// cannot end because they are frozen.
pub fn reap_leftovers() -> Vec<Leftover> {
    let last = RefCell::new(Ownerless::default());
    let find = || {
        let mut found = ownerless();
        for pid in &found.guards {
            // A guard ends its server by the stop ladder, which is better than to kill it here. The guard may have been
            // stopped, so continue it.
            signal_if(*pid, Signal::CONT, || is_ownerless(*pid));
        }
        let unguarded = std::mem::take(&mut found.unguarded);
        last.replace(found);
        unguarded
    };
    let mut killed = sweep_all(find, is_ownerless);
    let Ownerless { guards, guarded, .. } = last.into_inner();
    for (pid, _) in &guarded {
        thaw(*pid, is_ownerless);
    }
    if end_blocked_guards(guards) {
        killed.extend(
            guarded.into_iter().filter(|(pid, _)| Stat::of(*pid).is_none_or(|stat| stat.is_zombie())),
        );
    }
    killed.into_values().collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The fuzz target `marks` as an ordinary test.
        #[test]
        fn a_parsed_mark_equals_the_written_one(
            text in "(A=B\0)?TOOLCRIB_OWNER=[+0-9]{1,5}\\.[0-9]{1,11}\\.[0-9]{1,11}\\.[0-9]{1,21}\\.[0-9a-fA]{15,17}(/[0-9a-f]{7,9})?\0?",
        ) {
            fuzz(text.as_bytes());
        }
    }

    #[test]
    fn only_complete_marks_are_valid() {
        let mark = new_mark();
        let server = format!("{mark}/0123abcd");
        let owner = Owner::of(&mark);
        assert!(owner.is_some() && owner == Owner::of(&server), "{owner:?}");
        let family: Vec<&str> = mark.split('.').collect();
        let [namespace, time, pid, started, random] = family[..] else { panic!("{mark}") };
        let cut = started.strip_suffix(|_: char| true).unwrap();
        let with = |started: &str, random: &str| format!("{namespace}.{time}.{pid}.{started}.{random}");
        for wrong in [
            // As a server could cut it, so that it names an owner that never existed.
            &mark[..mark.rfind('.').unwrap()],
            &format!("{namespace}.{time}.{pid}.{cut}"),
            &format!("{namespace}.{pid}.{started}.{random}"),
            &mark[..mark.len() - 1],
            &with(&format!("+{started}"), random),
            &with(&format!("0{started}"), random),
            &with(started, &random.to_uppercase().replace(|c: char| c.is_ascii_digit(), "A")),
            &format!("{mark}.1"),
            &format!("{mark}/"),
            &format!("{mark}/0123abc"),
            &format!("{server}/"),
            &format!(" {mark}"),
            &mark.replace(&format!(".{pid}."), ".4294967295."),
            &mark.replace(&format!(".{pid}."), ".0."),
            "",
            "/",
        ] {
            assert_eq!(Owner::of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn start_times_of_other_time_namespaces_are_not_compared() {
        let own = Owner::of(&new_mark()).unwrap();
        let shifted = own.started_later();
        assert!(!own.is_gone() && shifted.is_gone());
        assert!(!shifted.in_another_time().is_gone());
    }

    #[toolcrib_testing::requires(python3)]
    #[test]
    fn an_owner_lives_until_its_last_thread_ends() {
        let exit = if cfg!(target_arch = "x86_64") { 60 } else { 93 };
        let script = format!(
            "import ctypes, threading, time\n\
             threading.Thread(target=lambda: time.sleep(600)).start()\n\
             ctypes.CDLL(None).syscall({exit}, 0)"
        );
        let mut child = std::process::Command::new("/usr/bin/python3").args(["-c", &script]).spawn().unwrap();
        let owner = Owner::of_process(child.id()).unwrap();
        let state = || Stat::of(child.id()).unwrap().state();
        while state() != Some('Z') {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!owner.is_gone());
        child.kill().unwrap();
        // Not reaped yet: a zombie counts as ended.
        while !owner.is_gone() {
            std::thread::sleep(Duration::from_millis(5));
        }
        child.wait().unwrap();
        assert!(owner.is_gone());
    }
}
