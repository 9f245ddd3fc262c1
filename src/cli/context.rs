//! What every command needs: the configuration, the running servers, and an end that is always a teardown.

use std::{
    future::Future,
    ops::ControlFlow,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use toolcrib::{Config, Env, Error, ErrorCode, HttpClients, Manager, ServerEvent, StopReport};

use super::{
    output,
    ui::{Ui, exit_code},
};

/// What every command is given.
pub(super) struct Context<'a> {
    pub(super) config: Option<PathBuf>,
    pub(super) ui: &'a Ui,
    pub(super) cancel: CancellationToken,
}

/// Whether servers must have the tools that were reviewed.
#[derive(clap::Args, Clone, Copy)]
pub(super) struct Locked {
    /// Refuse servers with tools that toolcrib.lock does not have, or has otherwise, and those that come from another
    /// version of their package.
    #[arg(long)]
    locked: bool,
}

impl Locked {
    pub(super) fn is_set(self) -> bool {
        self.locked
    }

    pub(super) fn apply(self, config: &mut Config) {
        if self.locked {
            config.lock_file = config.lock_path();
        }
    }
}

/// The signal that ended the program.
#[derive(Clone, Copy)]
pub(super) enum Ended {
    Interrupt,
    Terminate,
}

impl Ended {
    pub(super) fn code(self) -> ExitCode {
        ExitCode::from(match self {
            Self::Interrupt => 130,
            Self::Terminate => 143,
        })
    }
}

/// Runs `command`. The first signal cancels `cancel`, and the command ends in its own time; the second one
/// drops the command, which kills every process it owns.
pub(super) async fn until_killed<T>(
    mut command: impl Future<Output = T> + Unpin,
    cancel: &CancellationToken,
    ui: &Ui,
) -> Result<(T, Option<Ended>), Ended> {
    let mut interrupt = signal(SignalKind::interrupt()).ok();
    let mut terminate = signal(SignalKind::terminate()).ok();
    // `nohup` has it ignored: to listen would undo that.
    let mut hangup = (!toolcrib::ignores_hangup()).then(|| signal(SignalKind::hangup()).ok()).flatten();
    let mut next = async || {
        let wait = async |signal: &mut Option<tokio::signal::unix::Signal>| match signal {
            Some(signal) => drop(signal.recv().await),
            None => std::future::pending().await,
        };
        tokio::select! {
            () = wait(&mut interrupt) => Ended::Interrupt,
            () = wait(&mut terminate) => Ended::Terminate,
            () = wait(&mut hangup) => Ended::Terminate,
        }
    };
    let first = tokio::select! {
        outcome = &mut command => return Ok((outcome, None)),
        first = next() => first,
    };
    ui.status("Stopping", "(a second Ctrl-C kills everything at once)");
    cancel.cancel();
    tokio::select! {
        outcome = command => Ok((outcome, Some(first))),
        again = next() => Err(again),
    }
}

impl Context<'_> {
    /// The configuration, with what imports did not understand as warnings.
    pub(super) fn load(&self) -> Result<Config, Error> {
        self.load_from(self.config.as_deref())
    }

    /// The same of another file than that of `--config`.
    pub(super) fn load_from(&self, file: Option<&Path>) -> Result<Config, Error> {
        let config = Config::load(file, &Env::process())?;
        output::learn(&config.secrets);
        for note in &config.notes {
            self.ui.warn(note);
        }
        Ok(config)
    }

    /// Keeps only the servers that `names` match as patterns; all of them when there are none.
    pub(super) fn narrow(config: &mut Config, names: &[String]) -> Result<(), Error> {
        let kept: std::collections::HashSet<_> = config.select(names)?.into_iter().collect();
        config.servers.retain(|name, _| kept.contains(name));
        Ok(())
    }

    /// Starts the servers of `config`, telling `observe` what happens. Ctrl-C gives the start up, and takes back what
    /// was started.
    pub(super) async fn start(
        &self,
        config: &Config,
        observe: impl Fn(ServerEvent) + Send + Sync + 'static,
    ) -> Result<Manager, Error> {
        let http = HttpClients::new(&config.http)?;
        match Manager::start_until(config, http, Arc::new(observe), self.cancel.cancelled()).await? {
            ControlFlow::Continue(manager) => Ok(manager),
            ControlFlow::Break(report) => {
                self.ui.torn_down(&complete(report)?);
                Err(Error::Cancelled)
            }
        }
    }

    /// The rules of the configuration that concern no tool.
    pub(super) fn unused_rules(config: &Config, manager: &Manager) -> Vec<Arc<Error>> {
        manager.toolbox().unused_rules(config).into_iter().map(|rule| Arc::new(rule.into())).collect()
    }

    /// The exit code of a command that did all it could: `code`, unless the lockfile kept a server from starting.
    pub(super) fn exit_after(code: ExitCode, refused: Option<&Error>) -> ExitCode {
        refused.map_or(code, |error| ExitCode::from(exit_code(error)))
    }

    /// The first server that the lockfile kept from starting.
    pub(super) fn refused_by_lock(manager: &Manager) -> Option<Arc<Error>> {
        let errors = manager.report().servers.iter().filter_map(|row| row.outcome.as_ref().err());
        errors.into_iter().find(|error| is_refused_by_lock(error)).cloned()
    }

    /// Stops everything and turns survivors into an error.
    pub(super) async fn stop(&self, manager: Manager) -> Result<StopReport, Error> {
        complete(manager.shutdown().await)
    }
}

/// Whether the lockfile kept a server from starting.
pub(super) fn is_refused_by_lock(error: &Error) -> bool {
    matches!(error.code(), ErrorCode::ToolsChanged | ErrorCode::PackageChanged)
}

/// A teardown after which nothing is left.
fn complete(report: StopReport) -> Result<StopReport, Error> {
    match report.survivors.as_slice() {
        [] => Ok(report),
        pids => Err(Error::TeardownIncomplete { pids: pids.to_vec() }),
    }
}
