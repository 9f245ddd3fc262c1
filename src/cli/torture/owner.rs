//! `toolcrib torture-owner`: a program that starts one server with the library and ends in a chosen way.

use std::{io::Write, path::PathBuf, process::ExitCode, time::Duration};

use clap::{Args, ValueEnum};
use tokio::runtime::Runtime;
use toolcrib::{Config, Endpoint, Guard, Manager, ServerConfig, ServerName, StdioConfig};

use super::server::MARK;

/// How the owner of a server ends. Each is a column of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum End {
    /// The manager is dropped; the program goes on.
    Drop,
    /// The manager is asked to shut down, and is waited for; the program goes on.
    Cancel,
    /// `main` returns while the manager is there.
    Return,
    /// The manager is leaked, then `main` returns.
    Leak,
    /// The runtime is dropped before the manager.
    RuntimeFirst,
    /// A panic unwinds through `main`.
    Panic,
    /// `exit` is called: no destructor runs.
    Exit,
    /// `abort` is called.
    Abort,
    /// SIGTERM with nobody to catch it.
    Sigterm,
    /// SIGINT with nobody to catch it.
    Sigint,
    /// SIGKILL.
    Sigkill,
}

impl End {
    /// The head of its column.
    pub(super) fn head(self) -> &'static str {
        match self {
            Self::Drop => "drop",
            Self::Cancel => "cancel",
            Self::Return => "return",
            Self::Leak => "leak",
            Self::RuntimeFirst => "rt1st",
            Self::Panic => "panic",
            Self::Exit => "exit",
            Self::Abort => "abort",
            Self::Sigterm => "TERM",
            Self::Sigint => "INT",
            Self::Sigkill => "KILL",
        }
    }

    /// What the owner is to be sent, if it does not end by itself.
    pub(super) fn signal(self) -> Option<rustix::process::Signal> {
        use rustix::process::Signal;
        match self {
            Self::Sigterm => Some(Signal::TERM),
            Self::Sigint => Some(Signal::INT),
            Self::Sigkill => Some(Signal::KILL),
            _ => None,
        }
    }
}

#[derive(Args)]
pub(in crate::cli) struct TortureOwner {
    #[arg(long, value_enum)]
    end: End,
    #[arg(long)]
    no_guard: bool,
    /// The server's command line.
    #[arg(last = true, required = true)]
    server: Vec<String>,
}

impl TortureOwner {
    /// Before a runtime and signal handlers are there: this program brings its own, and none.
    pub(in crate::cli) fn run(self) -> ExitCode {
        match self.live() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                let _ = writeln!(std::io::stderr(), "{error:#}");
                ExitCode::FAILURE
            }
        }
    }

    #[expect(clippy::panic, reason = "one of the ways to end")]
    #[expect(clippy::disallowed_methods, reason = "one of the ways to end")]
    fn live(self) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let manager = runtime.block_on(start(self.server, self.no_guard))?;
        say("ready")?;
        match self.end {
            End::Drop => {
                let _inside = runtime.enter();
                drop(manager);
                go_on(&runtime)?;
            }
            End::Cancel => {
                runtime.block_on(manager.shutdown());
                go_on(&runtime)?;
            }
            End::Return => runtime.block_on(async { drop(manager) }),
            End::Leak => std::mem::forget(manager),
            End::RuntimeFirst => {
                drop(runtime);
                drop(manager);
            }
            End::Panic => runtime.block_on(async {
                let _manager = manager;
                panic!("on purpose");
            }),
            End::Exit => std::process::exit(3),
            End::Abort => std::process::abort(),
            End::Sigterm | End::Sigint | End::Sigkill => runtime.block_on(std::future::pending()),
        }
        Ok(())
    }
}

async fn start(server: Vec<String>, no_guard: bool) -> anyhow::Result<Manager> {
    let [program, arguments @ ..] = &server[..] else { anyhow::bail!("there is no command") };
    let mut command = StdioConfig::new(PathBuf::from(program), arguments.to_vec(), std::env::temp_dir());
    for name in ["PATH", "TMPDIR", MARK] {
        command.env.extend(std::env::var(name).map(|value| (name.to_owned(), value)));
    }
    let name = ServerName::new("server").map_err(anyhow::Error::msg)?;
    let mut config = ServerConfig::new(name, Endpoint::Stdio(command));
    config.stop.eof = Duration::from_millis(500);
    config.stop.term = Duration::from_millis(500);
    let mut config = Config::new([config]);
    // What the owners of other cells left behind is to be counted, not ended.
    config.reap_leftovers = false;
    if no_guard {
        config.guard = Guard::Off;
    }
    let manager = Manager::start(&config).await?;
    for row in &manager.report().servers {
        if let Err(error) = &row.outcome {
            anyhow::bail!("{error}: {}", error.causes().join("; "));
        }
    }
    manager.call("server", "echo", serde_json::Map::new()).await?;
    Ok(manager)
}

fn say(word: &str) -> anyhow::Result<()> {
    writeln!(std::io::stdout(), "{word}")?;
    Ok(())
}

/// The end has come; the program is there still, until it is killed.
fn go_on(runtime: &Runtime) -> anyhow::Result<()> {
    say("ended")?;
    runtime.block_on(std::future::pending())
}
