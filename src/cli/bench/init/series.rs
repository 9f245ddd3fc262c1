//! All runs of one mode and their summary: the times are those of the run that other load disturbed least.

use std::time::Duration;

use toolcrib::{
    Config, ServerName,
    cli_support::{
        bench::{median, sorted},
        page::start_chart::{Bar, Picture},
    },
    process::ProcessUsage,
    session::Phases,
    start::{LaunchReport, ServerStart},
};

use super::{
    census::Census,
    document::{FirstCallRow, ModeRow, ServerRow, Spread},
    measure::Run,
    mode::Mode,
};
use crate::cli::terminal::ui::millis;

pub(super) struct Series {
    pub(super) mode: Mode,
    pub(super) runs: Vec<Run>,
}

impl Series {
    pub(super) fn new(mode: Mode) -> Self {
        Self { mode, runs: Vec::new() }
    }

    /// CPU time of everything until all were ready, in the leanest run.
    pub(super) fn cpu(&self) -> Duration {
        self.least(Census::cpu)
    }

    fn least<T: Ord + Default>(&self, of: impl Fn(&Census) -> T) -> T {
        self.runs.iter().map(|run| of(&run.used)).min().unwrap_or_default()
    }

    /// The middle of all runs: one run may or may not have counted a process that was about to end.
    fn middle<T: Ord + Default + Copy>(&self, of: impl Fn(&Census) -> T) -> T {
        let mut values: Vec<T> = self.runs.iter().map(|run| of(&run.used)).collect();
        values.sort_unstable();
        values.get(values.len() / 2).copied().unwrap_or_default()
    }

