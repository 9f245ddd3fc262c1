//! Reports changed files. It watches folders, not files: editors replace a file by renaming another one over it.
//!
//! On Linux each folder is watched separately, and its subfolders are found by walking: no symbolic link is followed,
//! and there are never more than [`MAX_FOLDERS`] below one. A server may be the one that makes them.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use notify::{
    ErrorKind, Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher,
    event::{AccessKind, AccessMode, CreateKind, ModifyKind, RenameMode},
};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until},
};

/// How long nothing may change before a change counts as complete: editors write several times.
const QUIET: Duration = Duration::from_millis(150);
/// The longest delay of a report while changes continue.
const PATIENCE: Duration = Duration::from_secs(3);
/// How often missing folders are looked for, and new subfolders.
const LOOK: Duration = Duration::from_secs(1);
/// Most subfolders that are watched below one folder, and most entries that are read to find them.
const MAX_FOLDERS: usize = 2_000;
const MAX_ENTRIES: usize = 50_000;
/// Whether subfolders are found by walking (Linux). On other systems one watch covers all below a folder, and follows no link.
const WALKS: bool = cfg!(target_os = "linux");

/// A folder that is to be watched.
#[derive(Default)]
struct Top {
    /// Whether all below it is to be watched too.
    deep: bool,
    watched: bool,
    /// The folders below it that are watched.
    below: BTreeSet<PathBuf>,
    /// Whether a folder below it has come or gone since they were looked for.
    stale: bool,
}

/// Watches folders.
pub(super) struct FileWatcher {
    watcher: RecommendedWatcher,
    events: mpsc::UnboundedReceiver<notify::Result<Event>>,
    folders: BTreeMap<PathBuf, Top>,
    /// Folders of which it was reported that not all below them is watched.
    told: BTreeSet<PathBuf>,
    /// When folders were looked for below others.
    walked: Option<Instant>,
    /// Changes that were not reported yet, and since when.
    seen: BTreeSet<PathBuf>,
    first: Option<Instant>,
    last: Option<Instant>,
}

impl FileWatcher {
    pub(super) fn new() -> notify::Result<Self> {
        let (sender, events) = mpsc::unbounded_channel();
        // The watcher ends when this is dropped.
        let tell = move |event: notify::Result<Event>| {
            if !event.as_ref().is_ok_and(|event| !is_change(event.kind)) {
                drop(sender.send(event));
            }
        };
        let watcher = RecommendedWatcher::new(tell, notify::Config::default().with_follow_symlinks(false))?;
        let (folders, told, seen) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        Ok(Self { watcher, events, folders, told, walked: None, seen, first: None, last: None })
    }

    /// Watches these folders and no others. Says what cannot be watched though it is there.
    pub(super) fn look_at(&mut self, folders: impl IntoIterator<Item = (PathBuf, bool)>) -> Vec<String> {
        let mut wanted: BTreeMap<PathBuf, bool> = BTreeMap::new();
        for (folder, deep) in folders {
            *wanted.entry(folder).or_default() |= deep;
        }
        if !WALKS {
            // One watch sees all below it; a second one on the same folder would end with the first.
            let tops: Vec<_> = wanted.iter().filter(|(_, deep)| **deep).map(|(top, _)| top.clone()).collect();
            wanted.retain(|folder, _| !tops.iter().any(|top| folder != top && folder.starts_with(top)));
        }
        let is_wanted = |(folder, top): &(&PathBuf, &Top)| wanted.get(*folder) == Some(&top.deep);
        let dropped: Vec<PathBuf> =
            self.folders.iter().filter(|entry| !is_wanted(entry)).map(|(folder, _)| folder.clone()).collect();
        for folder in dropped {
            let below = self.folders.remove(&folder).map(|top| top.below);
            self.leave(below.into_iter().flatten().chain([folder]));
        }
        for (folder, deep) in wanted {
            self.folders.entry(folder).or_insert(Top { deep, ..Top::default() });
        }
        self.retry().1
    }

