//! Memory that only the start needed, given back by a program that stays.
//!
//! A start of a thousand servers takes many times the memory of a thousand sessions, and runs code of all kinds
//! once: the reading of arguments and configurations, the making of processes. The allocator keeps the one, and the
//! kernel counts the other as resident until it is short of memory.

#[cfg(all(target_os = "linux", target_env = "gnu"))]
use std::fs;

#[cfg(all(target_os = "linux", target_env = "gnu"))]
use rustix::mm::{Advice, madvise};

/// Gives it back. Code that is run again comes back by itself, from the page cache, a little later than otherwise.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "no safe way to speak of memory by its addresses")]
pub(super) fn settle() {
    // SAFETY: it takes no pointer and frees nothing that is in use: malloc_trim(3).
    unsafe { nix::libc::malloc_trim(0) };
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    for (from, to) in maps.lines().filter_map(code) {
        let start = std::ptr::with_exposed_provenance_mut(from);
        // SAFETY: these are pages of a file that nobody can have written to in memory. The next look at one of them
        // reads it from the file again: madvise(2). What cannot be given back stays.
        let _ = unsafe { madvise(start, to - from, Advice::LinuxDontNeed) };
    }
}

/// The addresses of a mapping that holds code of a file. Its constants are in others, one of which the dynamic linker
/// has written to.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn code(line: &str) -> Option<(usize, usize)> {
    let mut fields = line.split_ascii_whitespace();
    let (from, to) = fields.next()?.split_once('-')?;
    let is_code = fields.next()? == "r-xp" && fields.nth(3)?.starts_with('/');
    let address = |text| usize::from_str_radix(text, 16).ok();
    is_code.then_some((address(from)?, address(to)?))
}

/// Nothing is given back here.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(super) fn settle() {}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    use super::*;

    /// Memory of files, in kB.
    fn resident() -> Option<u64> {
        let status = fs::read_to_string("/proc/self/status").ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("RssFile:"))?;
        line.split_ascii_whitespace().next()?.parse().ok()
    }

    #[test]
    fn code_is_no_longer_resident_and_runs() {
        let before = resident().unwrap();
        settle();
        let after = resident().unwrap();
        assert!(after < before, "{after} kB after {before} kB");
        assert_eq!("runs".to_uppercase(), "RUNS");
    }

    #[test]
    fn only_code_of_files_is_meant() {
        let lines = [
            "55e0-55f0 r--p 00000000 fe:00 1 /bin/x",
            "55f0-5600 r-xp 00010000 fe:00 1 /bin/with space",
            "5600-5610 rw-p 00020000 fe:00 1 /bin/x",
            "7ff0-7fff r-xp 00000000 00:00 0 [vdso]",
            "7fe0-7fef r-xp 00000000 00:00 0",
        ];
        let found: Vec<_> = lines.iter().filter_map(|line| code(line)).collect();
        assert_eq!(found, [(0x55f0, 0x5600)]);
    }
}
