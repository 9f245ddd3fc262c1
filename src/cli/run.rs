//! `toolcrib run`: one question or a file of tasks, on shared servers, with a report for every task.

mod events;
mod execute;
mod shown;

use std::{
    cell::OnceCell,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use clap::Args;
use toolcrib::{
    CancellationToken, CassettePlayer, Config, DETECT_PORTS, Endpoint, Env, Error, HttpClients, LlmClient,
    LlmConfig, RunReport, Scope, StdioConfig, Task, detect, load_tasks, nearest, new_run,
};

use super::{
    config_warnings::ConfigWarnings,
    context::{Context, Locked},
    daemon_args::{DaemonArgs, place},
    output,
    progress::Totals,
    ui::{Ui, at_least_one},
};

/// Name of a cassette in the folder of a run.
const CASSETTE: &str = "cassette.jsonl";

/// Stands for that one on the command line, where no other is named.
const IN_RUN: &str = "RUN/cassette.jsonl";

#[derive(Args)]
pub(super) struct Run {
    /// A question, a file of tasks (JSON lines), or `-` for tasks from stdin.
    tasks: String,
    /// Tasks at once.
    #[arg(long, short, default_value = "4", value_name = "N", value_parser = at_least_one)]
    jobs: NonZeroUsize,
    /// The model's name at the endpoint, or `script:FILE` [default: as configured].
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    /// The endpoint, up to and including `/v1` [default: as configured].
    #[arg(long, value_name = "URL")]
    base_url: Option<String>,
    /// The client or strategy to ask, by its name in [llm] [default: as configured].
    #[arg(long, value_name = "NAME", conflicts_with = "model")]
    client: Option<String>,
    /// Only the first N tasks.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    limit: Option<NonZeroUsize>,
    /// Give every task servers of its own, or all tasks the same ones [default: as configured].
    #[arg(long, value_enum, value_name = "SCOPE")]
    scope: Option<TaskScope>,
    /// Where runs are kept.
    #[arg(long, default_value = "runs", value_name = "FOLDER")]
    out: PathBuf,
    /// Write all model and tool traffic to FILE, without secrets, to be replayed [default: cassette.jsonl in the
    /// run's folder].
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = IN_RUN)]
    record: Option<PathBuf>,
    /// Answer from what `--record` wrote: no server is started, no model is asked. Ends at the first difference.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["record", "model", "base_url", "scope", "DaemonArgs", "Locked"])]
    replay: Option<PathBuf>,
    /// Write what the agents do while they do it to FILE or, with `-`, to stdout: one JSON object a line.
    #[arg(long, value_name = "FILE")]
    events: Option<PathBuf>,
    #[command(flatten)]
    locked: Locked,
    #[command(flatten)]
    daemon: DaemonArgs,
    /// The configuration file of the daemon whose servers are used, if any.
    #[arg(skip)]
    daemon_config: OnceCell<PathBuf>,
}

/// Whether tasks share their servers.
#[derive(Clone, Copy, clap::ValueEnum)]
enum TaskScope {
    Task,
    Shared,
}

/// A run that is ready to go.
pub(super) struct Plan {
    pub(super) config: Config,
    pub(super) llm: Option<LlmClient>,
    pub(super) tasks: Vec<Task>,
    pub(super) jobs: NonZeroUsize,
    pub(super) run: String,
    pub(super) dir: PathBuf,
    pub(super) cassette: Option<Cassette>,
    /// Where events go, `-` for stdout.
    pub(super) events: Option<PathBuf>,
    /// What is wrong with the configuration and does not end the run. Rules that concern no tool are found at its start.
    pub(super) warnings: ConfigWarnings,
    /// Ends the tasks: Ctrl-C, a journal that cannot be written, a replay that differs.
    pub(super) cancel: CancellationToken,
}

/// What a run has to do with a cassette.
pub(super) enum Cassette {
    Record(PathBuf),
    Replay(CassettePlayer),
}