    /// When this share of the servers was ready, in the best run.
    fn ready_at(&self, share: f64) -> Option<Duration> {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a place in a short list"
        )]
        let at = |ready: &Vec<Duration>| ready.get((ready.len() as f64 * share) as usize).copied();
        self.runs.iter().filter_map(|run| at(&run.ready)).min()
    }

    pub(super) fn row(&self, config: &Config, note: Option<&str>) -> ModeRow {
        let parked = |run: &Run| run.servers.iter().filter(|row| is_parked(row)).count();
        let most = |of: fn(&Census) -> u64| self.runs.iter().map(|run| of(&run.used)).max().unwrap_or(0);
        ModeRow {
            mode: self.mode.name().to_owned(),
            ready: self.runs.iter().map(|run| run.ready.len()).min().unwrap_or(0),
            total: config.servers.len(),
            wall_ms: Spread::of(&self.walls()),
            cpu_ms: millis(self.cpu()),
            peak_rss_bytes: self.middle(|used| used.servers.rss),
            first_tool_ms: self.ready_at(0.0).map(millis),
            middle_tool_ms: self.ready_at(0.5).map(millis),
            servers: self.names(config).map(|name| self.server(name)).collect(),
            note: note.map(ToOwned::to_owned),
            parked: self.runs.iter().map(parked).min().unwrap_or(0),
            servers_cpu_ms: millis(self.least(|used| used.servers.cpu)),
            own_cpu_ms: millis(self.least(|used| used.own.cpu)),
            guards_cpu_ms: millis(self.least(|used| used.guards.cpu)),
            own_rss_bytes: self.least(|used| used.own.rss),
            guards_rss_bytes: most(|used| used.guards.rss),
            guards: self.runs.iter().map(|run| run.used.guards.processes).max().unwrap_or(0),
            first_call: self.first_call(),
            picture: self.picture(),
        }
    }

    /// Names of the servers. Empty if nothing is known of their starts, because others did the starting.
    fn names<'a>(&self, config: &'a Config) -> impl Iterator<Item = &'a ServerName> {
        let known = self.runs.iter().any(|run| !run.servers.is_empty());
        config.servers.keys().filter(move |_| known)
    }

    fn walls(&self) -> Vec<Duration> {
        sorted(self.runs.iter().map(|run| run.wall))
    }

    fn first_call(&self) -> Option<FirstCallRow> {
        let calls = || self.runs.iter().filter_map(|run| run.first_call.as_ref());
        let tool = calls().next()?.0.clone();
        Some(FirstCallRow { tool, ms: Spread::of(&sorted(calls().map(|(_, took)| *took))) })
    }

    fn server(&self, name: &ServerName) -> ServerRow {
        let rows = || self.runs.iter().flat_map(|run| &run.servers).filter(|row| row.name == *name);
        let mut starts: Vec<Phases> = rows()
            .filter(|row| !is_parked(row))
            .filter_map(|row| row.outcome.as_ref().ok())
            .map(|ready| ready.phases)
            .collect();
        starts.sort_by_key(Phases::total);
        let state = match starts.is_empty() {
            false => "ready",
            true if rows().any(is_parked) => "parked",
            true => "failed",
        };
        let spread = |of: fn(&Phases) -> Duration| {
            (!starts.is_empty()).then(|| Spread::of(&sorted(starts.iter().map(of))))
        };
        let usages = || {
            let pid = |run: &Run| pid(run.servers.iter().find(|row| row.name == *name)?);
            let usages = self.runs.iter().filter_map(move |run| run.usage.get(&pid(run)?));
            // Where it cannot be told.
            usages.filter(|usage| **usage != ProcessUsage::default())
        };
        let is_last = |run: &&Run| last(&run.servers).is_some_and(|row| row.name == *name);
        let is_forked = |row: &&ServerStart| row.outcome.as_ref().is_ok_and(|ready| ready.is_forked);
        ServerRow {
            name: name.to_string(),
            state: state.to_owned(),
            phases_ms: starts.get(starts.len() / 2).copied(),
            total_ms: spread(Phases::total),
            own_ms: spread(own),
            launch: self.launch(name).cloned(),
            cpu_ms: usages().map(|usage| usage.cpu).min().map(millis),
            rss_bytes: usages().map(|usage| usage.rss).min(),
            forked: rows().filter(is_forked).count(),
            last: self.runs.iter().filter(is_last).count(),
        }
    }

    /// How it was started last, if its command is a package runner.
    fn launch(&self, name: &ServerName) -> Option<&LaunchReport> {
        let rows = self.runs.last().into_iter().flat_map(|run| &run.servers);
        rows.filter(|row| row.name == *name).find_map(|row| row.outcome.as_ref().ok()?.launch.as_ref())
    }

    /// The least time that each server took by itself.
    pub(super) fn alone(&self) -> impl Iterator<Item = (&ServerName, Duration)> {
        let rows = self.runs.iter().flat_map(|run| &run.servers).filter(|row| !is_parked(row));
        rows.filter_map(|row| Some((&row.name, own(&row.outcome.as_ref().ok()?.phases))))
    }

    fn picture(&self) -> Option<Picture> {
        let middle = median(&self.walls());
        let run = self.runs.iter().find(|run| run.wall == middle && !run.servers.is_empty())?;
        Some(Picture {
            wall_ms: millis(run.wall),
            last: last(&run.servers).map(|row| row.name.to_string()),
            servers: run.servers.iter().map(Bar::of).collect(),
        })
    }
}

/// Time that a start takes from its own turn on.
fn own(phases: &Phases) -> Duration {
    phases.total().saturating_sub(phases.queue)
}

fn is_parked(row: &ServerStart) -> bool {
    row.outcome.as_ref().is_ok_and(|ready| ready.parked.is_some())
}

fn pid(row: &ServerStart) -> Option<u32> {
    row.outcome.as_ref().ok()?.pid
}

/// The server that was ready last.
fn last(rows: &[ServerStart]) -> Option<&ServerStart> {
    rows.iter().filter(|row| row.outcome.is_ok() && !is_parked(row)).max_by_key(|row| row.took)
}

impl Spread {
    /// Makes the spread of sorted times.
    fn of(times: &[Duration]) -> Self {
        let at = |index: Option<usize>| index.and_then(|index| times.get(index)).map(|time| millis(*time));
        Self { min: at(Some(0)), median: at(Some(times.len() / 2)), max: at(times.len().checked_sub(1)) }
    }
}
