//! Lines about the start of a server.

use std::time::{Duration, SystemTime};

use toolcrib::{
    ServerName,
    start::{LaunchReport, ReadyServer, ServerStart},
};

use super::{Ui, age, seconds, shortened};

/// The shortest wait before a start that is shown.
const FELT: Duration = Duration::from_millis(100);
/// Oddities of one server that are told.
const ODDITIES: usize = 3;

impl Ui {
    /// A server came up, or did not.
    pub(crate) fn started(&self, row: &ServerStart) {
        match &row.outcome {
            Ok(ready) => {
                // A wait that is too short to notice is not shown.
                let felt = row.waits.iter().filter(|wait| wait.took >= FELT);
                let waits = felt.map(|wait| format!("waited {} for {}", seconds(wait.took), wait.reason));
                let launch = ready.launch.as_ref().and_then(|launch| directly(launch, ready.phases.total()));
                let forked = ready.is_forked.then(|| "forked from a template".to_owned());
                let notes: Vec<String> = waits.chain(launch).chain(forked).collect();
                self.ready(&row.name, ready, row.took, &notes.join(", "));
                self.fell_back(&row.name, ready);
            }
            Err(error) => self.failure("Failed", error, true),
        }
    }

    /// A server serves calls.
    pub(crate) fn ready(&self, name: &ServerName, ready: &ReadyServer, took: Duration, note: &str) {
        let pid = ready.pid.map_or_else(String::new, |pid| format!("pid {pid}"));
        let text = format!(
            "{name:<20} {:<9} {:>8}   {pid:<12} {}   {note}",
            tools_column(ready.tools),
            seconds(took),
            ready.era
        );
        self.status("Ready", text.trim_end());
        if let Some(changes) = &ready.changes {
            let text = format!("{name}: {changes}: {}", changes.signed().join(" "));
            self.warn(text.chars().take(300).collect::<String>());
        }
        self.oddities(name, ready);
    }

    /// Shows where a server does not keep to the protocol: first what cost it a tool, and not more than a person reads.
    pub(crate) fn oddities(&self, name: &ServerName, ready: &ReadyServer) {
        let mut sorted: Vec<&String> = ready.oddities.iter().collect();
        sorted.sort_by_key(|oddity| !oddity.contains("left out"));
        for oddity in sorted.iter().take(ODDITIES) {
            self.warn(format!("{name}: {oddity}"));
        }
        if let Some(more) = sorted.len().checked_sub(ODDITIES).filter(|more| *more > 0) {
            self.warn(format!("{name}: {more} more of this kind; `toolcrib doctor {name}` lists them"));
        }
    }

    /// A server is left for later.
    pub(crate) fn parked(&self, name: &ServerName, tools: usize, listed: SystemTime) {
        let listed = age(listed);
        self.status("Parked", format!("{name:<20} {:<18} listed {listed}", tools_column(tools)));
    }

    /// A server had to be started through its package runner after all.
    fn fell_back(&self, name: &ServerName, ready: &ReadyServer) {
        if let Some(launch) = &ready.launch
            && let Some(why) = &launch.failed
        {
            self.warn(format!("{name}: started directly it {why}; {} started it", launch.runner));
        }
    }
}

/// `direct: node .../dist/index.js, 0.40s saved against npx`, for a server that was started without its runner.
fn directly(launch: &LaunchReport, took: Duration) -> Option<String> {
    let program = launch.program.as_ref().filter(|_| launch.direct)?;
    let saved =
        launch.saved(took).map(|saved| format!(", {} saved against {}", seconds(saved), launch.runner));
    Some(format!("direct: {}{}", shortened(program), saved.unwrap_or_default()))
}

/// `  3 tools`, numbers below each other.
fn tools_column(count: usize) -> String {
    format!("{count:>3} tool{}", if count == 1 { "" } else { "s" })
}
