//! Tool lists on disk: what each server offered when it was asked last, so that the next start need not wait for it.
//!
//! One file for each server as it is configured, for this user alone, replaced as a whole: several processes may
//! read and write at once. What cannot be read is not there. No file holds a secret: a list that repeats one is
//! not kept.

use std::{
    fmt,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

use super::{Fingerprint, ToolChanges};
use crate::{
    bounded,
    config::{Secrets, ServerConfig},
    tool::{ServerName, Tool},
};

/// Version of the files. Those of another version are not read.
const SCHEMA: u32 = 1;
/// Largest file that is read: a list has at most 4 MiB, and quoting may double it.
const MAX_FILE: u64 = 10 << 20;
/// Files kept. When there are more, the oldest leave.
const MAX_FILES: usize = 1000;

/// The tools of a server, and the rest of its answer.
#[derive(Debug, Clone)]
pub struct Listing {
    /// The name and version that it gives itself, if it does.
    pub software: Option<ServerSoftware>,
    /// The protocol revision that was agreed on.
    pub version: String,
    /// The tools that the server listed.
    pub tools: Arc<[Tool]>,
    /// How long the list is valid. `None`: until it changes.
    pub ttl: Option<Duration>,
}

/// The program behind a server, in its own words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ServerSoftware {
    /// The name that it gives itself.
    pub name: String,
    /// Its version. Empty if it does not say.
    pub version: String,
}

impl fmt::Display for ServerSoftware {
    /// `name version`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if self.version.is_empty() { Ok(()) } else { write!(f, " {}", self.version) }
    }
}

/// A listing of an earlier time that still holds.
#[derive(Debug, Clone)]
pub struct Remembered {
    /// The name and version that the server gave itself.
    pub software: Option<ServerSoftware>,
    /// The protocol revision that was agreed on.
    pub version: String,
    /// The tools that the server listed.
    pub tools: Arc<[Tool]>,
    /// When it was given.
    pub listed: SystemTime,
}

/// A folder of remembered lists.
#[derive(Debug, Clone)]
pub struct CatalogCache {
    folder: Arc<Path>,
}

/// One file. Times are milliseconds since 1970. The list is as new as the file, at least: one that is given again
/// is not written again.
#[derive(Serialize, Deserialize)]
struct Entry {
    schema: u32,
    fingerprint: String,
    listed: u64,
    expires: Option<u64>,
    software: Option<ServerSoftware>,
    version: String,
    tools: Arc<[Tool]>,
}

