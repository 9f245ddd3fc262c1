//! The record of one resolution: the program and all that its start needs, and the proof that the record still holds.

mod proof;

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use self::proof::Proof;
use super::{Freshness, Runner, observe::ObservedProcess};
use crate::{
    config::{Secrets, StdioConfig, secret_name},
    text::short_hex,
};

/// Version of the form of records. Those of version 1 may be words of servers in sandboxes.
const SCHEMA: u32 = 2;
/// After this a package without a version is given to its runner again: other conditions than files may have
/// changed what the runner would choose.
const MAX_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// Variables that differ from one terminal or login to the next and do not change what a runner finds.
const UNRELATED: &[&str] =
    &["LANG", "LANGUAGE", "LC_", "TERM", "TZ", "SHELL", "LOGNAME", "USER", "XDG_SESSION_", "XDG_RUNTIME_DIR"];
/// Variables that are about the runner's own process, and one in which npm repeats the arguments.
const OF_THE_RUNNER: &[&str] = &["_", "OLDPWD", "SHLVL", "npm_lifecycle_script", crate::process::MARKER];

/// A resolution.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    schema: u32,
    /// Time of the record, in seconds since 1970.
    made: u64,
    program: PathBuf,
    /// Arguments before those of the configuration.
    words: Vec<String>,
    /// The last arguments are those of the configuration from this one on: not stored, since they may be secret.
    rest: usize,
    /// `None`: that of the configuration.
    cwd: Option<PathBuf>,
    /// Variables that the runner sets, and those that it removes.
    set: BTreeMap<String, String>,
    unset: Vec<String>,
    proofs: Vec<Proof>,
    /// Duration of the start through the runner. `None`: it is not known.
    pub(super) runner_time: Option<Duration>,
}

/// The name of the record of `spec`, whose program is `program`: a hash of all inputs of a runner.
pub(super) fn key(spec: &StdioConfig, program: &Path) -> String {
    let mut hash = Sha256::new();
    let mut add = |part: &[u8]| {
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    };
    add(program.as_os_str().as_encoded_bytes());
    add(spec.cwd.as_os_str().as_encoded_bytes());
    spec.args.iter().for_each(|word| add(word.as_bytes()));
    let related = |name: &str| !UNRELATED.iter().any(|unrelated| name.starts_with(unrelated));
    for (name, value) in spec.env.iter().filter(|(name, _)| related(name)) {
        add(name.as_bytes());
        add(value.as_bytes());
    }
    short_hex(hash)
}

impl Record {
    /// Makes the record of `seen`, the program that `runner` came to when it was started from `path` with `spec`.
    ///
    /// # Errors
    /// Why that cannot be started without its runner.
    pub(super) fn make(
        runner: &Runner,
        path: &Path,
        spec: &StdioConfig,
        seen: ObservedProcess,
        secrets: &Secrets,
    ) -> Result<Self, String> {
        let program = program_of(&seen).ok_or("its program has changed its name, or was removed")?;
        let given = spec.args.get(runner.rest..).unwrap_or_default();
        let own = seen.argv.get(1..).unwrap_or_default();
        let words = own.strip_suffix(given).ok_or("the runner changes the arguments")?.to_vec();
        let theirs = |name: &str| OF_THE_RUNNER.contains(&name);
        let set: BTreeMap<String, String> = seen
            .env
            .iter()
            .filter(|(name, value)| !theirs(name) && spec.env.get(*name) != Some(*value))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        let unset = spec.env.keys().filter(|name| !theirs(name) && !seen.env.contains_key(*name));
        let unset = unset.cloned().collect();
        let open = |text: &str| secrets.hide(text) == text;
        let stored = words.iter().chain(set.values()).map(String::as_str);
        if !stored.chain(program.to_str()).all(open) || set.keys().any(|name| secret_name(name)) {
            return Err("the runner puts a secret into what it starts".to_owned());
        }
        let files = words.iter().map(|word| seen.cwd.join(word)).filter(|file| file.is_file());
        let files: Vec<PathBuf> = [program.clone()].into_iter().chain(files).collect();
        if runner.name == "uv run" && proof::has_unlisted_files(spec, &seen) {
            return Err("its project depends on files of others".to_owned());
        }
        let proofs = proof::of(runner, path, spec, &seen, &files);
        let made = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let cwd = Some(seen.cwd).filter(|cwd| spec.cwd.canonicalize().ok().as_ref() != Some(cwd));
        let rest = runner.rest;
        Ok(Self { schema: SCHEMA, made, program, words, rest, cwd, set, unset, proofs, runner_time: None })
    }

    /// Whether it can be gone by at `now`: every file is as it was, and it is not too old for a package of that
    /// freshness.
    pub(super) fn holds(&self, freshness: Freshness, now: SystemTime) -> bool {
        let made = UNIX_EPOCH.checked_add(Duration::from_secs(self.made));
        // A record from the future comes from a clock that was wrong.
        let age = made.and_then(|made| now.duration_since(made).ok());
        let young = age.is_some_and(|age| age < MAX_AGE || freshness == Freshness::Pinned);
        self.schema == SCHEMA && young && !self.proofs.is_empty() && self.proofs.iter().all(Proof::holds)
    }

    /// Whether any of the files was put there after `moment`.
    pub(super) fn changed_since(&self, moment: SystemTime) -> bool {
        self.proofs.iter().any(|proof| proof.changed_since(moment))
    }

    /// `spec` with the program in place of its runner.
    pub(super) fn applied_to(&self, spec: &StdioConfig) -> Option<StdioConfig> {
        let mut direct = spec.clone();
        direct.command.clone_from(&self.program);
        direct.args = self.words.iter().chain(spec.args.get(self.rest..)?).cloned().collect();
        direct.cwd = self.cwd.clone().unwrap_or_else(|| spec.cwd.clone());
        let env = Arc::make_mut(&mut direct.env);
        env.retain(|name, _| !self.unset.contains(name));
        env.extend(self.set.clone());
        Some(direct)
    }

    /// The program and its arguments up to those of the configuration.
    pub(super) fn words(&self) -> Vec<String> {
        [self.program.display().to_string()].into_iter().chain(self.words.iter().cloned()).collect()
    }
}

/// The path that a process was started by: a Python finds its packages by it, so the executable behind its
/// symbolic links is not the same.
pub(super) fn program_of(seen: &ObservedProcess) -> Option<PathBuf> {
    let called = Path::new(seen.argv.first()?);
    let is_it = |path: &PathBuf| path.canonicalize().is_ok_and(|path| path == seen.exe);
    if called.components().count() > 1 {
        return Some(seen.cwd.join(called)).filter(is_it);
    }
    let path: &OsStr = seen.env.get("PATH")?.as_ref();
    std::env::split_paths(path).map(|folder| seen.cwd.join(folder).join(called)).find(is_it)
}

/// Entry of the fuzz target `records`: reads a record of a package.
pub fn fuzz(bytes: &[u8]) {
    if let Ok(record) = serde_json::from_slice::<Record>(bytes) {
        let spec = StdioConfig::new("/bin/true", Vec::new(), Path::new("/"));
        let _ =
            (record.holds(Freshness::Pinned, SystemTime::now()), record.words(), record.applied_to(&spec));
        let _ = record.changed_since(SystemTime::now());
    }
}

#[cfg(test)]
mod tests;
