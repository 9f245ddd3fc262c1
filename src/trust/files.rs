//! The files that decide what a configuration starts, and their digests.

use std::{
    collections::BTreeMap,
    fs,
    path::{Component, Path, PathBuf},
};

use sha2::{Digest as _, Sha256};

use crate::{
    bounded,
    config::{Config, Env, files_of_clients, kept_of_env_file},
    text::hex,
};

/// Longest file that is looked at. A longer one has no digest, and none that would equal it.
const MAX_FILE: u64 = 64 << 20;
/// The beginning of the digest of an `env_file`.
const ENV: &str = "env:";

/// Files by their names, each with its digest: `None` for one that is not there, or cannot be read.
pub(super) type Digests = BTreeMap<PathBuf, Option<String>>;

/// What belongs to a user and to no folder that came from elsewhere.
pub(super) struct OwnFiles {
    folder: Option<PathBuf>,
    files: Vec<PathBuf>,
}

impl OwnFiles {
    pub(super) fn of(env: &Env) -> Self {
        let folder = env.user_config().and_then(|file| file.parent().map(Path::to_owned));
        Self { folder, files: files_of_clients(env) }
    }

    /// Whether `file` is one of them, by its name alone: a link in another folder that leads there is none.
    pub(super) fn contain(&self, file: &Path) -> bool {
        let is_direct = file.components().all(|part| part != Component::ParentDir);
        is_direct
            && (self.folder.as_ref().is_some_and(|folder| file.starts_with(folder))
                || self.files.iter().any(|own| own == file))
    }
}

/// What a configuration is called. Its folder counts, since relative paths in it start there: a link to a file in another folder is
/// another configuration.
pub(super) fn place(file: &Path) -> PathBuf {
    let (Some(folder), Some(name)) = (file.parent(), file.file_name()) else { return file.to_owned() };
    fs::canonicalize(folder).map_or_else(|_| file.to_owned(), |folder| folder.join(name))
}

/// The files of a configuration that are not the user's own.
pub(super) fn of(config: &Config, own: &OwnFiles) -> Digests {
    let Some(main) = &config.file else { return Digests::new() };
    let (folder, real) = (main.parent().unwrap_or(Path::new("/")), place(main));
    let real_folder = real.parent().unwrap_or(Path::new("/"));
    let digests = config.files.iter().filter(|file| !own.contain(file)).map(|file| {
        // By each way to the folder the same file has the same name.
        let named = file.strip_prefix(folder).map_or_else(|_| file.clone(), |rest| real_folder.join(rest));
        let digest = digest(file, config.env_files.contains(file));
        (named, digest)
    });
    digests.collect()
}

/// The digest now of a file that had the digest `known`.
pub(super) fn digest_like(file: &Path, known: Option<&str>) -> Option<String> {
    digest(file, known.is_some_and(|known| known.starts_with(ENV)))
}

/// Of an `env_file`, the values of secrets do not count: they are renewed, by programs too.
fn digest(file: &Path, is_env: bool) -> Option<String> {
    let bytes = bounded::read(file, MAX_FILE).ok()?;
    let kept = is_env.then(|| std::str::from_utf8(&bytes).ok().and_then(kept_of_env_file)).flatten();
    Some(match kept {
        Some(kept) => format!("{ENV}{}", hex(&Sha256::digest(kept))),
        None => hex(&Sha256::digest(&bytes)),
    })
}