    /// Tries to watch what is not watched yet. Returns the new folders, and warnings about what cannot be watched.
    fn retry(&mut self) -> (Vec<PathBuf>, Vec<String>) {
        let (mut come, mut failed) = (Vec::new(), Vec::new());
        for (folder, top) in self.folders.iter_mut().filter(|(_, top)| !top.watched) {
            let mode =
                if top.deep && !WALKS { RecursiveMode::Recursive } else { RecursiveMode::NonRecursive };
            match self.watcher.watch(folder, mode) {
                Ok(()) => {
                    (top.watched, top.stale) = (true, top.deep && WALKS);
                    come.push(folder.clone());
                }
                Err(error) if folder.is_dir() => {
                    failed.push(format!("cannot watch {}: {error}", folder.display()));
                }
                Err(_) => {}
            }
        }
        let (found, more) = self.walk();
        (come.into_iter().chain(found).collect(), failed.into_iter().chain(more).collect())
    }

    /// Watches new subfolders, and no longer those that are gone. Returns the new ones, and warnings about what cannot be
    /// watched.
    fn walk(&mut self) -> (Vec<PathBuf>, Vec<String>) {
        let (mut come, mut failed, mut gone) = (Vec::new(), Vec::new(), Vec::new());
        for (folder, top) in self.folders.iter_mut().filter(|(_, top)| top.stale) {
            top.stale = false;
            let (found, whole) = folders_below(folder);
            gone.extend(top.below.difference(&found).cloned());
            top.below.retain(|known| found.contains(known));
            let mut wrong = (!whole)
                .then(|| format!("it has too many folders; files in {} of them are watched", found.len()));
            for path in &found {
                if top.below.contains(path) {
                    continue;
                }
                match self.watcher.watch(path, RecursiveMode::NonRecursive) {
                    Ok(()) => {
                        top.below.insert(path.clone());
                        come.push(path.clone());
                    }
                    // The system's limit: the next one would fail as well.
                    Err(error) if matches!(error.kind, ErrorKind::MaxFilesWatch) => {
                        wrong = Some(error.to_string());
                        break;
                    }
                    // It has gone, or is not for us to read.
                    Err(_) => {}
                }
            }
            if let Some(wrong) = wrong.filter(|_| self.told.insert(folder.clone())) {
                failed.push(format!("cannot watch all of {}: {wrong}", folder.display()));
            }
        }
        self.leave(gone);
        self.walked = Some(Instant::now());
        (come, failed)
    }

    /// Stops watching these, unless another folder needs them. One that is gone is not watched anyway.
    fn leave(&mut self, paths: impl IntoIterator<Item = PathBuf>) {
        for path in paths {
            let wanted = |(folder, top): (&PathBuf, &Top)| *folder == path || top.below.contains(&path);
            if !self.folders.iter().any(wanted) {
                let _ = self.watcher.unwatch(&path);
            }
        }
    }

    /// The next changed paths among those that `count`, once nothing has changed for [`QUIET`], or after [`PATIENCE`]. May be
    /// dropped and called again: nothing is lost.
    pub(super) async fn next(&mut self, count: impl Fn(&Path, Change) -> bool) -> BTreeSet<PathBuf> {
        loop {
            let rest = self.first.zip(self.last).map(|(first, last)| (first + PATIENCE).min(last + QUIET));
            let resting = async {
                match rest {
                    Some(rest) => sleep_until(rest).await,
                    None => std::future::pending().await,
                }
            };
            let blind = self.folders.values().any(|top| !top.watched);
            let stale = self.folders.values().any(|top| top.stale);
            // At most one walk a second, however often folders change.
            let walk = self.walked.map_or_else(Instant::now, |walked| walked + LOOK);
            tokio::select! {
                event = self.events.recv() => match event {
                    Some(event) => self.take(event, &count),
                    None => return std::future::pending().await,
                },
                () = resting => {
                    (self.first, self.last) = (None, None);
                    return std::mem::take(&mut self.seen);
                }
                () = sleep_until(walk), if stale => {
                    let (come, failed) = self.walk();
                    self.came(&come, &failed, &count);
                }
                () = sleep(LOOK), if blind => {
                    // Files that still cannot be watched were reported when they were added.
                    let (come, _) = self.retry();
                    self.came(&come, &[], &count);
                }
            }
        }
    }