/// What came of it.
pub(super) struct Finished {
    pub(super) reports: Vec<RunReport>,
    pub(super) init: Duration,
    pub(super) totals: Totals,
}

impl Run {
    /// Looks for the daemon, and starts one if that is asked for. It may run without the lockfile.
    pub(super) fn look_for_daemon(&self, context: &Context<'_>) -> anyhow::Result<()> {
        if !self.locked.is_set()
            && self.replay.is_none()
            && let Some(daemon) = self.daemon.connect(context)?
        {
            context.ui.status("Using", format!("the servers of the daemon (pid {})", daemon.greeting().pid));
            let _ = self.daemon_config.set(place(context)?.1);
        }
        Ok(())
    }

    pub(super) async fn run(self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        let mut config = context.load()?;
        self.locked.apply(&mut config);
        // The command line stands in `run.json`.
        if let Some(url) = &self.base_url {
            config.secrets = config.secrets.and_of_url(url);
            output::learn(&config.secrets);
        }
        for server in config.servers.values_mut().filter_map(|entry| entry.server.as_mut().ok()) {
            server.scope = match self.scope {
                Some(TaskScope::Task) => Scope::Task,
                Some(TaskScope::Shared) => Scope::Shared,
                None => server.scope,
            };
        }
        if let Some(file) = self.daemon_config.get() {
            borrow_from_daemon(&mut config, file)?;
        }
        let question = !is_file(&self.tasks);
        let mut tasks = match question {
            true => vec![Task::question("question", self.tasks.as_str())],
            false => load_tasks(Path::new(&self.tasks))?,
        };
        tasks.truncate(self.limit.map_or(usize::MAX, NonZeroUsize::get));
        let cancel = context.cancel.child_token();
        let player = self.replay.as_ref().map(|path| {
            let path = if path.is_dir() { path.join(CASSETTE) } else { path.clone() };
            CassettePlayer::open(&path, config.secrets.clone(), cancel.clone())
        });
        let player = player.transpose()?;
        let needs_model = tasks.iter().any(|task| task.calls.is_empty());
        let llm = match &player {
            _ if !needs_model => None,
            Some(player) => {
                player.model().map(|(label, script)| LlmClient::replayed(label, script)).transpose()?
            }
            None => Some(self.model(&config).await?),
        };
        let (run, dir) = new_run(&self.out)?;
        let cassette = match player {
            Some(player) => Some(Cassette::Replay(player)),
            None => self.record.as_deref().map(|path| match path == Path::new(IN_RUN) {
                true => Cassette::Record(dir.join(CASSETTE)),
                false => Cassette::Record(path.to_owned()),
            }),
        };
        // A broken table is no matter when the command line says it all.
        let warnings = match self.model.is_none() && needs_model && self.replay.is_none() {
            true => config.broken_models(),
            false => Vec::new(),
        };
        // The last event of a task has its answer.
        let answers = question && !context.ui.json && !events::is_stdout(self.events.as_deref());
        let (jobs, events) = (self.jobs, self.events);
        let warnings = warnings.into();
        let plan = Plan { config, llm, tasks, jobs, run, dir, cassette, events, warnings, cancel };
        let finished = plan.execute(context).await?;
        let answer = finished.reports.first().and_then(|report| report.answer.as_ref());
        if let Some(answer) = answer.filter(|_| answers) {
            Ui::words(answer);
        }
        Ok(finished.totals.exit())
    }

