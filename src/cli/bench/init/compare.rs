//! Compares a measurement with an earlier one, by mode and by server.
//!
//! The least of several times is compared: other load on the machine only ever adds.

use std::{collections::BTreeSet, path::Path};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolcrib::Error;

use super::{
    document::{Document, ModeRow, SCHEMA, ServerRow},
    mode::Mode,
};

/// How a measurement compares with an earlier one, or with that of another configuration in the same run. Ratios are
/// this one over the other: below 1 is better.
#[derive(Serialize, Deserialize)]
pub(super) struct Comparison {
    /// The file of the earlier one, or of the other configuration.
    file: String,
    /// Whether both were measured in the same run, turn by turn.
    #[serde(default)]
    same_run: bool,
    pub(super) modes: Vec<ModeChange>,
    /// Differences of the measurement itself, one line each.
    notes: Vec<String>,
    /// Values that became worse than is allowed; empty if nothing was said about that.
    pub(super) regressions: Vec<String>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct ModeChange {
    mode: String,
    /// Ratio of the least wall times.
    wall_ratio: Option<f64>,
    #[serde(default)]
    median_ratio: Option<f64>,
    first_tool_ratio: Option<f64>,
    cpu_ratio: Option<f64>,
    rss_ratio: Option<f64>,
    servers: Vec<ServerChange>,
}

#[derive(Serialize, Deserialize)]
struct ServerChange {
    name: String,
    /// The least time from its own turn on, then and now; nothing when it was not ready.
    then_ms: Option<f64>,
    now_ms: Option<f64>,
}

/// Reads an earlier document.
///
/// # Errors
/// [`Error::Input`] when it is none, or one of other servers or modes.
pub(super) fn read(file: &Path, servers: &[&str], modes: &[&str]) -> Result<Document, Error> {
    let wrong = |what: String, help: &str| {
        Error::input(format!("--compare {}: {what}", file.display()), Some(help.to_owned()))
    };
    let again = "write a new one with `toolcrib bench init --save FILE`";
    let takes = "--compare takes the file of an earlier measurement";
    let text = std::fs::read_to_string(file).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            let is_mode = file.to_str().is_some_and(|name| Mode::from_str(name, true).is_ok());
            let help = match is_mode {
                true => format!(
                    "modes are set side by side in every measurement: --mode {},parallel",
                    file.display()
                ),
                false => format!("{again}; another servers.toml is compared by --against FILE"),
            };
            Error::input(format!("{takes}, and there is no file {}", file.display()), Some(help))
        }
        _ => wrong(error.to_string(), again),
    })?;
    if file.extension().is_some_and(|extension| extension == "toml") {
        let help = format!("another configuration is measured in the same run: --against {}", file.display());
        return Err(Error::input(format!("{takes}, and {} is none", file.display()), Some(help)));
    }
    let value: Value =
        serde_json::from_str(&text).map_err(|error| wrong(format!("not JSON: {error}"), again))?;
    match value.get("schema").and_then(Value::as_u64) {
        Some(schema) if schema == u64::from(SCHEMA) => {}
        Some(schema) => return Err(wrong(format!("schema {schema}, and only {SCHEMA} is known"), again)),
        None => return Err(wrong("not a document of `bench init`: no schema".to_owned(), again)),
    }
    let document: Document = serde_json::from_value(value)
        .map_err(|error| wrong(format!("not a document of `bench init`: {error}"), again))?;
    let then: Vec<&str> =
        document.modes.iter().flat_map(|mode| &mode.servers).map(|row| row.name.as_str()).collect();
    let missing = |known: &[&str], wanted: &[&str]| {
        let mut names: Vec<String> = Vec::new();
        for name in wanted.iter().filter(|name| !known.contains(name)) {
            if !names.iter().any(|known| known == name) {
                names.push((*name).to_owned());
            }
        }
        names.join(", ")
    };
    let (gone, new) = (missing(servers, &then), missing(&then, servers));
    if !gone.is_empty() || !new.is_empty() {
        let part = |what: &str, names: &str| {
            if names.is_empty() { String::new() } else { format!("; {what}: {names}") }
        };
        let what = format!("of other servers{}{}", part("only there", &gone), part("only here", &new));
        return Err(wrong(what, "measure the same servers.toml both times"));
    }
    if !document.modes.iter().any(|row| modes.contains(&row.mode.as_str())) {
        let there: Vec<&str> = document.modes.iter().map(|row| row.mode.as_str()).collect();
        let what = format!("of other modes: {}", there.join(", "));
        return Err(wrong(what, "name one of them with --mode"));
    }
    Ok(document)
}

