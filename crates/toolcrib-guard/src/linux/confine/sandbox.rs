//! The sandbox: Landlock restricts files; seccomp restricts the network and calls that Landlock has no right for;
//! capabilities of root are removed. All of it applies to descendants of the server too.

mod filter;
mod needs;
mod resolve;

use std::{ffi::OsStr, io, path::Path};

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, LandlockStatus, PathBeneath, RestrictSelf,
    Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, Scope,
};
use rustix::{fs::FileType, thread::CapabilitySet};
use seccompiler::BpfProgram;

use super::{ConfineError, privileges};
use crate::Sandbox;

/// The oldest version that is sufficient: before it, any file could be truncated.
const LEAST: ABI = ABI::V3;
/// The newest version that is used.
const BEST: ABI = ABI::V5;
/// The version of Landlock from which on signals and abstract sockets can be restricted.
const SCOPES: u8 = 6;
/// The version of Landlock from which on sockets that are files can be restricted.
const LOCAL_SOCKETS: u8 = 9;

/// The capabilities that root keeps: for files of other users where a rule opens them, and for ports below 1024. The
/// others would allow to change modes and owners of such files, user ids, limits, the clock, devices and the kernel.
const KEPT: CapabilitySet = CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::NET_BIND_SERVICE);

/// A prepared sandbox.
pub(super) struct SandboxRules {
    files: Option<RulesetCreated>,
    filters: Vec<BpfProgram>,
    best_effort: bool,
}

/// The version of Landlock that this kernel has, also if it is newer than the one used here; 0 without Landlock.
pub(crate) fn landlock_abi() -> u8 {
    // Asks for no restriction, so none is applied: only the status is read.
    match RestrictSelf::default().no_new_privs(false).apply().map(|status| status.landlock) {
        Ok(LandlockStatus::Available { effective_abi, kernel_abi }) => {
            kernel_abi.unwrap_or(effective_abi as i32).try_into().unwrap_or(u8::MAX)
        }
        _ => 0,
    }
}

/// Whether this kernel and processor have filters of system calls.
pub(crate) fn has_seccomp() -> bool {
    filter::of(&Sandbox::default()).is_ok() && kernel_has_seccomp()
}

fn kernel_has_seccomp() -> bool {
    Path::new("/proc/sys/kernel/seccomp/actions_avail").exists()
}

impl SandboxRules {
    /// Opens the paths that may be used and builds the filters. `program` is the program that will be started, `search`
    /// its `PATH`.
    pub(super) fn build(sandbox: &Sandbox, program: &Path, search: Option<&OsStr>) -> io::Result<Self> {
        Self::build_for(landlock_abi(), sandbox, program, search)
    }

    /// Builds the rules like [`Self::build`], with at most version `abi` of Landlock.
    fn build_for(abi: u8, sandbox: &Sandbox, program: &Path, search: Option<&OsStr>) -> io::Result<Self> {
        let missing = abi < LEAST as u8;
        if missing && !sandbox.best_effort {
            return Err(io::Error::other(format!(
                "this kernel cannot restrict files: it has Landlock {abi}, and {} is needed; to start \
                 without it, set `best_effort = true` in the sandbox",
                LEAST as u8,
            )));
        }
        let files = if missing {
            None
        } else {
            Some(files(abi, sandbox, program, search).map_err(io::Error::other)?)
        };
        let filters = match filter::of(sandbox) {
            Ok(filters) if kernel_has_seccomp() => filters,
            _ if sandbox.best_effort => Vec::new(),
            Err(error) => return Err(io::Error::other(format!("no filter of system calls: {error}"))),
            Ok(_) => {
                return Err(io::Error::other(
                    "this kernel has no filters of system calls (seccomp), which a sandbox needs; to start \
                     without them, set `best_effort = true` in the sandbox",
                ));
            }
        };
        Ok(Self { files, filters, best_effort: sandbox.best_effort })
    }

    pub(super) fn apply(self) -> io::Result<()> {
        rustix::thread::set_no_new_privs(true)?;
        privileges::keep_only(KEPT)?;
        if let Some(files) = self.files {
            files.restrict_self().map_err(io::Error::other)?;
        }
        for filter in &self.filters {
            match seccompiler::apply_filter(filter) {
                Err(error) if !self.best_effort => {
                    let what = format!("this kernel takes no filter of system calls (seccomp): {error}");
                    return Err(io::Error::other(what));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn files(
    abi: u8,
    sandbox: &Sandbox,
    program: &Path,
    search: Option<&OsStr>,
) -> Result<RulesetCreated, ConfineError> {
    let told = |error: landlock::RulesetError| ConfineError::from(error.to_string());
    let best = ABI::from(i32::from(abi)).min(BEST);
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(LEAST))
        .map_err(told)?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(best))
        .map_err(told)?;
    // Otherwise the server could signal its guard.
    let ruleset = if abi >= SCOPES { ruleset.scope(Scope::Signal).map_err(told)? } else { ruleset };
    // In addition to the filters, for sockets that the server inherits.
    let ruleset = match sandbox.network || abi < 4 {
        true => ruleset,
        false => ruleset.handle_access(AccessNet::from_all(best)).map_err(told)?,
    };
    let ruleset = match sandbox.local_sockets || abi < SCOPES {
        true => ruleset,
        false => ruleset.scope(Scope::AbstractUnixSocket).map_err(told)?,
    };
    let ruleset = match sandbox.local_sockets || abi < LOCAL_SOCKETS {
        true => ruleset,
        false => ruleset.handle_access(AccessFs::ResolveUnix).map_err(told)?,
    };
    let mut ruleset = ruleset.create().map_err(told)?;
    let read = AccessFs::from_read(best);
    // With device files root could access the disk below the file system.
    let write = AccessFs::from_all(best) & !(AccessFs::MakeChar | AccessFs::MakeBlock);
    for rule in needs::rules(sandbox, program, search)? {
        let access = if rule.write { write } else { read };
        // Some rights apply to folders only.
        let folder = rule.file.kind == FileType::Directory;
        let access = if folder { access } else { access & AccessFs::from_file(ABI::V9) };
        ruleset = ruleset.add_rule(PathBeneath::new(rule.file.file, access)).map_err(told)?;
    }
    Ok(ruleset)
}

#[cfg(test)]
mod tests;
