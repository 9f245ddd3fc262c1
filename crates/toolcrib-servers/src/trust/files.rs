//! The files that decide what a configuration starts, and their digests.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Component, Path, PathBuf},
};

use super::record::Key;
use crate::{
    bounded,
    config::{Config, Content, Env, is_renewed, kept_of_env_file},
};

/// Longest file that is looked at. A longer one has no digest, and none that would equal it.
const MAX_FILE: u64 = 64 << 20;
/// The beginning of the digest of an `env_file`; the names of the secrets in it that count follow.
const ENV: &str = "env:";

/// The word in place of the digest of a file that was another one each time it was read.
const CHANGING: &str = "changing";

/// Files by their names, each with its digest: `None` for one that is not there, or cannot be read.
pub(super) type Digests = BTreeMap<PathBuf, Option<String>>;

/// Files that belong to the user and to no folder that came from elsewhere.
pub(super) struct OwnFiles<'a> {
    env: &'a Env,
    files: Vec<PathBuf>,
}

impl<'a> OwnFiles<'a> {
    pub(super) fn of(env: &'a Env) -> Self {
        Self { env, files: crate::config::files_of_clients(env) }
    }

    /// Whether `file` is one of them, by its name alone: a link in another folder that leads there is none.
    pub(super) fn contain(&self, file: &Path) -> bool {
        let is_direct = file.components().all(|part| part != Component::ParentDir);
        self.env.is_own_config(file) || (is_direct && self.files.iter().any(|own| own == file))
    }
}

/// The path by which a configuration is known. Its folder counts, since relative paths in it start there: a link to a file in
/// another folder is another configuration.
pub(super) fn place(file: &Path) -> PathBuf {
    let (Some(folder), Some(name)) = (file.parent(), file.file_name()) else { return file.to_owned() };
    fs::canonicalize(folder).map_or_else(|_| file.to_owned(), |folder| folder.join(name))
}

/// Whether a configuration is made of the user's own files alone, or of none.
pub(super) fn are_own(config: &Config, own: &OwnFiles<'_>) -> bool {
    config.file.is_none() || config.files.iter().all(|file| own.contain(file))
}

/// The files of several configurations, or of one that was read several times.
pub(super) fn together(all: impl IntoIterator<Item = Digests>) -> Digests {
    let mut together = Digests::new();
    for (file, digest) in all.into_iter().flatten() {
        let known = together.entry(file).or_insert_with(|| digest.clone());
        if *known != digest {
            *known = Some(CHANGING.to_owned());
        }
    }
    together
}

/// The files of a configuration that are not the user's own, as they were when it was read.
pub(super) fn of(config: &Config, own: &OwnFiles<'_>, key: &Key) -> Digests {
    let Some(main) = &config.file else { return Digests::new() };
    let (folder, real) = (main.parent().unwrap_or(Path::new("/")), place(main));
    let real_folder = real.parent().unwrap_or(Path::new("/"));
    let digests = config.files.iter().filter(|file| !own.contain(file)).map(|file| {
        // By each way to the folder the same file has the same name.
        let named = file.strip_prefix(folder).map_or_else(|_| file.clone(), |rest| real_folder.join(rest));
        let deciding = config.env_files.get(file);
        let digest = match config.contents.get(file) {
            // What is no file, such as a pipe, is read once.
            Some(Content::Read(bytes)) if file.is_file() => Some(digest(bytes, deciding, key)),
            Some(Content::Read(_) | Content::Unread) => None,
            Some(Content::Changing) => Some(CHANGING.to_owned()),
            None => digest_now(file, deciding, key),
        };
        (named, digest)
    });
    digests.collect()
}

/// The digest now of a file that had the digest `known`.
pub(super) fn digest_like(file: &Path, known: Option<&str>, key: &Key) -> Option<String> {
    let names = known.and_then(|known| known.strip_prefix(ENV)?.rsplit_once(':'));
    let deciding = names.map(|(names, _)| names.split(',').map(str::to_owned).collect());
    digest_now(file, deciding.as_ref(), key)
}

fn digest_now(file: &Path, deciding: Option<&BTreeSet<String>>, key: &Key) -> Option<String> {
    Some(digest(&bounded::read(file, MAX_FILE).ok()?, deciding, key))
}

/// Makes the digest of a file. The values of secrets in an `env_file` do not count unless they are `deciding` what is started:
/// they are renewed, by programs too.
fn digest(bytes: &[u8], deciding: Option<&BTreeSet<String>>, key: &Key) -> String {
    let kept =
        deciding.and_then(|names| Some((names, kept_of_env_file(str::from_utf8(bytes).ok()?, names)?)));
    match kept {
        Some((names, kept)) => {
            let names: Vec<&str> = names.iter().map(String::as_str).filter(|name| is_renewed(name)).collect();
            format!("{ENV}{}:{}", names.join(","), key.digest(kept.as_bytes()))
        }
        None => key.digest(bytes),
    }
}
