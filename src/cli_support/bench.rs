//! Parts that the measurements of `toolcrib bench` and `toolcrib-lab bench` share.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

pub use crate::report::at_percent;
use crate::{
    config::{Config, Scope},
    manager::{Borrower, Loan, Manager},
    session::{ServerState, ServerStatus},
};

/// How long the spares of one task may take to come back before something is broken.
const LIMIT: Duration = Duration::from_secs(120);

/// These times, the shortest first.
pub fn sorted(times: impl Iterator<Item = Duration>) -> Vec<Duration> {
    let mut times: Vec<Duration> = times.collect();
    times.sort();
    times
}

/// The middle of sorted times; zero of none.
pub fn median(times: &[Duration]) -> Duration {
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// CPU time of this process so far.
pub fn own_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

/// A folder of our own for what a measurement writes, removed with its owner.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes it in the folder for temporary files.
    pub fn new() -> std::io::Result<Self> {
        let folder = std::env::temp_dir().join(format!("toolcrib-bench-{:016x}", fastrand::u64(..)));
        std::fs::create_dir(&folder)?;
        Ok(Self(folder))
    }

    /// The path of a file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Has every task of `config` given servers of its own, of which so many wait for the next one.
pub fn keep_spares(config: &mut Config, spares: usize) {
    for server in config.servers.values_mut().filter_map(|entry| entry.server.as_mut().ok()) {
        (server.scope, server.spares) = (Scope::Task, spares);
    }
}

/// Waits until every server that can be started has its spares.
pub async fn wait_for_spares(manager: &Manager, spares: usize) -> anyhow::Result<()> {
    let deadline = Instant::now() + LIMIT;
    let short = |row: &ServerStatus| row.state != ServerState::Failed && row.spares < spares;
    while let Some(short) = manager.status().into_iter().find(short) {
        anyhow::ensure!(Instant::now() < deadline, "`{}` has no spare: {:?}", short.name, short.error);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// Does what a task does before its first request to a model; returns the loan and the time that it took.
pub fn take_spares(manager: &Manager) -> (Loan, Duration) {
    let began = Instant::now();
    let loan = manager.lend(Borrower::Task);
    std::hint::black_box(loan.toolbox().catalog());
    let took = began.elapsed();
    (loan, took)
}
