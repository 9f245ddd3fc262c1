//! Packages of a Python environment: that of a project, of uv or pipx for one tool, of a user, of the system.
//!
//! Each has a folder `NAME-VERSION.dist-info` beside its modules, with a list of its files (`RECORD`) and its own name
//! and version (`METADATA`): <https://packaging.python.org/en/latest/specifications/recording-installed-packages/>.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{Ecosystem, Package};

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

/// The package below `prefix` of which `owns` holds, by its name and one of its files. Nothing if there are several:
/// then which one is started depends on more than is looked at.
fn only(prefix: &Path, owns: impl Fn(&str, &str) -> bool) -> Option<Package> {
    let mut owners = packages(prefix).into_iter().filter_map(|folder| {
        let package = describe(&folder)?;
        let record = fs::read_to_string(folder.join("RECORD")).unwrap_or_default();
        // A row: path, hash, size. Paths with a comma are quoted, and none of those is wanted.
        let files = record.lines().filter_map(|row| row.split(',').next());
        files.chain([""]).any(|file| owns(&package.name, file)).then_some(package)
    });
    let first = owners.next()?;
    owners.all(|other| other == first).then_some(first)
}

/// The folders that describe installed packages.
fn packages(prefix: &Path) -> Vec<PathBuf> {
    let entries = |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().flatten();
    let sites = entries(prefix.join("lib"))
        .filter(|lib| lib.file_name().to_string_lossy().starts_with("py"))
        // Debian has a name of its own for it.
        .flat_map(|lib| ["site-packages", "dist-packages"].map(|name| lib.path().join(name)));
    let all = sites.flat_map(entries).map(|entry| entry.path());
    all.filter(|path| path.extension().is_some_and(|ending| ending == "dist-info")).collect()
}

/// The head of its `METADATA`, which has the form of a mail.
fn describe(folder: &Path) -> Option<Package> {
    let text = fs::read_to_string(folder.join("METADATA")).ok()?;
    let head = || text.lines().take_while(|line| !line.is_empty());
    let field = |name: &str| Some(head().find_map(|line| line.strip_prefix(name))?.trim().to_owned());
    Some(Package::new(Ecosystem::PyPi, field("Name:")?, field("Version:")?))
}

/// As names are compared: <https://packaging.python.org/en/latest/specifications/name-normalization/>.
fn normal(name: &str) -> String {
    let parts = name.split(['-', '_', '.']).filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("-").to_ascii_lowercase()
}
