//! Measures one start of all servers in one mode, and their teardown.

use std::{
    collections::HashMap,
    fs,
    num::NonZeroUsize,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::{Map, Value};
use toolcrib::{
    CatalogEntry, Config, Endpoint, Error, Manager, ServerName,
    cli_support::bench::{Scratch, keep_spares, sorted, take_spares, wait_for_spares},
    config::{Lifecycle, StartJobs},
    process::ProcessUsage,
    session::ServerState,
    start::ServerStart,
};

use super::{
    bare::Bare,
    census::Census,
    cores,
    mode::{Mode, without_templates},
};
use crate::cli::context::Context;

/// Drops what the kernel keeps of files when something is written to it; see proc_sys_vm(5).
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// State that all runs of a measurement share.
pub(super) struct Bench<'a> {
    context: &'a Context<'a>,
    config: &'a Config,
    /// The first call of a lazy start.
    call: FirstCall,
    drop_caches: bool,
    /// Cache folders: one for the runs that go by an earlier one, and a new one for each that does not.
    folders: Scratch,
    cold: usize,
    /// Whether the unmeasured starts were done, which is once.
    is_prepared: bool,
}

/// The first call after a lazy start.
pub(super) enum FirstCall {
    /// A call of the first tool that is marked read-only and needs no arguments.
    Any,
    Tool(String, Map<String, Value>),
}

/// One measured start of all servers.
pub(super) struct Run {
    /// When each server was ready, the first one first.
    pub(super) ready: Vec<Duration>,
    pub(super) wall: Duration,
    pub(super) used: Census,
    /// Starts of the servers. Empty for a bare start.
    pub(super) servers: Vec<ServerStart>,
    /// Resources that each server used, by its process id.
    pub(super) usage: HashMap<u32, ProcessUsage>,
    /// The tool that was called after a lazy start, and when it was answered.
    pub(super) first_call: Option<(String, Duration)>,
}

impl<'a> Bench<'a> {
    pub(super) fn new(context: &'a Context<'a>, config: &'a Config, call: FirstCall) -> anyhow::Result<Self> {
        Ok(Self {
            context,
            config,
            call,
            drop_caches: false,
            folders: Scratch::new()?,
            cold: 0,
            is_prepared: false,
        })
    }

    /// Has cold starts begin with an empty page cache. Empties it once to see whether that can be done: a container
    /// may let root open the file, and not write to it.
    ///
    /// # Errors
    /// [`Error::Input`] when this user may not empty it.
    pub(super) async fn drop_caches(&mut self) -> anyhow::Result<()> {
        empty_page_cache().await?;
        self.drop_caches = true;
        Ok(())
    }

    /// Starts everything once for each cache folder that `modes` go by: packages are installed, and what their runners
    /// start is known.
    pub(super) async fn prepare(&mut self, modes: &[Mode]) -> anyhow::Result<()> {
        if modes.iter().any(|mode| mode.has_caches() && !mode.is_taught()) {
            self.start_unmeasured(self.config).await?;
        }
        if modes.iter().any(|mode| mode.is_taught()) {
            let mut config = self.config.clone();
            config.cache_folder = Some(self.taught());
            self.start_unmeasured(&config).await?;
        }
        self.is_prepared = true;
        Ok(())
    }

    async fn start_unmeasured(&self, config: &Config) -> anyhow::Result<()> {
        // The second start of a Python server may be forked, and is compared with the first: what is measured is alike.
        for _ in 0..if self.is_prepared { 1 } else { 2 } {
            let manager = self.context.start(config, |_| {}).await?;
            let unproven =
                |row: &ServerStart| row.outcome.as_ref().is_ok_and(|ready| ready.not_forked.is_some());
            let again = manager.report().servers.iter().any(unproven);
            self.context.until_templates_are_made(&manager).await;
            self.context.stop(manager).await?;
            if !again {
                break;
            }
        }
        Ok(())
    }

    fn taught(&self) -> PathBuf {
        self.folders.file("warm")
    }

    pub(super) async fn run(&mut self, mode: Mode) -> anyhow::Result<Run> {
        let mut config = self.config.clone();
        match mode {
            Mode::Sequential => config.start_jobs = StartJobs::AtMost(NonZeroUsize::MIN),
            Mode::AtOnce => config.start_jobs = StartJobs::Unlimited,
            Mode::Parallel => {}
            Mode::Ordinary => without_templates(&mut config),
            Mode::Cold => {
                self.cold += 1;
                config.cache_folder = Some(self.folders.file(&format!("cold-{}", self.cold)));
                if self.drop_caches {
                    empty_page_cache().await?;
                }
            }
            Mode::Warm => config.cache_folder = Some(self.taught()),
            Mode::Lazy => {
                config.cache_folder = Some(self.taught());
                for entry in config.servers.values_mut() {
                    entry.required = false;
                    if let Ok(server) = &mut entry.server {
                        server.lifecycle = Lifecycle::Lazy;
                    }
                }
            }
            Mode::Spare => return self.take_spares(config).await,
            Mode::Bare => return bare(config, usize::MAX).await,
            Mode::BareCores => return bare(config, cores()).await,
        }
        self.start(&config, mode == Mode::Lazy).await
    }

