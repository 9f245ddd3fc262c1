//! Looks at processes, at one moment: whether they work or wait, what they have used.
//!
//! On Linux through `/proc`. Elsewhere nothing can be told: an activity is unknown and a usage is zero.

use std::{
    io::{self, Read},
    path::Path,
    time::Duration,
};

use serde::{Deserialize, Serialize};

pub use crate::platform::{
    activity, cpu_time, own_memory, usage_of_descendants, usage_of_groups, usage_of_trees,
};

/// The most that is read of an environment. A process chooses how long its own is, with prctl(2) up to all of its
/// memory. The mark of a manager is the first variable that a server is given.
pub const ENVIRONMENT_MAX: usize = 256 << 10;
/// Enough for most files: they are read by one call then.
const PIECE: usize = 4 << 10;

/// The first `limit` bytes of a file of another process below `/proc`.
pub fn beginning(path: impl AsRef<Path>, limit: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(limit.min(PIECE));
    std::fs::File::open(path)?.take(limit as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// What the processes of a tree did at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// A thread runs, or would if a core were free, or waits for a disk.
    Busy,
    /// All threads wait: for input, a network, a clock. The CPU time that they have used so far, precise to the
    /// microsecond where the kernel counts it (CONFIG_SCHED_INFO), else zero.
    Waiting(Duration),
    /// It cannot be told: there is no `/proc` as on Linux, or the processes are gone.
    Unknown,
}

/// CPU time and memory of some processes at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ProcessUsage {
    /// User and system time so far, ended and reaped children included.
    #[serde(rename = "cpu_ms", with = "crate::millis")]
    pub cpu: Duration,
    /// Resident memory in bytes; shared pages count for every process that has them.
    #[serde(rename = "rss_bytes")]
    pub rss: u64,
    /// How many processes these are.
    pub processes: usize,
    /// How long the oldest of them has been there.
    #[serde(rename = "age_ms", with = "crate::millis", default)]
    pub age: Duration,
}