impl CatalogCache {
    /// Keeps lists below `folder`, which is made when the first list is kept.
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.join("catalog").into() }
    }

    /// Recalls the tools that `server` listed before, if nothing of the server has changed and the list is still valid.
    pub(crate) fn recall(&self, server: &ServerName, print: &Fingerprint) -> Option<Remembered> {
        let entry = read(&self.file(server, print))?;
        let now = millis(SystemTime::now());
        let good = entry.fingerprint == print.whole() && entry.expires.is_none_or(|end| now < end);
        good.then(|| Remembered {
            software: entry.software,
            version: entry.version,
            tools: entry.tools,
            listed: UNIX_EPOCH + Duration::from_millis(entry.listed),
        })
    }

    /// The tools that `server` offered last, however long ago and to whichever client: to suggest names to people, and for nothing else.
    /// Reads files of this user alone, and starts nothing. Empty: none are known.
    pub fn last_offered(&self, server: &ServerConfig) -> Vec<Tool> {
        let age = |file: &PathBuf| fs::metadata(file).and_then(|about| about.modified()).ok();
        let files = Fingerprint::file_names(server).map(|name| self.folder.join(name));
        let mut files: Vec<_> = files.filter_map(|file| Some((age(&file)?, file))).collect();
        files.sort_unstable();
        let newest = files.iter().rev().find_map(|(_, file)| read(file));
        let tools = newest.map(|entry| entry.tools).unwrap_or_default();
        let offered = tools.iter().filter(|tool| server.tools.permits(&tool.name));
        offered.map(|tool| server.renames.rename(tool).unwrap_or_else(|| tool.clone())).collect()
    }

    /// Keeps `listing` for the next start; says how it differs from the one before, if there was one and it does. A
    /// list that must not be kept takes the place of the one before nevertheless.
    pub fn remember(
        &self,
        server: &ServerName,
        print: &Fingerprint,
        listing: &Listing,
        secrets: &Secrets,
    ) -> Option<ToolChanges> {
        let file = self.file(server, print);
        let now = millis(SystemTime::now());
        let entry = Entry {
            schema: SCHEMA,
            fingerprint: print.whole().to_owned(),
            listed: now,
            expires: listing.ttl.map(|ttl| now.saturating_add(whole_millis(ttl))),
            software: listing.software.clone(),
            version: listing.version.clone(),
            tools: listing.tools.clone(),
        };
        let keep = listing.ttl != Some(Duration::ZERO);
        let text = serde_json::to_string(&entry).ok().filter(|text| keep && secrets.hide(text) == *text);
        // The usual case: the list has not changed.
        if text.as_ref().is_some_and(|text| touch_if_same(&file, text)) {
            return None;
        }
        let before = read(&file);
        let kept = match text {
            Some(text) => self.write(&file, &text),
            None => gone(&file),
        };
        if let Err(error) = kept {
            // Only reported: the next start takes a little longer.
            tracing::warn!(file = %file.display(), %error, "the tool list could not be cached");
        }
        let before = before?;
        let mut changes = ToolChanges::between(&before.tools, &listing.tools);
        changes.since = Some(UNIX_EPOCH + Duration::from_millis(before.listed));
        (!changes.is_empty()).then_some(changes)
    }

    fn file(&self, server: &ServerName, print: &Fingerprint) -> PathBuf {
        self.folder.join(print.file_name(server))
    }

    /// A concurrent reader sees the old file or the new one.
    fn write(&self, file: &Path, text: &str) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        if !file.exists() {
            self.make_room();
        }
        let draft = self.folder.join(format!(".{}-{:08x}", std::process::id(), fastrand::u32(..)));
        let written = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&draft)
            .and_then(|mut open| open.write_all(text.as_bytes()))
            .and_then(|()| fs::rename(&draft, file));
        written.inspect_err(|_| drop(fs::remove_file(&draft)))
    }

    fn make_room(&self) {
        let surplus = |times: &[SystemTime]| (times.len() + 1).saturating_sub(MAX_FILES);
        // What cannot be tidied up costs room alone.
        let _ = bounded::remove_oldest(&self.folder, is_ours, surplus);
    }
}

/// Whether a file has the name of a list or a draft.
fn is_ours(name: &str) -> bool {
    let list = name.strip_suffix(".json").and_then(|name| name.rsplit_once('-'));
    let draft = name.strip_prefix('.').and_then(|name| name.split_once('-'));
    list.is_some_and(|(_, print)| bounded::is_hex(print, 16))
        || draft.is_some_and(|(_, number)| bounded::is_hex(number, 8))
}

/// A file that is whole and ours.
fn read(path: &Path) -> Option<Entry> {
    let (text, modified) = text_of(&bounded::open(path).ok()?)?;
    let mut entry: Entry = serde_json::from_slice(&text).ok()?;
    entry.listed = entry.listed.max(millis(modified));
    (entry.schema == SCHEMA).then_some(entry)
}

/// The content of a file, and its age. Models read it: no other user may have written it.
fn text_of(file: &File) -> Option<(Vec<u8>, SystemTime)> {
    let about = file.metadata().ok()?;
    let ours = about.uid() == rustix::process::geteuid().as_raw() && about.mode() & 0o022 == 0;
    if !ours || about.len() > MAX_FILE {
        return None;
    }
    let mut text = Vec::with_capacity(usize::try_from(about.len()).unwrap_or_default() + 1);
    file.take(MAX_FILE).read_to_end(&mut text).ok()?;
    Some((text, about.modified().ok()?))
}

/// Whether the file is `text` but for the time, and then it is as of now. To replace it would hold up the start for
/// milliseconds: ext4, for one, writes data to the disk before a file takes another's name (`auto_da_alloc` in
/// ext4(5)).
fn touch_if_same(path: &Path, text: &str) -> bool {
    /// Before the time and behind it. All that comes before it are numbers and hashes.
    fn parts(text: &[u8]) -> Option<(&[u8], &[u8])> {
        const TIME: &[u8] = b"\"listed\":";
        let at = text.windows(TIME.len()).position(|window| window == TIME)? + TIME.len();
        let end = at + text[at..].iter().position(|byte| !byte.is_ascii_digit())?;
        Some((&text[..at], &text[end..]))
    }
    let Ok(file) = OpenOptions::new().read(true).write(true).open(path) else { return false };
    let Some((before, _)) = text_of(&file) else { return false };
    let same = parts(&before).is_some_and(|before| Some(before) == parts(text.as_bytes()));
    same && file.set_modified(SystemTime::now()).is_ok()
}

