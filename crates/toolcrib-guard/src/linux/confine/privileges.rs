//! Removes capabilities of root from a server and its descendants.

use std::io;

use rustix::{
    io::Errno,
    thread::{
        CapabilitySet, capabilities, capability_is_in_bounding_set, remove_capability_from_bounding_set,
        set_capabilities,
    },
};

/// Gives up all capabilities except `kept`, for this thread and the programs that it executes. If the bounding set
/// cannot be changed, only `no_new_privs` keeps these programs from regaining them.
pub(super) fn keep_only(kept: CapabilitySet) -> io::Result<()> {
    let mut sets = capabilities(None)?;
    if sets.effective.contains(CapabilitySet::SETPCAP) {
        let all = (0..u64::BITS).map(|number| CapabilitySet::from_bits_retain(1 << number));
        for capability in all.filter(|capability| !kept.contains(*capability)) {
            match remove_capability_from_bounding_set(capability) {
                // A capability that this kernel does not know.
                Ok(()) | Err(Errno::INVAL) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    if (sets.effective | sets.permitted | sets.inheritable).difference(kept).is_empty() {
        return Ok(());
    }
    // This also clears the ambient set.
    for set in [&mut sets.effective, &mut sets.permitted, &mut sets.inheritable] {
        *set &= kept;
    }
    Ok(set_capabilities(None, sets)?)
}

/// Gives up the capability to raise hard limits.
///
/// # Errors
/// An executed program could regain it.
pub(super) fn obey_limits() -> io::Result<()> {
    keep_only(CapabilitySet::all().difference(CapabilitySet::SYS_RESOURCE))?;
    if regains_by_exec()? {
        let what = "`memory_max` cannot be enforced for root here: CAP_SYS_RESOURCE cannot be given up (no CAP_SETPCAP)";
        return Err(io::Error::other(what));
    }
    Ok(())
}

/// Whether this process, or a program that it executes, can raise hard limits.
pub(super) fn can_raise_limits() -> io::Result<bool> {
    let sets = capabilities(None)?;
    let held = sets.effective | sets.permitted | sets.inheritable;
    Ok(held.contains(CapabilitySet::SYS_RESOURCE) || regains_by_exec()?)
}

/// Whether a program that this process executes could raise hard limits, even if this process cannot.
fn regains_by_exec() -> io::Result<bool> {
    Ok(rustix::process::geteuid().is_root()
        && !rustix::thread::no_new_privs()?
        && capability_is_in_bounding_set(CapabilitySet::SYS_RESOURCE)?)
}
