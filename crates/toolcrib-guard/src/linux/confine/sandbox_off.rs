//! The module `sandbox` of a build without the feature `sandbox`: a process with a sandbox is refused, also with `best_effort`,
//! which is for what a kernel lacks.

use std::{convert::Infallible, ffi::OsStr, io, path::Path};

use super::ConfineError;
use crate::Sandbox;

/// None of these can exist.
pub(super) struct SandboxRules(Infallible);

impl SandboxRules {
    pub(super) fn build(_: &Sandbox, _: &Path, _: Option<&OsStr>) -> io::Result<Self> {
        Err(io::Error::other(ConfineError::new(
            "sandboxes are not part of this build (cargo feature `sandbox`)".to_owned(),
            Some("build with the cargo feature `sandbox`, or remove `sandbox`".to_owned()),
        )))
    }

    pub(super) fn apply(self) -> io::Result<()> {
        match self.0 {}
    }
}

pub(crate) fn landlock_abi() -> u8 {
    0
}

pub(crate) fn has_seccomp() -> bool {
    false
}
