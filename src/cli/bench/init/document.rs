//! The result of `bench init` as one value: it is printed, drawn, written to a file, and read again for a comparison.
//!
//! Fields are added, never renamed: documents of earlier versions can be compared with. Times are milliseconds.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolcrib::{session::Phases, start::LaunchReport};

use super::compare::Comparison;
use toolcrib::cli_support::page::start_chart::Picture;

/// The version that is written, and the only one that is read.
pub(super) const SCHEMA: u32 = 1;

#[derive(Serialize, Deserialize)]
pub(super) struct Document {
    pub(super) schema: u32,
    pub(super) runs: usize,
    /// How many servers could start at once: a number, `cores` or `unlimited`.
    pub(super) jobs: Value,
    pub(super) modes: Vec<ModeRow>,
    pub(super) lower_bound_ms: f64,
    pub(super) bottleneck: String,
    /// Number of cores of the machine.
    #[serde(default)]
    pub(super) cores: usize,
    /// Version of toolcrib.
    #[serde(default)]
    pub(super) version: String,
    /// The file of the configuration.
    #[serde(default)]
    pub(super) config: Option<String>,
    /// Whether no server was to be forked from a template, in any mode.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) no_templates: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) comparison: Option<Comparison>,
    /// The other configuration that was measured in the same run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) against: Option<Box<Document>>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct ModeRow {
    pub(super) mode: String,
    /// Servers that were ready in the run with the fewest.
    pub(super) ready: usize,
    pub(super) total: usize,
    pub(super) wall_ms: Spread,
    /// CPU time of everything, this process and the guards included, in the leanest run.
    pub(super) cpu_ms: f64,
    /// The most that each server's processes had until all servers were ready, added up, in the middle run.
    pub(super) peak_rss_bytes: u64,
    pub(super) first_tool_ms: Option<f64>,
    pub(super) middle_tool_ms: Option<f64>,
    pub(super) servers: Vec<ServerRow>,
    /// Explanation of what is measured, where the mode's name does not say it.
    #[serde(default)]
    pub(super) note: Option<String>,
    /// Servers that were left for their first call.
    #[serde(default)]
    pub(super) parked: usize,
    #[serde(default)]
    pub(super) servers_cpu_ms: f64,
    #[serde(default)]
    pub(super) own_cpu_ms: f64,
    #[serde(default)]
    pub(super) guards_cpu_ms: f64,
    /// Resident memory of this process when all were ready, in the leanest run. It holds what earlier runs left.
    #[serde(default)]
    pub(super) own_rss_bytes: u64,
    /// The most of one guard: they have their memory in common.
    #[serde(default)]
    pub(super) guards_rss_bytes: u64,
    #[serde(default)]
    pub(super) guards: usize,
    /// The first call after a lazy start.
    #[serde(default)]
    pub(super) first_call: Option<FirstCallRow>,
    /// One run as it was: that with the median wall time. Nothing of a bare start.
    #[serde(default)]
    pub(super) picture: Option<Picture>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct FirstCallRow {
    pub(super) tool: String,
    /// Time from the call to its answer, the start of its server included.
    pub(super) ms: Spread,
}

/// The least, middle and greatest of some values. All are `None` if there are no values.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct Spread {
    pub(super) min: Option<f64>,
    pub(super) median: Option<f64>,
    pub(super) max: Option<f64>,
}

/// One server over all runs of a mode.
#[derive(Serialize, Deserialize)]
pub(super) struct ServerRow {
    pub(super) name: String,
    /// `ready` if it ever was, `parked` or `failed`.
    pub(super) state: String,
    /// Phases of the run with the middle total.
    pub(super) phases_ms: Option<Phases>,
    pub(super) total_ms: Option<Spread>,
    /// The total without the wait for its turn.
    #[serde(default)]
    pub(super) own_ms: Option<Spread>,
    #[serde(default)]
    pub(super) launch: Option<LaunchReport>,
    /// CPU time of all its processes when all servers were ready, in the leanest run.
    #[serde(default)]
    pub(super) cpu_ms: Option<f64>,
    #[serde(default)]
    pub(super) rss_bytes: Option<u64>,
    /// Number of runs in which it was forked from a template.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) forked: usize,
    /// Number of runs in which it was the last to be ready.
    #[serde(default)]
    pub(super) last: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form that serde asks for")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl Document {
    /// The mode that is about what a user of toolcrib waits for, and one run of it.
    pub(super) fn main_picture(&self) -> Option<(&ModeRow, &Picture)> {
        let drawn = || self.modes.iter().filter_map(|mode| Some((mode, mode.picture.as_ref()?)));
        drawn().find(|(mode, _)| mode.mode == "parallel").or_else(|| drawn().next_back())
    }

    pub(super) fn mode(&self, name: &str) -> Option<&ModeRow> {
        self.modes.iter().find(|mode| mode.mode == name)
    }
}
