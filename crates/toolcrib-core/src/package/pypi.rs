//! Finds packages of a Python environment: that of a project, of uv or pipx for one tool, of a user, of the system.
//!
//! Each has a folder `NAME-VERSION.dist-info` beside its modules, with a list of its files (`RECORD`) and its own name
//! and version (`METADATA`): <https://packaging.python.org/en/latest/specifications/recording-installed-packages/>.

use std::path::{Path, PathBuf};

use super::{Ecosystem, Package};
use crate::bounded::{self, MAX_ENTRIES};

/// Bytes of `METADATA` that are read: its head, which comes before the description.
const MAX_HEAD: u64 = 256 << 10;
/// Bytes of all file lists of an environment that are read. That of a package with 10,000 files has some 1.5 MiB.
const MAX_LISTS: u64 = 64 << 20;
/// Folders of Python's versions in one `lib`.
const MAX_VERSIONS: usize = 32;

/// The package that has put `script` into the `bin` folder of its environment.
pub(super) fn of_script(script: &Path) -> Option<Package> {
    let bin = script.parent().filter(|folder| folder.ends_with("bin"))?;
    let name = script.file_name()?.to_str()?;
    let wanted = format!("/bin/{name}");
    only(bin.parent()?, |_, file| file.ends_with(&wanted) && file.starts_with(['.', '/']))
}

/// The package with `module`, run with `-m` by `python` in `cwd`. Its folder comes before all packages.
pub(super) fn of_module(python: &Path, module: &str, cwd: &Path) -> Option<Package> {
    let top = module.split('.').next()?;
    if cwd.join(top).is_dir() || cwd.join(top).with_extension("py").is_file() {
        return None;
    }
    let path = module.replace('.', "/");
    let files = [format!("{path}.py"), format!("{path}/__main__.py"), format!("{path}/__init__.py")];
    // One that is edited in place lists none of its modules.
    let named = |package: &str| normal(package) == normal(top);
    only(python.parent()?.parent()?, |package, file| files.iter().any(|own| own == file) || named(package))
}

/// The package below `prefix` of which `owns` holds, by its name and one of its files. `None` if there are several:
/// then which one is started depends on more than is looked at. Nor if there is more than is read.
fn only(prefix: &Path, owns: impl Fn(&str, &str) -> bool) -> Option<Package> {
    let mut left = MAX_LISTS;
    let mut first: Option<Package> = None;
    for folder in packages(prefix)? {
        let Some(package) = describe(&folder) else { continue };
        let record = bounded::beginning(&folder.join("RECORD"), left).unwrap_or_default();
        left = left.checked_sub(record.len() as u64).filter(|left| *left > 0)?;
        let record = String::from_utf8_lossy(&record);
        // A row: path, hash, size. Paths with a comma are quoted, and none of those is wanted.
        let mut files = record.lines().filter_map(|row| row.split(',').next()).chain([""]);
        if !files.any(|file| owns(&package.name, file)) {
            continue;
        }
        if first.as_ref().is_some_and(|first| *first != package) {
            return None;
        }
        first = Some(package);
    }
    first
}

/// The folders that describe installed packages. `None` if they are too many.
fn packages(prefix: &Path) -> Option<Vec<PathBuf>> {
    let is_python =
        |lib: &PathBuf| lib.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"py"));
    let libs: Vec<PathBuf> =
        bounded::entries(&prefix.join("lib")).ok()?.into_iter().filter(is_python).collect();
    if libs.len() > MAX_VERSIONS {
        return None;
    }
    let mut packages = Vec::new();
    // Debian has a name of its own for it.
    for site in libs.iter().flat_map(|lib| ["site-packages", "dist-packages"].map(|name| lib.join(name))) {
        if !site.is_dir() {
            continue;
        }
        let entries = bounded::entries(&site).ok()?;
        packages.extend(
            entries.into_iter().filter(|path| path.extension().is_some_and(|ending| ending == "dist-info")),
        );
    }
    (packages.len() <= MAX_ENTRIES).then_some(packages)
}

/// The head of its `METADATA`, which has the form of a mail.
fn describe(folder: &Path) -> Option<Package> {
    let text = bounded::beginning(&folder.join("METADATA"), MAX_HEAD).ok()?;
    let text = String::from_utf8_lossy(&text);
    let head = || text.lines().take_while(|line| !line.is_empty());
    let field = |name: &str| Some(head().find_map(|line| line.strip_prefix(name))?.trim().to_owned());
    Some(Package::new(Ecosystem::PyPi, field("Name:")?, field("Version:")?))
}

/// Normalizes a name for comparison: <https://packaging.python.org/en/latest/specifications/name-normalization/>.
fn normal(name: &str) -> String {
    let parts = name.split(['-', '_', '.']).filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("-").to_ascii_lowercase()
}
