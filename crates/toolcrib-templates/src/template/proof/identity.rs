//! Which server a proof is about: what would have to change for another one to come up.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use sha2::{Digest, Sha256};

use super::super::python::{Entry, PythonStart};
use crate::{
    bounded,
    config::{Secrets, StdioConfig},
    package::{self, Package},
    text::short_hex,
};

/// Packages that are remembered.
const MAX_KNOWN: usize = 1000;

/// A server, by the name of its record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(in crate::template) key: String,
    /// The name of the record of all servers of the package version that are started so, in whatever folder. `None`: it is of no
    /// package.
    pub(in crate::template) shared: Option<String>,
    /// Its package, or its script.
    pub words: String,
}

/// Knows the packages of servers: to find one means to read the lists of all packages of its environment. A cheap handle.
#[derive(Debug, Clone, Default)]
pub(in crate::template) struct Identities {
    known: Arc<Mutex<BTreeMap<String, Option<Package>>>>,
}

impl Identities {
    /// The identity of a start of `spec`. `configured` tells command lines apart as they are written, before the values of a task are
    /// put in. Looks at some files, the first time at many.
    pub(in crate::template) fn of(
        &self,
        spec: &StdioConfig,
        start: &PythonStart,
        configured: &str,
        secrets: &Secrets,
    ) -> Identity {
        let mut hash = Sha256::new();
        let mut add = |part: &[u8]| {
            hash.update(part.len().to_le_bytes());
            hash.update(part);
        };
        add(start.interpreter.as_os_str().as_encoded_bytes());
        add(stamp(&start.interpreter).as_bytes());
        for folder in package_folders(&start.interpreter) {
            add(folder.as_os_str().as_encoded_bytes());
            add(stamp(&folder).as_bytes());
        }
        let files = match &start.entry {
            Entry::Script(path) => {
                add(path.as_bytes());
                vec![PathBuf::from(path)]
            }
            // Those of the working directory come first.
            Entry::Module(name) => {
                add(name.as_bytes());
                let path = spec.cwd.join(name.replace('.', "/"));
                vec![path.with_extension("py"), path.join("__init__.py"), path.join("__main__.py")]
            }
        };
        for file in &files {
            add(stamp(file).as_bytes());
        }
        let installed = short_hex(hash.clone());
        let package = self.package(&installed, spec, start);
        let words = match (&package, &start.entry) {
            (Some(package), _) => package.to_string(),
            (None, Entry::Script(path)) => path.clone(),
            (None, Entry::Module(name)) => format!("module {name}"),
        };
        let mut hash = Sha256::new();
        for part in [&installed, &words, configured] {
            hash.update(part.len().to_le_bytes());
            hash.update(part);
        }
        let shared = package.map(|_| anywhere(&installed, &words, spec));
        Identity { key: short_hex(hash), shared, words: secrets.hide(&words) }
    }

    fn package(&self, installed: &str, spec: &StdioConfig, start: &PythonStart) -> Option<Package> {
        if let Some(known) = self.known().get(installed) {
            return known.clone();
        }
        let words: Vec<String> = match &start.entry {
            Entry::Module(name) => vec!["-m".to_owned(), name.clone()],
            Entry::Script(path) => vec![path.clone()],
        };
        let package = package::of(&start.interpreter, &words, &spec.cwd);
        let mut known = self.known();
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        known.insert(installed.to_owned(), package.clone());
        package
    }

    fn known(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Option<Package>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A start of `installed`, which is a package, by its arguments and environment: all but its folder.
fn anywhere(installed: &str, words: &str, spec: &StdioConfig) -> String {
    /// Variables that name the folder, or are those of a shell.
    const OF_THE_FOLDER: [&str; 4] = ["PWD", "OLDPWD", "SHLVL", "_"];
    let mut hash = Sha256::new();
    let mut add = |part: &str| {
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    };
    ["anywhere", installed, words].into_iter().for_each(&mut add);
    spec.args.iter().for_each(|word| add(word));
    for (name, value) in spec.env.iter().filter(|(name, _)| !OF_THE_FOLDER.contains(&name.as_str())) {
        add(name);
        add(value);
    }
    short_hex(hash)
}

/// When a file or a folder was changed last. Empty if there is none.
fn stamp(path: &Path) -> String {
    fs::metadata(path).map_or_else(
        |_| String::new(),
        |about| {
            let size = if about.is_dir() { 0 } else { about.size() };
            format!("{}.{} {size} {}", about.mtime(), about.mtime_nsec(), about.ino())
        },
    )
}

/// Where the packages of an interpreter are: PREFIX/lib/pythonX.Y/site-packages, and what Debian calls so.
fn package_folders(interpreter: &Path) -> Vec<PathBuf> {
    let Some(prefix) = interpreter.parent().and_then(Path::parent) else { return Vec::new() };
    let of_python =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"python"));
    let mut found: Vec<PathBuf> = ["lib", "local/lib"]
        .iter()
        .flat_map(|lib| bounded::entries(&prefix.join(lib)).unwrap_or_default())
        .filter(of_python)
        .flat_map(|lib| ["site-packages", "dist-packages"].map(|name| lib.join(name)))
        .filter(|folder| folder.is_dir())
        .collect();
    found.sort();
    found
}

#[cfg(test)]
impl Identity {
    pub(super) fn made(key: &str) -> Self {
        Self { key: key.to_owned(), shared: None, words: format!("script {key}") }
    }

    /// Gives it the package `shared`.
    pub(super) fn of_package(self, shared: &str) -> Self {
        Self { shared: Some(shared.to_owned()), ..self }
    }
}