    async fn start(&self, config: &Config, is_lazy: bool) -> anyhow::Result<Run> {
        let before = Census::take();
        let manager = self.context.start(config, |_| {}).await?;
        let used = Census::take().since(&before);
        let usage = manager.usage_by_server();
        let first_call = if is_lazy { self.call(&manager).await } else { Ok(None) };
        let report = manager.report().clone();
        self.context.stop(manager).await?;
        let ready = report.servers.iter().filter(|row| row.outcome.is_ok()).map(|row| row.took);
        Ok(Run {
            ready: sorted(ready),
            wall: report.wall,
            used,
            servers: report.servers,
            usage,
            first_call: first_call?,
        })
    }

    /// Measures how long a task waits for its servers when a spare of each waits for it.
    async fn take_spares(&self, mut config: Config) -> anyhow::Result<Run> {
        keep_spares(&mut config, 1);
        let manager = self.context.start(&config, |_| {}).await?;
        let waiting = self.context.cancel.run_until_cancelled(wait_for_spares(&manager, 1));
        waiting.await.unwrap_or(Err(Error::Cancelled.into()))?;
        let before = Census::take();
        let (loan, wall) = take_spares(&manager);
        let used = Census::take().since(&before);
        let states = loan.toolbox().status().into_iter();
        let ready = states.filter(|server| server.state == ServerState::Ready).map(|_| wall).collect();
        drop(loan);
        self.context.stop(manager).await?;
        Ok(Run { ready, wall, used, servers: Vec::new(), usage: HashMap::new(), first_call: None })
    }

    /// Calls a tool of a server that may have to be started for it.
    async fn call(&self, manager: &Manager) -> anyhow::Result<Option<(String, Duration)>> {
        let catalog = manager.catalog();
        let (entry, arguments) = match &self.call {
            FirstCall::Any => {
                let harmless = || catalog.entries().iter().filter(|entry| is_harmless(entry));
                // One that has to be started tells more.
                match harmless().find(|entry| self.is_process(&entry.server)).or_else(|| harmless().next()) {
                    Some(entry) => (entry.clone(), Map::new()),
                    None => return Ok(None),
                }
            }
            FirstCall::Tool(path, arguments) => (catalog.find_path(path)?.clone(), arguments.clone()),
        };
        let began = Instant::now();
        let calling = manager.call(entry.server.as_str(), &entry.tool.name, arguments);
        self.context.cancel.run_until_cancelled(calling).await.unwrap_or(Err(Error::Cancelled))?;
        Ok(Some((entry.path(), began.elapsed())))
    }

    fn is_process(&self, name: &ServerName) -> bool {
        let entry = self.config.servers.get(name);
        let server = entry.and_then(|entry| entry.server.as_ref().ok());
        server.is_some_and(|server| matches!(server.endpoint, Endpoint::Stdio(_)))
    }
}

/// Whether nothing is known against calling it without arguments.
fn is_harmless(entry: &Arc<CatalogEntry>) -> bool {
    entry.tool.annotations.read_only_hint == Some(true) && entry.check(&Map::new()).is_ok()
}

async fn bare(config: Config, jobs: usize) -> anyhow::Result<Run> {
    let before = Census::take();
    let bare = tokio::task::spawn_blocking(move || Bare::start(&config, jobs)).await??;
    let used = Census::take().since(&before);
    let (ready, wall) = (bare.ready.clone(), bare.wall);
    tokio::task::spawn_blocking(|| bare.stop()).await?;
    Ok(Run { ready, wall, used, servers: Vec::new(), usage: HashMap::new(), first_call: None })
}

async fn empty_page_cache() -> anyhow::Result<()> {
    let emptied = tokio::task::spawn_blocking(|| {
        // Only clean pages are dropped.
        rustix::fs::sync();
        fs::write(DROP_CACHES, "3")
    });
    emptied.await?.map_err(|error| {
        let what = format!("--drop-caches: {DROP_CACHES} cannot be written: {error}");
        Error::input(what, Some("run as root on Linux, or leave --drop-caches out".to_owned())).into()
    })
}
