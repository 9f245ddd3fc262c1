//! Resets what a process inherits from its parent, by the system calls of Linux: descriptors and signals. Also detects
//! raised rights (set-user-ID, file capabilities).

use std::os::fd::RawFd;

use nix::sys::signal::SigSet;
use rustix::process::{getegid, geteuid, getgid, getuid};
use syscalls::{Sysno, syscall};

use crate::inherited::{FIRST, each_descriptor};

/// A flag of close_range(2): set close-on-exec instead of closing.
const CLOEXEC: usize = 1 << 2;
/// Bytes of the kernel's signal set.
const SIGNALS_SIZE: usize = 8;

/// Has each descriptor from 3 on closed when a program is executed. Returns whether the kernel could do that.
pub(crate) fn close_all_on_exec() -> bool {
    close_range(FIRST, CLOEXEC).is_ok()
}

/// Lets every signal through to this thread.
pub(crate) fn unblock_signals() {
    let _ = SigSet::empty().thread_set_mask();
}

pub(crate) fn is_ignored(signal: i32) -> bool {
    let mut action = Action::default();
    change_action(signal, None, Some(&mut action)).is_ok() && action[0] == libc::SIG_IGN
}

/// Gives a signal its default action, which runs no code of this program. If this fails the signal stays as it was.
pub(crate) fn set_default_action(signal: i32) {
    let _ = change_action(signal, Some(&Action::default()), None);
}

/// A signal action of rt_sigaction(2): the handler and further fields, all zero for [`libc::SIG_DFL`].
type Action = [usize; 8];

/// Changes an action without the C library, which does not give access to the signals that it reserves, and posix_spawn(3)
/// leaves those ignored.
fn change_action(
    signal: i32,
    new: Option<&Action>,
    old: Option<&mut Action>,
) -> Result<usize, syscalls::Errno> {
    let new = new.map_or(0, |action| action.as_ptr().expose_provenance());
    let old = old.map_or(0, |action| action.as_mut_ptr().expose_provenance());
    #[expect(unsafe_code, reason = "no safe way to ask for the action of each signal")]
    // SAFETY: an action is set only by `set_default_action`; both are longer than any kernel's.
    unsafe {
        syscall!(Sysno::rt_sigaction, signal, new, old, SIGNALS_SIZE)
    }
}

/// Closes all descriptors from `first` on. No code of this process may use any of them afterwards.
pub(crate) fn close_inherited(first: RawFd) {
    if close_range(first, 0).is_err() {
        each_descriptor(|descriptor| {
            if descriptor < first {
                return;
            }
            #[expect(unsafe_code, reason = "a descriptor that is known by its number alone")]
            // SAFETY: no code uses it, as the caller promises; if it is not open, nothing happens.
            unsafe {
                libc::close(descriptor);
            }
        });
    }
}

/// Whether this process has rights that its parent may not have: by set-user-ID, set-group-ID or file capabilities.
/// Then its arguments and environment come from a less trusted process.
pub(crate) fn has_raised_rights() -> bool {
    is_secure() || ids_differ()
}

/// Whether a process that this one starts from `executable` would have raised rights.
pub(crate) fn would_have_raised_rights(executable: &std::path::Path) -> bool {
    let capabilities = || rustix::fs::getxattr(executable, "security.capability", &mut [0_u8; 64]).is_ok();
    ids_differ() || is_secure() && capabilities()
}

fn is_secure() -> bool {
    #[expect(unsafe_code, reason = "no safe way to read the auxiliary vector")]
    // SAFETY: reads a word that the kernel has put beside the arguments of this process.
    unsafe {
        libc::getauxval(libc::AT_SECURE) != 0
    }
}

fn ids_differ() -> bool {
    getuid() != geteuid() || getgid() != getegid()
}

/// Linux 5.9, or 5.11 for [`CLOEXEC`].
fn close_range(first: RawFd, flags: usize) -> Result<usize, syscalls::Errno> {
    #[expect(unsafe_code, reason = "no safe way to close descriptors by a range")]
    // SAFETY: the callers promise that no code uses the closed descriptors; setting close-on-exec does not change a
    // file.
    unsafe {
        syscall!(Sysno::close_range, first, u32::MAX, flags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_run_without_raised_rights() {
        assert!(!has_raised_rights());
        assert!(!would_have_raised_rights(std::path::Path::new(crate::linux::guard::OWN_EXECUTABLE)));
    }
}
