//! Arguments, and which command they start. A command is a file of its own, a variant of [`Command`] and its line in
//! [`Command::run`]; it holds no logic that an embedder of the library would miss.

mod bench;
mod builtin;
mod call;
mod chaos;
mod check;
mod connect;
mod context;
mod control;
mod daemon;
mod daemon_args;
mod demo;
mod doctor;
mod down;
mod events;
mod heartbeat;
mod import;
mod lock;
mod log;
mod logs;
mod memory;
mod output;
mod proc;
mod progress;
mod ps;
mod report;
mod run;
mod tools;
#[cfg(feature = "top")]
mod top;
#[cfg(target_os = "linux")]
mod torture;
mod ui;
mod up;
mod warm;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand, builder::styling};
use tokio_util::sync::CancellationToken;

use self::{context::Context, ui::Ui};

const STYLES: styling::Styles = styling::Styles::styled()
    .header(styling::AnsiColor::Green.on_default().bold())
    .usage(styling::AnsiColor::Green.on_default().bold())
    .literal(styling::AnsiColor::Cyan.on_default().bold());

const AFTER_HELP: &str = "Exit codes:
  0 ok            2 usage, or arguments refused by the tool's schema    3 configuration
  4 a required server is not available      5 the tool said it failed    6 no such server or tool, or it is denied
  7 timeout       8 a server broke the protocol     9 a process survived teardown
  10 the tools or the package of a server are not those of toolcrib.lock
  78 no model is configured     100 some tasks failed     101 some tasks errored
  130 Ctrl-C      143 SIGTERM   1 anything else

Environment variables:
  TOOLCRIB_LOG=toolcrib=debug   what happens inside (RUST_LOG is not read)
  TOOLCRIB_CONFIG=FILE          as --config
  TOOLCRIB_DAEMON=1             as --daemon, for the commands that have it
  NO_COLOR=1                    no colours";

/// Process manager for MCP tool servers: starts them all at once, keeps one session with each, runs agent
/// tasks on them, and leaves no process behind.
#[derive(Parser)]
#[command(name = "toolcrib", version, styles = STYLES, after_help = AFTER_HELP, max_term_width = 100)]
struct Arguments {
    /// The configuration file [default: servers.toml here, or above it in the same git repository].
    #[arg(long, short = 'c', global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print one JSON document to stdout (`up`: one event a line).
    #[arg(long, global = true)]
    json: bool,
    /// Say nothing about what worked.
    #[arg(long, short, global = true)]
    quiet: bool,
    /// Colours: also off with NO_COLOR.
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN")]
    color: ui::Color,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start all servers, show each as it becomes ready, and keep them until Ctrl-C.
    Up(up::Up),
    /// Stop the daemon and every process that it owns, and look whether anything is left.
    Down(down::Down),
    /// Show how the daemon's servers are: state, processes, calls, times.
    Ps(ps::Ps),
    /// Start servers of the daemon that were stopped or have failed.
    Start(control::Servers),
    /// Stop servers of the daemon; they stay stopped until `start` of them or `up -d`.
    Stop(control::Servers),
    /// Restart servers of the daemon, whatever their state.
    Restart(control::Servers),
    /// Wait until servers of the daemon are ready (exit 0), or will not be (exit 4). One that is parked is ready: a
    /// call starts it.
    Wait(control::Wait),
    /// Show what the daemon's servers wrote to stderr, and what happened to them.
    Logs(logs::Logs),
    /// Serve the daemon's tools over stdin and stdout, for MCP clients that can only start a command. A daemon that
    /// this starts stays for later clients, and ends after 30 minutes without any. What a server reports of the progress
    /// of a call reaches the client that asked for it.
    Connect(connect::Connect),
    /// Watch the daemon's servers on the whole terminal, with what happens to them; `q` quits.
    #[cfg(feature = "top")]
    Top,
    /// Show the tools of the servers.
    Tools(tools::Tools),
    /// Run a question or a file of tasks: a model asks for tools, they are called, a report comes back.
    Run(run::Run),
    /// Show a run as one HTML file: what was slow, what went wrong, every task to scale.
    Report(report::Report),
    /// Run shipped tasks on the built-in servers, with a scripted model: no key, no network.
    Demo(demo::Demo),
    /// Call one tool.
    Call(call::Call),
    /// Write down the tools of all servers in toolcrib.lock, or show what changed since.
    ///
    /// The file has what a model is told of each tool, as a hash and as text for those who review it, their order, and the package that a server is started
    /// from with its installed version: of npm or PyPI, by its own command, `python -m` or a runner (npx, uvx, ...).
    /// With `--locked`, `up`, `run`, `call` and `tools` refuse a server whose tools are new or changed, and one whose
    /// package is another or of another version (exit code 10): install the reviewed version, or accept this one with
    /// `toolcrib lock`. A package is looked at before the server is started; behind a runner that starts something for
    /// the first time, once it answers. One that cannot be told on this machine, or that an older lockfile does not
    /// have, is not refused.
    Lock(lock::Lock),
    /// Start every server once, say what works and what does not, and stop them.
    Check(check::Check),
    /// Install the packages of servers and find out what their runners (npx, uvx, ...) start, ahead of time.
    Warm(warm::Warm),
    /// Say what this machine can do for servers, and what stands in the way of each.
    Doctor(doctor::Doctor),
    /// Print the servers of another tool's configuration as servers.toml.
    Import(import::Import),
    /// Measure.
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Score a teardown: servers that are hard to end, times ways for their owner to end. Who survives?
    #[cfg(target_os = "linux")]
    Torture(torture::Torture),
    /// Serve a built-in tool server over stdin and stdout: time, files, calc, search, fetch, chaos, or floor.
    Builtin(builtin::Builtin),
    /// Be the daemon: `up -d` starts it.
    #[command(hide = true)]
    Daemon(daemon::Daemon),
}

