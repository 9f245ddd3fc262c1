//! The short mark: a number that the zygote and all that comes of it inherit as a resource limit.
//!
//! The environment of a process that is not dumpable (ssh-agent, gpg-agent) cannot be read, and a process can clear it.
//! Its limits can be read by everybody. `RLIMIT_LOCKS` has had no effect since Linux 2.6, so its soft limit can carry the
//! owner's id, and enough of its start time, its namespaces and its mark to tell it from any other owner. It counts only
//! where no mark can be read. As with the mark, who forges one can only cause its own end.

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use super::{find::environment, leftovers::Owner};
use crate::{
    inspect::beginning,
    linux::inspect::stat::Stat,
    linux::marks::find::{mark_of, processes},
};

/// The most bytes that are read of `limits` and `status`: they are shorter.
const FILE_MAX: usize = 16 << 10;
/// The widths of the parts, from the highest bits down: id, start time, namespaces, the random part of the mark.
const STARTED: u32 = 16;
const NAMESPACES: u32 = 13;
const RANDOM: u32 = 13;

/// The number that stands for a manager's mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ShortMark(u64);

/// The lowest `bits` of a number.
fn low(number: u64, bits: u32) -> u64 {
    number & ((1 << bits) - 1)
}

/// A few bits that tell the namespaces of one owner from those of others.
fn told(namespace: u64, time: u64) -> u64 {
    (namespace.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ time.wrapping_mul(0xc2b2_ae3d_27d4_eb4f))
        >> (64 - NAMESPACES)
}

impl ShortMark {
    /// That of a valid mark, with or without the server's part after it.
    pub(super) fn of(mark: &str) -> Option<Self> {
        let owner = Owner::of(mark)?;
        let random = mark.split(['.', '/']).nth(4).and_then(|random| u64::from_str_radix(random, 16).ok())?;
        let mut number = u64::from(owner.pid) << STARTED | low(owner.started, STARTED);
        number = number << NAMESPACES | told(owner.namespace, owner.time);
        Some(Self(number << RANDOM | low(random, RANDOM))).filter(|mark| mark.0 != u64::MAX)
    }

    /// The one that a living process carries. One whose first thread has ended has it still.
    pub(super) fn of_process(pid: u32) -> Option<Self> {
        Stat::of(pid).filter(|stat| !stat.is_zombie())?;
        let limits = beginning(format!("/proc/{pid}/limits"), FILE_MAX).ok()?;
        let limits = String::from_utf8_lossy(&limits);
        let line = limits.lines().find_map(|line| line.strip_prefix("Max file locks"))?;
        line.split_whitespace().next()?.parse().ok().map(Self)
    }

    /// The id of the owner.
    fn owner(self) -> u32 {
        u32::try_from(self.0 >> (STARTED + NAMESPACES + RANDOM)).unwrap_or_default()
    }

    /// The owner, if it was one of these namespaces and has certainly ended. A start time of which the part that is
    /// known fits counts as that of the owner.
    fn gone_owner(self) -> Option<u32> {
        let (pid, own) = (self.owner(), Owner::of_process(std::process::id())?);
        if pid == 0 || low(self.0 >> RANDOM, NAMESPACES) != told(own.namespace, own.time) {
            return None;
        }
        let known = low(self.0 >> (NAMESPACES + RANDOM), STARTED);
        let started = Stat::of(pid).and_then(|stat| stat.field(22)).filter(|now| low(*now, STARTED) == known);
        // With another start time than that of the process there now, the owner is another one.
        let owner = Owner { pid, started: started.unwrap_or(u64::MAX), ..own };
        owner.is_gone().then_some(pid)
    }
}

/// Gives a child, and all that it starts from now on, the short mark of `mark`.
pub(crate) fn give(child: Option<u32>, mark: &str) {
    let child = child.and_then(|pid| Pid::from_raw(pid.cast_signed()));
    if let (Some(child), Some(ShortMark(number))) = (child, ShortMark::of(mark)) {
        // The hard limit stays as it is. Where that is lower there is no short mark.
        let limit = Rlimit { current: Some(number), maximum: getrlimit(Resource::Locks).maximum };
        let _ = prlimit(Some(child), Resource::Locks, limit);
    }
}

/// The ids of the living processes that have the short mark of `mark`, and of which no mark can be read.
pub(super) fn short_marked(mark: &str) -> Vec<u32> {
    match ShortMark::of(mark) {
        Some(wanted) => processes().filter(|pid| has(*pid, wanted)).collect(),
        None => Vec::new(),
    }
}

/// Whether a process has this short mark, and no mark can be read of it.
pub(super) fn has(pid: u32, wanted: ShortMark) -> bool {
    ShortMark::of_process(pid) == Some(wanted) && mark_of(&environment(pid)).is_none()
}

/// The owner in the short mark of a process of this user, if that owner has certainly ended. The process must be in this
/// PID namespace: in one below, the ids that it knows are others.
pub(super) fn gone_owner(pid: u32) -> Option<u32> {
    let owner = ShortMark::of_process(pid)?.gone_owner()?;
    let status = beginning(format!("/proc/{pid}/status"), FILE_MAX).ok()?;
    let status = String::from_utf8_lossy(&status);
    let words =
        |name: &str| status.lines().find_map(|line| Some(line.strip_prefix(name)?.split_whitespace()));
    let user = words("Uid:")?.next()?.parse() == Ok(rustix::process::getuid().as_raw());
    (user && words("NSpid:").is_none_or(|ids| ids.count() == 1)).then_some(owner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::marks::new_mark;

    #[test]
    fn a_short_mark_is_that_of_one_owner() {
        let (first, second) = (new_mark(), new_mark());
        let short = ShortMark::of(&first).unwrap();
        assert_eq!(ShortMark::of(&format!("{first}/0123abcd")), Some(short));
        assert!(
            ShortMark::of(&second) != Some(short) || first[first.len() - 4..] == second[second.len() - 4..]
        );
        assert_eq!((short.owner(), short.gone_owner()), (std::process::id(), None));
        // No word that somebody else has for the number of locks.
        for number in [0, 1, 1 << 20, 1 << 40, u64::from(u32::MAX), u64::MAX] {
            assert_eq!(ShortMark(number).gone_owner(), None, "{number}");
        }
    }

    #[test]
    fn an_owner_of_other_namespaces_is_not_judged() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let owner = Owner::of_process(child.id()).unwrap();
        child.wait().unwrap();
        let short = |owner: Owner| ShortMark::of(&owner.written("0123456789abcdef")).unwrap();
        assert_eq!(short(owner).gone_owner(), Some(owner.pid));
        for other in
            [Owner { namespace: owner.namespace + 1, ..owner }, Owner { time: owner.time + 1, ..owner }]
        {
            assert_eq!(short(other).gone_owner(), None, "{other:?}");
        }
        // An id that another process has now.
        let own = Owner::of_process(std::process::id()).unwrap();
        assert_eq!(short(Owner { started: own.started + 1, ..own }).gone_owner(), Some(own.pid));
        assert_eq!(short(own).gone_owner(), None);
    }
}
