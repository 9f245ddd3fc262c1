//! Does the work of a first start ahead of time: packages are installed, and the programs of their runners are found
//! out, so that the next start is direct.

use std::{sync::Arc, time::Duration};

use serde::Serialize;

use super::Manager;
use crate::{
    config::{Config, Endpoint, StdioConfig},
    error::Error,
    launch::{Freshness, LaunchReport, Launcher, Runner},
    process::find_program,
    start::ReadyServer,
    tool::ServerName,
};

/// The result of warming one server.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Warmed {
    /// The name of the server.
    pub name: ServerName,
    /// The package runner of its command. `None`: it has none, and there was nothing to do.
    pub runner: Option<&'static str>,
    /// Whether its package was installed, or renewed, by this.
    pub installed: bool,
    /// The command that the runner starts, up to the arguments of the configuration. `None`: unknown.
    pub program: Option<Vec<String>>,
    /// The start through the runner with everything installed.
    #[serde(rename = "runner_ms", with = "crate::task::millis::optional")]
    pub through: Option<Duration>,
    /// The start without the runner.
    #[serde(rename = "direct_ms", with = "crate::task::millis::optional")]
    pub directly: Option<Duration>,
    /// Why it is not started directly.
    pub doubt: Option<String>,
    /// Why it could not be started at all.
    #[serde(skip)]
    pub error: Option<Arc<Error>>,
}

impl Manager {
    /// Starts one server of `config` through its package runner, with time to install; keeps what the runner came
    /// to; and starts it directly, for the difference. Everything is stopped again. A server without a runner is
    /// not started. Dropping the future ends all that it has started.
    ///
    /// # Errors
    /// [`Error::TeardownIncomplete`] when a process is left. That the server does not start is part of the report.
    pub async fn warm(config: &Config, name: &ServerName) -> Result<Warmed, Error> {
        let mut warmed = Warmed {
            name: name.clone(),
            runner: None,
            installed: false,
            program: None,
            through: None,
            directly: None,
            doubt: None,
            error: None,
        };
        let server = match config.servers.get(name).map(|entry| entry.server.clone()) {
            Some(Ok(server)) => server,
            Some(Err(error)) => return Ok(Warmed { error: Some(error), ..warmed }),
            None => return Err(config.no_server(name.as_str())),
        };
        let Endpoint::Stdio(spec) = &server.endpoint else { return Ok(warmed) };
        let Some(runner) = Runner::of(&spec.command, &spec.args) else { return Ok(warmed) };
        warmed.runner = Some(runner.name);
        let mut alone = Config::new([server.clone()]);
        alone.guard.clone_from(&config.guard);
        alone.cache_folder.clone_from(&config.cache_folder);
        alone.secrets = config.secrets.clone();
        let mut patient = alone.clone();
        let limit = match spec.has_network() {
            true => server.startup_timeout.max(server.install_timeout),
            false => server.startup_timeout,
        };
        patient.servers[name].server =
            Ok(crate::config::ServerConfig { startup_timeout: limit, ..server.clone() });
        warmed.doubt = why_not(config, spec, &runner);
        let program = find_program(spec).ok();
        // Once more when the first start installed: what that took tells nothing about the later ones.
        for _ in 0..2 {
            if let Some(program) = &program {
                Launcher::new(config.cache_folder.as_deref()).forget(spec, program);
            }
            let ready = match start_and_stop(&patient).await? {
                Ok(ready) => ready,
                Err(error) => return Ok(Warmed { error: Some(error), ..warmed }),
            };
            let took = ready.phases.total();
            let Some(LaunchReport { program, installed, doubt, .. }) = ready.launch else {
                return Ok(warmed);
            };
            warmed.program = program;
            warmed.doubt = doubt;
            warmed.through = Some(took).filter(|_| !installed);
            warmed.installed |= installed;
            if !installed {
                break;
            }
        }
        if warmed.doubt.is_none() {
            match start_and_stop(&alone).await? {
                Ok(ready) => match ready.launch {
                    Some(LaunchReport { direct: true, .. }) => warmed.directly = Some(ready.phases.total()),
                    Some(LaunchReport { failed: Some(why), .. }) => {
                        warmed.doubt = Some(format!("without its runner it {why}"));
                    }
                    _ => warmed.doubt = Some("its files change with each start".to_owned()),
                },
                Err(error) => warmed.error = Some(error),
            }
        }
        Ok(warmed)
    }
}

/// A reason against a direct start that is known before anything was looked at.
fn why_not(config: &Config, spec: &StdioConfig, runner: &Runner) -> Option<String> {
    let why = match (spec.direct, runner.freshness, &config.cache_folder) {
        _ if spec.sandbox.is_some() => "in a sandbox it starts through its runner each time",
        (false, ..) => "`direct` is false",
        (_, Freshness::Newest, _) => "it may start another program each time",
        (_, _, None) => "there is no folder for caches: neither XDG_CACHE_HOME nor HOME is set",
        _ => return None,
    };
    Some(why.to_owned())
}

/// The one server of `config`, up and down again.
async fn start_and_stop(config: &Config) -> Result<Result<ReadyServer, Arc<Error>>, Error> {
    let manager = Manager::start(config).await?;
    let outcome = manager.report().servers.first().map(|row| row.outcome.clone());
    let stopped = manager.shutdown().await;
    match stopped.survivors.as_slice() {
        [] => Ok(outcome.unwrap_or_else(|| Err(Arc::new(Error::Cancelled)))),
        pids => Err(Error::TeardownIncomplete { pids: pids.to_vec() }),
    }
}
