//! Finds tool servers whose client has ended: leftovers of other programs, and of toolcrib itself.

use std::{os::unix::fs::MetadataExt, path::Path, time::Duration};

use super::Finding;
use crate::{bounded, process::leftovers, text::seconds};

/// Bytes of a command line that are looked at: with prctl(2) a process can make its own as long as its memory.
const COMMAND_LINE: u64 = 256 << 10;

/// Who takes in orphans besides process 1: a user's own systemd, and the small ones of containers.
const REAPERS: [&str; 6] = ["systemd", "init", "tini", "dumb-init", "docker-init", "catatonit"];

/// Whether a command line looks like that of a tool server: one of its words begins or ends with `mcp`.
fn looks_like_one(line: &str) -> bool {
    let line = line.to_ascii_lowercase();
    let mut words = line.split(|c: char| !c.is_ascii_alphanumeric());
    words.any(|word| word.starts_with("mcp") || word.ends_with("mcp") || word == "modelcontextprotocol")
}

/// The part of a command line that is shown: its program, and the words by which it looks like a tool server. The others may
/// hold secrets of a configuration that is not ours.
fn shown(line: &str) -> String {
    let mut words = line.split_whitespace();
    let program = words.next().unwrap_or_default();
    let telling = words.filter(|word| looks_like_one(word) && !word.contains(['=', ':', '?']));
    std::iter::once(program).chain(telling.take(2)).collect::<Vec<_>>().join(" ")
}

/// The command line of a process, also of one whose first thread has ended: then its other threads have it.
fn command_line(process: &Path) -> Option<Vec<u8>> {
    let read = |folder: &Path| bounded::beginning(&folder.join("cmdline"), COMMAND_LINE).ok();
    let own = read(process)?;
    if !own.is_empty() {
        return Some(own);
    }
    let threads = std::fs::read_dir(process.join("task")).ok()?.flatten();
    threads.filter_map(|thread| read(&thread.path())).find(|line| !line.is_empty())
}

/// Whether a process adopts orphans.
fn is_reaper(pid: u64) -> bool {
    let name = || std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    pid == 1 || REAPERS.contains(&name().trim())
}

/// Whether a process is a service of systemd's, which is started with that same parent: it has an owner.
fn is_service(process: &Path) -> bool {
    let groups = std::fs::read_to_string(process.join("cgroup")).unwrap_or_default();
    groups.lines().any(|group| group.ends_with(".service"))
}

/// Processes of this user that look like tool servers and whose parent is one who takes in orphans. They are found in
/// `/proc`: elsewhere than on Linux the one finding is that nobody looked.
pub fn orphans() -> Vec<Finding> {
    let own = rustix::process::geteuid().as_raw();
    let Ok(uptime) = std::fs::read_to_string("/proc/uptime") else {
        let text = "tool servers whose client has ended are not looked for: /proc cannot be read";
        return vec![Finding::warn("orphan", text)];
    };
    let uptime: f64 = uptime.split(' ').next().and_then(|text| text.parse().ok()).unwrap_or(0.0);
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let left = leftovers();
    let own_left = left.iter().map(|process| {
        let text = format!(
            "pid {} of toolcrib {}, which was killed: {}",
            process.pid, process.owner, process.command
        );
        Finding::warn("orphan", text).help("the next start ends it, unless `reap_leftovers` is false")
    });
    let look = |process: std::fs::DirEntry| {
        let pid: u32 = process.file_name().to_str()?.parse().ok()?;
        let path = process.path();
        if process.metadata().ok()?.uid() != own || left.iter().any(|own| own.pid == pid) {
            return None;
        }
        let line = command_line(&path)?;
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if !looks_like_one(&line) {
            return None;
        }
        // After the parenthesised name: state, parent, ...; numbers as in proc_pid_stat(5).
        let stat = std::fs::read_to_string(path.join("stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        if !is_reaper(field(4)?) || is_service(&path) {
            return None;
        }
        let started = field(22)? as f64 / rustix::param::clock_ticks_per_second() as f64;
        let age = Duration::try_from_secs_f64(uptime - started).unwrap_or_default();
        let memory = field(24)? * rustix::param::page_size() as u64;
        let (age, memory, command) = (seconds(age), memory >> 20, shown(&line));
        let text = format!("pid {pid}, {age} old, {memory} MiB: {command}");
        let help = "it belongs to no toolcrib and was not touched; its parent has ended";
        Some(Finding::warn("orphan", text).help(help))
    };
    own_left.chain(processes.filter_map(look)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_that_may_be_secret_are_not_shown() {
        for (line, told) in [
            (
                "node /x/mcp-server-x/index.js --token abc --url https://me:pw@h/mcp",
                "node /x/mcp-server-x/index.js",
            ),
            ("/bin/mcp --key=abc-mcp", "/bin/mcp"),
            ("", ""),
        ] {
            assert_eq!(shown(line), told);
        }
    }

    #[test]
    fn tool_servers_are_recognised_by_their_arguments() {
        for line in [
            "node /x/node_modules/@modelcontextprotocol/server-memory/dist/index.js",
            "/venv/bin/python /venv/bin/mcp-server-time",
            "python -m my_pkg.mcp_servers.serper",
            "npx -y @playwright/mcp@latest",
            "uv run FastMCP",
        ] {
            assert!(looks_like_one(line), "{line}");
        }
        for line in ["sleep 600", "/usr/lib/tumbler-1/tumblerd", "node compute.mjs"] {
            assert!(!looks_like_one(line), "{line}");
        }
    }
}
