//! CPU time and memory of this process, its servers and their guards, read from `/proc`. Zero where there is no
//! `/proc`.

use std::{collections::HashMap, fs, time::Duration};

use toolcrib::cli_support::bench::own_cpu;
use toolcrib_guard::inspect::{ENVIRONMENT_MAX, beginning};

/// Marks a guard in its environment; its server does not inherit it.
const GUARD: &[u8] = b"TOOLCRIB_GUARD=";

/// The use of all processes at one moment.
#[derive(Clone, Copy, Default)]
pub(super) struct Census {
    /// This process alone.
    pub(super) own: Used,
    /// All descendants except guards. CPU time includes that of descendants that have ended.
    pub(super) servers: Used,
    pub(super) guards: Used,
}

#[derive(Clone, Copy, Default)]
pub(super) struct Used {
    /// User and system time. Of other processes in ticks of the system's clock, mostly 10 ms.
    pub(super) cpu: Duration,
    /// Resident bytes: now for this process, the peak for others. For guards the largest peak, since they share their
    /// pages; otherwise shared pages count in each process.
    pub(super) rss: u64,
    pub(super) processes: usize,
}

impl Census {
    pub(super) fn take() -> Self {
        // First: what follows takes CPU time itself.
        let cpu = own_cpu();
        let mut census = Self::default();
        let (mut children, own) = table();
        census.own = Used { cpu, rss: own.rss, processes: 1 };
        census.servers.cpu = own.reaped;
        let mut parents = vec![std::process::id()];
        while let Some(parent) = parents.pop() {
            for (pid, row) in children.remove(&parent).unwrap_or_default() {
                let guards = is_guard(pid);
                let used = if guards { &mut census.guards } else { &mut census.servers };
                let rss = peak(pid).unwrap_or(row.rss);
                used.cpu += row.cpu;
                used.rss = if guards { used.rss.max(rss) } else { used.rss + rss };
                used.processes += 1;
                census.servers.cpu += row.reaped;
                parents.push(pid);
            }
        }
        census
    }

    /// The same figures, with CPU time since `before`.
    pub(super) fn since(self, before: &Self) -> Self {
        let since = |now: Used, then: Used| Used { cpu: now.cpu.saturating_sub(then.cpu), ..now };
        Self {
            own: since(self.own, before.own),
            servers: since(self.servers, before.servers),
            guards: since(self.guards, before.guards),
        }
    }

    pub(super) fn cpu(&self) -> Duration {
        self.own.cpu + self.servers.cpu + self.guards.cpu
    }
}

/// One line of the process table.
#[derive(Clone, Copy, Default)]
struct ProcessRow {
    cpu: Duration,
    /// CPU time of its ended children.
    reaped: Duration,
    rss: u64,
}

/// All other processes, grouped by parent, and this process. Numbers of fields as in proc_pid_stat(5).
fn table() -> (HashMap<u32, Vec<(u32, ProcessRow)>>, ProcessRow) {
    let tick = 1.0 / rustix::param::clock_ticks_per_second() as f64;
    let page = rustix::param::page_size() as u64;
    let (mut children, mut own) = (HashMap::<u32, Vec<(u32, ProcessRow)>>::new(), ProcessRow::default());
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        // After the parenthesised name: state, parent, ...
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let field =
            |number: usize| fields.get(number - 3).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
        let time = |ticks: u64| Duration::from_secs_f64(ticks as f64 * tick);
        let row = ProcessRow {
            cpu: time(field(14) + field(15)),
            reaped: time(field(16) + field(17)),
            rss: field(24) * page,
        };
        if pid == std::process::id() {
            own = row;
        } else {
            children.entry(u32::try_from(field(4)).unwrap_or(0)).or_default().push((pid, row));
        }
    }
    (children, own)
}

/// The most resident memory that a process ever had, in bytes.
fn peak(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

fn is_guard(pid: u32) -> bool {
    let environment = beginning(format!("/proc/{pid}/environ"), ENVIRONMENT_MAX).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|entry| entry.starts_with(GUARD))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn children_and_this_process_are_counted_separately() {
        let before = Census::take();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let now = Census::take().since(&before);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(now.servers.processes >= 1 && now.servers.rss > 0);
        assert!(now.own.rss > 0 && now.own.cpu > Duration::ZERO && now.guards.processes == 0);
    }
}
