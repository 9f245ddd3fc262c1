//! Budgets and the sandbox of a server, applied by its guard between fork and exec.
//!
//! The manager sends the restrictions ([`Confinement`]) with the request for a guard. The guard prepares them
//! ([`PreparedConfinement`]), as long as it can report errors in words. The child only has to apply them.

mod cgroup;
mod limits;
mod privileges;
#[cfg_attr(not(feature = "sandbox"), path = "confine/sandbox_off.rs")]
mod sandbox;

use std::{ffi::OsStr, fmt, io, path::Path};

use rustix::process::Pid;
use serde::{Deserialize, Serialize};

pub(crate) use self::cgroup::Cgroup;
use self::{limits::Limits, sandbox::SandboxRules};
use crate::{ResourceLimits, Sandbox};

pub(crate) use self::{
    cgroup::{name_for, no_cgroup, no_cgroup_for, offered as offered_cgroup},
    limits::suspected,
    sandbox::{has_seccomp, landlock_abi},
};

/// The restrictions of a server.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Confinement {
    pub(crate) limits: ResourceLimits,
    pub(crate) sandbox: Option<Sandbox>,
    /// The name of the server's cgroup, if one is created.
    pub(crate) name: String,
}

/// The error of a restriction that cannot be applied, with advice.
#[derive(Debug)]
pub(crate) struct ConfineError {
    what: String,
    help: Option<String>,
}

impl ConfineError {
    pub(crate) fn new(what: String, help: Option<String>) -> Self {
        Self { what, help }
    }

    /// The advice of `error`, if it has this type.
    pub(crate) fn help_of(error: &io::Error) -> Option<&str> {
        error.get_ref()?.downcast_ref::<Self>()?.help.as_deref()
    }
}

impl From<String> for ConfineError {
    fn from(what: String) -> Self {
        Self { what, help: None }
    }
}

impl fmt::Display for ConfineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for ConfineError {}

/// Restrictions that were prepared before the child is started.
pub(crate) struct PreparedConfinement {
    cgroup: Option<Cgroup>,
    limits: Limits,
    rules: Option<SandboxRules>,
}

impl Confinement {
    /// Prepares the restrictions of `program`, a server of `manager` whose `PATH` is `search`. `offered` is the folder
    /// of [`offered_cgroup`].
    ///
    /// # Errors
    /// The restriction that this system cannot enforce, in words.
    pub(crate) fn prepare(
        &self,
        program: &Path,
        search: Option<&OsStr>,
        manager: Pid,
        offered: Option<&Path>,
    ) -> io::Result<PreparedConfinement> {
        let rules =
            self.sandbox.as_ref().map(|sandbox| SandboxRules::build(sandbox, program, search)).transpose()?;
        if self.limits.is_empty() {
            // Only for `cgroup.kill`, which kills all processes at once. It works without.
            let cgroup = offered.and_then(|parent| Cgroup::plain(parent, &self.name));
            return Ok(PreparedConfinement { cgroup, limits: Limits::default(), rules });
        }
        match Cgroup::delegated(&self.name, &self.limits, manager) {
            Ok(cgroup) => Ok(PreparedConfinement { cgroup: Some(cgroup), limits: Limits::default(), rules }),
            Err(why) => {
                Ok(PreparedConfinement { cgroup: None, limits: Limits::instead(&self.limits, &why)?, rules })
            }
        }
    }

    /// Checks whether [`Confinement::prepare`] would work, without creating a cgroup.
    ///
    /// # Errors
    /// The errors of [`Confinement::prepare`].
    pub(crate) fn check(&self, program: &Path, search: Option<&OsStr>) -> io::Result<()> {
        if let Some(sandbox) = &self.sandbox {
            SandboxRules::build(sandbox, program, search)?;
        }
        match no_cgroup_for(&self.limits).filter(|_| !self.limits.is_empty()) {
            Some(why) => Limits::instead(&self.limits, &why).map(drop),
            None => Ok(()),
        }
    }
}

impl PreparedConfinement {
    /// Takes the cgroup of the server: the caller removes it when no process is left.
    pub(crate) fn take_cgroup(&mut self) -> Option<Cgroup> {
        self.cgroup.take()
    }

    /// Applies the restrictions to this process, the child, and so to its descendants. Works once.
    pub(crate) fn apply(&mut self, procs_file: Option<&mut std::fs::File>) -> io::Result<()> {
        if let Some(procs_file) = procs_file {
            Cgroup::enter(procs_file)?;
        }
        self.limits.apply()?;
        self.rules.take().map_or(Ok(()), SandboxRules::apply)
    }

    /// Applies the budgets to another process, which has no descendants yet. A sandbox cannot be applied like this.
    ///
    /// Returns whether that process could raise its limits again: then it must first give up the capability to.
    pub(crate) fn apply_to(&self, process: Pid, cgroup: Option<&Cgroup>) -> io::Result<bool> {
        if self.rules.is_some() {
            return Err(io::Error::other("a sandbox cannot be put around a process that runs"));
        }
        if let Some(cgroup) = cgroup {
            cgroup.take(process)?;
        }
        self.limits.apply_to(process)
    }
}
