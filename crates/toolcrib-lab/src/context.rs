//! The context of every command, with a teardown at every end.

use std::{future::Future, path::PathBuf, process::ExitCode};

use tokio::signal::unix::{Signal, SignalKind, signal};
use toolcrib::CancellationToken;
use toolcrib::{Config, Env, Error, Manager, StartOptions};

use crate::ui::Ui;

/// Options and handles that every command is given.
pub(crate) struct Context<'a> {
    pub(crate) config: Option<PathBuf>,
    pub(crate) ui: &'a Ui,
    pub(crate) cancel: CancellationToken,
}

impl Context<'_> {
    /// The configuration, with what imports did not understand as warnings.
    pub(crate) fn load(&self) -> Result<Config, Error> {
        let config = Config::load(self.config.as_deref(), &Env::process())?;
        for note in &config.notes {
            self.ui.warn(note);
        }
        Ok(config)
    }

    /// Starts the servers of `config`. Ctrl-C gives the start up, and takes back what was started.
    pub(crate) async fn start(&self, config: &Config) -> Result<Manager, Error> {
        Manager::start_with(config, StartOptions::new().cancel(self.cancel.clone())).await
    }
}

/// Runs `command`. The first SIGINT or SIGTERM cancels `cancel`, and the command ends in its own time; the second one
/// drops the command, which kills every process it owns. After a signal the exit code is that of the signal.
pub(crate) async fn until_killed(
    mut command: impl Future<Output = anyhow::Result<ExitCode>> + Unpin,
    cancel: &CancellationToken,
    ui: &Ui,
) -> anyhow::Result<ExitCode> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let first = tokio::select! {
        outcome = &mut command => return outcome,
        first = next(&mut interrupt, &mut terminate) => first,
    };
    ui.status("Stopping", "(a second Ctrl-C kills everything at once)");
    cancel.cancel();
    tokio::select! {
        outcome = command => outcome.map(|_| first),
        again = next(&mut interrupt, &mut terminate) => Ok(again),
    }
}

/// The exit code of the next signal.
async fn next(interrupt: &mut Signal, terminate: &mut Signal) -> ExitCode {
    tokio::select! {
        _ = interrupt.recv() => ExitCode::from(130),
        _ = terminate.recv() => ExitCode::from(143),
    }
}
