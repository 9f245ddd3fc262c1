//! The history of earlier starts: a small file in the cache folder. Losing it costs only time, so
//! no fault of it is an error: a file that cannot be read is an empty one, and one that cannot be written is not.
//!
//! Several processes may use it at once. It is replaced as a whole, by a rename; of two that write in the same
//! moment, the last one wins, and the changes of the other one are lost.

use std::{
    collections::{BTreeMap, HashMap},
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{config::StdioConfig, text::short_hex};

/// Name of the file. Its number is that of its format: another one is another file.
const FILE: &str = "starts-1.json";
/// Starts of one server that are remembered.
const KEPT_STARTS: usize = 5;
/// A start with less CPU time than this does not keep others from a core.
pub(super) const LIGHT: Duration = Duration::from_millis(20);
/// Servers and packages that are remembered; the ones not started for longest leave.
const KEPT: usize = 1000;
/// Greatest size of a file that is read, in bytes. Ours stay below a fifth of it.
const MAX_FILE: u64 = 1 << 20;

/// The history of earlier starts, and news of this one for it.
#[derive(Default)]
pub(super) struct History {
    file: Option<PathBuf>,
    known: HistoryFile,
    // Std mutex: held for a change of a map.
    news: Mutex<HashMap<String, HistoryChange>>,
}

#[derive(Default, Serialize, Deserialize)]
struct HistoryFile {
    /// Records of servers by fingerprint: they may hold secrets in their arguments.
    servers: BTreeMap<String, Record>,
}

/// One server or package.
#[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
struct Record {
    /// Durations of its last starts, from its own turn until it was ready, in milliseconds; none for a package.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ms: Vec<u32>,
    /// Its CPU time in each of these, in milliseconds, as far as it is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    cpu_ms: Vec<u32>,
    /// Whether it leaves `server/discover` without an answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    mute: bool,
    /// Whether its last start with templates was a fork, which says nothing of what it takes by itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    forked: bool,
    /// When this was written last, in seconds since 1970.
    at: u64,
}

/// One start that succeeded.
pub(super) struct Start {
    /// Time from its own turn until it was ready.
    pub(super) took: Duration,
    /// CPU time of the server and its descendants, if known.
    pub(super) cpu: Option<Duration>,
    /// It left `server/discover` without an answer.
    pub(super) mute: bool,
    /// It could have been a fork and was none.
    pub(super) not_forked: bool,
}

enum HistoryChange {
    Started(Start),
    Forked,
    Installed,
    Failed,
}

impl History {
    /// Reads the history file in `folder`. Without a folder nothing is kept.
    pub(super) fn open(folder: Option<&Path>) -> Self {
        let file = folder.map(|folder| folder.join(FILE));
        let known = file.as_deref().and_then(read).unwrap_or_default();
        Self { file, known, news: Mutex::default() }
    }

    /// The time that a start of the server is expected to take, which is that of the quickest of the last starts: others may
    /// have been held up.
    pub(super) fn expected(&self, server: &str) -> Option<Duration> {
        let ms = self.known.servers.get(server)?.ms.iter().min()?;
        Some(Duration::from_millis(u64::from(*ms)))
    }

    /// Whether the server is known to leave `server/discover` without an answer.
    pub(super) fn is_mute(&self, server: &str) -> bool {
        self.known.servers.get(server).is_some_and(|record| record.mute)
    }

    /// Whether the last start of the package succeeded.
    pub(super) fn is_installed(&self, package: &str) -> bool {
        match self.news().get(package) {
            Some(news) => matches!(news, HistoryChange::Installed),
            None => self.known.servers.contains_key(package),
        }
    }

    /// Whether no start of the server of late took CPU time worth speaking of.
    pub(super) fn uses_little_cpu(&self, server: &str) -> bool {
        let most = self.known.servers.get(server).and_then(|record| record.cpu_ms.iter().max());
        most.is_some_and(|ms| Duration::from_millis(u64::from(*ms)) <= LIGHT)
    }

    /// Whether the last start of the server with templates was a fork.
    pub(super) fn was_forked(&self, server: &str) -> bool {
        self.known.servers.get(server).is_some_and(|record| record.forked)
    }

    /// The server was forked.
    pub(super) fn forked(&self, server: &str) {
        // Written only where that is news: servers of tasks are forked by the thousand. Of an ordinary start before it in this process,
        // its time is worth more.
        if !self.was_forked(server) {
            self.news().entry(server.to_owned()).or_insert(HistoryChange::Forked);
        }
    }

    pub(super) fn started(&self, server: &str, start: Start) {
        self.news().insert(server.to_owned(), HistoryChange::Started(start));
    }

    pub(super) fn installed(&self, package: &str) {
        self.news().insert(package.to_owned(), HistoryChange::Installed);
    }

    /// A start of the package failed: it may not be there after all.
    pub(super) fn failed(&self, package: &str) {
        self.news().insert(package.to_owned(), HistoryChange::Failed);
    }

    /// Writes what is new, on top of what others have written meanwhile.
    pub(super) fn save(&self) {
        let (Some(file), news) = (&self.file, std::mem::take(&mut *self.news())) else { return };
        if news.is_empty() {
            return;
        }
        let mut book = read(file).unwrap_or_default();
        for (key, news) in news {
            book.learn(key, &news);
        }
        book.forget();
        if let Err(error) = write(file, &book) {
            tracing::debug!(file = %file.display(), %error, "the history of starts was not written");
        }
    }

    fn news(&self) -> MutexGuard<'_, HashMap<String, HistoryChange>> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HistoryFile {
    fn learn(&mut self, key: String, news: &HistoryChange) {
        if matches!(news, HistoryChange::Failed) {
            self.servers.remove(&key);
            return;
        }
        let record = self.servers.entry(key).or_default();
        record.at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        record.forked |= matches!(news, HistoryChange::Forked);
        if let HistoryChange::Started(start) = news {
            record.forked &= !start.not_forked;
            record.mute = start.mute;
            push(&mut record.ms, start.took);
            start.cpu.into_iter().for_each(|cpu| push(&mut record.cpu_ms, cpu));
        }
    }

    /// Drops the oldest ones over the limit.
    fn forget(&mut self) {
        let over = self.servers.len().saturating_sub(KEPT);
        if over > 0 {
            let mut ages: Vec<(u64, String)> =
                self.servers.iter().map(|(key, record)| (record.at, key.clone())).collect();
            ages.sort_unstable();
            for (_, key) in ages.into_iter().take(over) {
                self.servers.remove(&key);
            }
        }
    }
}

/// Adds the newest of some times.
fn push(times: &mut Vec<u32>, time: Duration) {
    times.insert(0, u32::try_from(time.as_millis()).unwrap_or(u32::MAX));
    times.truncate(KEPT_STARTS);
}

fn read(file: &Path) -> Option<HistoryFile> {
    serde_json::from_slice(&crate::bounded::read(file, MAX_FILE).ok()?).ok()
}

fn write(file: &Path, book: &HistoryFile) -> std::io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let draft = folder.join(format!(".{FILE}-{:016x}", fastrand::u64(..)));
    // The history shows when a user starts which servers, so it is private.
    let made = std::fs::File::options().write(true).create_new(true).mode(0o600).open(&draft);
    let written = made
        .and_then(|mut made| made.write_all(&serde_json::to_vec(book)?))
        .and_then(|()| std::fs::rename(&draft, file));
    if written.is_err() {
        let _ = std::fs::remove_file(&draft);
    }
    written
}

