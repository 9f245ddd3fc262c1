//! `up --watch`: changes of the configuration are applied by difference, a server whose own files change is
//! restarted. What is broken is shown, and what runs stays.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use futures_util::{
    StreamExt,
    future::{LocalBoxFuture, OptionFuture},
    stream::FuturesUnordered,
};
use serde_json::json;
use tokio::time::{Instant, sleep_until};
use toolcrib::{ApplyReport, Config, Error, ErrorCode, Manager, OwnFiles, ServerName};

use super::{
    super::{
        events::error_json,
        ui::{Ui, counted, millis, seconds},
    },
    file_watcher::{Change, FileWatcher},
    restart_backoff::RestartBackoff,
};

/// The watched files, and the servers that use them.
#[derive(Default)]
struct Watched {
    /// The configuration itself, what it imports, env files.
    config: BTreeSet<PathBuf>,
    servers: BTreeMap<ServerName, OwnFiles>,
}

/// The files that changed, and what came of it.
type Applied = (String, Result<ApplyReport, Error>);

/// Watches until it is dropped. `load` reads the configuration anew.
pub(super) async fn watch(
    ui: &Ui,
    manager: &Manager,
    config: Config,
    load: impl Fn() -> Result<Config, Error>,
) -> anyhow::Result<()> {
    let mut watched = Watched::default();
    watched.follow(&config);
    let mut watcher = FileWatcher::new()?;
    look(ui, &mut watcher, &watched);
    let servers = watched.servers.values().filter(|own| !own.is_empty()).count();
    ui.status(
        "Watching",
        format!(
            "{}, files of {}",
            counted(watched.config.len(), "configuration file"),
            counted(servers, "server")
        ),
    );
    if ui.json {
        Ui::json(json!({"event": "watching", "files": watched.config, "servers": servers}));
    }

    let mut applying: OptionFuture<LocalBoxFuture<'_, Applied>> = None.into();
    let mut restarting = FuturesUnordered::new();
    let mut backoffs: BTreeMap<ServerName, RestartBackoff> = BTreeMap::new();
    let mut due: BTreeMap<ServerName, Instant> = BTreeMap::new();
    loop {
        let next = due.iter().min_by_key(|(_, when)| **when).map(|(name, when)| (name.clone(), *when));
        let turn: OptionFuture<_> =
            next.map(|(name, when)| async move { (sleep_until(when).await, name).1 }).into();
        tokio::select! {
            changed = watcher.next(|path, change| watched.hold(path, change)) => {
                if changed.iter().any(|path| watched.config.contains(path)) {
                    let names = list(changed.iter().filter(|path| watched.config.contains(*path)));
                    match load() {
                        Ok(config) => {
                            watched.follow(&config);
                            // A newer configuration takes over from one that is still being applied.
                            let work = async move { (names, manager.apply(&config).await) };
                            applying = Some(Box::pin(work) as LocalBoxFuture<'_, _>).into();
                        }
                        Err(error) => {
                            watched.mentioned(&error);
                            refused(ui, &error);
                        }
                    }
                    look(ui, &mut watcher, &watched);
                }
                for (name, own) in &watched.servers {
                    let own: Vec<_> = changed.iter().filter(|path| own.contain(path)).collect();
                    if own.is_empty() {
                        continue;
                    }
                    let now = Instant::now();
                    let wait = backoffs.entry(name.clone()).or_default().changed(now);
                    show_change(ui, name, &own, wait);
                    due.entry(name.clone()).or_insert(now + wait);
                }
            }
            Some((names, outcome)) = &mut applying => {
                applying = None.into();
                match outcome {
                    Ok(report) => reloaded(ui, &names, &report),
                    Err(error) => refused(ui, &error),
                }
            }
            Some(name) = turn => {
                due.remove(&name);
                backoffs.entry(name.clone()).or_default().restarting();
                restarting.push(async { (manager.restart(name.as_str()).await, name) });
            }
            Some((outcome, name)) = restarting.next() => {
                backoffs.entry(name.clone()).or_default().restarted(Instant::now());
                match outcome {
                    // Why it did not come back was shown when it happened.
                    Ok(()) | Err(Error::Server(_) | Error::Unavailable { .. } | Error::Cancelled) => {}
                    // It went with the configuration meanwhile.
                    Err(error) if error.code() == ErrorCode::ServerNotFound => {}
                    Err(error) => ui.failure("Failed", &error, true),
                }
            }
        }
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

    /// Whether somebody goes by that. Modes and times of a server's files change nothing of it, and a server in a sandbox
    /// can change those of files that it may not write.
    fn hold(&self, path: &Path, change: Change) -> bool {
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

fn look(ui: &Ui, watcher: &mut FileWatcher, watched: &Watched) {
    for why in watcher.look_at(watched.folders()) {
        ui.warn(why);
    }
}

/// `server.py`, `a.py and b.py`, `a.py and 4 more`.
fn list<'a>(paths: impl Iterator<Item = &'a PathBuf>) -> String {
    let mut names: Vec<_> =
        paths.filter_map(|path| path.file_name()).map(|name| name.to_string_lossy()).collect();
    names.dedup();
    match &names[..] {
        [] => String::new(),
        [one] => one.to_string(),
        [one, other] => format!("{one} and {other}"),
        [one, more @ ..] => format!("{one} and {} more", more.len()),
    }
}

fn show_change(ui: &Ui, server: &ServerName, paths: &[&PathBuf], wait: std::time::Duration) {
    if ui.json {
        let event = json!({"event": "changed", "server": server, "files": paths, "wait_ms": millis(wait)});
        Ui::json(event);
    } else if wait.is_zero() {
        ui.status("Changed", format!("{}: restarting {server}", list(paths.iter().copied())));
    } else {
        ui.warn(format!(
            "{} changes right after each restart: does {server} write it? Next restart in {}",
            list(paths.iter().copied()),
            seconds(wait)
        ));
    }
}

fn refused(ui: &Ui, error: &Error) {
    if ui.json {
        Ui::json(json!({"event": "reload_failed", "error": error_json(error)}));
    } else {
        ui.failure("Refused", error, true);
        ui.status("Serving", "as before");
    }
}

fn reloaded(ui: &Ui, files: &str, report: &ApplyReport) {
    if ui.json {
        let failures = report.failures.iter().map(|failure| {
            json!({"server": failure.server, "kept": failure.kept, "error": error_json(&failure.error)})
        });
        let event = json!({"event": "reloaded", "files": files, "added": report.added, "removed": report.removed,
            "restarted": report.restarted, "unchanged": report.unchanged,
            "failures": failures.collect::<Vec<_>>()});
        Ui::json(event);
        return;
    }
    for failure in report.failures.iter().filter(|failure| failure.kept) {
        ui.failure("Refused", &failure.error, true);
        ui.status("Serving", format!("{:<20} by its old entry", failure.server));
    }
    let counts = [
        (report.added.len(), "added"),
        (report.removed.len(), "removed"),
        (report.restarted.len(), "restarted"),
        (report.unchanged.len(), "untouched"),
        (report.failures.len(), "failed"),
    ];
    let counts: Vec<_> = counts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    ui.status("Reloaded", format!("{files}: {}", counts.join(", ")));
}
