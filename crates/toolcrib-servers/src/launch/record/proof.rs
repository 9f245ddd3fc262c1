//! The files whose change may make a runner start another program: checked when a resolution is made, and again before
//! each start by it.

use std::{
    collections::BTreeSet,
    fs,
    io::ErrorKind,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{
    bounded,
    config::StdioConfig,
    launch::{Runner, observe::ObservedProcess},
    text::short_hex,
};

/// The files that decide what one runner starts.
struct Inputs {
    /// Files in the working directory and in those above it.
    project: &'static [&'static str],
    /// Below the home folder, and below those for configuration and data.
    home: &'static [&'static str],
    config: &'static [&'static str],
    data: &'static [&'static str],
    /// Variables that name a file or a folder.
    variables: &'static [&'static str],
}

const NPX: Inputs = Inputs {
    project: &["package.json", "package-lock.json", "node_modules/.package-lock.json", ".npmrc"],
    home: &[".npmrc"],
    config: &[],
    data: &[],
    variables: &["npm_config_userconfig", "NPM_CONFIG_USERCONFIG"],
};
const UV: Inputs = Inputs {
    project: &[
        "pyproject.toml",
        "setup.py",
        "setup.cfg",
        "uv.lock",
        "uv.toml",
        ".python-version",
        ".venv/pyvenv.cfg",
    ],
    home: &[],
    config: &["uv/uv.toml", "uv/.python-version"],
    data: &["uv/tools"],
    variables: &["UV_CONFIG_FILE", "UV_TOOL_DIR", "UV_ENV_FILE"],
};
/// Inputs of pipx: none, since the package is found by the program that was started.
const PIPX: Inputs = Inputs { project: &[], home: &[], config: &[], data: &[], variables: &[] };

/// Files that a runner may write anew at each start, with the same words: npx does so for a package with a range of versions.
const REWRITTEN: &[&str] =
    &["package.json", "package-lock.json", ".package-lock.json", "uv.lock", "pyvenv.cfg"];
/// Longest of them whose words are compared.
const MAX_REWRITTEN: u64 = 4 << 20;

/// Words in a `pyproject.toml` which show that uv looks at more than the files above.
const FURTHER: &[&str] = &["tool.uv.workspace", "tool.uv.sources", "cache-keys"];
/// Longest `pyproject.toml` that is read.
const MAX_PROJECT: u64 = 1 << 20;
/// Folders above the working directory that are looked at. A file system is hardly deeper.
const ABOVE: usize = 16;

/// How a file was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Proof {
    path: PathBuf,
    /// `None`: there was none.
    stamp: Option<Stamp>,
    /// The hash of its words, if runners write it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    words: Option<String>,
}

/// Metadata of a file, part of which changes whenever the file is replaced or written to; of a folder, whenever an entry comes
/// or goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Proof {
    fn of(path: PathBuf) -> Self {
        // Before the words: what is written in between is noticed.
        let stamp = Stamp::of(&path);
        let is_rewritten =
            path.file_name().and_then(|name| name.to_str()).is_some_and(|name| REWRITTEN.contains(&name));
        let words = stamp.as_ref().filter(|_| is_rewritten).and_then(|_| words(&path));
        Self { path, stamp, words }
    }

    /// Whether it is as it was, or has the same words.
    pub(super) fn holds(&self) -> bool {
        Stamp::of(&self.path) == self.stamp || self.words.is_some() && words(&self.path) == self.words
    }

    /// Whether it was put there, moved or written after `moment`. Of a file that runners write anew this says nothing.
    pub(super) fn changed_since(&self, moment: SystemTime) -> bool {
        if self.words.is_some() {
            return false;
        }
        let moment = moment.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.stamp.as_ref().is_some_and(|Stamp { changed: (seconds, nanos), .. }| {
            let nanos = u32::try_from(*nanos).unwrap_or(0);
            u64::try_from(*seconds).is_ok_and(|seconds| Duration::new(seconds, nanos) > moment)
        })
    }
}

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        let about = fs::metadata(path).ok()?;
        Some(Self {
            device: about.dev(),
            inode: about.ino(),
            // Of a folder it differs by file system, and follows the time of change.
            size: if about.is_dir() { 0 } else { about.size() },
            modified: (about.mtime(), about.mtime_nsec()),
            // A packer may set the time of modification; that of the change is the kernel's.
            changed: (about.ctime(), about.ctime_nsec()),
        })
    }
}

