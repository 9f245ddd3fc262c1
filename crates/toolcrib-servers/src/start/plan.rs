//! The history of one server before its start, and what the start adds to it.

use std::time::Duration;

use super::{
    history::{History, LIGHT, Start, fingerprint, package_key},
    package::package,
};
use crate::{
    config::{Endpoint, ServerConfig},
    process::cpu_time,
    session::FirstStartInfo,
};

/// How much longer than the quickest one a start may take that is held up by others, and by nothing else.
const USUAL: u32 = 10;

/// One server, as the history knows it.
pub(super) struct Plan {
    /// Whether its start takes CPU time of this machine, as far as is known.
    pub(super) works: bool,
    /// The time that it is expected to take from its own turn, by earlier starts.
    pub(super) expected: Option<Duration>,
    /// Whether it was forked from a template the last time that it could be.
    pub(super) forked: bool,
    /// Whether it is known to leave `server/discover` without an answer.
    pub(super) mute: bool,
    /// A package that a runner may have to install.
    pub(super) package: Option<Package>,
    /// Its name in the history. `None` without a process: there is nothing to learn.
    key: Option<String>,
}

/// A package and the runner that installs it.
pub(super) struct Package {
    /// Its name in the history.
    pub(super) key: String,
    /// The runner and its arguments, for people.
    pub(super) words: String,
}

impl Plan {
    pub(super) fn new(config: &ServerConfig, history: &History) -> Self {
        let Endpoint::Stdio(spec) = &config.endpoint else {
            return Self {
                works: false,
                expected: None,
                forked: false,
                mute: false,
                package: None,
                key: None,
            };
        };
        let key = fingerprint(spec);
        // Without a network nothing is downloaded, and nothing is worth the wait for that.
        let package = package(spec)
            .filter(|_| spec.has_network())
            .map(|words| Package { key: package_key(&words, spec), words });
        let (expected, mute) = (history.expected(&key), history.is_mute(&key));
        let (works, forked) = (!history.uses_little_cpu(&key), history.was_forked(&key));
        Self { works, expected, forked, mute, package, key: Some(key) }
    }

    /// Adds a start to the history; without `started`, one that failed.
    pub(super) fn learn(&self, history: &History, started: Option<&FirstStartInfo>) {
        if let (Some(key), Some(_)) = (&self.key, started.filter(|started| started.is_forked)) {
            history.forked(key);
        } else if let (Some(key), Some(started)) = (&self.key, started) {
            let took = started.phases.took();
            // A look costs as much as a tenth of a quick start. What is over so soon took little; and of one that is
            // known to take little, only a start that took far longer than before could tell anything new.
            let usual = self.expected.map_or(Duration::ZERO, |expected| expected.max(LIGHT) * USUAL);
            let cpu = if took <= LIGHT {
                Some(took)
            } else if !self.works && took <= usual {
                None
            } else {
                started.pid.and_then(cpu_time)
            };
            let not_forked = started.not_forked.is_some();
            history.started(key, Start { took, cpu, mute: started.mute, not_forked });
        }
        match (&self.package, started) {
            (Some(package), Some(_)) => history.installed(&package.key),
            (Some(package), None) => history.failed(&package.key),
            (None, _) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::{Sandbox, StdioConfig},
        session::Phases,
        tool::ServerName,
    };

    #[test]
    fn a_fork_teaches_nothing_about_an_ordinary_start() {
        let folder = tempfile::tempdir().unwrap();
        let spec = StdioConfig::new("python3", vec!["server.py".to_owned()], "/");
        let config = ServerConfig::new(ServerName::new("one").unwrap(), Endpoint::Stdio(spec));
        let start = |spawn, template, is_forked| {
            let history = History::open(Some(folder.path()));
            let plan = Plan::new(&config, &history);
            let millis = Duration::from_millis;
            let (queue, spawn, template) = (millis(template * 2), millis(spawn), millis(template));
            let phases = Phases { queue, template, spawn, ..Phases::default() };
            let started = FirstStartInfo {
                pid: None,
                version: String::new(),
                phases,
                tools: 0,
                oddities: Vec::new(),
                software: None,
                changes: None,
                launch: None,
                is_forked,
                not_forked: (!is_forked).then(String::new),
                mute: false,
            };
            plan.learn(&history, Some(&started));
            history.save();
            let learnt = Plan::new(&config, &History::open(Some(folder.path())));
            assert_eq!(learnt.forked, is_forked);
            learnt.expected
        };
        let expected = Some(Duration::from_millis(800));
        assert_eq!(start(800, 0, false), expected);
        assert_eq!(start(40, 0, true), expected);
        assert_eq!(start(40, 500, true), expected);
        // The template was late: the wait is no part of what the server takes, nor is that for a slot.
        assert_eq!(start(700, 500, false), Some(Duration::from_millis(700)));
    }

    #[test]
    fn a_runner_without_a_network_installs_nothing() {
        let installs = |sandbox: Option<Sandbox>| {
            let mut spec = StdioConfig::new("npx", vec!["-y".to_owned(), "some".to_owned()], "/");
            spec.sandbox = sandbox;
            let config = ServerConfig::new(ServerName::new("one").unwrap(), Endpoint::Stdio(spec));
            Plan::new(&config, &History::open(None)).package.is_some()
        };
        let network = |network| Some(Sandbox { network, ..Sandbox::default() });
        assert_eq!([installs(None), installs(network(true)), installs(network(false))], [true, true, false]);
    }
}