fn gone(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn millis(time: SystemTime) -> u64 {
    whole_millis(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn whole_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// For the fuzz target `records`: a file of a tool list.
pub fn fuzz(bytes: &[u8]) {
    let _ = serde_json::from_slice::<Entry>(bytes);
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;
    use crate::{
        config::{Endpoint, NamePattern, ToolRenames},
        tool::ToolName,
    };

    struct Bench {
        folder: tempfile::TempDir,
        cache: CatalogCache,
        name: ServerName,
        print: Fingerprint,
    }

    impl Bench {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let cache = CatalogCache::new(folder.path());
            let name = ServerName::new("one").unwrap();
            let endpoint = Endpoint::Builtin { name: "calc".into(), args: vec![], base: "/".into() };
            let print = Fingerprint::of(&ServerConfig::new(name.clone(), endpoint), &json!({})).unwrap();
            Self { folder, cache, name, print }
        }

        fn remember(&self, tools: Vec<Tool>, ttl: Option<u64>) -> Option<ToolChanges> {
            let ttl = ttl.map(Duration::from_millis);
            let listing = Listing { software: None, version: "2025-11-25".into(), tools: tools.into(), ttl };
            let secrets = Secrets::new(["planted-secret".to_owned()]);
            self.cache.remember(&self.name, &self.print, &listing, &secrets)
        }

        fn recall(&self) -> Option<Remembered> {
            self.cache.recall(&self.name, &self.print)
        }

        fn files(&self) -> Vec<PathBuf> {
            let entries = fs::read_dir(self.folder.path().join("catalog")).unwrap();
            entries.map(|entry| entry.unwrap().path()).collect()
        }
    }

    fn tool(name: &str, text: &str) -> Tool {
        let schema = json!({"type": "object", "properties": {"z": {}, "a": {}}, "required": ["z"]});
        Tool::new(name, text, schema.as_object().unwrap().clone())
    }

    #[test]
    fn a_cached_list_is_read_back_byte_for_byte() {
        let bench = Bench::new();
        assert!(bench.recall().is_none());
        let mut full = tool("b", "words \u{1f980}");
        full.output_schema = Some(Arc::new(Map::new()));
        full.annotations.read_only_hint = Some(true);
        let tools = vec![full, tool("a", "")];
        assert_eq!(bench.remember(tools.clone(), None), None, "there was no list before");
        let back = bench.recall().unwrap();
        assert_eq!(json!(back.tools).to_string(), json!(tools).to_string(), "the order of keys counts too");
        let file = &bench.files()[0];
        assert_eq!(fs::metadata(file).unwrap().mode() & 0o777, 0o600);
        let changes = bench.remember(vec![tool("a", "other")], None).unwrap();
        assert!(changes.to_string().starts_with("-1 ~1 tools since 2"), "{changes}");
        assert_eq!(changes.since, Some(back.listed));
        assert_eq!(bench.files().len(), 1, "no draft is left");
    }

    #[test]
    fn an_unchanged_list_is_refreshed_without_a_write() {
        let bench = Bench::new();
        bench.remember(vec![tool("a", "")], None);
        let file = bench.files().remove(0);
        let (inode, yesterday) =
            (fs::metadata(&file).unwrap().ino(), SystemTime::now() - Duration::from_secs(86_400));
        let text = fs::read_to_string(&file).unwrap();
        let first = bench.recall().unwrap().listed;
        let mut aged: serde_json::Value = serde_json::from_str(&text).unwrap();
        aged["listed"] = json!(millis(yesterday));
        fs::write(&file, aged.to_string()).unwrap();
        File::options().write(true).open(&file).unwrap().set_modified(yesterday).unwrap();
        assert_eq!(millis(bench.recall().unwrap().listed), millis(yesterday));
        assert_eq!(bench.remember(vec![tool("a", "")], None), None);
        assert!(bench.recall().unwrap().listed >= first);
        assert_eq!(fs::metadata(&file).unwrap().ino(), inode, "another file has another one");
        bench.remember(vec![tool("a", "new")], None).unwrap();
        assert_ne!(fs::metadata(&file).unwrap().ino(), inode);
    }

    #[test]
    fn unsafe_or_damaged_cache_files_are_ignored() {
        let bench = Bench::new();
        bench.remember(vec![tool("a", "")], None);
        let file = bench.files().remove(0);
        let whole = fs::read_to_string(&file).unwrap();
        for broken in [&whole[..whole.len() / 2], "", "[]", &whole.replace("\"schema\":1", "\"schema\":0")] {
            fs::write(&file, broken).unwrap();
            assert!(bench.recall().is_none(), "{broken}");
        }
        fs::write(&file, whole.replace(bench.print.whole(), "0")).unwrap();
        assert!(bench.recall().is_none(), "the program has changed since");
        fs::write(&file, &whole).unwrap();
        assert!(bench.recall().is_some());
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o666);
        fs::set_permissions(&file, open).unwrap();
        assert!(bench.recall().is_none(), "anybody may have written it");
    }

    #[test]
    fn the_last_list_of_any_client_is_suggested_as_it_is_offered() {
        let bench = Bench::new();
        let endpoint = Endpoint::Builtin { name: "calc".into(), args: vec![], base: "/".into() };
        let mut server = ServerConfig::new(bench.name.clone(), endpoint);
        let names = |server: &ServerConfig| -> Vec<String> {
            bench.cache.last_offered(server).iter().map(|tool| tool.name.clone()).collect()
        };
        assert_eq!(names(&server), Vec::<String>::new());
        bench.remember(vec![tool("old", "")], Some(1));
        assert_eq!(names(&server), ["old"], "it may have expired");
        let asked = Fingerprint::of(&server, &json!({"roots": {}, "sampling": {}})).unwrap();
        let listing = Listing {
            software: None,
            version: String::new(),
            tools: vec![tool("a", ""), tool("b", ""), tool("c", "")].into(),
            ttl: None,
        };
        bench.cache.remember(&bench.name, &asked, &listing, &Secrets::default());
        let file = bench.folder.path().join("catalog").join(asked.file_name(&bench.name));
        let later = SystemTime::now() + Duration::from_secs(9);
        File::options().write(true).open(file).unwrap().set_modified(later).unwrap();
        assert_eq!(names(&server), ["a", "b", "c"]);
        server.tools.deny.extend(NamePattern::parse("b"));
        server.renames = ToolRenames::new([("c".to_owned(), ToolName::new("z").unwrap())]);
        assert_eq!(names(&server), ["a", "z"]);
    }

    #[test]
    fn a_list_expires_when_its_server_says() {
        let bench = Bench::new();
        bench.remember(vec![tool("a", "")], Some(3_600_000));
        assert!(bench.recall().is_some());
        bench.remember(vec![tool("a", "")], Some(0));
        assert!(bench.recall().is_none() && bench.files().is_empty());
        bench.remember(vec![tool("a", "")], Some(1));
        std::thread::sleep(Duration::from_millis(2));
        assert!(bench.recall().is_none());
    }

    #[test]
    fn a_list_that_holds_a_secret_is_not_cached() {
        let bench = Bench::new();
        bench.remember(vec![tool("a", "")], None);
        bench.remember(vec![tool("a", "asks with planted-secret")], None);
        assert!(bench.recall().is_none() && bench.files().is_empty());
    }

    #[test]
    fn the_oldest_lists_are_evicted() {
        let bench = Bench::new();
        let folder = bench.folder.path().join("catalog");
        fs::create_dir(&folder).unwrap();
        for number in 0..MAX_FILES {
            fs::write(folder.join(format!("s-{number:016x}.json")), "").unwrap();
        }
        fs::write(folder.join("photo.jpg"), "").unwrap();
        bench.remember(vec![tool("a", "")], None);
        assert_eq!(bench.files().len(), MAX_FILES + 1);
        assert!(folder.join("photo.jpg").exists(), "not ours");
        assert!(bench.recall().is_some());
    }
}
