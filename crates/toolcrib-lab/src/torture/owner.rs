//! `toolcrib-lab torture-owner`: a program that embeds this library, starts one server, and ends in a given way.
//!
//! It has no signal handler: what SIGTERM and SIGINT leave behind is what an embedder without one would see.

mod forking;

use std::{
    io::{self, Write},
    process::ExitCode,
    time::Duration,
};

use clap::Args;
use serde_json::Map;
use tokio::runtime::{Builder, Runtime};
use toolcrib::{
    Config, Endpoint, Error, Loan, Manager, ServerConfig, ServerName, StdioConfig,
    config::{Guard, TemplatePackages},
};

use toolcrib_fakes::servers::stubborn::TOOL;

use self::forking::Forking;
use super::ending::End;

/// The server's name.
const SERVER: &str = "tortured";
/// Each wait of the stop ladder.
const GRACE: Duration = Duration::from_millis(200);
/// How long a loaded machine may take to start one server.
const STARTUP: Duration = Duration::from_secs(60);
/// How long the program waits for its end from outside.
const LIFETIME: Duration = Duration::from_secs(600);

#[derive(Args)]
pub(crate) struct TortureOwner {
    /// How it ends.
    #[arg(long)]
    end: End,
    /// Whether servers run without a guard.
    #[arg(long)]
    no_guard: bool,
    #[command(flatten)]
    forking: Option<Forking>,
    /// The server's command line.
    #[arg(last = true, required = true)]
    server: Vec<String>,
}

/// The manager and the loans of an owner.
struct Owned {
    /// Dropped before the manager.
    loans: Vec<Loan>,
    manager: Manager,
}

impl TortureOwner {
    pub(crate) fn run(&self) -> ExitCode {
        let runtime = match Builder::new_multi_thread().worker_threads(2).enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return failed(&Error::io("could not start the runtime", error)),
        };
        match self.end(runtime) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => failed(&error),
        }
    }

    #[expect(clippy::disallowed_methods, reason = "destructors that do not run are the point")]
    fn end(&self, runtime: Runtime) -> Result<(), Error> {
        if self.end == End::RuntimeFirst {
            let owned = runtime.block_on(self.start())?;
            drop(runtime);
            drop(owned);
            return Ok(());
        }
        runtime.block_on(async {
            let owned = self.start().await?;
            match self.end {
                End::Drop => drop(owned),
                End::Cancel => {
                    let Owned { loans, manager } = owned;
                    drop((manager.shutdown().await, loans));
                }
                End::Return | End::RuntimeFirst => return Ok(()),
                End::Leak => {
                    std::mem::forget(owned);
                    return Ok(());
                }
                End::Panic => panic!("on purpose, with a manager in scope"),
                End::Exit => std::process::exit(0),
                End::Abort => std::process::abort(),
                End::Sigterm | End::Sigint | End::Sigkill => {
                    tokio::time::sleep(LIFETIME).await;
                    return Ok(());
                }
            }
            say("ended")?;
            tokio::time::sleep(LIFETIME).await;
            Ok(())
        })
    }

    /// A manager whose server has answered a call.
    async fn start(&self) -> Result<Owned, Error> {
        if let Some(forking) = &self.forking {
            let owned = forking.start(&self.server).await?;
            say("ready")?;
            return Ok(owned);
        }
        let mut config = config_of(server(&self.server)?);
        if self.no_guard {
            config.guard = Guard::Off;
        }
        let manager = Manager::start(&config).await?;
        manager.call(SERVER, TOOL, Map::new()).await?;
        say("ready")?;
        Ok(Owned { loans: Vec::new(), manager })
    }
}

/// The server with that command line.
fn server(line: &[String]) -> Result<ServerConfig, Error> {
    let mut child = StdioConfig::new(&line[0], line[1..].to_vec(), "/");
    if let Ok(path) = std::env::var("PATH") {
        child.set_env("PATH", path);
    }
    child.template = TemplatePackages::All;
    let mut config = ServerConfig::new(ServerName::new(SERVER)?, Endpoint::Stdio(child));
    config.startup_timeout = STARTUP;
    (config.stop.eof, config.stop.term) = (GRACE, GRACE);
    Ok(config)
}

fn config_of(server: ServerConfig) -> Config {
    let mut config = Config::new([server]);
    // What the owners of other trials left behind is to be counted, not ended.
    config.reap_leftovers = false;
    config
}

fn say(word: &str) -> Result<(), Error> {
    writeln!(io::stdout(), "{word}").map_err(|error| Error::io("could not write", error))
}

fn failed(error: &Error) -> ExitCode {
    let lines = std::iter::once(error.to_string()).chain(error.causes());
    let lines: Vec<String> = lines.chain(error.stderr_tail().iter().cloned()).collect();
    let _ = writeln!(io::stderr(), "{}", lines.join("\n"));
    ExitCode::FAILURE
}
