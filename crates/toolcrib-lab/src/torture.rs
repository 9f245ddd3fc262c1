//! `toolcrib-lab torture`: which processes are left when the owner of a tool server has ended? For toolcrib and for any
//! other program.

mod census;
mod children;
mod ending;
mod owner;
mod program;
mod progress;
mod python;
mod row;
mod table;
mod trial;

use std::{
    num::NonZeroUsize,
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::{Args, ValueEnum};
use serde_json::json;
use tokio::task::JoinSet;
use toolcrib::{Error, config::Guard, process::TeardownScope};

pub(crate) use self::owner::TortureOwner;
use self::{ending::End, program::Program, row::Row, table::Table, trial::Rig};
use crate::{
    context::Context,
    fakes,
    ui::{Ui, at_least_one, millis, seconds},
};

#[derive(Args)]
#[command(after_long_help = contract())]
pub(crate) struct Torture {
    /// Only these servers (names or patterns, separated by commas).
    #[arg(long, alias = "rows", value_delimiter = ',', value_name = "NAMES")]
    servers: Vec<String>,
    /// Only these ends (names or patterns, separated by commas).
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    ends: Vec<String>,
    /// Trials of each server with each end.
    #[arg(long, default_value = "1", value_name = "N", value_parser = at_least_one)]
    repeat: NonZeroUsize,
    /// Trials at a time [default: one a core].
    #[arg(long, short, value_name = "N", value_parser = at_least_one)]
    jobs: Option<NonZeroUsize>,
    /// How long after its owner's end a process may live before it counts.
    #[arg(long, default_value = "10s", value_parser = humantime::parse_duration, value_name = "TIME")]
    wait: Duration,
    /// Score toolcrib without its guards: what a process group alone leaves behind.
    #[arg(long, conflicts_with = "command")]
    no_guard: bool,
    /// Run only the trials whose outcome toolcrib promises: all of them with guards, fewer with process groups alone.
    #[arg(long, conflicts_with = "command")]
    promised: bool,
    /// Score another program that starts a server: the contract is below (`--help`).
    #[arg(long, value_name = "COMMAND")]
    command: Option<String>,
}

/// The part of the help that says what another program has to do, and what the names mean.
fn contract() -> String {
    let table = |values: Vec<Option<clap::builder::PossibleValue>>| {
        let lines = values.into_iter().flatten().map(|value| {
            let help = value.get_help().map(ToString::to_string).unwrap_or_default();
            format!("  {:<21} {help}\n", value.get_name())
        });
        lines.collect::<String>()
    };
    let servers = table(Row::help());
    let ends = table(End::ALL.iter().map(ValueEnum::to_possible_value).collect());
    format!(
        "Servers (rows):\n{servers}\nEnds of the program that owns the server (columns):\n{ends}
Score of a cell:
  .   no process of the server is left; the time until then is in --json
  N   so many are left after --wait: found by a mark in their environment, which each server
      puts there itself, in any session or process group; zombies do not count
  !   the program did not do its part; the reason is below the table
  -   it was not run: with --promised, where a process group alone promises nothing

Any other program can be scored with --command. The command is split into words as a shell does,
and started without a shell. In it
  {{server}}       is the server's command line: alone and unquoted, as words of their own; in quotes
                 or within a word, as one text that a shell can read
  {{server_json}}  is the same as a JSON array of strings
  {{end}}          is the name of the end; without it only the ends by signal are measured
The program starts the server, speaks MCP with it over its standard streams and calls its only
tool, `echo`. Then it prints the line `ready` on its stdout (flushed) and at once ends as {{end}}
says; for an end by signal it waits to be signalled, with the handlers it normally has. If it
is to live on after the end of the session (drop, cancel) it prints the line `ended` and stays
until it is killed. Nothing that it or its servers leave behind outlives the torture.
  toolcrib-lab torture --wait 5s --command 'python client.py {{end}} {{server}}'
  toolcrib-lab torture --ends 'sig*' --command 'my-host --stdio \"{{server}}\"'"
    )
}

impl Torture {
    pub(super) async fn run(self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        let program = match &self.command {
            Some(command) => Program::parse(command)?,
            None => Program::Own { path: std::env::current_exe()?, no_guard: self.no_guard },
        };
        let (rows, python) = self.rows(context.ui)?;
        let mut ends = select("end", &self.ends, End::ALL, End::name)?;
        if !program.takes_end() && self.ends.is_empty() {
            ends.retain(|end| end.signal().is_some());
        }
        let began = Instant::now();
        let rig = Arc::new(Rig::new(program, fakes::program()?, python, self.wait, context.cancel.clone())?);
        // A second Ctrl-C drops this future, and what was started must end then too.
        let sweep = Sweep(rig.clone());
        let checked = rig.clone();
        if !tokio::task::spawn_blocking(move || checked.can_see()).await?? {
            anyhow::ensure!(!context.cancel.is_cancelled(), Error::Cancelled);
            // Without that every score would be perfect.
            return Err(Error::input(
                "the environment of a process that was started here cannot be read in /proc",
                Some("run a copy of toolcrib-fakes that the user may read".to_owned()),
            )
            .into());
        }
        let table = self.trials(context, &rig, rows, ends).await?;
        let stubborn = sweep.finish();
        self.show(context.ui, &table, began.elapsed());
        if !stubborn.is_empty() {
            return Err(Error::TeardownIncomplete { pids: stubborn }.into());
        }
        let sums = table.sums();
        Ok(match (sums.survived, sums.failed) {
            (1.., _) => ExitCode::from(9),
            (0, 1..) => ExitCode::FAILURE,
            (0, 0) => ExitCode::SUCCESS,
        })
    }

    /// The servers, and the Python of those that are forked: they are toolcrib's own, and need its guards.
    fn rows(&self, ui: &Ui) -> Result<(Vec<Row>, Option<PathBuf>), Error> {
        let rows = select("server", &self.servers, &Row::all(), Row::name)?;
        if !rows.iter().any(|row| row.is_forked()) {
            return Ok((rows, None));
        }
        let python = python::find();
        let missing = match (&self.command, &python) {
            (Some(_), _) => "only toolcrib forks servers from a template",
            _ if self.no_guard || !guards_are_available() => "servers are forked only where there are guards",
            (None, None) => "`python3` in PATH is no CPython 3.9 or newer with the module venv",
            (None, Some(_)) => return Ok((rows, python)),
        };
        let (forked, rows): (Vec<Row>, Vec<Row>) = rows.into_iter().partition(|row| row.is_forked());
        if rows.is_empty() {
            return Err(Error::input(format!("`{}` cannot be run: {missing}", forked[0].name()), None));
        }
        if self.command.is_none() && !self.no_guard {
            ui.status("Skipping", format!("{} servers: {missing}", forked.len()));
        }
        Ok((rows, None))
    }

    /// Runs all trials, some at a time, until they are done or the command is cancelled.
    async fn trials(
        &self,
        context: &Context<'_>,
        rig: &Arc<Rig>,
        rows: Vec<Row>,
        ends: Vec<End>,
    ) -> anyhow::Result<Table> {
        let groups_only = self.promised && (self.no_guard || !guards_are_available());
        let is_run = |row: Row, end: End| !groups_only || is_promised_by_groups(row, end);
        let pairs = || rows.iter().flat_map(|row| ends.iter().map(|end| (*row, *end)));
        let cells = || pairs().filter(|(row, end)| is_run(*row, *end));
        let mut queue = (0..self.repeat.get()).flat_map(|_| cells()).enumerate();
        let jobs = self.jobs.or_else(|| std::thread::available_parallelism().ok());
        let jobs = jobs.map_or(1, NonZeroUsize::get);
        let count = cells().count() * self.repeat.get();
        context.ui.status(
            "Torturing",
            if groups_only {
                format!("{count} trials that process groups are promised to pass, {jobs} at a time")
            } else {
                format!(
                    "{} servers x {} ends x {}: {count} trials, {jobs} at a time",
                    rows.len(),
                    ends.len(),
                    self.repeat
                )
            },
        );
        let mut table = Table::new(rows.clone(), ends.clone());
        let mut running = JoinSet::new();
        loop {
            while running.len() < jobs && !context.cancel.is_cancelled() {
                let Some((number, (row, end))) = queue.next() else { break };
                let rig = rig.clone();
                running.spawn_blocking(move || (row, end, rig.run(number, row, end)));
            }
            let Some(done) = running.join_next().await else { break };
            if let (row, end, Some(outcome)) = done? {
                progress::show(context.ui, row, end, &outcome);
                table.add(row, end, outcome);
            }
        }
        Ok(table)
    }

    fn show(&self, ui: &Ui, table: &Table, wall: Duration) {
        if ui.json {
            let own = concat!("toolcrib ", env!("CARGO_PKG_VERSION"));
            let mut document = json!({"schema": 1, "program": self.command.as_deref().unwrap_or(own),
                "guard": self.command.is_none().then(|| !self.no_guard && guards_are_available()),
                "wait_ms": millis(self.wait), "wall_ms": millis(wall)});
            if let (Some(document), serde_json::Value::Object(scores)) =
                (document.as_object_mut(), table.document())
            {
                document.extend(scores);
            }
            Ui::json(document);
            return;
        }
        for line in table.table().into_iter().chain(table.remarks()) {
            Ui::data(line);
        }
        let sums = table.sums();
        let text = format!("[{}] {}", seconds(wall), sums.words());
        if sums.survived + sums.failed == 0 { ui.status("Summary", text) } else { ui.bad("Summary", text) }
    }
}

/// Whether the owner in a trial has guards unless `--no-guard` is given.
fn guards_are_available() -> bool {
    matches!(TeardownScope::new(&Guard::Auto), TeardownScope::Guard { .. })
}

/// Whether docs/teardown.md promises an end where there is no guard: the owner's destructors run, and no process of the server
/// has left the process group.
fn is_promised_by_groups(server: Row, end: End) -> bool {
    end.runs_destructors() && server.stays_in_group()
}

/// Ends what is left of the trials, however the command ends.
struct Sweep(Arc<Rig>);

impl Sweep {
    /// Says which processes did not end.
    fn finish(self) -> Vec<u32> {
        self.0.sweep()
    }
}

impl Drop for Sweep {
    fn drop(&mut self) {
        self.0.sweep();
    }
}

/// Selects those of `all` that one of `patterns` means; all when there are no patterns.
fn select<T: Copy>(
    kind: &str,
    patterns: &[String],
    all: &[T],
    name: fn(T) -> &'static str,
) -> Result<Vec<T>, Error> {
    let mut kept = vec![patterns.is_empty(); all.len()];
    for pattern in patterns {
        let matcher = globset::Glob::new(pattern)
            .map_err(|error| Error::input(format!("pattern of {kind}s: {error}"), None))?
            .compile_matcher();
        let mut found = false;
        for (kept, one) in kept.iter_mut().zip(all) {
            let matches = matcher.is_match(name(*one));
            *kept |= matches;
            found |= matches;
        }
        if !found {
            let names: Vec<&str> = all.iter().map(|one| name(*one)).collect();
            let near = toolcrib::cli_support::nearest(pattern, names.iter().copied());
            let help = near.map_or_else(
                || format!("there are: {}", names.join(", ")),
                |near| format!("did you mean `{near}`?"),
            );
            return Err(Error::input(format!("there is no {kind} `{pattern}`"), Some(help)));
        }
    }
    Ok(all.iter().zip(kept).filter_map(|(one, kept)| kept.then_some(*one)).collect())
}
