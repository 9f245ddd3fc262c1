//! The connections of clients that there may be: each is a file of this process.

use rustix::process::{Resource, getrlimit};

/// Descriptors that are no connections of clients: those of servers, which must be there to start one again, files, others.
const OTHER_FILES: u64 = 200;
/// Connections that there are in any case.
const LEAST: usize = 16;

/// So many connections as are wanted, or as files leave: the other half is for servers and all else.
pub fn possible_connections(wanted: usize) -> usize {
    let possible = getrlimit(Resource::Nofile).current.map_or(usize::MAX, |files| {
        usize::try_from(files.saturating_sub(OTHER_FILES) / 2).unwrap_or(usize::MAX)
    });
    wanted.min(possible.max(LEAST))
}