/// The key of a server: its program, arguments and folder, in a form that does not give them away.
pub(super) fn fingerprint(spec: &StdioConfig) -> String {
    let command = spec.command.to_string_lossy();
    let folder = spec.cwd.to_string_lossy();
    key("server", [&*command, &*folder].into_iter().chain(spec.args.iter().map(String::as_str)))
}

/// The key of a package, and of where it is installed: the variables that move home and cache folders.
pub(super) fn package_key(package: &str, spec: &StdioConfig) -> String {
    let moved = spec.env.iter().filter(|(name, _)| {
        let name = name.to_ascii_uppercase();
        name == "HOME" || name == "XDG_DATA_HOME" || name.contains("CACHE")
    });
    key(
        "package",
        std::iter::once(package).chain(moved.flat_map(|(name, value)| [name.as_str(), value.as_str()])),
    )
}

fn key<'a>(kind: &'a str, parts: impl Iterator<Item = &'a str>) -> String {
    let mut digest = Sha256::new();
    for part in std::iter::once(kind).chain(parts) {
        // With its length, or parts could run into each other.
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    short_hex(digest)[..24].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(ms: u64, cpu_ms: u64, mute: bool) -> Start {
        let cpu = Some(Duration::from_millis(cpu_ms));
        Start { took: Duration::from_millis(ms), cpu, mute, not_forked: true }
    }

    #[test]
    fn start_history_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("not/there/yet");
        let first = History::open(Some(&inner));
        assert!(first.expected("a").is_none() && !first.is_mute("a") && !first.is_installed("p"));
        first.started("a", start(700, 15, true));
        first.installed("p");
        assert!(first.is_installed("p"));
        first.save();
        // Another one that has not seen the first one's news adds to them.
        let second = History::open(Some(&inner));
        assert!(second.uses_little_cpu("a") && second.is_mute("a"));
        for took in [400, 900, 900, 900, 900, 800] {
            second.started("a", start(took, 30, false));
            second.installed("q");
            second.save();
        }
        let third = History::open(Some(&inner));
        assert_eq!(third.expected("a"), Some(Duration::from_millis(800)), "400 is six starts ago");
        assert!(!third.is_mute("a") && !third.uses_little_cpu("a") && !third.uses_little_cpu("never"));
        assert!(third.is_installed("p") && third.is_installed("q"));
        third.failed("p");
        assert!(!third.is_installed("p"));
        third.forked("a");
        third.started("b", start(500, 30, false));
        third.forked("b");
        third.save();
        let fourth = History::open(Some(&inner));
        assert!(!fourth.is_installed("p") && fourth.was_forked("a") && !fourth.was_forked("b"));
        let known = ["a", "b"].map(|name| fourth.expected(name).unwrap().as_millis());
        assert_eq!(known, [800, 500], "a fork takes no time away");
        assert_eq!(std::fs::read_dir(&inner).unwrap().count(), 1, "no drafts");
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &std::fs::metadata(inner.join(FILE)).unwrap().permissions(),
        );
        assert_eq!(mode & 0o777, 0o600, "{mode:o}");
    }

    #[test]
    fn a_damaged_history_file_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(FILE);
        for rubbish in ["", "{", "[]", "{\"servers\": 1}", "\u{0}"] {
            std::fs::write(&file, rubbish).unwrap();
            let history = History::open(Some(folder.path()));
            assert!(history.expected("a").is_none(), "{rubbish}");
            history.started("a", start(1, 1, false));
            history.save();
            assert!(History::open(Some(folder.path())).expected("a").is_some(), "{rubbish}");
        }
        let impossible = History::open(Some(&file));
        impossible.started("a", start(1, 1, false));
        impossible.save();
        let nowhere = History::open(None);
        nowhere.started("a", start(1, 1, false));
        nowhere.save();
    }

    #[test]
    fn the_history_file_is_bounded() {
        let mut book = HistoryFile::default();
        for number in 0..=KEPT {
            book.servers.insert(number.to_string(), Record { at: number as u64, ..Record::default() });
        }
        book.forget();
        assert_eq!(book.servers.len(), KEPT);
        assert!(!book.servers.contains_key("0"));
    }

    #[test]
    fn history_keys_differ_for_different_servers() {
        let spec = |args: &[&str]| StdioConfig::new("x", args.iter().map(ToString::to_string).collect(), "/");
        assert_ne!(fingerprint(&spec(&["a", "bc"])), fingerprint(&spec(&["ab", "c"])));
        let mut moved = spec(&[]);
        std::sync::Arc::make_mut(&mut moved.env)
            .insert("npm_config_cache".to_owned(), "/elsewhere".to_owned());
        assert_ne!(package_key("p", &spec(&[])), package_key("p", &moved));
    }
}
