//! The records on disk: one file for each configuration, which nobody else may read or write.

use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, ErrorKind, Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{files::Digests, started::KnownStart};
use crate::{
    config::stranger_on_the_way,
    text::{hex, short_hex},
};

/// The longest record that is read.
const MAX_RECORD: u64 = 4 << 20;
/// The version of records. Records of other versions are not used.
const SCHEMA: u32 = 3;
/// The most records that are listed.
const MOST_LISTED: usize = 10_000;

/// How a configuration became known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum TrustedBy {
    /// By a command that somebody typed, and that started what it says.
    #[default]
    Used,
    /// By `toolcrib trust`.
    Allowed,
}

/// The record of one configuration.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) schema: u32,
    /// Where it is, as [`place`](super::files::place) has it.
    pub(super) file: PathBuf,
    /// The files that decide what it starts.
    pub(super) files: Digests,
    /// Programs that it starts and addresses that it asks, by their digests, to tell what is new.
    pub(super) starts: BTreeMap<String, KnownStart>,
    pub(super) by: TrustedBy,
    /// Time of the record, in seconds since 1970.
    pub(super) at: u64,
}

impl Record {
    pub(super) fn new(file: PathBuf) -> Self {
        Self { schema: SCHEMA, file, ..Self::default() }
    }
}

/// The key of all digests of a user, so that no value can be guessed from a record.
#[derive(Clone, PartialEq)]
pub(super) struct Key(Vec<u8>);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

impl Key {
    const LENGTH: usize = 32;
    const FILE: &str = "key";

    /// A new one.
    pub(super) fn random() -> Self {
        let mut bytes = [0; Self::LENGTH];
        let read = File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut bytes));
        if read.is_err() {
            bytes.fill_with(|| fastrand::u8(..));
        }
        Self(bytes.to_vec())
    }

    pub(super) fn digest(&self, bytes: &[u8]) -> String {
        hex(&Sha256::new_with_prefix(&self.0).chain_update(bytes).finalize())
    }
}

/// The folder of the records.
#[derive(Debug)]
pub(super) struct Records(PathBuf);

