//! Metrics that are looked up for each request: the state of servers, what their processes use, open connections.

use std::collections::{HashMap, HashSet};

use rustix::time::{ClockId, clock_gettime};

use super::families::{MAX_SERIES, Metrics};
use crate::{
    http::traffic_counts,
    manager::Toolbox,
    process::{ProcessUsage, own_memory, usage_of_descendants, usage_of_trees},
    session::{ServerState, ServerStatus},
};

/// All of them at this moment, with the servers of `toolboxes`. Reads `/proc`: not for the thread that serves everybody.
pub(super) fn sample(toolboxes: &[Toolbox]) -> Metrics {
    let sampled = Metrics::unbounded();
    own_process(&sampled);
    let mut known = HashSet::new();
    let servers: Vec<ServerStatus> = toolboxes
        .iter()
        .flat_map(Toolbox::status)
        .filter(|server| known.insert(server.name.clone()))
        .take(MAX_SERIES)
        .collect();
    let pids: Vec<u32> = servers.iter().filter_map(|server| server.pid).collect();
    let usage = if pids.is_empty() { HashMap::new() } else { usage_of_trees(&pids) };
    for server in &servers {
        describe(&sampled, server);
        if let Some(usage) = server.pid.and_then(|pid| usage.get(&pid)).filter(|usage| usage.processes > 0) {
            let name = server.name.as_str();
            sampled.add("toolcrib_process_cpu_seconds_total", &[name], usage.cpu.as_secs_f64());
            sampled.add("toolcrib_process_resident_memory_bytes", &[name], usage.rss as f64);
            sampled.add("toolcrib_server_processes", &[name], usage.processes as f64);
        }
    }
    sampled
}

fn describe(sampled: &Metrics, server: &ServerStatus) {
    let name = server.name.as_str();
    sampled.add("toolcrib_server_up", &[name], f64::from(server.is_there()));
    for state in ServerState::ALL {
        sampled.add("toolcrib_server_state", &[name, &state.to_string()], f64::from(state == server.state));
    }
    sampled.add("toolcrib_server_tools", &[name], server.tools as f64);
    sampled.add("toolcrib_tool_calls_waiting", &[name], server.waiting as f64);
    if server.lent + server.spares > 0 {
        sampled.add("toolcrib_server_instances", &[name, "lent"], server.lent as f64);
        sampled.add("toolcrib_server_instances", &[name, "spare"], server.spares as f64);
    }
}

fn own_process(sampled: &Metrics) {
    let (opened, requests) = traffic_counts();
    sampled.add("toolcrib_http_connections_opened_total", &[], opened as f64);
    sampled.add("toolcrib_http_requests", &[], requests as f64);
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    sampled.add("process_cpu_seconds_total", &[], cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9);
    // Zero where there is no `/proc`.
    let memory = own_memory();
    if memory > 0 {
        sampled.add("process_resident_memory_bytes", &[], memory as f64);
        let ProcessUsage { processes, rss, .. } = usage_of_descendants();
        sampled.add("toolcrib_owned_processes", &[], processes as f64);
        sampled.add("toolcrib_owned_resident_memory_bytes", &[], rss as f64);
    }
    if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
        // One of them is the folder that is being read.
        sampled.add("process_open_fds", &[], files.count().saturating_sub(1) as f64);
    }
}
