//! Follows edits: of the configuration and what it imports by applying the difference, of a server's own files by a
//! restart of the server. What is broken is reported, and what runs stays. `toolcrib up --watch` is a loop around a [`Watcher`].
//!
//! # Example
//! ```no_run
//! # async fn example() -> toolcrib::Result<()> {
//! use toolcrib::{Config, Env, Manager, watch::{WatchEvent, Watcher}};
//!
//! let config = Config::load(None, &Env::process())?;
//! let manager = Manager::start(&config).await?;
//! let mut watcher = Watcher::new(&manager, &config, || Config::load(None, &Env::process()))?;
//! loop {
//!     match watcher.next().await {
//!         WatchEvent::Reloaded { files, report } => println!("{files:?}: {} servers restarted", report.restarted.len()),
//!         WatchEvent::Refused(error) => println!("{error}; the servers run as before"),
//!         _ => {}
//!     }
//! }
//! # }
//! ```

mod file_watcher;
mod restart_backoff;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    path::{Path, PathBuf},
    time::Duration,
};

use futures_util::{
    StreamExt,
    future::{BoxFuture, OptionFuture},
    stream::FuturesUnordered,
};
use tokio::time::{Instant, sleep_until};

use self::{
    file_watcher::{Change, FileWatcher},
    restart_backoff::RestartBackoff,
};
use crate::{
    config::{Config, OwnFiles},
    error::{Error, ErrorCode, Result},
    manager::{ApplyReport, Manager},
    tool::ServerName,
};

/// An observation or an action of a [`Watcher`].
#[non_exhaustive]
pub enum WatchEvent {
    /// Watching begins.
    Watching {
        /// The files of the configuration.
        files: Vec<PathBuf>,
        /// Servers with files of their own that are watched.
        servers: usize,
    },
    /// A folder cannot be watched, though it is there: why, in words.
    NotWatched(String),
    /// Files of a server changed, which is restarted after `wait`.
    Changed {
        /// The server.
        server: ServerName,
        /// The files that changed.
        files: Vec<PathBuf>,
        /// More than nothing for a server whose files change right after each restart.
        wait: Duration,
    },
    /// An edited configuration was applied.
    Reloaded {
        /// The files that changed.
        files: Vec<PathBuf>,
        /// The changes of the servers.
        report: ApplyReport,
    },
    /// An edited configuration cannot be used: all goes on as before.
    Refused(Error),
    /// A server could not be restarted, for another reason than one that [`ServerEvent`](crate::ServerEvent)s tell.
    RestartFailed(Error),
}

/// Watches the files of a configuration and of its servers, and changes a [`Manager`] accordingly.
pub struct Watcher<'a, L> {
    manager: &'a Manager,
    load: L,
    watched: Watched,
    files: FileWatcher,
    /// A newer configuration takes over from one that is still being applied.
    applying: OptionFuture<BoxFuture<'a, Applied>>,
    restarting: FuturesUnordered<BoxFuture<'a, Restarted>>,
    backoffs: BTreeMap<ServerName, RestartBackoff>,
    /// When servers are restarted whose files changed.
    due: BTreeMap<ServerName, Instant>,
    /// Events that were not returned yet.
    events: VecDeque<WatchEvent>,
}

/// The files that changed, and the result.
type Applied = (Vec<PathBuf>, Result<ApplyReport>);
type Restarted = (ServerName, Result<()>);

/// The watched files: those of the configuration, and those of each server.
#[derive(Default)]
struct Watched {
    /// The configuration itself, what it imports, env files.
    config: BTreeSet<PathBuf>,
    servers: BTreeMap<ServerName, OwnFiles>,
}

impl<'a, L: Fn() -> Result<Config>> Watcher<'a, L> {
    /// Begins to watch the files of `config`, by which `manager` was started. `load` reads the configuration anew.
    ///
    /// # Errors
    /// [`Error::Io`] when the system watches no files.
    pub fn new(manager: &'a Manager, config: &Config, load: L) -> Result<Self> {
        let files = FileWatcher::new()
            .map_err(|error| Error::io("cannot watch files", std::io::Error::other(error)))?;
        let mut watched = Watched::default();
        watched.follow(config);
        let mut watcher = Self {
            manager,
            load,
            watched,
            files,
            applying: None.into(),
            restarting: FuturesUnordered::new(),
            backoffs: BTreeMap::new(),
            due: BTreeMap::new(),
            events: VecDeque::new(),
        };
        watcher.look();
        let servers = watcher.watched.servers.values().filter(|own| !own.is_empty()).count();
        let files = watcher.watched.config.iter().cloned().collect();
        watcher.events.push_back(WatchEvent::Watching { files, servers });
        Ok(watcher)
    }

    /// Follows changes until there is something to tell. Changes are followed in this call only; one that was given up
    /// is gone on with by the next one.
    pub async fn next(&mut self) -> WatchEvent {
        loop {
            if let Some(event) = self.events.pop_front() {
                return event;
            }
            self.step().await;
        }
    }

