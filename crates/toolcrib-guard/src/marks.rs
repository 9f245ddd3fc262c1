//! Marks: each process carries in its environment which owner it belongs to.
//!
//! `PIDNS.TIMENS.PID.STARTED.RANDOM` of the owner, and `/NAME` of the process. By it processes are found that left their
//! group, and those of an owner that has ended. Where there is no `/proc` as on Linux nobody is found.

use serde::{Deserialize, Serialize};

#[cfg(fuzzing)]
pub use crate::platform::fuzz_mark;
pub use crate::platform::{
    behind_guards, hurry_guards, is_guarded_or_gone, marked_processes, new_mark, owner_is_gone,
    reap_leftovers,
};

/// Name of the environment variable that marks every process of one owner, descendants included.
pub const MARKER: &str = "TOOLCRIB_OWNER";

/// A process that a dead owner left behind, and that was killed.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Leftover {
    /// Its process id.
    pub pid: u32,
    /// The name of its program.
    pub command: String,
    /// The process id of the manager that had started it.
    pub owner: u32,
}
