//! Finds packages in a `node_modules` folder: of a project, of all users, of npx, of pnpm.

use std::path::Path;

use serde::Deserialize;

use super::{Ecosystem, Package};
use crate::bounded;

/// Longest `package.json` that is read. Those of published packages have some KiB.
const MAX_MANIFEST: u64 = 1 << 20;

/// The members of a `package.json` that are read.
#[derive(Deserialize)]
struct Manifest {
    name: String,
    version: String,
}

/// The package that a file belongs to. `file` is a path without symbolic links: those of `node_modules/.bin` and of
/// pnpm lead to it.
pub(super) fn of(file: &Path) -> Option<Package> {
    let modules = file.ancestors().find(|folder| folder.ends_with("node_modules"))?;
    let mut parts = file.strip_prefix(modules).ok()?.components();
    let first = parts.next()?.as_os_str();
    let folder = match first.to_str()?.starts_with('@') {
        true => modules.join(first).join(parts.next()?),
        false => modules.join(first),
    };
    let text = bounded::read(&folder.join("package.json"), MAX_MANIFEST).ok()?;
    let Manifest { name, version } = serde_json::from_slice(&text).ok()?;
    Some(Package::new(Ecosystem::Npm, name, version))
}