impl Records {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self(folder)
    }

    fn path(&self, file: &Path) -> PathBuf {
        let name = short_hex(Sha256::new_with_prefix(file.as_os_str().as_encoded_bytes()));
        self.0.join(name).with_extension("json")
    }

    /// The record of the configuration at `file`.
    pub(super) fn read(&self, file: &Path) -> io::Result<Option<Record>> {
        let record = match self.read_at(&self.path(file)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            record => record?,
        };
        Ok(Some(record).filter(|record| record.file == file && record.schema == SCHEMA))
    }

    fn read_at(&self, path: &Path) -> io::Result<Record> {
        let text = self.read_private(path)?;
        serde_json::from_slice(&text).map_err(|error| refused(path, &format!("it is damaged: {error}")))
    }

    fn read_private(&self, path: &Path) -> io::Result<Vec<u8>> {
        check_folder(&self.0)?;
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let file = File::options().read(true).custom_flags(flags).open(path)?;
        let about = file.metadata()?;
        if !about.is_file() {
            return Err(refused(path, "it is not a regular file"));
        }
        if about.uid() != own() {
            return Err(refused(path, "it belongs to another user"));
        }
        if about.mode() & 0o077 != 0 {
            return Err(refused(path, "other users may use it (chmod 600)"));
        }
        let mut text = Vec::new();
        file.take(MAX_RECORD).read_to_end(&mut text)?;
        Ok(text)
    }

    /// The key. `None`: there is none yet.
    pub(super) fn key(&self) -> io::Result<Option<Key>> {
        let path = self.0.join(Key::FILE);
        match self.read_private(&path) {
            Ok(bytes) if bytes.len() == Key::LENGTH => Ok(Some(Key(bytes))),
            Ok(_) => Err(refused(&path, "it is damaged: its length is wrong")),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The key, which is made where there is none.
    pub(super) fn key_for_use(&self) -> io::Result<Key> {
        if let Some(key) = self.key()? {
            return Ok(key);
        }
        let key = Key::random();
        // Of several that are made at once the first one stays.
        self.put(&self.0.join(Key::FILE), &key.0, |new, path| match fs::hard_link(new, path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
            _ => fs::remove_file(new),
        })?;
        Ok(self.key()?.unwrap_or(key))
    }

    /// Sees to it that this is the key.
    fn keep_key(&self, key: &Key) -> io::Result<()> {
        match self.key() {
            Ok(Some(known)) if known == *key => Ok(()),
            _ => self.put(&self.0.join(Key::FILE), &key.0, |new, path| fs::rename(new, path)),
        }
    }

    /// Puts a whole new record in the place of the old one.
    pub(super) fn write(&self, record: &Record, key: &Key) -> io::Result<()> {
        self.keep_key(key)?;
        self.put(&self.path(&record.file), &serde_json::to_vec(record)?, |new, path| fs::rename(new, path))
    }

    /// Writes a new file, which `place` then puts in its place.
    fn put(
        &self,
        path: &Path,
        bytes: &[u8],
        place: impl Fn(&Path, &Path) -> io::Result<()>,
    ) -> io::Result<()> {
        leave_to_its_user(&self.0)?;
        DirBuilder::new().recursive(true).mode(0o700).create(&self.0)?;
        check_folder(&self.0)?;
        let new = path.with_extension(format!("{:016x}.new", fastrand::u64(..)));
        let written = (|| {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
            file.write_all(bytes)?;
            place(&new, path)
        })();
        if written.is_err() {
            let _ = fs::remove_file(&new);
        }
        written
    }

    /// Removes the record of the configuration at `file`. `false`: there was none.
    pub(super) fn remove(&self, file: &Path) -> io::Result<bool> {
        match check_folder(&self.0).and_then(|()| fs::remove_file(self.path(file))) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// All that can be read, by their paths.
    pub(super) fn all(&self) -> io::Result<Vec<Record>> {
        let entries = match fs::read_dir(&self.0) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let paths = entries.take(MOST_LISTED).filter_map(|entry| Some(entry.ok()?.path()));
        let paths = paths.filter(|path| path.extension().is_some_and(|ending| ending == "json"));
        let mut records: Vec<Record> = paths.filter_map(|path| self.read_at(&path).ok()).collect();
        records.sort_by(|one, other| one.file.cmp(&other.file));
        Ok(records)
    }
}

/// No folder is made by way of what another user may exchange: as root (sudo) in the home of another user, who could not use it
/// any more.
fn leave_to_its_user(folder: &Path) -> io::Result<()> {
    stranger_on_the_way(folder).map_or(Ok(()), |stranger| Err(refused(folder, &stranger)))
}

fn own() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The folder must be this user's alone, and nobody may put another one in its place.
fn check_folder(folder: &Path) -> io::Result<()> {
    let about = fs::symlink_metadata(folder)?;
    if !about.is_dir() || about.uid() != own() {
        return Err(refused(folder, "it is not a folder of this user"));
    }
    if about.mode() & 0o022 != 0 {
        return Err(refused(folder, "other users may write to it (chmod 700)"));
    }
    let Some(above) = folder.parent() else { return Ok(()) };
    let about = fs::metadata(above)?;
    // In a folder such as /tmp nobody replaces what is another's.
    let is_open = about.mode() & 0o002 != 0 && about.mode() & 0o1000 == 0;
    if is_open || !(about.uid() == own() || about.uid() == 0) {
        return Err(refused(above, "other users may replace what is in it"));
    }
    // Also by a link, or a folder further above.
    leave_to_its_user(folder)
}

fn refused(path: &Path, why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("{} is not used: {why}", path.display()))
}