    /// Reports the files in new folders as changed.
    fn came(&mut self, folders: &[PathBuf], failed: &[String], count: &impl Fn(&Path, Change) -> bool) {
        for why in failed {
            tracing::warn!("{why}");
        }
        let files = folders.iter().flat_map(fs::read_dir).flatten().take(MAX_ENTRIES).flatten();
        for path in
            files.map(|entry| entry.path()).filter(|path| count(path, Change::Content)).collect::<Vec<_>>()
        {
            self.saw(path);
        }
    }

    fn take(&mut self, event: notify::Result<Event>, count: &impl Fn(&Path, Change) -> bool) {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                tracing::warn!(%error, "watching files");
                return;
            }
        };
        event.paths.iter().for_each(|path| self.follow(path, event.kind));
        let change = match event.kind {
            EventKind::Modify(ModifyKind::Metadata(_)) => Change::Metadata,
            // Linux reports this also if only the modification time was set. A writer closes the file.
            EventKind::Modify(ModifyKind::Data(_)) if cfg!(target_os = "linux") => Change::Metadata,
            _ => Change::Content,
        };
        for path in event.paths.into_iter().filter(|path| count(path, change)) {
            self.saw(path);
        }
    }

    /// Notices that a folder has come or gone.
    fn follow(&mut self, path: &Path, kind: EventKind) {
        let gone =
            matches!(kind, EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(RenameMode::From)));
        let come = match kind {
            EventKind::Create(CreateKind::Folder) => true,
            EventKind::Create(CreateKind::Any) | EventKind::Modify(ModifyKind::Name(_)) => {
                fs::symlink_metadata(path).is_ok_and(|about| about.is_dir())
            }
            _ => false,
        };
        let mut left = Vec::new();
        for (folder, top) in &mut self.folders {
            if folder == path {
                // One that went away is no longer watched, even if another one takes its name.
                if gone || (matches!(kind, EventKind::Modify(_)) && !path.is_dir()) {
                    top.watched = false;
                    left.extend(std::mem::take(&mut top.below));
                }
            } else if top.deep && WALKS && path.starts_with(folder) {
                if gone {
                    // Paths below it sort right after it.
                    let from = top.below.range(path.to_owned()..).take_while(|known| known.starts_with(path));
                    left.extend(from.cloned());
                    top.below.retain(|known| !known.starts_with(path));
                }
                top.stale |= come;
            }
        }
        self.leave(left);
    }

    fn saw(&mut self, path: PathBuf) {
        let now = Instant::now();
        self.first.get_or_insert(now);
        self.last = Some(now);
        self.seen.insert(path);
    }
}

/// The kind of change of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// Its content, or that it exists.
    Content,
    /// Its mode, owner or times, or a change that cannot be distinguished from these.
    Metadata,
}

/// Reading is no change; the end of writing is one.
fn is_change(kind: EventKind) -> bool {
    !matches!(kind, EventKind::Access(access) if access != AccessKind::Close(AccessMode::Write))
}