    /// The model of the command line or the configuration.
    async fn model(&self, config: &Config) -> anyhow::Result<LlmClient> {
        let http = HttpClients::new(&config.http)?;
        let here = Env::process().folder().to_owned();
        let named = self.client.as_ref().map(|name| named(config, name)).transpose()?;
        let configured = match named.as_ref().or(config.llm.as_ref()) {
            // What the command line says of a model is of one, not of several.
            Some(Ok(llm)) if llm.strategy.is_some() && self.base_url.is_some() && self.model.is_none() => {
                let help = "add --model NAME, or --client NAME to ask one of the configured ones".to_owned();
                return Err(
                    Error::input("--base-url alone cannot stand in for a strategy", Some(help)).into()
                );
            }
            Some(Ok(llm)) if llm.strategy.is_some() && self.model.is_some() => None,
            Some(Ok(llm)) => Some(llm.clone()),
            // A broken table is no matter when the command line says it all.
            Some(Err(error)) if self.model.is_none() => return Err(error.clone().into()),
            _ => None,
        };
        let llm = match (&self.model, configured) {
            (Some(model), configured) => {
                let mut llm = configured.unwrap_or_else(|| LlmConfig::new(None, model));
                llm.model.clone_from(model);
                llm.base_url = self.base_url.clone().or(llm.base_url);
                if llm.base_url.is_none() && !model.starts_with("script:") {
                    let help = "give the endpoint too: --base-url http://HOST:PORT/v1";
                    return Err(Error::input(
                        format!("the model `{model}` has no endpoint"),
                        Some(help.to_owned()),
                    )
                    .into());
                }
                llm
            }
            (None, Some(llm)) if self.base_url.is_some() && llm.model.starts_with("script:") => {
                let help = "add --model NAME, as the endpoint lists it under /models".to_owned();
                let what = "--base-url needs --model, since the configured model is a script";
                return Err(Error::input(what, Some(help)).into());
            }
            (None, Some(mut llm)) => {
                llm.base_url = self.base_url.clone().or(llm.base_url);
                llm
            }
            (None, None) if self.base_url.is_some() => {
                let help = "name the model as the endpoint lists it under /models: --model NAME";
                return Err(Error::input("`--base-url` names no model", Some(help.to_owned())).into());
            }
            (None, None) => {
                return Err(
                    Error::NoModel { found: detect(&http).await, asked: DETECT_PORTS.to_vec() }.into()
                );
            }
        };
        Ok(LlmClient::new(&llm, &http, &here)?)
    }
}

/// The client or strategy of that name in `[llm]`.
fn named(config: &Config, name: &str) -> Result<Result<LlmConfig, Arc<Error>>, Error> {
    config.models.get(name).cloned().ok_or_else(|| {
        let known: Vec<&str> = config.models.keys().map(String::as_str).collect();
        let all = known.join(", ");
        let help = match nearest(name, known.iter().copied()) {
            Some(near) => format!("did you mean `{near}`? there are: {all}"),
            None if known.is_empty() => "add it to the configuration: [llm.clients.NAME]".to_owned(),
            None => format!("there are: {all}"),
        };
        Error::input(format!("there is no client or strategy `{name}` in [llm]"), Some(help))
    })
}

/// Has each server that is a process spoken to through `toolcrib connect`, with the name and limits that it has here.
fn borrow_from_daemon(config: &mut Config, file: &Path) -> anyhow::Result<()> {
    let own = std::env::current_exe()?;
    for (name, entry) in &mut config.servers {
        let Ok(server) = &mut entry.server else { continue };
        if matches!(server.endpoint, Endpoint::Stdio(_)) {
            let file = file.display().to_string();
            let words = ["connect", name.as_str(), "--quiet", "--config", &file].map(str::to_owned);
            let mut relay = StdioConfig::new(&own, words.to_vec(), std::env::temp_dir());
            // It is this program: what it may know it knows.
            relay.env = Arc::new(std::env::vars().collect());
            server.endpoint = Endpoint::Stdio(relay);
        }
    }
    Ok(())
}

/// Whether the argument names tasks. A question is everything else; a file that is missing is not a question.
fn is_file(tasks: &str) -> bool {
    let path = Path::new(tasks);
    let named_so =
        tasks.contains('/') || path.extension().is_some_and(|ending| ending == "jsonl" || ending == "json");
    // A pipe of the shell is one too: `<(...)`.
    let is_there = path.metadata().is_ok_and(|about| !about.is_dir());
    tasks == "-" || is_there || (named_so && !tasks.contains(char::is_whitespace))
}
