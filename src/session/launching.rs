//! Connecting to a server whose command is a package runner: without the runner where what it starts is known, else
//! through it, with a look at what that was.

use super::{
    Surroundings,
    connect::{Connection, OnProcess, connect_as_configured},
    failure::Failure,
    handshake::Era,
};
use crate::{
    config::{Endpoint, ServerConfig, StdioConfig},
    launch::Launch,
    process::find_program,
};

/// Connects to `config`, within its start limit. Everything that was begun is ended before an error returns.
///
/// A server that is started without its runner and does not come up is started once more, through the runner, with
/// a limit of its own. One that only takes too long is not: its runner would not make it faster.
pub(super) async fn connect(
    config: &ServerConfig,
    around: &Surroundings,
    known: Option<Era>,
    on_process: OnProcess<'_>,
) -> Result<Connection, Failure> {
    let instead = |spec| ServerConfig { endpoint: Endpoint::Stdio(spec), ..config.clone() };
    let cached = match &config.endpoint {
        Endpoint::Stdio(spec) => around.launcher.with_caches(spec).map(instead),
        Endpoint::Http(_) | Endpoint::Builtin { .. } => None,
    };
    let config = cached.as_ref().unwrap_or(config);
    let Endpoint::Stdio(spec) = &config.endpoint else {
        return connect_as_configured(config, around, known, on_process).await;
    };
    let Some((launch, direct)) = plan(spec, around).await else {
        return connect_as_configured(config, around, known, on_process).await;
    };
    let mut failed = None;
    if let Some(direct) = direct {
        match connect_as_configured(&instead(direct), around, known, on_process).await {
            Ok(mut connection) => {
                connection.launch = Some(launch.report());
                return Ok(connection);
            }
            Err(failure) => {
                launch.forget();
                if failure.is_timeout() {
                    return Err(failure);
                }
                let why = failure.in_short().to_owned();
                tracing::warn!(server = %config.name, %why, "did not come up without its runner");
                failed = Some(why);
            }
        }
    }
    let mut connection = connect_as_configured(config, around, known, on_process).await?;
    if let Some(process) = &connection.process {
        let (pid, input, took) = (process.pid(), process.input_id(), connection.phases.total());
        let (spec, secrets) = (spec.clone(), around.kin.secrets.clone());
        let looking = move || launch.observe(&spec, &secrets, pid, input, took);
        connection.launch = tokio::task::spawn_blocking(looking).await.ok().map(|mut report| {
            report.failed = failed;
            report
        });
    }
    Ok(connection)
}

/// What is known of `spec`, and what is to be started in its place. Nothing when it is no runner, or always to be
/// left to it.
async fn plan(spec: &StdioConfig, around: &Surroundings) -> Option<(Launch, Option<StdioConfig>)> {
    // Of many servers that start at once, those that have no runner are not to wait for a thread each.
    if !around.launcher.concerns(spec) {
        return None;
    }
    let program = find_program(spec).ok()?;
    let (launcher, spec) = (around.launcher.clone(), spec.clone());
    let looking = move || {
        let launch = launcher.plan(&spec, &program)?;
        let direct = launch.direct(&spec);
        Some((launch, direct))
    };
    tokio::task::spawn_blocking(looking).await.ok().flatten()
}