/// The hash of a file's words. `None`: it is not there, too long, or no text.
fn words(path: &Path) -> Option<String> {
    let text = bounded::read_text(path, MAX_REWRITTEN).ok()?;
    Some(short_hex(Sha256::new_with_prefix(text)))
}

/// Collects the proofs that `runner`, an executable at `path`, would start `seen` again. `files` are its program and its
/// scripts.
pub(super) fn of(
    runner: &Runner,
    path: &Path,
    spec: &StdioConfig,
    seen: &ObservedProcess,
    files: &[PathBuf],
) -> Vec<Proof> {
    let inputs = match runner.name {
        "npx" => NPX,
        "pipx run" => PIPX,
        _ => UV,
    };
    let mut paths = BTreeSet::from([path.to_owned(), seen.exe.clone()]);
    for file in files {
        paths.insert(file.clone());
        package(file, &mut paths);
        // Behind the links of `node_modules/.bin` is the package itself.
        if let Ok(real) = file.canonicalize() {
            package(&real, &mut paths);
            paths.insert(real);
        }
    }
    for folder in folders(spec, seen) {
        paths.extend(inputs.project.iter().map(|name| folder.join(name)));
    }
    let named = |variable: &&str| spec.env.get(*variable).map(|path| seen.cwd.join(path));
    paths.extend(inputs.variables.iter().filter_map(named));
    let home = spec.env.get("HOME").map(PathBuf::from);
    let below = |variable: &&str, name: &str| named(variable).or_else(|| Some(home.as_ref()?.join(name)));
    for (folder, names) in [
        (home.clone(), inputs.home),
        (below(&"XDG_CONFIG_HOME", ".config"), inputs.config),
        (below(&"XDG_DATA_HOME", ".local/share"), inputs.data),
    ] {
        paths.extend(folder.into_iter().flat_map(|folder| names.iter().map(move |name| folder.join(name))));
    }
    paths.into_iter().map(Proof::of).collect()
}

/// Whether `uv run` depends on files that cannot be listed here: those of other packages, or by patterns.
pub(super) fn has_unlisted_files(spec: &StdioConfig, seen: &ObservedProcess) -> bool {
    folders(spec, seen).any(|folder| match bounded::read_text(&folder.join("pyproject.toml"), MAX_PROJECT) {
        Ok(project) => FURTHER.iter().any(|word| project.contains(word)),
        // It is there, and not what a project has.
        Err(error) => error.kind() == ErrorKind::InvalidData,
    })
}

/// Where a project may be: the working directories before and after the runner, and those above them.
fn folders<'a>(spec: &'a StdioConfig, seen: &'a ObservedProcess) -> impl Iterator<Item = &'a Path> {
    [&spec.cwd, &seen.cwd].into_iter().flat_map(|folder| folder.ancestors().take(ABOVE))
}

/// Adds the files that describe the package of `file`: for npm its `package.json` and that of the installation around it; for
/// Python its environment and the folder of installed packages.
fn package(file: &Path, paths: &mut BTreeSet<PathBuf>) {
    for folder in file.ancestors().skip(1).take(ABOVE) {
        let own = folder.join("package.json");
        if own.is_file() {
            paths.insert(own);
        }
        if folder.file_name().is_some_and(|name| name == "node_modules") {
            paths.insert(folder.join(".package-lock.json"));
            let around = folder.parent().unwrap_or(folder);
            paths.extend(["package.json", "package-lock.json"].map(|name| around.join(name)));
            break;
        }
    }
    // PREFIX/bin/NAME, with PREFIX/lib/pythonX.Y/site-packages.
    let Some(prefix) = file.parent().and_then(Path::parent) else { return };
    let environment = prefix.join("pyvenv.cfg");
    if environment.is_file() {
        let versions = bounded::entries(&prefix.join("lib")).unwrap_or_default().into_iter();
        let packages = versions.map(|version| version.join("site-packages"));
        paths.extend(packages.filter(|packages| packages.is_dir()));
        paths.insert(environment);
    }
}