impl Comparison {
    /// `now` against `then`. With `allowed` percent, a mode whose least wall time grew by more is a regression, and
    /// so is one with fewer servers ready.
    /// `same_run`: `then` is another configuration, measured at the same time.
    pub(super) fn new(
        file: &Path,
        then: &Document,
        now: &Document,
        allowed: Option<f64>,
        same_run: bool,
    ) -> Self {
        let pairs: Vec<(&ModeRow, &ModeRow)> =
            now.modes.iter().filter_map(|mode| Some((then.mode(&mode.mode)?, mode))).collect();
        let modes: Vec<ModeChange> = pairs.iter().map(|(then, now)| ModeChange::new(then, now)).collect();
        let mut notes = Vec::new();
        let mut note = |what: &str, then: String, now: String| {
            if then != now {
                let (this, other) = if same_run { ("here", "there") } else { ("now", "then") };
                notes.push(format!("{what} {other} {then}, {this} {now}"));
            }
        };
        note("jobs", then.jobs.to_string(), now.jobs.to_string());
        let templates = |document: &Document| if document.no_templates { "off" } else { "auto" }.to_owned();
        note("templates", templates(then), templates(now));
        note("runs", then.runs.to_string(), now.runs.to_string());
        // Documents of the first version do not tell.
        if then.cores != 0 {
            note("cores", then.cores.to_string(), now.cores.to_string());
        }
        let names = |document: &Document| -> Vec<String> {
            let rows = document.modes.iter().flat_map(|mode| &mode.servers).map(|row| row.name.clone());
            rows.collect::<BTreeSet<String>>().into_iter().collect()
        };
        note("servers", names(then).join(" "), names(now).join(" "));
        let other = if same_run { "there" } else { "then" };
        let mut regressions = Vec::new();
        for (change, (then, now)) in modes.iter().zip(&pairs).filter(|_| allowed.is_some()) {
            let limit = allowed.unwrap_or(0.0);
            if now.ready < then.ready {
                regressions.push(format!("{}: {} ready, {other} {}", now.mode, now.ready, then.ready));
            }
            let grown = change.wall_ratio.map(|ratio| (ratio - 1.0) * 100.0);
            if let Some(grown) = grown.filter(|grown| *grown > limit) {
                regressions.push(format!("{}: wall {grown:+.1} %, allowed {limit} %", now.mode));
            }
        }
        Self { file: file.display().to_string(), same_run, modes, notes, regressions }
    }

    /// Renders the comparison as lines of text.
    pub(super) fn lines(&self) -> Vec<String> {
        let how = if self.same_run { "same run, this / that" } else { "now / then" };
        let mut lines = vec![
            format!("against {} (least times and their middle, {how}; below 1 is better)", self.file),
            "mode        wall     median   first    cpu      rss".to_owned(),
        ];
        for mode in &self.modes {
            let ratio =
                |ratio: Option<f64>| ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}x"));
            lines.push(format!(
                "{:<11} {:<8} {:<8} {:<8} {:<8} {}",
                mode.mode,
                ratio(mode.wall_ratio),
                ratio(mode.median_ratio),
                ratio(mode.first_tool_ratio),
                ratio(mode.cpu_ratio),
                ratio(mode.rss_ratio),
            ));
            lines.extend(mode.servers.iter().filter_map(ServerChange::line));
        }
        lines.extend(self.notes.iter().map(|note| format!("note: {note}")));
        lines
    }
}

impl ModeChange {
    fn new(then: &ModeRow, now: &ModeRow) -> Self {
        let memory = |row: &ModeRow| Some(row.peak_rss_bytes as f64);
        Self {
            mode: now.mode.clone(),
            wall_ratio: ratio(then.wall_ms.min, now.wall_ms.min),
            median_ratio: ratio(then.wall_ms.median, now.wall_ms.median),
            first_tool_ratio: ratio(then.first_tool_ms, now.first_tool_ms),
            cpu_ratio: ratio(Some(then.cpu_ms), Some(now.cpu_ms)),
            rss_ratio: ratio(memory(then), memory(now)),
            servers: now
                .servers
                .iter()
                .map(|now| {
                    let then = then.servers.iter().find(|then| then.name == now.name);
                    ServerChange { name: now.name.clone(), then_ms: then.and_then(least), now_ms: least(now) }
                })
                .collect(),
        }
    }
}

impl ServerChange {
    /// The line of a change. `None`: there is nothing to compare.
    fn line(&self) -> Option<String> {
        let show = |time: Option<f64>| {
            time.map_or_else(|| "not ready".to_owned(), |millis| format!("{:.2}s", millis / 1e3))
        };
        self.then_ms.or(self.now_ms)?;
        let change =
            ratio(self.then_ms, self.now_ms).map_or_else(String::new, |ratio| format!("  {ratio:.2}x"));
        Some(format!("  {:<20} {} -> {}{change}", self.name, show(self.then_ms), show(self.now_ms)))
    }
}

fn least(row: &ServerRow) -> Option<f64> {
    row.own_ms?.min
}

fn ratio(then: Option<f64>, now: Option<f64>) -> Option<f64> {
    let then = then.filter(|then| *then > 0.0)?;
    Some(now? / then)
}
