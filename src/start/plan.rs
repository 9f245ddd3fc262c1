//! What is known of one server before its start, and what its start adds to that.

use std::time::Duration;

use super::{
    history::{History, fingerprint, package_key},
    package::package,
};
use crate::{
    config::{Endpoint, ServerConfig},
    session::Started,
};

/// One server, as the history knows it.
pub(super) struct Plan {
    /// Whether it is a process of its own.
    pub(super) process: bool,
    /// What earlier starts took, from its own turn.
    pub(super) expected: Option<Duration>,
    /// It is known to leave `server/discover` without an answer.
    pub(super) mute: bool,
    /// What a package runner may have to install.
    pub(super) package: Option<Package>,
    /// Its name in the history. Nothing without a process: there is nothing to learn.
    key: Option<String>,
}

/// A package and the runner that installs it.
pub(super) struct Package {
    /// Its name in the history.
    pub(super) key: String,
    /// The runner and what it is told, for people.
    pub(super) words: String,
}

impl Plan {
    pub(super) fn new(config: &ServerConfig, history: &History) -> Self {
        let Endpoint::Stdio(spec) = &config.endpoint else {
            return Self { process: false, expected: None, mute: false, package: None, key: None };
        };
        let key = fingerprint(spec);
        let package = package(spec).map(|words| Package { key: package_key(&words, spec), words });
        let (expected, mute) = (history.expected(&key), history.is_mute(&key));
        Self { process: true, expected, mute, package, key: Some(key) }
    }

    /// Adds a start to the history; without `started`, one that failed.
    pub(super) fn learn(&self, history: &History, started: Option<&Started>) {
        if let (Some(key), Some(started)) = (&self.key, started) {
            history.started(key, started.phases.total(), started.mute);
        }
        match (&self.package, started) {
            (Some(package), Some(_)) => history.installed(&package.key),
            (Some(package), None) => history.failed(&package.key),
            (None, _) => {}
        }
    }
}
