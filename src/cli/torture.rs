//! `toolcrib torture`: scores the teardown of a manager of tool servers, toolcrib's own or any other.
//!
//! Servers that are hard to end, times ways for their owner to end: who is still there afterwards?

mod cell;
mod owner;
mod server;
mod table;

use std::{num::NonZeroUsize, process::ExitCode, time::Duration};

use clap::{Args, ValueEnum};
use futures_util::{StreamExt, stream};

use self::{
    cell::{Outcome, Setup},
    owner::End,
    server::{Behaviour, name_of},
    table::Table,
};
pub(super) use self::{owner::TortureOwner, server::TortureServer};
use super::{context::Context, ui::seconds};

/// The exit code of survivors, as that of a teardown that left somebody.
const SURVIVORS: u8 = 9;

const FOREIGN: &str = "With --command any other program is scored. It is run by a shell for each cell, with
  {server}       the command line of the server that it has to start, quoted for a shell
  {server_json}  the same as a JSON list of words
  {end}          the way in which it has to end
in its text. It starts the server, calls the tool `echo`, and prints a line `ready`. Then it ends as {end} says:
by itself, or (sigterm, sigint, sigkill) by the signal that it is sent. If it goes on after the end of its
manager (drop, cancel) it prints a line `ended`. Choose the ends that it knows with --ends.

  toolcrib torture --command 'python3 client.py {end} {server}' --ends return,sigterm,sigkill

A number in a cell is the greatest number of processes that were left in one run, `.` is nobody, `!` an owner that
never got so far. The servers mark their processes by a variable in their environment; the owner's own processes
are not counted. Exit code 9: somebody survived.";

#[derive(Args)]
#[command(after_long_help = FOREIGN)]
pub(super) struct Torture {
    /// The program to score, in place of toolcrib: see below.
    #[arg(long, value_name = "COMMAND")]
    command: Option<String>,
    /// Score toolcrib without its guards: what a process group alone leaves behind.
    #[arg(long, conflicts_with = "command")]
    no_guard: bool,
    /// Runs of each cell.
    #[arg(long, default_value = "1", value_name = "N")]
    repeat: NonZeroUsize,
    /// Only these servers.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAMES", hide_possible_values = true)]
    servers: Vec<Behaviour>,
    /// Only these ends.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAMES", hide_possible_values = true)]
    ends: Vec<End>,
    /// How long survivors may take to disappear after the end of their owner.
    #[arg(long, default_value = "10s", value_parser = humantime::parse_duration, value_name = "DUR")]
    wait: Duration,
    /// Cells at a time [default: one for each processor].
    #[arg(long, short, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    /// Say which servers and ends there are, and what they do.
    #[arg(long)]
    list: bool,
}

impl Torture {
    pub(super) async fn run(self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        if self.list {
            list();
            return Ok(ExitCode::SUCCESS);
        }
        anyhow::ensure!(cell::can_count(), "survivors are counted through /proc, which is not there");
        let or_all = |chosen: Vec<Behaviour>| {
            if chosen.is_empty() { Behaviour::value_variants().to_vec() } else { chosen }
        };
        let (servers, ends) = (or_all(self.servers), self.ends);
        let ends = if ends.is_empty() { End::value_variants().to_vec() } else { ends };
        let jobs =
            self.jobs.or_else(|| std::thread::available_parallelism().ok()).map_or(1, NonZeroUsize::get);
        let setup = Setup {
            own: std::env::current_exe()?,
            foreign: self.command,
            no_guard: self.no_guard,
            wait: self.wait,
        };
        let cells: Vec<_> = (0..self.repeat.get())
            .flat_map(|_| servers.iter().flat_map(|server| ends.iter().map(|end| (*server, *end))))
            .collect();
        let total = cells.len();
        context.ui.status(
            "Torturing",
            format!("{} servers x {} ends x {}", servers.len(), ends.len(), self.repeat),
        );
        let runs = cells.into_iter().map(|(server, end)| {
            let setup = &setup;
            async move { (server, end, cell::run(setup, server, end).await) }
        });
        let mut runs = stream::iter(runs).buffer_unordered(jobs);
        let mut table = Table::new(servers, ends);
        // Dropping what is under way clears it away.
        while let Some(Some((server, end, outcome))) = context.cancel.run_until_cancelled(runs.next()).await {
            let name = format!("{} / {}", name_of(&server), name_of(&end));
            match &outcome {
                Outcome::Clean(_) => {}
                Outcome::Survivors(left) => context.ui.bad("Survived", format!("{name}: {left}")),
                Outcome::OwnerFailed(why) => context.ui.bad("Failed", format!("{name}: {why}")),
            }
            table.add(server, end, &outcome);
            if table.runs().is_multiple_of(50) {
                context.ui.status("Done", format!("{} of {total}", table.runs()));
            }
        }
        drop(runs);
        table.print(context.ui, setup.foreign.as_deref());
        context.ui.status(
            "Finished",
            format!(
                "{} runs: {} survivors, {} owners failed, slowest clean end {}",
                table.runs(),
                table.survivors(),
                table.failed(),
                seconds(table.slowest())
            ),
        );
        Ok(match (table.survivors(), table.failed()) {
            (0, 0) => ExitCode::SUCCESS,
            (0, _) => ExitCode::FAILURE,
            _ => ExitCode::from(SURVIVORS),
        })
    }
}

fn list() {
    fn lines<T: ValueEnum>(title: &str) {
        super::Ui::data(title);
        for value in T::value_variants().iter().filter_map(ValueEnum::to_possible_value) {
            let help = value.get_help().map(ToString::to_string).unwrap_or_default();
            super::Ui::data(format!("  {:<22} {help}", value.get_name()));
        }
    }
    lines::<Behaviour>("servers");
    lines::<End>("ends of the owner");
}
