//! Tool servers whose program has ended and that are still there: the leftovers of other managers.

use std::{os::unix::fs::MetadataExt, time::Duration};

/// A process that nobody will miss and nobody will end.
pub(super) struct Orphan {
    pub(super) pid: u32,
    pub(super) age: String,
    pub(super) memory: String,
    pub(super) command: String,
}

/// What the command lines of tool servers have in common.
const SIGNS: [&str; 4] = ["mcp-server", "mcp_server", "modelcontextprotocol", "server-mcp"];
/// Of a command line, as shown.
const SHOWN: usize = 100;

/// Processes of this user that look like tool servers and whose parent is the one that takes in orphans.
pub(super) fn find() -> Vec<Orphan> {
    let own = rustix::process::geteuid().as_raw();
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
    let uptime: f64 = uptime.split(' ').next().and_then(|text| text.parse().ok()).unwrap_or(0.0);
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let look = |process: std::fs::DirEntry| {
        let pid: u32 = process.file_name().to_str()?.parse().ok()?;
        let path = process.path();
        if process.metadata().ok()?.uid() != own {
            return None;
        }
        let line = std::fs::read(path.join("cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if !SIGNS.iter().any(|sign| line.contains(sign)) {
            return None;
        }
        // After the parenthesised name: state, parent, ...; numbers as in proc_pid_stat(5).
        let stat = std::fs::read_to_string(path.join("stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        if field(4)? != 1 {
            return None;
        }
        let started = field(22)? as f64 / rustix::param::clock_ticks_per_second() as f64;
        let age = Duration::from_secs_f64((uptime - started).max(0.0).floor());
        let memory = field(24)? * rustix::param::page_size() as u64;
        Some(Orphan {
            pid,
            age: format!("{} old", humantime::format_duration(age)),
            memory: format!("{} MiB", memory >> 20),
            command: line.trim_end().chars().take(SHOWN).collect(),
        })
    };
    processes.filter_map(look).collect()
}
