//! In place of `import` in a build without the feature `import`: an `import` of a configuration is an error.

#![allow(
    clippy::unnecessary_wraps,
    clippy::unused_async,
    clippy::unused_self,
    reason = "as in the module that it replaces"
)]

use std::path::{Path, PathBuf};

use super::{contents::Contents, raw::RawServer, source_location::SourceLocation};
use crate::{config::env::Env, error::Result, tool::ServerName};

/// Where an `import` entry leads.
pub(super) enum ImportSource {
    File(SourceLocation),
    Absent(String),
}

/// One server of a foreign file.
pub(super) struct Foreign {
    pub(super) name: ServerName,
    server: RawServer,
}

impl Foreign {
    pub(super) fn required(&self) -> bool {
        false
    }

    pub(super) fn read(self, _: &SourceLocation) -> Result<RawServer> {
        Ok(self.server)
    }
}

pub(super) fn find(source: &str, _: &Path, _: &Env) -> Result<ImportSource, (String, String)> {
    let what = format!("cannot import {source}: imports are not part of this build");
    Err((what, "build toolcrib with the cargo feature `import`".to_owned()))
}

pub(super) fn places(_: &str, _: &Env) -> Vec<PathBuf> {
    Vec::new()
}

pub(crate) fn files_of_clients(_: &Env) -> Vec<PathBuf> {
    Vec::new()
}

pub(super) fn read(
    _: &SourceLocation,
    _: &Path,
    _: &mut Vec<String>,
    _: &mut Contents,
) -> Result<Vec<Foreign>> {
    Ok(Vec::new())
}
