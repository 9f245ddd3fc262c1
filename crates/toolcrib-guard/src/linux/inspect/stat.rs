//! What the kernel says of a process or a thread: files below `/proc`, and the line of proc_pid_stat(5).

use std::{fmt::Display, path::Path, str::FromStr};

use crate::inspect::beginning;

/// The most that is read of a line whose length the kernel bounds.
const LINE_MAX: usize = 16 << 10;

/// The line, from behind the name, which may hold anything.
pub(crate) struct Stat(String);

impl Stat {
    /// Of a process. `None` if there is none, or no `/proc`.
    pub(crate) fn of(pid: impl Display) -> Option<Self> {
        Self::in_folder(Path::new(&format!("/proc/{pid}")))
    }

    /// Of the process or thread whose folder that is.
    pub(crate) fn in_folder(folder: &Path) -> Option<Self> {
        let line = beginning(folder.join("stat"), LINE_MAX).ok()?;
        // A process gives itself its name, which need not be text: it is not to hide by that.
        let rest = line.rsplit(|byte| *byte == b')').next()?;
        Some(Self(str::from_utf8(rest).ok()?.to_owned()))
    }

    /// A field by its number in the manual: 3 is the first one behind the name.
    pub(crate) fn field<T: FromStr>(&self, number: usize) -> Option<T> {
        field(&self.0, number)
    }

    /// The letter of its state.
    pub(crate) fn state(&self) -> Option<char> {
        self.field(3)
    }

    /// Whether it has ended, whoever reaps it.
    pub(crate) fn is_zombie(&self) -> bool {
        // Of a process whose first thread has ended before the others, the state is that of the first one.
        let threads = || self.field(20).unwrap_or(1);
        matches!(self.state(), Some('Z' | 'X')) && threads() <= 1
    }

    /// The process above it.
    pub(crate) fn parent<T: FromStr>(&self) -> Option<T> {
        self.field(4)
    }

    /// Clock ticks of CPU time, of reaped children too.
    pub(crate) fn ticks(&self) -> u64 {
        (14..=17).filter_map(|number| self.field::<u64>(number)).sum()
    }
}

/// Whether the numbers in `/proc` are those by which this process knows others: in a PID namespace that was made without a
/// mount of its own, `/proc` is still that of the namespace above, and its numbers mean other processes here.
pub(crate) fn proc_is_ours() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let own = std::process::id().to_string();
    let numbers = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    // One number for each namespace, from that of `/proc` down to our own. Kernels before 4.1 have the line not.
    numbers("Pid").is_some_and(|pid| pid.trim() == own)
        && numbers("NSpid").is_none_or(|all| all.split_whitespace().eq([own.as_str()]))
}

/// The same in a line that is there already, from behind the name.
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
