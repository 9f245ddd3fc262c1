//! What the kernel says of a process or a thread in one line: proc_pid_stat(5).

use std::{fmt::Display, path::Path, str::FromStr};

/// The line, from behind the name, which may hold anything.
pub(super) struct Stat(String);

impl Stat {
    /// Of a process. Nothing if there is none, or no `/proc`.
    pub(super) fn of(pid: impl Display) -> Option<Self> {
        Self::in_folder(Path::new(&format!("/proc/{pid}")))
    }

    /// Of the process or thread whose folder that is.
    pub(super) fn in_folder(folder: &Path) -> Option<Self> {
        let line = std::fs::read_to_string(folder.join("stat")).ok()?;
        line.rsplit_once(')').map(|(_, rest)| Self(rest.to_owned()))
    }

    /// A field by its number in the manual: 3 is the first one behind the name.
    pub(super) fn field<T: FromStr>(&self, number: usize) -> Option<T> {
        field(&self.0, number)
    }

    /// The letter of its state.
    pub(super) fn state(&self) -> Option<char> {
        self.field(3)
    }

    /// Whether it has ended, whoever reaps it.
    pub(super) fn is_zombie(&self) -> bool {
        matches!(self.state(), Some('Z' | 'X'))
    }

    /// The process above it.
    pub(super) fn parent<T: FromStr>(&self) -> Option<T> {
        self.field(4)
    }

    /// Clock ticks of CPU time, of reaped children too.
    pub(super) fn ticks(&self) -> u64 {
        (14..=17).filter_map(|number| self.field::<u64>(number)).sum()
    }
}

/// The same in a line that is there already, from behind the name.
pub(super) fn field<T: FromStr>(line: &str, number: usize) -> Option<T> {
    line.split_whitespace().nth(number.checked_sub(3)?)?.parse().ok()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_its_parent_and_lives() {
        let own = Stat::of(std::process::id()).unwrap();
        assert_eq!(own.parent(), Some(std::os::unix::process::parent_id()));
        assert!(!own.is_zombie() && own.field::<u64>(22).is_some() && own.field::<u64>(2).is_none());
        assert!(Stat::of("none").is_none());
    }
}