    /// Waits for one thing, and does what follows from it.
    async fn step(&mut self) {
        let next = self.due.iter().min_by_key(|(_, when)| **when).map(|(name, when)| (name.clone(), *when));
        let turn: OptionFuture<_> =
            next.map(|(name, when)| async move { (sleep_until(when).await, name).1 }).into();
        let watched = &self.watched;
        tokio::select! {
            changed = self.files.next(|path, change| watched.counts(path, change)) => self.changed(&changed),
            Some((files, outcome)) = &mut self.applying => {
                self.applying = None.into();
                self.events.push_back(match outcome {
                    Ok(report) => WatchEvent::Reloaded { files, report },
                    Err(error) => WatchEvent::Refused(error),
                });
            }
            Some(server) = turn => self.restart(server),
            Some((server, outcome)) = self.restarting.next() => self.restarted(server, outcome),
        }
    }

    fn changed(&mut self, changed: &BTreeSet<PathBuf>) {
        let files: Vec<PathBuf> = changed.intersection(&self.watched.config).cloned().collect();
        if !files.is_empty() {
            self.reload(files);
        }
        let now = Instant::now();
        for (server, own) in &self.watched.servers {
            let files: Vec<PathBuf> = changed.iter().filter(|path| own.contain(path)).cloned().collect();
            if files.is_empty() {
                continue;
            }
            let wait = self.backoffs.entry(server.clone()).or_default().changed(now);
            self.due.entry(server.clone()).or_insert(now + wait);
            self.events.push_back(WatchEvent::Changed { server: server.clone(), files, wait });
        }
    }

    /// Reads the configuration, and begins to apply it.
    fn reload(&mut self, files: Vec<PathBuf>) {
        match (self.load)() {
            Ok(config) => {
                self.watched.follow(&config);
                let manager = self.manager;
                let work: BoxFuture<'a, Applied> =
                    Box::pin(async move { (files, manager.apply(&config).await) });
                self.applying = Some(work).into();
            }
            Err(error) => {
                self.watched.mentioned(&error);
                self.events.push_back(WatchEvent::Refused(error));
            }
        }
        self.look();
    }

    fn restart(&mut self, server: ServerName) {
        self.due.remove(&server);
        self.backoffs.entry(server.clone()).or_default().restarting();
        let manager = self.manager;
        self.restarting.push(Box::pin(async move {
            let outcome = manager.restart(server.as_str()).await;
            (server, outcome)
        }));
    }

    fn restarted(&mut self, server: ServerName, outcome: Result<()>) {
        self.backoffs.entry(server).or_default().restarted(Instant::now());
        match outcome {
            // The reason why it did not start was reported when it happened.
            Ok(()) | Err(Error::Server(_) | Error::Unavailable { .. } | Error::Cancelled) => {}
            // It went with the configuration meanwhile.
            Err(error) if error.code() == ErrorCode::ServerNotFound => {}
            Err(error) => self.events.push_back(WatchEvent::RestartFailed(error)),
        }
    }

    /// Watches the folders of what matters now.
    fn look(&mut self) {
        let failed = self.files.look_at(self.watched.folders());
        self.events.extend(failed.into_iter().map(WatchEvent::NotWatched));
    }
}

impl Watched {
    /// Goes over to `config`. A server whose entry is broken keeps what it had, as it goes on running.
    fn follow(&mut self, config: &Config) {
        self.config = config.files.iter().flat_map(|file| with_target(file)).collect();
        let mut before = std::mem::take(&mut self.servers);
        for (name, entry) in &config.servers {
            let own = match &entry.server {
                Ok(server) => server.own_files(),
                Err(_) => before.remove(name).unwrap_or_default(),
            };
            self.servers.insert(name.clone(), own);
        }
    }

    /// A file that is new and broken is a file to be mended.
    fn mentioned(&mut self, error: &Error) {
        if let Error::Config(error) = error
            && let Some(file) = &error.file
            && let Ok(file) = std::path::absolute(file)
        {
            self.config.insert(file);
        }
    }

    /// Whether somebody goes by that. Modes and times of a server's files change nothing of it, and a server in a
    /// sandbox can change those of files that it may not write.
    fn counts(&self, path: &Path, change: Change) -> bool {
        let own = || change == Change::Content && self.servers.values().any(|own| own.contain(path));
        self.config.contains(path) || own()
    }

    fn folders(&self) -> impl Iterator<Item = (PathBuf, bool)> {
        let of_config = self.config.iter().filter_map(|file| Some((file.parent()?.to_owned(), false)));
        of_config.chain(self.servers.values().flat_map(OwnFiles::folders))
    }
}

/// A file, and the file that a symbolic link leads to.
fn with_target(file: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let target = file.canonicalize().ok().filter(|target| target != file);
    std::iter::once(file.to_owned()).chain(target)
}
