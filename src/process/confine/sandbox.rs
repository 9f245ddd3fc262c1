//! The sandbox: files through Landlock, the network through seccomp. Both hold for all that the server starts.

mod needs;

use std::{collections::BTreeMap, ffi::OsStr, io, path::Path};

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, LandlockStatus, PathBeneath, PathFd,
    RestrictSelf, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, Scope,
};
use rustix::thread::CapabilitySet;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

use crate::config::Sandbox;

/// The least that is a sandbox: before it, any file could be emptied.
const LEAST: ABI = ABI::V3;
/// What is asked for where the kernel has it.
const BEST: ABI = ABI::V5;

/// Marks the number of a system call as one of the x32 interface.
const X32: i64 = 0x4000_0000;

/// What root could walk around the walls with: other processes, file handles, raw devices, kernel code.
const BREAKERS: CapabilitySet = CapabilitySet::DAC_READ_SEARCH
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::SYS_MODULE)
    .union(CapabilitySet::SYS_RAWIO)
    .union(CapabilitySet::SYS_BOOT)
    .union(CapabilitySet::SYSLOG)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::NET_ADMIN)
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::MAC_ADMIN)
    .union(CapabilitySet::MAC_OVERRIDE);

/// A sandbox, ready to be put on.
pub(super) struct Walls {
    files: Option<RulesetCreated>,
    network: Option<BpfProgram>,
}

/// The version of Landlock that this kernel has, be it newer than what is made use of here; 0 without it.
pub(in crate::process) fn landlock_abi() -> u8 {
    // Nothing is asked for, so nothing is applied: only the status is of interest.
    match RestrictSelf::default().no_new_privs(false).apply().map(|status| status.landlock) {
        Ok(LandlockStatus::Available { effective_abi, kernel_abi }) => {
            kernel_abi.unwrap_or(effective_abi as i32).try_into().unwrap_or(u8::MAX)
        }
        _ => 0,
    }
}

/// Whether this kernel and processor have filters of system calls.
pub(in crate::process) fn has_seccomp() -> bool {
    no_network().is_ok() && Path::new("/proc/sys/kernel/seccomp/actions_avail").exists()
}

impl Walls {
    /// Opens what may be reached and writes the filter. `program` is what will be started, `search` its `PATH`.
    pub(super) fn build(sandbox: &Sandbox, program: &Path, search: Option<&OsStr>) -> io::Result<Self> {
        let missing = landlock_abi() < LEAST as u8;
        if missing && !sandbox.best_effort {
            return Err(io::Error::other(format!(
                "this kernel cannot keep a server from files: it has Landlock {}, and {} is needed; without it \
                 only with `best_effort = true` in the sandbox",
                landlock_abi(),
                LEAST as u8,
            )));
        }
        let files =
            if missing { None } else { Some(files(sandbox, program, search).map_err(io::Error::other)?) };
        let network = match sandbox.network {
            true => None,
            false => match no_network() {
                Ok(filter) => Some(filter),
                Err(_) if sandbox.best_effort => None,
                Err(error) => return Err(io::Error::other(format!("no filter for the network: {error}"))),
            },
        };
        Ok(Self { files, network })
    }

    pub(super) fn put_on(self) -> io::Result<()> {
        rustix::thread::set_no_new_privs(true)?;
        drop_capabilities()?;
        if let Some(files) = self.files {
            files.restrict_self().map_err(io::Error::other)?;
        }
        if let Some(network) = self.network {
            seccompiler::apply_filter(&network).map_err(io::Error::other)?;
        }
        Ok(())
    }
}

fn files(sandbox: &Sandbox, program: &Path, search: Option<&OsStr>) -> Result<RulesetCreated, String> {
    let told = |error: landlock::RulesetError| error.to_string();
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(LEAST))
        .map_err(told)?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(BEST))
        .map_err(told)?;
    // Whoever could signal its guard could end what ends it.
    let ruleset = ruleset.scope(Scope::Signal).map_err(told)?;
    // In addition to the filter, for sockets that were handed in, and pairs, one of which can be aimed elsewhere.
    let ruleset = match sandbox.network {
        true => ruleset,
        false => ruleset
            .handle_access(AccessNet::from_all(BEST))
            .and_then(|ruleset| ruleset.handle_access(AccessFs::ResolveUnix))
            .and_then(|ruleset| ruleset.scope(Scope::AbstractUnixSocket))
            .map_err(told)?,
    };
    let mut ruleset = ruleset.create().map_err(told)?;
    let read = AccessFs::from_read(BEST);
    // Device files are a way to the disk below the files, for root.
    let write = AccessFs::from_all(BEST) & !(AccessFs::MakeChar | AccessFs::MakeBlock);
    let implied = needs::of(program, search).into_iter().map(|path| (path, read, true));
    let implied = implied.chain(needs::DEVICES.iter().map(|path| (path.into(), write, true)));
    let wanted = sandbox.read.iter().map(|path| (path.clone(), read, false));
    let wanted = wanted.chain(sandbox.write.iter().map(|path| (path.clone(), write, false)));
    for (path, access, optional) in implied.chain(wanted) {
        let file = match PathFd::new(&path) {
            Ok(file) => file,
            Err(_) if optional => continue,
            Err(error) => return Err(format!("the sandbox names {}: {error}", path.display())),
        };
        // Some rights make sense for folders only.
        let access = if path.is_dir() { access } else { access & AccessFs::from_file(ABI::V9) };
        ruleset = ruleset.add_rule(PathBeneath::new(file, access)).map_err(told)?;
    }
    Ok(ruleset)
}

/// Takes from root what would break the walls. Without new privileges no program gets it back.
fn drop_capabilities() -> io::Result<()> {
    let mut sets = rustix::thread::capabilities(None)?;
    if !sets.permitted.intersects(BREAKERS) {
        return Ok(());
    }
    for set in [&mut sets.effective, &mut sets.permitted, &mut sets.inheritable] {
        set.remove(BREAKERS);
    }
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

/// A filter that refuses every socket, and the door around it (io_uring makes sockets too). Local ones as well: a
/// service behind one (Docker, a session bus) does for its callers what the walls refuse. Pairs of sockets, which
/// programs use as pipes, remain.
fn no_network() -> Result<BpfProgram, seccompiler::BackendError> {
    // A number without a condition: whatever the arguments are.
    let mut rules =
        BTreeMap::from([nix::libc::SYS_socket, nix::libc::SYS_io_uring_setup].map(|call| (call, Vec::new())));
    if cfg!(target_arch = "x86_64") {
        // The same calls by the numbers of the x32 interface, which some kernels have beside the usual one.
        let aliases: Vec<_> = rules.keys().map(|number| (number | X32, Vec::new())).collect();
        rules.extend(aliases);
    }
    SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        SeccompAction::Errno(nix::libc::EPERM.unsigned_abs()),
        std::env::consts::ARCH.try_into()?,
    )?
    .try_into()
}

#[cfg(test)]
mod tests;
