//! Connects to a server whose command may be a package runner: without the runner where its program is known, else
//! through it, with a look at what that was; and not at all if its package is not the one of the lockfile.

use super::{
    ConnectRequest, Connection, OnProcess, StartHints,
    accept_tools::ToolListCheck,
    connect_as_configured,
    failure::{Cause, Failure, OtherPackage},
    handshake::Era,
};
use crate::session::{ConnectContext, Session, recovery::slot::State};
use crate::{
    config::{Endpoint, ServerConfig, StdioConfig},
    error::Phase,
    launch::{Launch, Launcher, Runner, RunnerProcess},
    package::Package,
    process::{Process, find_program},
};

/// Connects to `config`, within its start limit. Everything that was begun is ended before an error returns, which
/// holds no secret.
pub(in crate::session) async fn connect(
    config: &ServerConfig,
    connect_context: &ConnectContext,
    known: Option<Era>,
    on_process: OnProcess<'_>,
    hints: StartHints<'_>,
) -> Result<Connection, Failure> {
    // By the server as it is configured, which is all that is known of it while it is parked.
    let list_check = &ToolListCheck::new(config, connect_context);
    let configured = config;
    let request =
        ConnectRequest { config, configured, connect_context, list_check, known, on_process, hints };
    connect_reviewed(request).await.map_err(|failure| failure.without(&connect_context.secrets))
}

async fn connect_reviewed(request: ConnectRequest<'_>) -> Result<Connection, Failure> {
    let ConnectRequest { config, connect_context, .. } = request;
    let cached = match &config.endpoint {
        Endpoint::Stdio(spec) => connect_context.launcher.with_caches(spec).map(|spec| config.starting(spec)),
        Endpoint::Http(_) | Endpoint::Builtin { .. } | Endpoint::Local(_) => None,
    };
    let config = cached.as_ref().unwrap_or(config);
    let request = request.with(config);
    let Endpoint::Stdio(spec) = &config.endpoint else { return connect_as_configured(request).await };
    let Some(review) = Review::of(config, spec, connect_context) else {
        return start(spec, request).await;
    };
    // Checked before the start, so that no unreviewed package runs, as far as the package is known.
    review.check(None).await.map_err(|other| Failure::other_package(&other))?;
    let connection = start(spec, request).await?;
    let direct = connection.launch.as_ref().is_some_and(|launch| launch.direct);
    let Some(process) = connection.process.as_ref().filter(|_| review.by_runner && !direct) else {
        return Ok(connection);
    };
    // And after: a runner starts what it likes.
    match review.check(Some(live(process))).await {
        Ok(()) => Ok(connection),
        Err(other) => {
            let Connection { process, health, .. } = connection;
            let cause = Cause::OtherPackage(other);
            Err(match process {
                Some(process) => Failure::of_process(process, &health, Phase::Spawn, cause, config).await,
                None => Failure::without_process(Phase::Spawn, cause, config),
            })
        }
    }
}

/// A server's package in the lockfile, and how the server is launched.
struct Review {
    locked: Package,
    launcher: Launcher,
    spec: StdioConfig,
    by_runner: bool,
}

impl Review {
    /// `None`: the lockfile is not in use, or does not have the package.
    fn of(config: &ServerConfig, spec: &StdioConfig, connect_context: &ConnectContext) -> Option<Self> {
        let locked = connect_context.lock.as_ref()?.package(&config.name)?.clone();
        let by_runner = Runner::of(&spec.command, &spec.args).is_some();
        Some(Self { locked, launcher: connect_context.launcher.clone(), spec: spec.clone(), by_runner })
    }

    /// # Errors
    /// It is another package. An unknown package does not count.
    async fn check(&self, live: Option<RunnerProcess>) -> Result<(), Box<OtherPackage>> {
        let (launcher, spec) = (self.launcher.clone(), self.spec.clone());
        let installed = tokio::task::spawn_blocking(move || launcher.package(&spec, live)).await;
        match installed.ok().flatten().filter(|installed| *installed != self.locked) {
            Some(installed) => Err(Box::new(OtherPackage { locked: self.locked.clone(), installed })),
            None => Ok(()),
        }
    }
}

/// The process of a runner, by which its program is found.
fn live(process: &Process) -> RunnerProcess {
    RunnerProcess { pid: process.pid(), input: process.input_id() }
}

impl Session {
    /// The installed package that the server is started from. `None`: it is from none, or this is unknown.
    pub async fn package(&self) -> Option<Package> {
        let live = match &*self.slot.state() {
            State::Ready { connection, .. } => connection.process.as_ref().map(live),
            State::Down { .. } | State::Closed => None,
        };
        let settings = self.settings();
        let Endpoint::Stdio(spec) = &settings.config.endpoint else { return None };
        let (launcher, spec) = (settings.connect_context.launcher.clone(), spec.clone());
        tokio::task::spawn_blocking(move || launcher.package(&spec, live)).await.ok().flatten()
    }
}

/// Starts `spec`, the process of the server. One that is started without its runner and does not come up is started
/// once more, through the runner, with a limit of its own. One that only takes too long is not: its runner would not
/// make it faster. Nor is one that the lockfile refuses.
async fn start(spec: &StdioConfig, request: ConnectRequest<'_>) -> Result<Connection, Failure> {
    let ConnectRequest { config, connect_context, .. } = request;
    let Some((launch, direct)) = plan(spec, connect_context).await else {
        return connect_as_configured(request).await;
    };
    let mut failed = None;
    if let Some(direct) = direct {
        let direct = config.starting(direct);
        match connect_as_configured(request.with(&direct)).await {
            Ok(mut connection) => {
                connection.launch = Some(launch.report());
                return Ok(connection);
            }
            // The program came up, and the lockfile refuses what it offers: a runner might fetch another version.
            Err(failure) if failure.is_final() => return Err(failure),
            Err(failure) => {
                launch.forget();
                if failure.is_timeout() {
                    return Err(failure);
                }
                let why = failure.in_short().to_owned();
                tracing::warn!(server = %config.name, %why, "did not start without its runner");
                failed = Some(why);
            }
        }
    }
    let mut connection = connect_as_configured(request).await?;
    if let Some(process) = &connection.process {
        let (live, took) = (live(process), connection.phases.total());
        // The words of its process have the values of the task.
        let of_task = connect_context.of_task(config)?;
        let spec = match &of_task.as_deref().unwrap_or(config).endpoint {
            Endpoint::Stdio(spec) => spec.clone(),
            Endpoint::Http(_) | Endpoint::Builtin { .. } | Endpoint::Local(_) => spec.clone(),
        };
        let secrets = connect_context.secrets.clone();
        let looking = move || launch.observe(&spec, &secrets, live, took);
        connection.launch = tokio::task::spawn_blocking(looking).await.ok().map(|mut report| {
            report.failed = failed;
            report
        });
    }
    Ok(connection)
}

/// The launch that is known for `spec`, and the program that is started directly in its place. `None`: the command is not a
/// package runner, or is always to be left to its runner.
async fn plan(spec: &StdioConfig, connect_context: &ConnectContext) -> Option<(Launch, Option<StdioConfig>)> {
    // Of many servers that start at once, those that have no runner are not to wait for a thread each.
    if !connect_context.launcher.concerns(spec) {
        return None;
    }
    let program = find_program(spec).ok()?;
    let (launcher, spec) = (connect_context.launcher.clone(), spec.clone());
    let looking = move || {
        let launch = launcher.plan(&spec, &program)?;
        let direct = launch.direct(&spec);
        Some((launch, direct))
    };
    tokio::task::spawn_blocking(looking).await.ok().flatten()
}
