//! Reads the line of proc_pid_stat(5) of a process or thread.

use std::{fmt::Display, path::Path, str::FromStr};

use crate::inspect::beginning;

/// The most bytes of the line that are read. The kernel's lines are shorter.
const LINE_MAX: usize = 16 << 10;

/// The part of the line after the name. The name may contain any character.
pub(crate) struct Stat(String);

impl Stat {
    /// Reads it for a process. `None` if there is no such process, or no `/proc`.
    pub(crate) fn of(pid: impl Display) -> Option<Self> {
        Self::in_folder(Path::new(&format!("/proc/{pid}")))
    }

    /// Reads it for the process or thread with this folder in `/proc`.
    pub(crate) fn in_folder(folder: &Path) -> Option<Self> {
        let line = beginning(folder.join("stat"), LINE_MAX).ok()?;
        // A process chooses its name, which need not be UTF-8. Such a name must not hide it.
        let rest = line.rsplit(|byte| *byte == b')').next()?;
        Some(Self(str::from_utf8(rest).ok()?.to_owned()))
    }

    /// A field by its number in the manual: 3 is the first one after the name.
    pub(crate) fn field<T: FromStr>(&self, number: usize) -> Option<T> {
        field(&self.0, number)
    }

    /// The letter of its state.
    pub(crate) fn state(&self) -> Option<char> {
        self.field(3)
    }

    /// Whether it has ended but was not reaped.
    pub(crate) fn is_zombie(&self) -> bool {
        // If the first thread has ended before the others, the state is `Z` but the process still runs.
        let threads = || self.field(20).unwrap_or(1);
        matches!(self.state(), Some('Z' | 'X')) && threads() <= 1
    }

    /// The process above it.
    pub(crate) fn parent<T: FromStr>(&self) -> Option<T> {
        self.field(4)
    }

    /// Clock ticks of CPU time, reaped children included.
    pub(crate) fn ticks(&self) -> u64 {
        (14..=17).filter_map(|number| self.field::<u64>(number)).sum()
    }
}

/// Whether a process sleeps, and how often it has let go of its core so far. One that is to run, or waits for a disk, does not sleep.
pub(crate) fn sleep_of(pid: u32) -> Option<(bool, u64)> {
    let status = beginning(format!("/proc/{pid}/status"), LINE_MAX).ok()?;
    let status = String::from_utf8_lossy(&status);
    let value = |name: &str| status.lines().find_map(|line| Some(line.strip_prefix(name)?.trim()));
    let switches = ["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"].map(value);
    let switches = switches.into_iter().map(|count| count?.parse::<u64>().ok()).sum::<Option<u64>>()?;
    Some((value("State:")?.starts_with('S'), switches))
}

/// Whether `/proc` belongs to the PID namespace of this process. In a new PID namespace without a new mount of `/proc`,
/// it has the ids of the parent namespace.
pub(crate) fn proc_is_ours() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let own = std::process::id().to_string();
    let numbers = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    // One id for each namespace, from that of `/proc` down to our own. Kernels before 4.1 do not have this line.
    numbers("Pid").is_some_and(|pid| pid.trim() == own)
        && numbers("NSpid").is_none_or(|all| all.split_whitespace().eq([own.as_str()]))
}

/// A field of the part of the line after the name, see [`Stat::field`].
pub(crate) fn field<T: FromStr>(line: &str, number: usize) -> Option<T> {
    line.split_whitespace().nth(number.checked_sub(3)?)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::ENVIRONMENT_MAX;

    #[test]
    fn a_process_name_that_is_not_utf_8_is_read() {
        use std::io::{Read, Write};

        let mut shell = std::process::Command::new("sh");
        let script = r"printf '\377) Z' > /proc/$$/comm; echo; read word";
        shell.args(["-c", script]).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        shell.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let name = std::fs::read(format!("/proc/{}/comm", shell.id())).unwrap();
        assert_eq!(name, b"\xff) Z\n");
        let stat = Stat::of(shell.id()).unwrap();
        assert_eq!((stat.parent(), stat.is_zombie()), (Some(std::process::id()), false));
        shell.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        shell.wait().unwrap();
    }

    #[test]
    fn a_process_that_sleeps_is_known_from_one_that_works() {
        let sleeper = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let worker = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let begun = std::time::Instant::now();
        while !sleep_of(sleeper.id()).is_some_and(|(sleeps, _)| sleeps) {
            assert!(begun.elapsed() < std::time::Duration::from_secs(60));
        }
        let before = sleep_of(sleeper.id());
        assert!((0..100).all(|_| !sleep_of(worker.id()).unwrap().0), "it works, or waits for a core");
        assert_eq!(sleep_of(sleeper.id()), before);
        for mut child in [sleeper, worker] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!(sleep_of(u32::MAX), None);
    }

    #[test]
    fn a_bounded_read_stops_at_its_limit() {
        assert_eq!(beginning("/proc/self/stat", 3).unwrap().len(), 3);
        assert!(beginning("/dev/zero", ENVIRONMENT_MAX).unwrap().len() == ENVIRONMENT_MAX);
        assert_eq!(beginning("/proc/self/comm", 100).unwrap(), std::fs::read("/proc/self/comm").unwrap());
    }

    #[test]
    fn stat_finds_the_parent_of_this_process() {
        let own = Stat::of(std::process::id()).unwrap();
        assert_eq!(own.parent(), Some(std::os::unix::process::parent_id()));
        assert!(!own.is_zombie() && own.field::<u64>(22).is_some() && own.field::<u64>(2).is_none());
        assert!(Stat::of("none").is_none());
        assert!(proc_is_ours());
    }
}
