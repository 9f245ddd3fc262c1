//! Arguments, and which command they start. Commands live in one file each and hold no logic that an
//! embedder of the library would miss.

mod bench;
mod builtin;
mod call;
mod chaos;
mod check;
mod config_warnings;
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
mod page;
mod proc;
mod progress;
mod ps;
mod report;
mod requests;
mod run;
mod tools;
#[cfg(feature = "top")]
mod top;
#[cfg(target_os = "linux")]
mod torture;
mod ui;
mod up;
mod warm;

use std::{path::PathBuf, process::ExitCode, time::Duration};

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
    let context = Context { config: arguments.config.clone(), ui: &ui, cancel: CancellationToken::new() };
    if let Some(outcome) = at_once(&arguments.command, &context) {
        return outcome.unwrap_or_else(|error| ui.fail_any(&error));
    }
    reserve_descriptors();
    // One thread for all that waits, as nearly all here does. Measured against one for each core: a fifth less work for
    // a model request, and a thousand at once open the thousand connections that they need at the first time. What
    // computes (long results, pages, rules of files) has threads of its own.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return ui.fail(&toolcrib::Error::io("could not start the runtime", error)),
    };
    let code = runtime.block_on(run(arguments, &ui));
    // Blocking reads of stdin must not keep a finished program.
    runtime.shutdown_timeout(Duration::from_millis(100));
    code
}

/// Makes room for 4096 descriptors while there is one thread only. Linux doubles the table as it fills, and where
/// threads share it, all that open something wait 10 to 20 ms each time (`synchronize_rcu`): 40 ms of a thousand model
/// requests at once.
fn reserve_descriptors() {
    let allowed = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let last = allowed.unwrap_or(u64::MAX).min(4096).saturating_sub(1);
    // Without room all goes on as well, only later.
    drop(rustix::io::fcntl_dupfd_cloexec(std::io::stderr(), last.try_into().unwrap_or(0)));
}

/// Commands that only ask the daemon: no runtime is started for them, and Ctrl-C ends them as any program. The
/// daemon notices, and gives up what they asked for.
fn at_once(command: &Command, context: &Context<'_>) -> Option<anyhow::Result<ExitCode>> {
    match command {
        Command::Up(up) => up.run_detached(context),
        Command::Down(down) => Some(down.run(context)),
        Command::Ps(ps) => Some(ps.run(context)),
        Command::Start(servers) => Some(servers.start(context)),
        Command::Stop(servers) => Some(servers.stop(context)),
        Command::Restart(servers) => Some(servers.restart(context)),
        Command::Wait(wait) => Some(wait.run(context)),
        Command::Logs(logs) => Some(logs.run(context)),
        Command::Connect(connect) => Some(connect.run(context)),
        Command::Call(call) => call.through_daemon(context).transpose(),
        Command::Tools(tools) => tools.through_daemon(context).transpose(),
        Command::Report(report) => Some(report.run(context)),
        Command::Run(run) => run.look_for_daemon(context).err().map(Err),
        _ => None,
    }
}

async fn run(arguments: Arguments, ui: &Ui) -> ExitCode {
    let cancel = CancellationToken::new();
    let context = Context { config: arguments.config, ui, cancel: cancel.clone() };
    let command = async {
        match arguments.command {
            Command::Up(up) => up.run(&context).await,
            Command::Tools(tools) => tools.run(&context).await,
            Command::Run(run) => run.run(&context).await,
            Command::Demo(demo) => demo.run(&context).await,
            Command::Call(call) => call.run(&context).await,
            Command::Lock(lock) => lock.run(&context).await,
            Command::Check(check) => check.run(&context).await,
            Command::Warm(warm) => warm.run(&context).await,
            Command::Doctor(doctor) => doctor.run(&context).await,
            Command::Import(import) => import.run(&context),
            Command::Bench(bench) => Box::pin(bench.run(&context)).await,
            #[cfg(target_os = "linux")]
            Command::Torture(torture) => torture.run(&context).await,
            Command::Builtin(builtin) => builtin.run(&context).await,
            Command::Daemon(daemon) => daemon.run(&context).await,
            #[cfg(feature = "top")]
            Command::Top => top::run(&context).await,
            // Done without a runtime.
            Command::Down(_)
            | Command::Ps(_)
            | Command::Start(_)
            | Command::Stop(_)
            | Command::Restart(_)
            | Command::Wait(_)
            | Command::Logs(_)
            | Command::Report(_)
            | Command::Connect(_) => Ok(ExitCode::SUCCESS),
        }
    };
    let outcome = match context::until_killed(Box::pin(command), &cancel, ui).await {
        // Everything was dropped, and with it every process was killed.
        Err(signal) => return signal.code(),
        Ok((outcome, signal)) => match (outcome, signal) {
            (Ok(_), Some(signal)) => return signal.code(),
            (outcome, _) => outcome,
        },
    };
    match outcome {
        Ok(code) => code,
        Err(error) => ui.fail_any(&error),
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