/// The folders below `top`, the nearest first, and whether these are all. Behind a symbolic link there are none.
fn folders_below(top: &Path) -> (BTreeSet<PathBuf>, bool) {
    let (mut found, mut left) = (BTreeSet::new(), MAX_ENTRIES);
    let mut next = VecDeque::from([top.to_owned()]);
    while let Some(folder) = next.pop_front() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            if left == 0 {
                return (found, false);
            }
            left -= 1;
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            if found.len() == MAX_FOLDERS {
                return (found, false);
            }
            found.insert(entry.path());
            next.push_back(entry.path());
        }
    }
    (found, true)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    async fn seen(watcher: &mut FileWatcher, folder: &Path) -> Vec<String> {
        let counts = |path: &Path, change| {
            change == Change::Content && path.extension().is_some_and(|ending| ending == "py")
        };
        let paths = tokio::time::timeout(Duration::from_secs(20), watcher.next(counts)).await.unwrap();
        paths.iter().map(|path| path.strip_prefix(folder).unwrap().display().to_string()).collect()
    }

    #[tokio::test]
    async fn writes_renames_and_new_folders_are_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("deep")).unwrap();
        let mut watcher = FileWatcher::new().unwrap();
        watcher.look_at([(folder.path().to_owned(), false), (at("deep"), true), (at("later"), false)]);
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

    #[tokio::test]
    async fn folders_that_come_and_go_are_followed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("deep/old")).unwrap();
        let mut watcher = FileWatcher::new().unwrap();
        assert_eq!(watcher.look_at([(at("deep"), true)]), [""; 0]);
        fs::write(at("deep/old/a.py"), "1").unwrap();
        assert_eq!(seen(&mut watcher, folder.path()).await, ["deep/old/a.py"]);
        fs::create_dir_all(at("deep/new/er")).unwrap();
        fs::write(at("deep/new/er/b.py"), "2").unwrap();
        assert_eq!(seen(&mut watcher, folder.path()).await, ["deep/new/er/b.py"]);
        // Another folder takes the name.
        fs::rename(at("deep/old"), at("gone")).unwrap();
        fs::create_dir(at("deep/old")).unwrap();
        fs::write(at("deep/old/c.py"), "3").unwrap();
        assert!(seen(&mut watcher, folder.path()).await.contains(&"deep/old/c.py".to_owned()));
        fs::write(at("deep/old/c.py"), "4").unwrap();
        assert_eq!(seen(&mut watcher, folder.path()).await, ["deep/old/c.py"]);
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn no_link_is_followed_and_watched_folders_are_limited() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("linked/sub")).unwrap();
        std::os::unix::fs::symlink("/", at("linked/root")).unwrap();
        std::os::unix::fs::symlink("/usr", at("linked/sub/usr")).unwrap();
        let mut watcher = FileWatcher::new().unwrap();
        assert_eq!(watcher.look_at([(at("linked"), true)]), [""; 0], "{} is watched", at("linked").display());
        assert_eq!(watcher.folders[&at("linked")].below, BTreeSet::from([at("linked/sub")]));
        std::os::unix::fs::symlink("/", at("linked/sub/again")).unwrap();
        fs::write(at("linked/sub/a.py"), "1").unwrap();
        assert_eq!(seen(&mut watcher, folder.path()).await, ["linked/sub/a.py"]);
        assert_eq!(watcher.folders[&at("linked")].below.len(), 1);

        for number in 0..=MAX_FOLDERS {
            fs::create_dir_all(at("many").join(number.to_string())).unwrap();
        }
        let warnings = watcher.look_at([(at("many"), true), (at("linked"), true)]);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains("cannot watch all of"), "{warnings:?}");
        assert!(watcher.folders[&at("many")].below.len() <= MAX_FOLDERS);
        fs::write(at("many/b.py"), "2").unwrap();
        assert_eq!(seen(&mut watcher, folder.path()).await, ["many/b.py"]);
        fs::write(at("linked/sub/a.py"), "3").unwrap();
        assert_eq!(
            seen(&mut watcher, folder.path()).await,
            ["linked/sub/a.py"],
            "the others are as they were"
        );
        watcher.look_at([]);
        assert!(watcher.folders.is_empty());
    }
}
