//! Reports changed files. It watches folders, not files: editors replace a file by renaming another one over it.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    time::Duration,
};

use notify::{
    Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher,
    event::{AccessKind, AccessMode},
};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until},
};

/// How long nothing may change before a change counts as complete: editors write several times.
const QUIET: Duration = Duration::from_millis(150);
/// Even if changes go on, they are told after so long.
const PATIENCE: Duration = Duration::from_secs(3);
/// How often a folder that is not there is looked for.
const LOOK: Duration = Duration::from_secs(1);

/// Watches folders.
pub(super) struct FileWatcher {
    watcher: RecommendedWatcher,
    events: mpsc::UnboundedReceiver<notify::Result<Event>>,
    /// Folders to watch, whether with all below them, and whether they are watched now.
    folders: BTreeMap<PathBuf, (bool, bool)>,
    /// What changed and was not told yet, and since when.
    seen: BTreeSet<PathBuf>,
    first: Option<Instant>,
    last: Option<Instant>,
}

impl FileWatcher {
    pub(super) fn new() -> notify::Result<Self> {
        let (sender, events) = mpsc::unbounded_channel();
        // Nobody listens any more once this is dropped, and the watcher ends with it.
        let watcher = notify::recommended_watcher(move |event| drop(sender.send(event)))?;
        Ok(Self { watcher, events, folders: BTreeMap::new(), seen: BTreeSet::new(), first: None, last: None })
    }

    /// Watches these folders and no others; the error names the first that cannot be watched though it is there.
    pub(super) fn look_at(
        &mut self,
        folders: impl IntoIterator<Item = (PathBuf, bool)>,
    ) -> Result<(), String> {
        let mut wanted: BTreeMap<PathBuf, bool> = BTreeMap::new();
        for (folder, deep) in folders {
            *wanted.entry(folder).or_default() |= deep;
        }
        // One watch sees all below it; a second one on the same folder would end with the first.
        let tops: Vec<_> = wanted.iter().filter(|(_, deep)| **deep).map(|(top, _)| top.clone()).collect();
        wanted.retain(|folder, _| !tops.iter().any(|top| folder != top && folder.starts_with(top)));
        let watcher = &mut self.watcher;
        self.folders.retain(|folder, (deep, _)| {
            let stays = wanted.get(folder) == Some(deep);
            if !stays {
                // One that is gone is no longer watched anyway.
                let _ = watcher.unwatch(folder);
            }
            stays
        });
        for (folder, deep) in wanted {
            self.folders.entry(folder).or_insert((deep, false));
        }
        self.retry(&mut |_| {})
    }

    /// Tries to watch what is not watched yet, and tells of each folder that has come.
    fn retry(&mut self, come: &mut dyn FnMut(&Path)) -> Result<(), String> {
        let mut failed = Ok(());
        for (folder, (deep, watched)) in self.folders.iter_mut().filter(|(_, (_, watched))| !watched) {
            let mode = if *deep { RecursiveMode::Recursive } else { RecursiveMode::NonRecursive };
            match self.watcher.watch(folder, mode) {
                Ok(()) => {
                    *watched = true;
                    come(folder);
                }
                Err(error) if folder.is_dir() && failed.is_ok() => {
                    failed = Err(format!("cannot watch {}: {error}", folder.display()));
                }
                Err(_) => {}
            }
        }
        failed
    }

    /// The next changed paths among those that `count`, once they have come to rest. May be dropped and called
    /// again: nothing is lost.
    pub(super) async fn next(&mut self, count: impl Fn(&Path) -> bool) -> BTreeSet<PathBuf> {
        loop {
            let rest = self.first.zip(self.last).map(|(first, last)| (first + PATIENCE).min(last + QUIET));
            let resting = async {
                match rest {
                    Some(rest) => sleep_until(rest).await,
                    None => std::future::pending().await,
                }
            };
            let blind = self.folders.values().any(|(_, watched)| !watched);
            tokio::select! {
                event = self.events.recv() => match event {
                    Some(event) => self.take(event, &count),
                    None => return std::future::pending().await,
                },
                () = resting => {
                    (self.first, self.last) = (None, None);
                    return std::mem::take(&mut self.seen);
                }
                () = sleep(LOOK), if blind => {
                    let mut come = Vec::new();
                    // What still cannot be watched was told when it was asked for.
                    let _ = self.retry(&mut |folder| come.push(folder.to_owned()));
                    let files = come.iter().flat_map(std::fs::read_dir).flatten().flatten();
                    for path in files.map(|entry| entry.path()).filter(|path| count(path)).collect::<Vec<_>>() {
                        self.saw(path);
                    }
                }
            }
        }
    }

    fn take(&mut self, event: notify::Result<Event>, count: &impl Fn(&Path) -> bool) {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                tracing::warn!(%error, "watching files");
                return;
            }
        };
        if matches!(event.kind, EventKind::Remove(_) | EventKind::Modify(_)) {
            for path in &event.paths {
                // A folder that went away is no longer watched, even if another one takes its name.
                if let Some((_, watched)) = self.folders.get_mut(path)
                    && !path.is_dir()
                {
                    *watched = false;
                }
            }
        }
        if is_change(event.kind) {
            for path in event.paths.into_iter().filter(|path| count(path)) {
                self.saw(path);
            }
        }
    }

    fn saw(&mut self, path: PathBuf) {
        let now = Instant::now();
        self.first.get_or_insert(now);
        self.last = Some(now);
        self.seen.insert(path);
    }
}

/// Reading is no change; the end of writing is one.
fn is_change(kind: EventKind) -> bool {
    !matches!(kind, EventKind::Access(access) if access != AccessKind::Close(AccessMode::Write))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    async fn seen(watcher: &mut FileWatcher, folder: &Path) -> Vec<String> {
        let counts = |path: &Path| path.extension().is_some_and(|ending| ending == "py");
        let paths = tokio::time::timeout(Duration::from_secs(20), watcher.next(counts)).await.unwrap();
        paths.iter().map(|path| path.strip_prefix(folder).unwrap().display().to_string()).collect()
    }

    #[tokio::test]
    async fn writes_renames_and_new_folders_are_seen() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("deep")).unwrap();
        let mut watcher = FileWatcher::new().unwrap();
        watcher
            .look_at([(folder.path().to_owned(), false), (at("deep"), true), (at("later"), false)])
            .unwrap();
        fs::write(at("a.txt"), "not asked for").unwrap();
        fs::write(at("a.py"), "1").unwrap();
        fs::write(at("a.py"), "2").unwrap();
        assert_eq!(seen(&mut watcher, folder.path()).await, ["a.py"]);
        fs::read(at("a.py")).unwrap();
        fs::write(at("new.tmp"), "3").unwrap();
        fs::rename(at("new.tmp"), at("b.py")).unwrap();
        assert_eq!(seen(&mut watcher, folder.path()).await, ["b.py"], "reading `a.py` was no change");
        fs::create_dir(at("later")).unwrap();
        fs::write(at("later/c.py"), "4").unwrap();
        assert_eq!(seen(&mut watcher, folder.path()).await, ["later/c.py"]);
        fs::write(at("deep/d.py"), "5").unwrap();
        assert_eq!(seen(&mut watcher, folder.path()).await, ["deep/d.py"]);
    }
}
