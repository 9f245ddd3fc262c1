//! What the processes of a group have used: CPU time and resident memory, read from `/proc`.

use std::{collections::HashSet, time::Duration};

/// CPU time and memory of some processes at one moment.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct ProcessUsage {
    /// User and system time so far, ended and reaped children included.
    pub cpu: Duration,
    /// Resident memory in bytes; shared pages count for every process that has them.
    pub rss: u64,
}

/// The usage of all processes in the groups led by `leaders`. Zero where there is no `/proc`.
pub(crate) fn of_groups(leaders: &HashSet<u32>) -> ProcessUsage {
    let tick = 1.0 / rustix::param::clock_ticks_per_second() as f64;
    let page = rustix::param::page_size() as u64;
    let mut usage = ProcessUsage::default();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        // After the parenthesised name: state, parent, group, ...; numbers as in proc_pid_stat(5).
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let field =
            |number: usize| fields.get(number - 3).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
        if u32::try_from(field(5)).is_ok_and(|group| leaders.contains(&group)) {
            let ticks: u64 = (14..=17).map(field).sum();
            usage.cpu += Duration::from_secs_f64(ticks as f64 * tick);
            usage.rss += field(24) * page;
        }
    }
    usage
}
