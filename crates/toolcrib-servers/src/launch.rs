//! Direct launch: starts the program that a package runner would start, without the runner.
//!
//! `npx`, `uvx` and their like look for a package, install it if need be, and start its program as their child;
//! that costs more than the program's own start. At the first start the runner is used, and the program that it starts
//! is
//! observed once the server is ready (`observe`), and kept as a record with proof that it still holds
//! (`record`). As long as every proof holds the program is started directly, with the same arguments, folder
//! and environment. In doubt the runner is used (`runner` has the rules).
//!
//! Owner of: the folder of records. Invariants:
//! - nothing is started here: a record is turned into a [`StdioConfig`], and the session starts that;
//! - no secret value is stored; a resolution that would need one is not kept;
//! - a broken, foreign or outdated record is ignored;
//! - a server in a sandbox has no record and is not inspected, because the server controls what can be seen of it.

mod caches;
mod observe;
mod record;
mod runner;

pub use self::record::fuzz as fuzz_record;

use std::{
    borrow::Cow,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};

pub use self::runner::{Freshness, Runner};
use self::{caches::Caches, record::Record};
use crate::{
    config::{Secrets, StdioConfig},
    package::{self, Package},
    process::find_program,
    record_folder::RecordFolder,
};

/// How a server behind a package runner was started.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LaunchReport {
    /// The runner: `npx`, `uvx`, `uv run`, `pipx run`.
    pub runner: Cow<'static, str>,
    /// Whether its program was started without it.
    pub direct: bool,
    /// The program, and its arguments up to those of the configuration, which may be secret. `None`: not known.
    pub program: Option<Vec<String>>,
    /// Duration of a start through the runner when nothing had to be installed. `None`: it is not known.
    #[serde(rename = "runner_ms", with = "crate::task::millis::optional")]
    pub runner_time: Option<Duration>,
    /// Whether this start installed the package, or changed the installed one.
    pub installed: bool,
    /// Why it will not be started directly the next time.
    pub doubt: Option<String>,
    /// The failure of the direct start, if it was started through the runner after one.
    pub failed: Option<String>,
}

/// Where resolutions are kept. A cheap handle.
#[derive(Clone, Debug)]
pub struct Launcher {
    caches: Option<Caches>,
    records: Option<RecordFolder>,
}

/// A process that a runner was started as.
#[derive(Debug, Clone, Copy)]
pub struct RunnerProcess {
    pub pid: u32,
    /// The pipe that is its standard input.
    pub input: Option<u64>,
}

/// A start through a runner, or in place of one.
#[derive(Debug)]
pub(crate) struct Launch {
    runner: Runner,
    program: PathBuf,
    began: SystemTime,
    records: RecordFolder,
    key: String,
    known: Option<Record>,
}

impl LaunchReport {
    /// Time saved against a start through the runner, if this one `took` so long. `None`: it was not direct, or the other
    /// duration is unknown or shorter.
    pub fn saved(&self, took: Duration) -> Option<Duration> {
        self.runner_time.filter(|_| self.direct)?.checked_sub(took)
    }
}

impl Launcher {
    /// Keeps resolutions in `launch` below `cache`; without a folder, none.
    pub fn new(cache: Option<&Path>) -> Self {
        Self {
            caches: cache.map(Caches::new),
            records: cache.map(|cache| RecordFolder::new(cache.join("launch"))),
        }
    }

    /// `spec` with its interpreter let keep what it compiles. `None` where it cannot or may not.
    pub(crate) fn with_caches(&self, spec: &StdioConfig) -> Option<StdioConfig> {
        self.caches.as_ref()?.with(spec)
    }

    /// Whether `spec` may be started without its runner at all. Looks at no file.
    pub(crate) fn concerns(&self, spec: &StdioConfig) -> bool {
        self.records.is_some() && replaceable_runner(spec).is_some()
    }

    /// The launch of `spec`, whose `program` was looked up already, with the record of it if there is one. `None`: it is no
    /// runner, or is to be left to its runner. Reads a file and looks at some dozen others.
    pub(crate) fn plan(&self, spec: &StdioConfig, program: &Path) -> Option<Launch> {
        let runner = replaceable_runner(spec)?;
        let records = self.records.clone()?;
        let key = record::key(spec, program);
        let known =
            records.load::<Record>(&key).filter(|record| record.holds(runner.freshness, SystemTime::now()));
        Some(Launch { runner, program: program.to_owned(), began: SystemTime::now(), records, key, known })
    }

