//! `toolcrib-lab`: checks the promises of toolcrib, and compares its speed with that of other clients.
//!
//! `README.md` beside this says what each part is for.

mod bench;
mod conformance;
mod context;
mod fakes;
mod mcp;
mod oddities;
#[cfg(target_os = "linux")]
mod proc;
#[cfg(target_os = "linux")]
mod torture;
mod ui;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::{Parser, Subcommand};
use toolcrib::CancellationToken;

use self::{context::Context, ui::Ui};

const AFTER_HELP: &str = "Exit codes:
  0 ok      1 a promise is broken, or a target is missed with --check      2 usage      3 configuration
  4 a server could not be started      9 a process survived      130 Ctrl-C      143 SIGTERM";

/// The laboratory of toolcrib: teardown trials, and measurements against baselines.
///
/// Measurements of your own servers are in toolcrib itself: `toolcrib bench init` and `toolcrib bench call`.
#[derive(Parser)]
#[command(name = "toolcrib-lab", version, after_help = AFTER_HELP, max_term_width = 100)]
struct Arguments {
    /// A servers.toml, for `bench spares` and `bench agents --configured` [default: as toolcrib finds it].
    #[arg(long, short = 'c', global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print one JSON document to stdout.
    #[arg(long, global = true)]
    json: bool,
    /// Say nothing about what worked.
    #[arg(long, short, global = true)]
    quiet: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure toolcrib, and count what it promises.
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Be the client that the official conformance suite tests (tests/conformance/run.sh starts the suite).
    #[command(hide = true)]
    ConformanceClient(conformance::ConformanceClient),
    /// Send random oddities as a tool server, a model endpoint and a client: what do they cost?
    Oddities(oddities::Oddities),
    /// Score a teardown: servers that are hard to end, times ways for their owner to end. Which processes survive?
    #[cfg(target_os = "linux")]
    Torture(torture::Torture),
    /// Be the owner of a server in `torture`.
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    TortureOwner(torture::TortureOwner),
}

/// Parses, runs, and turns the outcome into an exit code.
fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let ui = Ui { json: arguments.json, quiet: arguments.quiet };
    let command = arguments.command;
    // It has a runtime of its own: how it ends is its purpose.
    #[cfg(target_os = "linux")]
    let command = match command {
        Command::TortureOwner(owner) => return owner.run(),
        command => command,
    };
    toolcrib::cli_support::reset_inherited(true);
    // One thread, as the command line of toolcrib has.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return ui.fail(&error.into()),
    };
    let cancel = CancellationToken::new();
    let context = Context { config: arguments.config, ui: &ui, cancel: cancel.clone() };
    let running = Box::pin(run(command, &context));
    let outcome = runtime.block_on(context::until_killed(running, &cancel, &ui));
    let code = outcome.unwrap_or_else(|error| ui.fail(&error));
    runtime.shutdown_timeout(Duration::from_millis(100));
    code
}

async fn run(command: Command, context: &Context<'_>) -> anyhow::Result<ExitCode> {
    match command {
        Command::Bench(bench) => bench.run(context).await,
        Command::ConformanceClient(client) => Box::pin(client.run(context)).await,
        Command::Oddities(oddities) => Box::pin(oddities.run(context)).await,
        #[cfg(target_os = "linux")]
        Command::Torture(torture) => torture.run(context).await,
        // Done without this runtime.
        #[cfg(target_os = "linux")]
        Command::TortureOwner(_) => Ok(ExitCode::SUCCESS),
    }
}