/// Parses, runs, and turns the outcome into an exit code.
pub(crate) fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    if let Some(code) = torture::play_part() {
        return code;
    }
    if let Some(code) = bench::floor::play_part() {
        return code;
    }
    // The daemon has no terminal. Whoever starts it has what it was given by others: nothing of that is for servers.
    #[cfg(target_os = "linux")]
    toolcrib::reset_inherited(std::env::args_os().nth(1).is_none_or(|command| command != "daemon"));
    let arguments = Arguments::parse();
    arguments.color.apply();
    let ui = Ui::new(arguments.json, arguments.quiet);
    #[cfg(feature = "top")]
    let full_screen = matches!(arguments.command, Command::Top);
    #[cfg(not(feature = "top"))]
    let full_screen = false;
    if let Err(error) = log::start(full_screen) {
        return ui.fail(&error);
    }
    let context = Context { config: arguments.config, ui: &ui, cancel: CancellationToken::new() };
    arguments.command.run(&context).unwrap_or_else(|error| ui.fail_any(&error))
}

impl Command {
    /// Runs the command. One that only asks the daemon needs no runtime: Ctrl-C ends it as any program, and the daemon
    /// notices, and gives up what it asked for.
    fn run(self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        match self {
            Self::Up(up) => up.run(context),
            Self::Down(down) => down.run(context),
            Self::Ps(ps) => ps.run(context),
            Self::Start(servers) => servers.start(context),
            Self::Stop(servers) => servers.stop(context),
            Self::Restart(servers) => servers.restart(context),
            Self::Wait(wait) => wait.run(context),
            Self::Logs(logs) => logs.run(context),
            Self::Connect(connect) => connect.run(context),
            #[cfg(feature = "top")]
            Self::Top => context.in_runtime(top::run(context)),
            Self::Tools(tools) => tools.run(context),
            Self::Run(run) => run.run(context),
            Self::Report(report) => report.run(context),
            Self::Demo(demo) => context.in_runtime(demo.run(context)),
            Self::Call(call) => call.run(context),
            Self::Lock(lock) => context.in_runtime(lock.run(context)),
            Self::Check(check) => context.in_runtime(check.run(context)),
            Self::Warm(warm) => context.in_runtime(warm.run(context)),
            Self::Doctor(doctor) => context.in_runtime(doctor.run(context)),
            Self::Import(import) => import.run(context),
            Self::Bench(bench) => context.in_runtime(bench.run(context)),
            #[cfg(target_os = "linux")]
            Self::Torture(torture) => context.in_runtime(torture.run(context)),
            Self::Builtin(builtin) => context.in_runtime(builtin.run(context)),
            Self::Daemon(daemon) => context.in_runtime(daemon.run(context)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{any::TypeId, num::NonZeroUsize};

    use clap::{Arg, Command, CommandFactory};

    use super::*;

    /// Every option of a command and those below it that takes a number from 1, with the words that lead to it.
    fn counts(command: &Command, words: &[String]) -> Vec<Vec<String>> {
        let is_count = |arg: &&Arg| arg.get_value_parser().type_id() == TypeId::of::<NonZeroUsize>();
        let own = command.get_arguments().filter(is_count).filter_map(|arg| arg.get_long());
        let own = own.map(|long| [words, &[format!("--{long}")]].concat());
        let below = command
            .get_subcommands()
            .flat_map(|command| counts(command, &[words, &[command.get_name().to_owned()]].concat()));
        own.chain(below).collect()
    }

    #[test]
    fn nothing_of_something_is_refused_in_words_of_our_own() {
        let options = counts(&Arguments::command(), &["toolcrib".to_owned()]);
        assert!(options.len() >= 20, "{options:?}");
        for option in options {
            for (value, words) in [("0", "must be at least 1"), ("x", "is not a whole number from 1")] {
                let typed = [&option[..], &[value.to_owned()]].concat();
                let error = Arguments::try_parse_from(&typed).err().map(|error| error.to_string());
                let error = error.unwrap_or_else(|| panic!("{typed:?} was taken"));
                assert!(error.contains(words), "{typed:?}: {error}");
            }
        }
    }
}