    /// `configured` as it is started if nothing prevents that: with its caches, and without its runner. Looks at files. `None`: only
    /// the runner knows.
    pub(crate) fn resolved(&self, configured: &StdioConfig) -> Option<StdioConfig> {
        let cached = self.with_caches(configured).unwrap_or_else(|| configured.clone());
        if !self.concerns(&cached) {
            return Some(cached);
        }
        let program = find_program(&cached).ok()?;
        self.plan(&cached, &program)?.direct(&cached)
    }

    /// The installed package that `spec` starts. What a runner has started is seen below its process and by its pipe,
    /// `live`; without them only what it was seen to start before. `None`: unknown. Reads files.
    pub fn package(&self, spec: &StdioConfig, live: Option<RunnerProcess>) -> Option<Package> {
        let cached = self.with_caches(spec);
        let spec = cached.as_ref().unwrap_or(spec);
        let program = find_program(spec).ok()?;
        let Some(runner) = Runner::of(&spec.command, &spec.args) else {
            return package::of(&program, &spec.args, &spec.cwd);
        };
        if let Some(direct) = self.plan(spec, &program).and_then(|launch| launch.direct(spec)) {
            return package::of(&direct.command, &direct.args, &direct.cwd);
        }
        // Of a server in a sandbox all of it would be its own words.
        let live = live.filter(|_| spec.sandbox.is_none())?;
        let seen = observe::look(&runner, live).ok()?;
        package::of(&record::program_of(&seen)?, seen.argv.get(1..)?, &seen.cwd)
    }

    /// Drops what is known of `spec`: the next start goes through the runner.
    pub fn forget(&self, spec: &StdioConfig, program: &Path) {
        if let Some(records) = &self.records {
            records.remove(&record::key(self.with_caches(spec).as_ref().unwrap_or(spec), program));
        }
    }
}

/// The runner of `spec`, if it may be done without. That of a server in a sandbox may not: what it has started is known
/// by the server's own words (arguments, folder, environment), which would decide what the next start may reach.
fn replaceable_runner(spec: &StdioConfig) -> Option<Runner> {
    let runner = Runner::of(&spec.command, &spec.args).filter(|_| spec.sandbox.is_none())?;
    (spec.direct && runner.freshness != Freshness::Newest).then_some(runner)
}

impl Launch {
    /// The start that replaces `spec`. `None`: it is not known.
    pub(crate) fn direct(&self, spec: &StdioConfig) -> Option<StdioConfig> {
        self.known.as_ref()?.applied_to(spec)
    }

    /// The report of a server that was started directly.
    pub(crate) fn report(&self) -> LaunchReport {
        let known = self.known.as_ref();
        LaunchReport {
            runner: self.runner.name.into(),
            direct: true,
            program: known.map(Record::words),
            runner_time: known.and_then(|record| record.runner_time),
            installed: false,
            doubt: None,
            failed: None,
        }
    }

    /// The program did not come up without its runner.
    pub(crate) fn forget(&self) {
        self.records.remove(&self.key);
    }

    /// Looks at what the runner, which is `live`, has started, and keeps it, without any of `secrets`. The server must
    /// be ready; that `took` so long.
    pub(crate) fn observe(
        &self,
        spec: &StdioConfig,
        secrets: &Secrets,
        live: RunnerProcess,
        took: Duration,
    ) -> LaunchReport {
        let seen = observe::look(&self.runner, live);
        let made = seen.and_then(|seen| Record::make(&self.runner, &self.program, spec, seen, secrets));
        let mut report = LaunchReport {
            runner: self.runner.name.into(),
            direct: false,
            program: None,
            runner_time: None,
            installed: false,
            doubt: None,
            failed: None,
        };
        match made {
            Ok(mut record) => {
                report.installed = record.changed_since(self.began);
                record.runner_time = Some(took).filter(|_| !report.installed);
                report.runner_time = record.runner_time;
                report.program = Some(record.words());
                if let Err(error) = self.records.save(&self.key, &record) {
                    report.doubt = Some(format!("the resolution could not be saved: {error}"));
                }
            }
            Err(doubt) => {
                self.records.remove(&self.key);
                report.doubt = Some(doubt);
            }
        }
        report
    }
}
